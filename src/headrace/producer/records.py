"""The values that a producer takes and returns: records, record metadata, consumer offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.types import GroupMember, GroupMetadata, OffsetAndMetadata, PositionedMember, TopicPartition
from headrace.wire.layout import NO_TIMESTAMP, Header

Headers = Iterable[Header] | Mapping[str, bytes | None] | None

UNKNOWN_PARTITION = -1
"""The partition in the metadata of a record that failed before it got one."""
NULL_SIZE = -1
"""The serialized size of a key or value that is None."""


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send. The default partition is the partitioner's choice, the default timestamp the time of `send`.

    Headers may be given as a mapping or as pairs, and are stored as a tuple of pairs.
    """

    topic: str
    value: object = None
    key: object = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Iterable[Header] | Mapping[str, bytes | None] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise ValueError(f"invalid topic: expected a non-empty str, got {self.topic!r}")
        if self.partition is not None:
            _check_not_negative("partition", self.partition)
        if self.timestamp_ms is not None:
            _check_not_negative("timestamp_ms", self.timestamp_ms)
        if self.headers != ():
            object.__setattr__(self, "headers", checked_headers(self.headers))


def checked_headers(headers: Iterable[Header] | Mapping[str, bytes | None]) -> tuple[Header, ...]:
    """Return the headers as a tuple of pairs; raises ValueError with the first invalid one."""
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        match pair:
            case (str(), bytes() | None):
                pass
            case _:
                raise ValueError(f"invalid header: expected (str, bytes or None), got {pair!r}")
    return pairs


def _check_not_negative(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"invalid {field}: expected an int of 0 or more, got {value!r}")


Offset = int | tuple[int, str] | OffsetAndMetadata
Offsets = Mapping[tuple[str, int], Offset] | Mapping[TopicPartition, Offset]
"""(topic, partition) → the next offset to read, optionally with metadata."""


def offsets_of(
    offsets: Offsets | PositionedMember, group: GroupMetadata | GroupMember | None
) -> tuple[Offsets, GroupMetadata]:
    """Return the offsets of a transaction, and the member for which they are committed.

    The positions of a consumer are those of all records that its polls have returned.
    """
    if not isinstance(offsets, Mapping):
        if group is not None:
            raise TypeError("send_offsets_to_transaction() got a consumer and a group: pass only the consumer")
        return offsets.positions(), offsets.group_metadata()
    if group is None:
        raise TypeError("send_offsets_to_transaction() got offsets without a group: pass the consumer as the second")
    return offsets, group if isinstance(group, GroupMetadata) else group.group_metadata()


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of a sent record."""

    topic: str
    partition: int
    offset: int | None = None
    """None with acks=0, or if the record failed."""
    timestamp_ms: int = NO_TIMESTAMP
    """The record's timestamp; with LogAppendTime, the broker's."""
    serialized_key_size: int = NULL_SIZE
    serialized_value_size: int = NULL_SIZE

    @property
    def has_offset(self) -> bool:
        return self.offset is not None

    @property
    def has_timestamp(self) -> bool:
        return self.timestamp_ms != NO_TIMESTAMP

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{'?' if self.offset is None else self.offset}"


Delivery = Callable[[RecordMetadata | None, Exception | None], object]
"""A delivery callback. It gets the metadata and None, or None and the error."""


class PreparedRecord(NamedTuple):
    """A record with serialized key and value, ready to be appended."""

    partition: int | None
    """None: chosen by key, or sticky."""
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    choose_again: Callable[[int], int] | None
    """Calls the partitioner again if the chosen partition needs a new batch; the argument is that partition."""


class ArrowTable(Protocol):
    """A `pyarrow.Table` or `pyarrow.RecordBatch`: what type checkers see of it, because pyarrow has no types."""

    @property
    def num_rows(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    def to_pylist(self) -> list[dict[str, Any]]: ...
