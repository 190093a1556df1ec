"""Offsets by time: ListOffsets with a timestamp, or for the highest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.log.segment import Segment
from headrace.wire.kernel import kernel
from headrace.wire.layout import LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader
from headrace.wire.records import RecordBatch


class FoundOffset(NamedTuple):
    """A record that was looked for."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def offset_for_time(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> FoundOffset | None:
    """The first record from `start_offset` on with `timestamp_ms` or a later one, if it is below `end_offset`."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        position = segment.position_of(max(segment.times.floor(timestamp_ms), start_offset))
        for at, header in segment.headers(position):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            for offset, timestamp in _records(segment, at, header):
                if timestamp >= timestamp_ms and offset >= start_offset:
                    return FoundOffset(offset, timestamp, header.leader_epoch) if offset < end_offset else None
    return None


def offset_of_max_timestamp(segments: Sequence[Segment], start_offset: int, end_offset: int) -> FoundOffset | None:
    """The first record with the highest timestamp of all, if it is below `end_offset`."""
    best = max(segments, key=lambda segment: segment.max_timestamp)
    highest, offset = best.max_timestamp_entry
    if highest == NO_TIMESTAMP:
        return None
    for at, header in best.headers(best.position_of(offset)):
        if header.max_timestamp == highest and header.record_count:
            for offset, timestamp in _records(best, at, header):
                if timestamp == highest and start_offset <= offset < end_offset:
                    return FoundOffset(offset, timestamp, header.leader_epoch)
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> list[tuple[int, int]]:
    """Offsets and timestamps of the records of a batch."""
    payload = RecordBatch(header, memoryview(segment.batch_bytes(position, header))).payload()
    stamped = bool(header.attributes & LOG_APPEND_TIME)
    return [
        (header.base_offset + offset, header.max_timestamp if stamped else header.base_timestamp + timestamp)
        for _, _, offset, timestamp, _, _ in kernel.scan_records(payload, header.record_count)
    ]
