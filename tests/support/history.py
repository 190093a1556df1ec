"""What clients of a cluster did and were told, event by event, so that it can be judged later, and again.

    writers   Sent → Answered                  a value (unique in the history), and what became of it
              Ended                            a transaction, and what became of it
    readers   Read                             offsets and values, as they came; the last read of all is `final`
    brokers   Replica                          a replica's log in the end, batch by batch

Each event is a line of JSON. A value without an answer, and a transaction without an end, are of unknown outcome: the
client gave up, or was killed. Writers send no value twice, and are idempotent. history_check.py is the judge.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias


class Outcome(StrEnum):
    """What the client knows. A time-out is UNKNOWN: the request may have been carried out."""

    DONE = "done"  # acknowledged; committed
    UNDONE = "undone"  # refused, so nowhere; aborted
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sent:
    """A writer handed in a value. The order of these events is the order in which it did."""

    KIND: ClassVar = "sent"
    writer: str
    value: str
    partition: int | None = None  # None: the client chooses one
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What the writer was told of a value."""

    KIND: ClassVar = "answered"
    value: str
    outcome: Outcome
    partition: int | None = None
    offset: int | None = None  # None: not told, as for a batch that the broker had already


@dataclass(frozen=True, slots=True)
class Ended:
    """What the writer was told of a transaction."""

    KIND: ClassVar = "ended"
    transaction: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader got of a partition, in this order, after all that it got before.

    `final` ones begin with the first offset and go to the end; by then all is healed and no transaction is open.
    """

    KIND: ClassVar = "read"
    reader: str
    committed: bool
    partition: int
    records: tuple[tuple[int, str], ...]  # offset, value
    high_watermark: int | None = None  # as told with the records
    final: bool = False


class Batch(NamedTuple):
    """A batch of a replica."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    digest: str  # of all its bytes


@dataclass(frozen=True, slots=True)
class Replica:
    """The log of a partition on one broker, after the end."""

    KIND: ClassVar = "replica"
    broker: int
    partition: int
    batches: tuple[Batch, ...]


Event: TypeAlias = Sent | Answered | Ended | Read | Replica
_KINDS: dict[str, type[Event]] = {kind.KIND: kind for kind in (Sent, Answered, Ended, Read, Replica)}


def to_json(event: Event) -> str:
    """A line, without its end."""
    return json.dumps({"kind": event.KIND, **asdict(event)}, separators=(",", ":"))


def from_json(line: str) -> Event:
    fields: dict[str, Any] = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    if "outcome" in fields:
        fields["outcome"] = Outcome(fields["outcome"])
    if "records" in fields:
        fields["records"] = tuple((offset, value) for offset, value in fields["records"])
    if "batches" in fields:
        fields["batches"] = tuple(Batch(*batch) for batch in fields["batches"])
    return kind(**fields)


class HistoryFile:
    """Takes events from any thread; what it holds is whole lines once it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("x", encoding="utf-8")
        self._lock = threading.Lock()

    def add(self, *events: Event) -> None:
        """Write events, with nothing between them."""
        text = "".join(f"{to_json(event)}\n" for event in events)
        with self._lock:
            self._file.write(text)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def load(path: Path) -> Iterator[Event]:
    """The events of a file."""
    with path.open(encoding="utf-8") as lines:
        yield from from_lines(lines)


def from_lines(lines: Iterable[str]) -> Iterator[Event]:
    return (from_json(line) for line in lines if line.strip())
