"""The fetched data of a partition, and the part of it that is visible to a reader.

    bytes → batches; old message sets become batches → without control batches and aborted transactions → RecordBatch

Only headers, and the records of transaction markers, are decoded here.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import CorruptBatchError, MalformedError, WireError
from headrace.types import TopicPartition
from headrace.wire import message_sets
from headrace.wire.api.fetch import AbortedTransaction
from headrace.wire.columns import OFFSET_MAX
from headrace.wire.layout import LENGTH_OFFSET, MAGIC_OFFSET, PREFIX_BYTES, Header, Record
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch, decode_marker, encode, parse_batch

FIRST_FETCH_BYTES_MAX = 1024 * 1024
FETCH_BYTES_MIN = 64 * 1024
FETCH_MARGIN = 1.25
"""For partitions that are read up to an offset: see `PartitionReader.fetch_bytes`."""

_length = struct.Struct(">i")
_MAGIC_BATCH = 2
_MESSAGE_BYTES_MIN = 14


def read_all(data: Buffer) -> Iterator[RecordBatch]:
    """Yield the batches in `data`, without a partial one at its end. Message sets become batches."""
    view = memoryview(data)
    pos, end = 0, len(view)
    while end - pos > MAGIC_OFFSET:
        if view[pos + MAGIC_OFFSET] >= _MAGIC_BATCH:
            batch = parse_batch(view, pos, partial=True)
            if batch is None:
                return
            yield batch
            pos += batch.header.size
            continue
        stop = _end_of_messages(view, pos)
        if stop == pos:
            return
        yield from _as_batches(message_sets.decode(view[pos:stop], mixed_magic=True))
        pos = stop


def _end_of_messages(view: memoryview, pos: int) -> int:
    """Return where a run of complete messages of the old format ends."""
    end = len(view)
    while end - pos > MAGIC_OFFSET and view[pos + MAGIC_OFFSET] < _MAGIC_BATCH:
        (size,) = _length.unpack_from(view, pos + LENGTH_OFFSET)
        if size < _MESSAGE_BYTES_MIN:
            return end  # invalid: the decoder will raise
        if pos + PREFIX_BYTES + size > end:
            break
        pos += PREFIX_BYTES + size
    return pos


def _as_batches(records: Sequence[Record]) -> Iterator[RecordBatch]:
    """Yield batches of records with consecutive offsets; gaps from compaction start a new one."""
    start = 0
    for i in range(1, len(records) + 1):
        if i == len(records) or records[i].offset != records[i - 1].offset + 1:
            batch = parse_batch(encode(records[start:i]), 0)
            assert batch is not None
            yield batch
            start = i


class VisibleBatches:
    """The batches of a fetch that are visible to a reader at `position`, in order.

    With a list of aborted transactions (read_committed), their batches are skipped: a producer id counts as aborted
    from the first offset of its transaction up to the marker that ends it.
    """

    def __init__(
        self,
        data: Buffer,
        position: int,
        aborted: Sequence[AbortedTransaction] | None,
        *,
        control_batches: bool = False,
    ) -> None:
        self._batches = read_all(data)
        self._control_batches = control_batches
        self._committed_only = aborted is not None
        self._to_come = deque(sorted((entry.first_offset, entry.producer_id) for entry in aborted or ()))
        self._aborted_ids: set[int] = set()
        self.position = position  # After the batches that were returned or skipped.
        self.is_empty = True  # No complete batch so far.

    def next(self) -> RecordBatch | None:
        """Return the next batch, or None at the end."""
        for batch in self._batches:
            self.is_empty = False
            header = batch.header
            next_offset = header.last_offset + 1
            hidden = self._committed_only and header.producer_id >= 0 and self._is_aborted(batch)
            hidden = hidden or (header.is_control and not self._control_batches)
            if hidden or next_offset <= self.position:
                self.position = max(self.position, next_offset)
                continue
            return batch
        return None

    def _is_aborted(self, batch: RecordBatch) -> bool:
        header = batch.header
        while self._to_come and self._to_come[0][0] <= header.last_offset:
            self._aborted_ids.add(self._to_come.popleft()[1])
        if header.is_control:
            if _is_abort_marker(batch):
                self._aborted_ids.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborted_ids


def _is_abort_marker(batch: RecordBatch) -> bool:
    records = batch.records()
    marker = decode_marker(records[0]) if records else None
    return marker is not None and not marker.committed


class FetchedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Watermarks(NamedTuple):
    """The offsets of a partition in the last fetch; -1: unknown."""

    log_start: int = -1
    last_stable: int = -1
    high: int = -1


UNKNOWN_WATERMARKS = Watermarks()


@dataclass(slots=True)
class PartitionReader:
    """The position in a partition, and the data fetched from there."""

    name: TopicPartition
    position: int
    until: int = OFFSET_MAX
    fetched: VisibleBatches | None = None
    batch: RecordBatch | None = None  # The current one.
    records: list[Record] = field(default_factory=list)  # The rest of it, last record first.
    watermarks: Watermarks = UNKNOWN_WATERMARKS
    in_flight: bool = False
    last_served: int = 0  # Partitions are served in this order.
    failing_since_ms: float | None = None
    retry_at_ms: float = 0.0
    last_start: int = OFFSET_MAX  # Of the last fetch with data.
    last_bytes: int = 0

    @property
    def is_finished(self) -> bool:
        return self.position >= self.until

    def fetch_bytes(self, bytes_max: int) -> int:
        """Return how many bytes to fetch: near the end, about what is left, estimated from the last fetch.

        The first fetch is small, because it may be the only one.
        """
        if self.until == OFFSET_MAX:
            return bytes_max
        if self.position <= self.last_start:
            return min(bytes_max, FIRST_FETCH_BYTES_MAX)
        left_ratio = (self.until - self.position) / (self.position - self.last_start)
        return min(bytes_max, int(left_ratio * self.last_bytes * FETCH_MARGIN) + FETCH_BYTES_MIN)

    def next_batch(self) -> RecordBatch | None:
        """Return the current batch, with `position` in it or before it; None if a new fetch is needed."""
        if self.is_finished:
            self.fetched = self.batch = None
            self.records.clear()
        if self.batch is None and self.fetched is not None:
            try:
                self.batch = self.fetched.next()
            except WireError as error:
                self.fetched = None  # fetched again: the data may have been damaged in transit
                raise located(error, self.name, self.position) from None
            self.position = max(self.position, self.fetched.position)
            if self.batch is None:
                self.fetched = None
        return self.batch

    def finish_batch(self) -> None:
        assert self.batch is not None
        self.position = max(self.position, min(self.batch.header.last_offset + 1, self.until))
        if self.fetched is not None:
            self.fetched.position = max(self.fetched.position, self.position)
        self.batch = None
        self.records.clear()


def located(error: WireError, partition: TopicPartition, offset: int) -> WireError:
    """Return the error with its position in the log."""
    message = f"{partition} at offset {offset}: {error.args[0]}"
    return (
        MalformedError(message, offset=error.offset)
        if isinstance(error, MalformedError)
        else CorruptBatchError(message)
    )
