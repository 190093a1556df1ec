"""Retention: delete old segments by age, by size, and below the start offset.

Only whole segments below the high watermark are deleted, the oldest first. Their files get the suffix `.deleted` at
once and are removed after file.delete.delay.ms, which gives readers time to finish.
"""

from __future__ import annotations

from itertools import accumulate, takewhile
from pathlib import Path

from headrace.broker.log.log import Log
from headrace.broker.log.segment import Segment, with_ends


def delete_old_segments(log: Log, now_ms: int) -> list[Path]:
    """Remove expired segments from a log, and return their files, to be removed later."""
    count = sum(1 for segment in log.segments[1:] if segment.base_offset <= log.start_offset)
    if log.config.delete:
        count = max(count, _beyond_retention_bytes(log), _beyond_retention_ms(log, now_ms))
    if not count:
        return []
    return [path for segment in log.remove_segments(count) for path in segment.retire()]


def _deletable(log: Log) -> list[Segment]:
    """Return the segments that are completely below the high watermark; the last one only if it has records."""
    count = sum(1 for _, end_offset in with_ends(log.segments, log.end_offset) if end_offset <= log.high_watermark)
    return log.segments[:count] if log.segments[-1].size_bytes else log.segments[: min(count, len(log.segments) - 1)]


def _beyond_retention_bytes(log: Log) -> int:
    """Return the number of segments without which the log still has retention.bytes."""
    if log.config.retention_bytes < 0:
        return 0
    excess = log.size_bytes - log.config.retention_bytes
    return sum(1 for size in accumulate(segment.size_bytes for segment in _deletable(log)) if size <= excess)


def _beyond_retention_ms(log: Log, now_ms: int) -> int:
    """Return the number of segments older than retention.ms by their newest record, or by the file's time."""
    if log.config.retention_ms < 0:
        return 0
    times = (segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms for segment in _deletable(log))
    return sum(1 for _ in takewhile(lambda newest_ms: now_ms - newest_ms > log.config.retention_ms, times))
