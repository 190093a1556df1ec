"""What goes into `send` and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.wire.layout import NO_TIMESTAMP, Header

UNKNOWN_PARTITION = -1
"""The partition in the metadata of a record that failed before it got one."""
NULL_SIZE = -1
"""The serialized size of a key or value that is None."""


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to be sent. Without partition the partitioner chooses, without timestamp it is the time of sending.

    Headers may be given as a mapping or as pairs, and are kept as a tuple of pairs.
    """

    topic: str
    value: object = None
    key: object = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Iterable[Header] | Mapping[str, bytes | None] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise ValueError(f"topic is {self.topic!r}; it must be a text that is not empty")
        if self.partition is not None:
            _check_not_negative("partition", self.partition)
        if self.timestamp_ms is not None:
            _check_not_negative("timestamp_ms", self.timestamp_ms)
        if self.headers != ():
            object.__setattr__(self, "headers", checked_headers(self.headers))


def checked_headers(headers: Iterable[Header] | Mapping[str, bytes | None]) -> tuple[Header, ...]:
    """Headers as a tuple of pairs, or a ValueError that shows the bad one."""
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        match pair:
            case (str(), bytes() | None):
                pass
            case _:
                raise ValueError(f"a header is {pair!r}; it must be a pair of a text and bytes or None")
    return pairs


def _check_not_negative(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{field} is {value!r}; it must be a whole number of 0 or more")


class RecordMetadata(NamedTuple):
    """Where a record ended up."""

    topic: str
    partition: int
    offset: int | None = None
    """None if the broker was not asked (acks=0), or the record failed."""
    timestamp_ms: int = NO_TIMESTAMP
    """The record's, or the broker's if the topic has LogAppendTime."""
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


class PreparedRecord(NamedTuple):
    """A record with serialized key and value, ready to be appended."""

    partition: int | None
    """None: by key, or sticky."""
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    choose_again: Callable[[int], int] | None
    """Asks the partitioner again when the partition it chose needs a new batch; takes that partition."""
