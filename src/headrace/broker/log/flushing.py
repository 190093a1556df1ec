"""Forcing a log to disk. Runs in a thread of its own, beside appends: it opens the files for itself.

What is on disk is a prefix of the log: the recovery point rises only when all files of the offsets below it are there,
records, indexes, snapshots and names.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.disk import sync_path
from headrace.broker.log.files import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SEGMENTS,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
)

if TYPE_CHECKING:
    from headrace.broker.log.log import Log

log = logging.getLogger("headrace.broker.log")


def flush(of: Log, *, closed_only: bool = False) -> None:
    """Force what is in the files now to disk, and raise the recovery point to it.

    With `closed_only` the last segment is left out: its file is being written to, and would have to wait for the disk.
    """
    end_offset, truncations = of.segments[-1].base_offset if closed_only else of.end_offset, of.truncations
    if end_offset <= of.recovery_point and not of.names_changed:
        return
    names_changed, of.names_changed = of.names_changed, False
    try:
        _sync_segments(of, end_offset, with_names=names_changed)
        if names_changed:
            _sync_if_there(of.directory / LEADER_EPOCHS)
            if len(of.segments) > 1:  # of a single one the records say as much
                _sync_if_there(of.directory / SEGMENTS)
            sync_path(of.directory)
    except OSError as error:
        if not of.directory.exists():
            return  # the topic was deleted meanwhile
        # The system forgets what it could not write: from here on nobody knows what is on disk.
        of.failed = f"its files could not be forced to disk ({error}); restart to see what is there"
        log.error("%s: %s", of.directory, of.failed)
        raise
    if of.truncations == truncations:
        of.recovery_point = max(of.recovery_point, end_offset)


def _sync_segments(of: Log, end_offset: int, *, with_names: bool) -> None:
    """Those that hold something from the recovery point on; with the small files beside them, if there are new ones."""
    segments = list(of.segments)
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    for segment, end in zip(segments, ends, strict=True):
        if end > of.recovery_point and segment.base_offset < end_offset:
            _sync_if_there(of.directory / offset_name(segment.base_offset, LOG))
        if with_names and end >= of.recovery_point:
            for suffix in (SNAPSHOT, INDEX, TIME_INDEX, TRANSACTION_INDEX):
                _sync_if_there(of.directory / offset_name(segment.base_offset, suffix))


def _sync_if_there(path: Path) -> None:
    """Retention or compaction may have taken the file away: then it needs no syncing."""
    try:
        sync_path(path)
    except FileNotFoundError:
        return
