"""The interface of foreign clients for tests.

Tests check the results, and the state of the broker with another client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.wire.layout import Record
from tests.support.peers.program import Program

RIDE_SECONDS_MAX = 120
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FACTS = (
    *("partitions", "retention", "altered", "grown", "listed", "gone", "offsets", "nodes", "controller"),
    *("group_listed", "group_state", "committed", "group_gone"),
)


class Rebalance(NamedTuple):
    """Which partitions members of a group had, and what they read together."""

    alone: list[int]  # of the first member, before the second joined
    shared: list[list[int]]  # of both
    again: list[int]  # of the first, after the second left
    values: list[str]


class Noted(NamedTuple):
    """A number that was written or read, and where."""

    number: int
    partition: int
    offset: int  # negative if the client does not know it


class Ride(NamedTuple):
    """The numbers that a client wrote and read during broker failures."""

    acknowledged: list[Noted]
    errors: list[str]
    consumed: list[Noted]


class Rider(Protocol):
    """A foreign client that runs during broker failures."""

    def ride(self, bootstrap: str, topic: str, group: str, partitions: int, stop: Path) -> Ride:
        """Write numbers from 0 on, idempotently and with acks=all, and read them in a group.

        It ends when the file `stop` exists and the reader has all acknowledged numbers.
        """


class Client(Protocol):
    """A client of other people's."""

    codecs: Sequence[str]
    """The codecs it can write and read as it is installed."""
    facts: Sequence[str]
    """What its admin client can tell or do: the keys of what `administer` returns."""

    def produce(self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none") -> list[int]:
        """Send records to partition 0, and return their offsets."""

    def consume(
        self, bootstrap: str, topic: str, count: int, *, isolation: str = "read_uncommitted"
    ) -> Sequence[Record]:
        """The first `count` records of partition 0."""

    def rebalance(self, bootstrap: str, topic: str, group: str, partitions: int, count: int) -> Rebalance:
        """Read all `count` records of a topic in a group, with a member that joins late and leaves early.

        The second member leaves when both have partitions; the first reads all records, and commits.
        """

    def transform(
        self, bootstrap: str, source: str, target: str, group: str, transactional_id: str, count: int
    ) -> int | None:
        """Read `count` records in a group and write their values in upper case, with the offsets in the transaction.

        The first transaction is aborted; then the same records are read and written again, and committed. Returns
        the group's offset in partition 0 between the two: there must be none.
        """

    def close(self) -> None:
        """End what runs for it."""

    def administer(self, bootstrap: str, topic: str, filled: str, group: str) -> Mapping[str, Any]:
        """Create, alter and delete `topic`; delete records of `filled`; describe and delete `group`."""


class ProgramClient:
    """A client that is a separate program."""

    codecs: Sequence[str] = CODECS
    facts: Sequence[str] = FACTS

    def __init__(self, program: Program) -> None:
        self._program = program

    def close(self) -> None:
        self._program.close()

    def produce(self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none") -> list[int]:
        sent = [_to_json(record) for record in records]
        response = self._program("produce", bootstrap=bootstrap, topic=topic, records=sent, codec=codec)
        return list(response["offsets"])

    def consume(
        self, bootstrap: str, topic: str, count: int, *, isolation: str = "read_uncommitted"
    ) -> Sequence[Record]:
        response = self._program("consume", bootstrap=bootstrap, topic=topic, count=count, isolation=isolation)
        return [_from_json(record) for record in response["records"]]

    def rebalance(self, bootstrap: str, topic: str, group: str, partitions: int, count: int) -> Rebalance:
        return Rebalance(
            **self._program(
                "rebalance", bootstrap=bootstrap, topic=topic, group=group, partitions=partitions, count=count
            )
        )

    def transform(
        self, bootstrap: str, source: str, target: str, group: str, transactional_id: str, count: int
    ) -> int | None:
        response = self._program(
            "transform",
            bootstrap=bootstrap,
            source=source,
            target=target,
            group=group,
            transactional_id=transactional_id,
            count=count,
        )
        offset = response["after_abort"]
        return None if offset is None else int(offset)

    def ride(self, bootstrap: str, topic: str, group: str, partitions: int, stop: Path) -> Ride:
        response = self._program(
            "ride",
            seconds_max=RIDE_SECONDS_MAX,
            bootstrap=bootstrap,
            topic=topic,
            group=group,
            partitions=partitions,
            stop=str(stop),
        )
        acknowledged, consumed = ([Noted(*row) for row in response[name]] for name in ("acknowledged", "consumed"))
        return Ride(acknowledged, response["errors"], consumed)

    def administer(self, bootstrap: str, topic: str, filled: str, group: str) -> Mapping[str, Any]:
        response = self._program("administer", bootstrap=bootstrap, topic=topic, filled=filled, group=group)
        assert isinstance(response, dict)
        return response


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "timestamp": record.timestamp,
        "key": None if record.key is None else bytes(record.key).decode(),
        "value": None if record.value is None else bytes(record.value).decode(),
        "headers": [[key, None if value is None else bytes(value).decode()] for key, value in record.headers],
    }


def _from_json(fields: Mapping[str, Any]) -> Record:
    def as_bytes(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    headers = tuple((key, as_bytes(value)) for key, value in fields["headers"])
    return Record(fields["offset"], fields["timestamp"], as_bytes(fields["key"]), as_bytes(fields["value"]), headers)
