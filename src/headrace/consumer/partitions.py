"""Assigned partitions: their positions, and the data that were fetched for them.

    application thread: assign, seek → AssignedPartition → position, as records are returned
    I/O thread: state → fetch_offset → Fetched → FetchBuffer → application thread

The map of assigned partitions is replaced as a whole, by the application thread. A seek replaces the partition's
object: responses for the old one are recognized by its identity, and ignored. So no lock is needed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.client.fetch_data import UNKNOWN_WATERMARKS, VisibleBatches, Watermarks, read_all
from headrace.consumer.metrics import FetchTotals
from headrace.errors import HeadraceError, MalformedError
from headrace.types import TopicPartition
from headrace.wire.api.fetch import AbortedTransaction
from headrace.wire.layout import HEADER_BYTES, MAGIC_OFFSET, NO_LEADER_EPOCH, PREFIX_BYTES, ConsumerRecord
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch

UNKNOWN_OFFSET = -1
_batch_start = struct.Struct(">qii")  # Base offset, length, leader epoch.
_last_delta = struct.Struct(">i")
_LAST_DELTA_OFFSET = 23
_MAGIC_BATCH = 2


class PositionState(Enum):
    """What a partition needs before it can be fetched."""

    COMMITTED = auto()  # Its committed offset.
    RESET = auto()  # An offset by `reset_time`, or by auto.offset.reset.
    VALIDATE = auto()  # The comparison of its epoch with the leader's log (KIP-320).
    FETCH = auto()  # Nothing.


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """A partition that the consumer reads, from one seek to the next."""

    name: TopicPartition
    state: PositionState  # I/O thread only, after the start.
    position: int = UNKNOWN_OFFSET
    """The offset of the next record to return. Set by the I/O thread until it is known, then by the application's."""
    position_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the record before `position`, as the position itself."""
    paused: bool = False  # Set by the application thread.
    error: HeadraceError | None = None  # Set by the I/O thread; cleared by the application thread, which raises it.
    # I/O thread only, from here on.
    reset_time: int | None = None
    fetch_offset: int = UNKNOWN_OFFSET
    epoch: int = NO_LEADER_EPOCH  # Of the record before fetch_offset.
    validated_epoch: int = NO_LEADER_EPOCH  # The leader epoch up to which the position is validated.
    is_pending: bool = False  # A lookup of its offset is under way.
    watermarks: Watermarks = UNKNOWN_WATERMARKS
    preferred_replica: int | None = None
    preferred_until_ms: float = 0.0
    retry_at_ms: float = 0.0
    failing_since_ms: float | None = None

    def start_at(self, offset: int, epoch: int = NO_LEADER_EPOCH) -> None:
        """Set the first offset. Before any data were fetched."""
        self.position = self.fetch_offset = offset
        self.epoch = self.position_epoch = epoch
        self.is_pending = False
        self.state = PositionState.VALIDATE if epoch >= 0 else PositionState.FETCH


@dataclass(slots=True, eq=False)
class Fetched:
    """The data of a partition in a response."""

    partition: AssignedPartition
    batches: VisibleBatches
    size: int
    totals: FetchTotals = field(default_factory=FetchTotals)  # Of the whole response.
    is_taken: bool = False  # Set by the application thread, read by the I/O thread.
    # Application thread only.
    batch: RecordBatch | None = None  # The batch of which a part was returned.
    rest: list[ConsumerRecord] = field(default_factory=list)  # Its records, decoded, from next_index on.
    next_index: int = 0
    record_count: int = 0  # Returned so far.


class FetchBuffer:
    """Fetched data on their way from the I/O thread to the application thread."""

    def __init__(self) -> None:
        self._queue: deque[Fetched] = deque()  # Appended by the I/O thread, removed by the application thread.
        self._received_bytes = 0  # I/O thread only.
        self._released_bytes = 0  # Application thread only.

    @property
    def size(self) -> int:
        """The bytes that the application has not consumed. Any thread."""
        return self._received_bytes - self._released_bytes

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, fetched: Fetched) -> None:
        """Pass data to the application thread."""
        self._received_bytes += fetched.size
        self._queue.append(fetched)

    def take(self) -> Iterator[Fetched]:
        """Yield and remove what is there."""
        for _ in range(len(self._queue)):
            fetched = self._queue.popleft()
            fetched.is_taken = True
            yield fetched

    def release(self, fetched: Fetched) -> None:
        """Free the memory of data that were consumed or dropped. Again, it has no effect."""
        self._released_bytes += fetched.size
        fetched.size = 0


@dataclass(slots=True)
class Assignment:
    """The assigned partitions. Replaced as a whole by the application thread, so that any thread may read it."""

    partitions: Mapping[TopicPartition, AssignedPartition] = field(default_factory=dict)
    version: int = 0

    def is_current(self, partition: AssignedPartition) -> bool:
        return self.partitions.get(partition.name) is partition


def end_of_data(data: Buffer) -> tuple[int, int]:
    """Return the offset after the last complete batch, and its leader epoch; (-1, -1) without a complete batch."""
    view = memoryview(data)
    if len(view) > MAGIC_OFFSET and view[MAGIC_OFFSET] < _MAGIC_BATCH:
        last = -1
        for batch in read_all(view):
            last = batch.header.last_offset + 1
        return last, NO_LEADER_EPOCH
    pos, end, next_offset, epoch = 0, len(view), -1, NO_LEADER_EPOCH
    while end - pos >= HEADER_BYTES:
        base_offset, length, batch_epoch = _batch_start.unpack_from(view, pos)
        if length < HEADER_BYTES - PREFIX_BYTES:
            raise MalformedError(
                f"expected a batch length of {HEADER_BYTES - PREFIX_BYTES} or more, got {length}", offset=pos
            )
        if length + PREFIX_BYTES > end - pos:
            break
        (delta,) = _last_delta.unpack_from(view, pos + _LAST_DELTA_OFFSET)
        next_offset, epoch = base_offset + delta + 1, batch_epoch
        pos += length + PREFIX_BYTES
    return next_offset, epoch


def visible(data: Buffer, partition: AssignedPartition, aborted: Sequence[AbortedTransaction] | None) -> Fetched:
    """Return the fetched data of a partition, from its fetch offset on."""
    return Fetched(partition, VisibleBatches(data, partition.fetch_offset, aborted), len(data))
