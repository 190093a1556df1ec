"""Files of a log: their names, open descriptors, memory maps, atomic replacement and preallocation.

    <topic>-<partition>/
        00000000000000000000.log          batches, from that offset on
        00000000000000000000.index        offset → position, sparse
        00000000000000000000.timeindex    timestamp → offset, sparse
        00000000000000000000.txnindex     aborted transactions that end in this segment; no file if there are none
        00000000000000000007.snapshot     state of the producers at that offset
        leader-epoch-checkpoint           first offset of each leader epoch
        segment-checkpoint                sizes and checksums of the closed segments (headrace only: checkpoints.py)
        partition.metadata                topic id

Names and formats are Apache Kafka's. Suffixes of a `.log` and its indexes: `.cleaned` is a compaction in progress and
is discarded by a restart, `.swap` is compacted and replaces its original segments, `.deleted` is no longer in the log.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from headrace.broker.disk import sync_path

LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
CLEANED, SWAP, DELETED, UNFINISHED = ".cleaned", ".swap", ".deleted", ".tmp"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)
DAMAGED = ".damaged"
"""What recovery has cut off or removed from a log. It is kept for inspection, never read and never deleted."""
LEADER_EPOCHS = "leader-epoch-checkpoint"
SEGMENT_CHECKPOINTS = "segment-checkpoint"
METADATA = "partition.metadata"
GAPS = "compacted-by-leader"
"""Present if the leader has sent batches with gaps between them, which compaction had left."""

FILES_OPEN_MAX = 400
"""Open segment files; fewer if the descriptor limit of the process is low. The rest of the limit is for connections."""
FILES_SHARE = 0.4
RESERVE_FROM_BYTES = 1024 * 1024
"""A segment up to this size reserves no disk space ahead of its writes."""
RESERVE_BYTES_MAX = 32 * 1024 * 1024
"""Reserved at once; less while the segment is smaller."""
_FALLOC_FL_KEEP_SIZE = 1

MAP_BYTES = 16 * 1024 * 1024
"""Distance between two maps of a file. Each map is twice as long, so that a read up to this size is in one map."""
MAPS_MAX = 12
"""Maps of all logs."""
MAP_GROWTH_BYTES_MIN = 4 * 1024 * 1024
"""A map at the end of a file is replaced when at least this much has been appended."""
_writes = itertools.count()


def offset_name(offset: int, suffix: str) -> str:
    """Return the name of a file that begins at an offset."""
    return f"{offset:020d}{suffix}"


def replace_file(path: Path, data: bytes | memoryview, *, sync: bool = True) -> None:
    """Write a file atomically: at any time either the old content or the new is there."""
    temporary = path.with_name(f"{path.name}.{next(_writes)}{UNFINISHED}")  # unique: two threads may replace one file
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if sync:
        sync_path(path.parent)


def replace_or_remove(path: Path, data: bytes) -> None:
    """Write an index atomically without forcing it to disk; remove it if there is no data."""
    if data:
        replace_file(path, data, sync=False)
    else:
        path.unlink(missing_ok=True)


def sync_if_exists(path: Path) -> None:
    """Force a file to disk, unless retention or compaction has removed it."""
    try:
        sync_path(path)
    except FileNotFoundError:
        return


def reserve(fd: int, end: int) -> int:
    """Reserve disk space behind `end` and return where it ends; `sys.maxsize` if the system does not support it.

    The file system then allocates blocks once for many megabytes and not for every page, which is a third of the cost
    of a write. The size of the file does not change, so readers do not notice. The segment releases the unused rest
    when it is complete; after a crash, loading the log does.
    """
    size_bytes = min(max(end, RESERVE_FROM_BYTES), RESERVE_BYTES_MAX)
    return end + size_bytes if _fallocate()(fd, end, size_bytes) else sys.maxsize


@cache
def _fallocate() -> Callable[[int, int, int], bool]:
    """Return Linux's fallocate with FALLOC_FL_KEEP_SIZE: `os.posix_fallocate` would make the file longer."""
    import ctypes  # here because only logs with large segments need it, and it slows down start-up

    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return lambda fd, offset, size_bytes: False
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return lambda fd, offset, size_bytes: call(fd, _FALLOC_FL_KEEP_SIZE, offset, size_bytes) == 0


class File:
    """A file of a log that is opened on demand, and closed by its cache when it is rarely used."""

    __slots__ = ("_cache", "_fd", "path", "used")

    def __init__(self, path: str, cache: FileCache) -> None:
        self.path = path
        self.used = False  # since the cache last looked for a file to close
        self._cache = cache
        self._fd = -1

    def fd(self) -> int:
        """Return the descriptor. It is valid until the next file is opened."""
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
    """The open files of all logs. At the limit it closes one that has not been used for long (second-chance order)."""

    def __init__(self, files_max: int | None = None) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = FILES_OPEN_MAX if limit == resource.RLIM_INFINITY else int(limit * FILES_SHARE)
        self.files_max = files_max or max(1, min(FILES_OPEN_MAX, share))
        self.maps = MmapCache()
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


class _Map(NamedTuple):
    map: mmap.mmap
    start: int
    end: int


class MmapCache:
    """Memory maps of segment files for large reads; the least recently used map is dropped first.

    Data sent from a map is copied once, by the kernel. This is twice as fast as reading into a buffer first, measured
    with reads of 1 MiB. Reads at the end of a log are small, or of bytes that no map covers yet, and do not use it.

    The cost: an unreadable disk page ends the process (SIGBUS) where a read would fail, and a mapped file must not be
    truncated (see `Segment.truncate`).
    """

    def __init__(self) -> None:
        self._maps: OrderedDict[tuple[object, int], _Map] = OrderedDict()

    def view(self, owner: object, fd: int, position: int, size: int, file_bytes: int) -> memoryview | None:
        """Return bytes of the file that `owner` has open as `fd`; None if the caller should read them instead."""
        number = position // MAP_BYTES
        key = (owner, number)
        mapped = self._maps.get(key)
        size = min(size, MAP_BYTES)
        if mapped is None or position + size > mapped.end:
            start = number * MAP_BYTES
            end = min(start + 2 * MAP_BYTES, file_bytes)
            if end - (mapped.end if mapped is not None else position) < MAP_GROWTH_BYTES_MIN:
                return None
            mapped = _Map(mmap.mmap(fd, end - start, access=mmap.ACCESS_READ, offset=start), start, end)
            self._maps[key] = mapped
            if len(self._maps) > MAPS_MAX:
                self._maps.popitem(last=False)  # unmapped when the last view of it is released
        else:
            self._maps.move_to_end(key)
        at = position - mapped.start
        return memoryview(mapped.map)[at : at + size]

    def drop(self, owner: object) -> bool:
        """Drop all maps of a segment and return whether they are unmapped, i.e. no view of them is in use."""
        is_unmapped = True
        for key in [key for key in self._maps if key[0] is owner]:
            try:
                self._maps.pop(key).map.close()
            except BufferError:
                is_unmapped = False
        return is_unmapped
