"""Retention: delete old segments by age, by size, and below the start offset.

Only whole segments below the high watermark are deleted, the oldest first. Their files get the suffix `.deleted` at
once and are removed after file.delete.delay.ms, which gives readers time to finish.
"""

from __future__ import annotations

from pathlib import Path

from headrace.broker.log.log import Log
from headrace.broker.log.segment import Segment, with_ends


def delete_old_segments(of: Log, now_ms: int) -> list[Path]:
    """Remove expired segments from a log, and return their files, to be removed later."""
    count = _below_start(of)
    if of.config.delete:
        count = max(count, _beyond_retention_bytes(of), _beyond_retention_ms(of, now_ms))
    if not count:
        return []
    return [path for segment in of.remove_segments(count) for path in segment.retire()]


def _deletable(of: Log) -> list[Segment]:
    """Return the segments that are completely below the high watermark; the last one only if it has records."""
    count = sum(1 for _, end_offset in with_ends(of.segments, of.end_offset) if end_offset <= of.high_watermark)
    return of.segments[:count] if of.segments[-1].size_bytes else of.segments[: min(count, len(of.segments) - 1)]


def _below_start(of: Log) -> int:
    return sum(1 for segment in of.segments[1:] if segment.base_offset <= of.start_offset)


def _beyond_retention_bytes(of: Log) -> int:
    """Return the number of segments without which the log still has retention.bytes."""
    limit = of.config.retention_bytes
    count, excess = 0, of.size_bytes - limit
    if limit >= 0:
        for segment in _deletable(of):
            excess -= segment.size_bytes
            if excess < 0:
                break
            count += 1
    return count


def _beyond_retention_ms(of: Log, now_ms: int) -> int:
    """Return the number of segments older than retention.ms by their newest record, or by the file's time."""
    limit_ms = of.config.retention_ms
    count = 0
    if limit_ms >= 0:
        for segment in _deletable(of):
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            if now_ms - newest <= limit_ms:
                break
            count += 1
    return count
