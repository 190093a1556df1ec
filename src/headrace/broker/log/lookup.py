"""Offsets by time: ListOffsets with a timestamp, or for the highest one.

batch_for_time      on the event loop: which batch it is in, by indexes and headers
find_record         in that batch: from any thread, since the batch may be a large one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.log.decompression import Decompression
from headrace.broker.log.segment import Segment
from headrace.wire.kernel import kernel
from headrace.wire.layout import LOG_APPEND_TIME, BatchHeader
from headrace.wire.records import RecordBatch

_ANY_TIME = -(2**63)


class FoundOffset(NamedTuple):
    """A record that was looked for."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def batch_for_time(segments: Sequence[Segment], timestamp_ms: int, first_offset: int) -> RecordBatch | None:
    """The first batch with records from `first_offset` on and a timestamp as high as that."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        position = segment.position_of(max(segment.times.floor(timestamp_ms), first_offset))
        for at, header in segment.headers(position):
            if header.max_timestamp >= timestamp_ms and header.last_offset >= first_offset:
                return _batch(segment, at, header)
    return None


def find_record(
    batch: RecordBatch, timestamp_ms: int, first_offset: int, decompression: Decompression
) -> FoundOffset | None:
    """The first record of a batch from `first_offset` on with `timestamp_ms` or a later one. From any thread.

    Raises BrokerError, WireError, or OffLoopError if this is the event loop and the batch is a large one.
    """
    header = batch.header
    stamped = bool(header.attributes & LOG_APPEND_TIME)
    if stamped and header.max_timestamp < timestamp_ms:
        return None
    wanted = _ANY_TIME if stamped else timestamp_ms - header.base_timestamp
    payload = decompression.payload(batch)
    found = kernel.find_timestamp(payload, header.record_count, wanted, first_offset - header.base_offset)
    if found is None:
        return None
    offset_delta, timestamp_delta = found
    timestamp_ms = header.max_timestamp if stamped else header.base_timestamp + timestamp_delta
    return FoundOffset(header.base_offset + offset_delta, timestamp_ms, header.leader_epoch)


def _batch(segment: Segment, position: int, header: BatchHeader) -> RecordBatch:
    return RecordBatch(header, memoryview(segment.batch_bytes(position, header)))
