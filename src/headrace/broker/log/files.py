"""Files of a log: their names, how many are open, and how small ones are replaced.

    <topic>-<partition>/
        00000000000000000000.log          batches, from that offset on
        00000000000000000000.index        offset → position, sparse
        00000000000000000000.timeindex    timestamp → offset, sparse
        00000000000000000000.txnindex     aborted transactions that end in this segment; none: no file
        00000000000000000007.snapshot     producers, as they were at that offset
        leader-epoch-checkpoint           where each leader's records begin
        segment-checkpoint                the closed segments (ours: segment_checkpoint.py)
        partition.metadata                the id of the topic

Names and formats are Apache Kafka's. Suffixes of a `.log` and its indexes: `.cleaned` is being compacted and worth
nothing yet, `.swap` is compacted and takes the place of the segments it was made of, `.deleted` is out of the log.
"""

from __future__ import annotations

import itertools
import os
import resource
from collections import OrderedDict
from pathlib import Path

from headrace.broker.disk import sync_path
from headrace.broker.log.windows import Windows

LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
CLEANED, SWAP, DELETED, UNFINISHED = ".cleaned", ".swap", ".deleted", ".tmp"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)
DAMAGED = ".damaged"
"""What a recovery cut off or took out of a log. It is kept for people to look at, never read and never deleted."""
LEADER_EPOCHS = "leader-epoch-checkpoint"
SEGMENTS = "segment-checkpoint"
METADATA = "partition.metadata"
GAPS = "compacted-by-leader"
"""Says of a log that its leader sent it batches with gaps between them, which compaction had left there."""

FILES_OPEN_MAX = 400
"""Of segments, at once; fewer where the process may not open as many. The rest of what it may is for connections."""
FILES_SHARE = 0.4
_writes = itertools.count()


def offset_name(offset: int, suffix: str) -> str:
    """The name of a file that begins at an offset."""
    return f"{offset:020d}{suffix}"


def replace_file(path: Path, data: bytes | memoryview, *, sync: bool = True) -> None:
    """Write a file so that there is always the old one or the new one, whole."""
    fresh = path.with_name(f"{path.name}.{next(_writes)}{UNFINISHED}")  # of its own: two threads never share one
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(fresh, path)
    if sync:
        sync_path(path.parent)


class File:
    """A file of the log that is open while it is used much."""

    __slots__ = ("_cache", "_fd", "path", "used")

    def __init__(self, path: str, cache: FileCache) -> None:
        self.path = path
        self.used = False  # since the cache last looked for one to close
        self._cache = cache
        self._fd = -1

    def fd(self) -> int:
        """Its descriptor, good until the next file is opened."""
        self.used = True
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._cache.opened(self)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._cache.closed(self)


class FileCache:
    """Keeps the number of open files bounded: the one that was not used for longest, or nearly so, is closed."""

    def __init__(self, files_max: int | None = None) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = FILES_OPEN_MAX if allowed == resource.RLIM_INFINITY else int(allowed * FILES_SHARE)
        self.files_max = files_max or max(1, min(FILES_OPEN_MAX, share))
        self.windows = Windows()
        self._open: OrderedDict[File, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, file: File) -> None:
        while len(self._open) >= self.files_max:
            oldest = next(iter(self._open))
            if oldest.used:
                oldest.used = False
                self._open.move_to_end(oldest)
            else:
                oldest.close()
        self._open[file] = None

    def closed(self, file: File) -> None:
        del self._open[file]
