"""What a fetch brought of a partition, and what of it a reader may see.

    bytes → batches; old message sets become batches → without control batches and aborted transactions → RecordBatch

Nothing is decoded here but headers, and the records of transaction markers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import CorruptBatchError, MalformedError, WireError
from headrace.types import TopicPartition
from headrace.wire import legacy
from headrace.wire.api.fetch import AbortedTransaction
from headrace.wire.columns import OFFSET_MAX
from headrace.wire.layout import LENGTH_OFFSET, MAGIC_OFFSET, PREFIX_BYTES, Header, Record
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch, decode_marker, encode, parse_batch

FIRST_FETCH_BYTES_MAX = 1024 * 1024
FETCH_BYTES_MIN = 64 * 1024
FETCH_MARGIN = 1.25
"""Of a partition that is read up to an offset: see `PartitionReader.bytes_wanted`."""

_length = struct.Struct(">i")
_MAGIC_BATCH = 2
_MESSAGE_BYTES_MIN = 14


def read_all(data: Buffer) -> Iterator[RecordBatch]:
    """Every batch in `data`, up to the partial one it may end with. Message sets come as batches of their own."""
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
        yield from _as_batches(legacy.decode(view[pos:stop], mixed_magic=True))
        pos = stop


def _end_of_messages(view: memoryview, pos: int) -> int:
    """Where a run of whole messages of the old format ends."""
    end = len(view)
    while end - pos > MAGIC_OFFSET and view[pos + MAGIC_OFFSET] < _MAGIC_BATCH:
        (size,) = _length.unpack_from(view, pos + LENGTH_OFFSET)
        if size < _MESSAGE_BYTES_MIN:
            return end  # nonsense: the decoder will say what
        if pos + PREFIX_BYTES + size > end:
            break
        pos += PREFIX_BYTES + size
    return pos


def _as_batches(records: Sequence[Record]) -> Iterator[RecordBatch]:
    """Batches of records whose offsets follow one another; where compaction has left gaps, several."""
    start = 0
    for i in range(1, len(records) + 1):
        if i == len(records) or records[i].offset != records[i - 1].offset + 1:
            batch = parse_batch(encode(records[start:i]), 0)
            assert batch is not None
            yield batch
            start = i


class VisibleBatches:
    """The batches of a fetch that a reader at `position` may see, one after the other.

    With a list of aborted transactions (read_committed) their batches are left out: a producer id counts as aborted
    from the first offset of its transaction up to the marker that ends it, which is how brokers mean the list.
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
        self.position = position  # where the reader goes on after what was handed out or left out
        self.is_empty = True  # not one whole batch has been found

    def next(self) -> RecordBatch | None:
        """The next batch, or None at the end."""
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
    """What the last fetch said of a partition; -1: not known yet."""

    log_start: int = -1
    last_stable: int = -1
    high: int = -1


NOT_KNOWN = Watermarks()


@dataclass(slots=True)
class PartitionReader:
    """Where the reader is in a partition, and what has been fetched from there on."""

    name: TopicPartition
    position: int
    until: int = OFFSET_MAX
    fetched: VisibleBatches | None = None
    batch: RecordBatch | None = None  # begun, not finished
    records: list[Record] = field(default_factory=list)  # the rest of that batch, last one first
    watermarks: Watermarks = NOT_KNOWN
    in_flight: bool = False
    turn: int = 0  # when it was last served: who has waited longest comes first
    failing_since_ms: float | None = None
    retry_at_ms: float = 0.0
    last_start: int = OFFSET_MAX  # of the last fetch that brought something
    last_bytes: int = 0

    @property
    def is_finished(self) -> bool:
        return self.position >= self.until

    def bytes_wanted(self, bytes_max: int) -> int:
        """How much to ask for: where the end is near, not much more than is left, going by the last fetch.

        The first one has nothing to go by. It is small, for it may be the only one.
        """
        if self.until == OFFSET_MAX:
            return bytes_max
        if self.position <= self.last_start:
            return min(bytes_max, FIRST_FETCH_BYTES_MAX)
        left_part = (self.until - self.position) / (self.position - self.last_start)
        return min(bytes_max, int(left_part * self.last_bytes * FETCH_MARGIN) + FETCH_BYTES_MIN)

    def next_batch(self) -> RecordBatch | None:
        """The batch to read on in, `position` in it or before it; None if a new fetch is needed."""
        if self.is_finished:
            self.fetched = self.batch = None
            self.records.clear()
        if self.batch is None and self.fetched is not None:
            try:
                self.batch = self.fetched.next()
            except WireError as error:
                self.fetched = None  # to be fetched anew: what is broken may be so on the way only
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
    """The same error, saying where in the log it is."""
    message = f"{partition} at offset {offset}: {error.args[0]}"
    return (
        MalformedError(message, offset=error.offset)
        if isinstance(error, MalformedError)
        else CorruptBatchError(message)
    )
