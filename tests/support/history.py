"""The history of a test run: the requests of clients and their results, event by event, for history_check.py.

    writers   Sent → SendResult                a value (unique in the history), and its outcome
              Ended                            a transaction, and its outcome
    readers   Read                             offsets and values in the order read; the last read of all is `final`
    brokers   Replica                          the log of a replica at the end, batch by batch

Each event is a line of JSON. The outcome of a value without a result, or of a transaction without an end, is unknown:
the client gave up, or was killed. Writers are idempotent, and send each value once.
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
    """The outcome as the client knows it. After a time-out it is UNKNOWN: the request may have been executed."""

    DONE = "done"  # acknowledged; committed
    UNDONE = "undone"  # refused; aborted
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sent:
    """A writer sends a value. The events of a writer are in the order of its sends."""

    KIND: ClassVar = "sent"
    writer: str
    value: str
    partition: int | None = None  # None: the client chooses one
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send."""

    KIND: ClassVar = "result"
    value: str
    outcome: Outcome
    partition: int | None = None
    offset: int | None = None  # None: unknown, as for a duplicate batch


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a transaction, as its writer knows it."""

    KIND: ClassVar = "ended"
    transaction: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Read:
    """Records that a reader got from a partition, in this order.

    A `final` read has all records from the first offset to the end. It is done when all faults are healed and no
    transaction is open.
    """

    KIND: ClassVar = "read"
    reader: str
    committed: bool
    partition: int
    records: tuple[tuple[int, str], ...]  # offset, value
    high_watermark: int | None = None  # in the same response
    final: bool = False


class Batch(NamedTuple):
    """A batch of a replica."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    digest: str  # of all its bytes


@dataclass(frozen=True, slots=True)
class Replica:
    """The log of a partition on one broker, after the run."""

    KIND: ClassVar = "replica"
    broker: int
    partition: int
    batches: tuple[Batch, ...]


Event: TypeAlias = Sent | SendResult | Ended | Read | Replica
_KINDS: dict[str, type[Event]] = {kind.KIND: kind for kind in (Sent, SendResult, Ended, Read, Replica)}


def to_json(event: Event) -> str:
    """Return an event as a line of JSON, without the newline."""
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
    """A file of events. Thread-safe; complete when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("x", encoding="utf-8")
        self._lock = threading.Lock()

    def add(self, *events: Event) -> None:
        """Write events without others between them."""
        text = "".join(f"{to_json(event)}\n" for event in events)
        with self._lock:
            self._file.write(text)

    def flush(self) -> None:
        """Make what was added so far readable."""
        with self._lock:
            self._file.flush()

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
    """Yield the events of a file."""
    with path.open(encoding="utf-8") as lines:
        yield from from_lines(lines)


def from_lines(lines: Iterable[str]) -> Iterator[Event]:
    return (from_json(line) for line in lines if line.strip())
