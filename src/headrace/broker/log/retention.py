"""Deleting old segments: by age, by size, and below the start offset.

A segment goes as a whole, the oldest first, and only what is below the high watermark. The files get the suffix
`.deleted` at once and go for good after file.delete.delay.ms: whoever still reads them has that long.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.broker.log.files import DELETED, SEGMENT_SUFFIXES, offset_name
from headrace.broker.log.log import Log
from headrace.broker.log.segment import Segment


def delete_old_segments(of: Log, now_ms: int) -> list[Path]:
    """Take what has had its time out of the log, and return the files to be removed later."""
    count = max(_below_start(of), _too_much(of), _too_old(of, now_ms)) if of.config.delete else _below_start(of)
    if not count:
        return []
    gone = of.take_out(count)
    of.drop_snapshots(0, of.segments[0].base_offset)
    return retire(gone)


def retire(segments: Iterable[Segment]) -> list[Path]:
    """Rename the files of segments that are out of their log; they are whole until they are removed."""
    retired = []
    for segment in segments:
        segment.close()
        for suffix in SEGMENT_SUFFIXES:
            path = segment.folder / offset_name(segment.base_offset, suffix)
            away = path.with_name(path.name + DELETED)
            try:
                os.replace(path, away)
            except FileNotFoundError:
                continue
            retired.append(away)
    return retired


def remove_files(paths: Iterable[Path]) -> None:
    """For good. In a thread: a file of a gigabyte takes a while."""
    for path in paths:
        path.unlink(missing_ok=True)


def _deletable(of: Log) -> list[Segment]:
    """Segments that are below the high watermark as a whole; the last one only if there is something in it."""
    ends = [segment.base_offset for segment in of.segments[1:]] + [of.end_offset]
    count = sum(1 for end in ends if end <= of.high_watermark)
    return of.segments[:count] if of.segments[-1].size_bytes else of.segments[: min(count, len(of.segments) - 1)]


def _below_start(of: Log) -> int:
    return sum(1 for segment in of.segments[1:] if segment.base_offset <= of.start_offset)


def _too_much(of: Log) -> int:
    """How many must go for the rest to be no less than retention.bytes."""
    limit = of.config.retention_bytes
    count, excess = 0, of.size_bytes - limit
    if limit >= 0:
        for segment in _deletable(of):
            excess -= segment.size_bytes
            if excess < 0:
                break
            count += 1
    return count


def _too_old(of: Log, now_ms: int) -> int:
    """How many have no record that is younger than retention.ms. Without timestamps the file's own time counts."""
    limit_ms = of.config.retention_ms
    count = 0
    if limit_ms >= 0:
        for segment in _deletable(of):
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            if now_ms - newest <= limit_ms:
                break
            count += 1
    return count
