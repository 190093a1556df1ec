"""A segment: a file of batches from a base offset on, with its offset index and its time index.

The last segment of a log is written to; the others do not change. An appended batch is in the file when `write`
returns, so it survives the process; after `Log.flush` it survives the machine.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.checkpoints import SegmentCheckpoint, data_crc, file_crc
from headrace.broker.log.files import (
    DELETED,
    INDEX,
    LOG,
    MAP_BYTES,
    RESERVE_FROM_BYTES,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    UNFINISHED,
    File,
    FileCache,
    offset_name,
    replace_or_remove,
    reserve,
)
from headrace.broker.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from headrace.errors import BrokerError, Code, CorruptBatchError
from headrace.wire.kernel import kernel
from headrace.wire.layout import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, header_layout
from headrace.wire.primitives import Buffer

FIRST_READ_BYTES = 4096 + HEADER_BYTES
"""Smallest first read: what may have to be skipped between two index entries."""
COPY_BYTES = 1024 * 1024
SCAN_BATCHES_MAX = 4096
"""Headers that a scan returns at once."""
MAP_READ_BYTES_MIN = 128 * 1024
"""Reads from this size on use memory maps."""
REBUILT_INDEX_INTERVAL_BYTES = 4096
"""index.interval.bytes of indexes that are rebuilt because their files are lost."""
UNINDEXED_BYTES_MAX = 64 * 1024
"""Up to this size a segment without index files is normal."""
OFFSET_MAX = 2**63 - 1
OFFSETS_MAX = 2**31 - 1
"""Range of the offsets of a segment: indexes have 32 bits for the offset relative to the base offset."""

logger = logging.getLogger("headrace.broker.log")

_base_offset = struct.Struct(">q")


class Slice(NamedTuple):
    """Whole batches that were read."""

    data: Buffer
    first_offset: int
    next_offset: int


class Segment:
    """A file of batches. Event loop only, except scans of closed segments."""

    def __init__(
        self, folder: Path, base_offset: int, cache: FileCache, *, created_ms: int, size_bytes: int = 0
    ) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.jitter_ms = 0  # subtracted from segment.ms
        self.checkpoint: SegmentCheckpoint | None = None  # None if it was written to since it was closed
        self._maps = cache.maps
        self.file = File(str(folder / offset_name(base_offset, LOG)), cache)
        self._index = None if size_bytes else OffsetIndex(base_offset)
        self._times = None if size_bytes else TimeIndex(base_offset)
        self._max_timestamp: tuple[int, int] | None = None if size_bytes else (NO_TIMESTAMP, base_offset)
        self._first_timestamp: int | None = None
        self._unindexed_bytes = 0
        self._tail: tuple[int, int, int] | None = None  # base offset, position and checksum of the last batch, if known
        self._first_crc: int | None = None  # checksum of the first batch, if known
        self._reserved_end = max(RESERVE_FROM_BYTES, size_bytes)  # writes up to here need no new reservation
        self._damage_is_logged = False

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size_bytes} bytes)"

    def path(self, suffix: str) -> Path:
        """Return the path of the segment's file with a suffix."""
        return self.folder / offset_name(self.base_offset, suffix)

    # --- properties of the records ---

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_indexes()
        assert self._index is not None
        return self._index

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self._load_indexes()
        assert self._times is not None
        return self._times

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp; -1 if there is none."""
        return self.max_timestamp_entry[0]

    @property
    def max_timestamp_entry(self) -> tuple[int, int]:
        """The highest timestamp, and the last offset of the first batch that has it."""
        if self._max_timestamp is None:
            times = self.times
            self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
            if len(times):
                self._max_timestamp = (times.timestamps[-1], self.base_offset + times.offsets[-1])
        return self._max_timestamp

    @property
    def first_timestamp(self) -> int:
        """The highest timestamp of the first batch; -1 if there is none."""
        if self._first_timestamp is None:
            if not self.size_bytes:
                return NO_TIMESTAMP
            self._first_timestamp = next(self.headers(0))[1].max_timestamp
        return self._first_timestamp

    def is_full(self, segment_bytes: int, index_bytes: int, batch_bytes: int, last_offset: int) -> bool:
        """Return whether a batch of `batch_bytes` that ends with `last_offset` has to go to the next segment.

        `segment_bytes` and `index_bytes` are the limits of the configuration.
        """
        index, times = self._index, self._times
        if index is None or times is None:
            index, times = self.index, self.times
        return (
            self.size_bytes + batch_bytes > segment_bytes
            or last_offset - self.base_offset > OFFSETS_MAX
            or len(index.lasts) >= index_bytes // OFFSET_ENTRY_BYTES
            or len(times.offsets) >= index_bytes // TIME_ENTRY_BYTES - 1
        )

    # --- writing ---

    def write(self, parts: Sequence[Buffer], size_bytes: int) -> int:
        """Append all bytes or none, and return their position. Raise OSError."""
        fd = self.file.fd()
        position = self.size_bytes
        if position + size_bytes > self._reserved_end:
            self._reserved_end = reserve(fd, position + size_bytes)
        try:
            written = os.pwritev(fd, parts, position)
            if written != size_bytes:
                _write_rest(fd, parts, position, written)
        except OSError:
            os.ftruncate(fd, position)
            raise
        self.size_bytes = position + size_bytes
        return position

    def _release_reserved(self) -> None:
        """Release disk space that was reserved and not used."""
        if self._reserved_end > max(RESERVE_FROM_BYTES, self.size_bytes):
            os.ftruncate(self.file.fd(), self.size_bytes)
        self._reserved_end = max(RESERVE_FROM_BYTES, self.size_bytes)

    def add_to_index(self, position: int, header: BatchHeader, base_offset: int, interval_bytes: int) -> None:
        """Add a batch that was written at `position` to the indexes."""
        last_offset = base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        if self._first_timestamp is None:
            self._first_timestamp = timestamp
        if timestamp > self.max_timestamp_entry[0]:
            self._max_timestamp = (timestamp, last_offset)
        if self._unindexed_bytes > interval_bytes:
            self.index.append(last_offset, position)
            self.times.append(*self.max_timestamp_entry)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.length + 12
        self._tail = (base_offset, position, header.crc)
        if not position:
            self._first_crc = header.crc

    def truncate(self, position: int, end_offset: int) -> None:
        """Remove everything from `position` on, where `end_offset` begins."""
        self.index.truncate(position)
        self.times.truncate(end_offset)
        self._truncate_file(position)
        self.size_bytes = position
        self._reserved_end = max(RESERVE_FROM_BYTES, position)
        if not position:
            self._first_timestamp = self._first_crc = None
        self.load_tail()

    def _truncate_file(self, size_bytes: int) -> None:
        """Truncate the file, or replace it by a shorter copy while responses still use a map of it."""
        if self._maps.drop(self):
            os.ftruncate(self.file.fd(), size_bytes)
            return
        temporary = f"{self.file.path}{UNFINISHED}"
        with open(self.file.path, "rb") as source, open(temporary, "wb") as target:
            left = size_bytes
            while left:
                part = source.read(min(left, COPY_BYTES))
                target.write(part)
                left -= len(part)
        self.file.close()
        os.replace(temporary, self.file.path)

    def limit_to(self, size_bytes: int) -> None:
        """Ignore the file from `size_bytes` on because it is damaged there. The file does not change."""
        self.index.truncate(size_bytes)
        self.size_bytes = size_bytes
        self._reserved_end = max(RESERVE_FROM_BYTES, size_bytes)

    def close(self) -> None:
        """Release the file and its maps."""
        self._maps.drop(self)
        self.file.close()

    def delete(self) -> None:
        """Close the segment and delete its files."""
        self.close()
        for suffix in SEGMENT_SUFFIXES:
            self.path(suffix).unlink(missing_ok=True)

    def retire(self) -> list[Path]:
        """Close the segment, rename its files to `.deleted` and return their new paths."""
        self.close()
        retired = []
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(suffix)
            renamed = path.with_name(path.name + DELETED)
            try:
                os.replace(path, renamed)
            except FileNotFoundError:
                continue
            retired.append(renamed)
        return retired

    def seal(self, records_end: int, aborted_crc: int) -> None:
        """Write the indexes and set the checkpoint. `aborted_crc` is the checksum of the transaction index."""
        self.set_checkpoint(records_end, (*self._write_indexes(), aborted_crc))

    def set_checkpoint(self, records_end: int, crcs: tuple[int, int, int]) -> None:
        """Set the checkpoint. `crcs` are the checksums of offset index, time index and transaction index."""
        if self._first_crc is None:
            self._first_crc = next(self.headers(0))[1].crc if self.size_bytes else 0
        last_crc = self._tail[2] if self._tail is not None else 0
        self.checkpoint = SegmentCheckpoint(
            self.base_offset, records_end, self.size_bytes, self._first_crc, last_crc, *crcs
        )

    def _write_indexes(self) -> tuple[int, int]:
        """Write the index files and return their checksums.

        A segment without index entries has no index files: reading the records is faster. Many logs are that small.
        """
        self._release_reserved()
        self.complete_time_index()
        index = self.index.to_bytes()
        times = self.times.to_bytes() if len(self.index) else b""
        replace_or_remove(self.path(INDEX), index)
        replace_or_remove(self.path(TIME_INDEX), times)
        return data_crc(index), data_crc(times)

    def complete_time_index(self) -> None:
        """Add the highest timestamp of the segment as the last entry of the time index."""
        self.times.append(*self.max_timestamp_entry)

    # --- reading ---

    def read(self, offset: int, bytes_max: int, end_offset: int, at_least_one: bool) -> Slice | None:
        """Return whole batches from the one with `offset`, or the next one, on; None if the segment has none."""
        fd = self.file.fd()
        position = self.position_of(offset)
        size = bytes_max if bytes_max > FIRST_READ_BYTES else FIRST_READ_BYTES
        needed = 0
        while position < self.size_bytes:  # each pass gets closer to the batch or has it completely
            left = self.size_bytes - position
            data = self._bytes(fd, position, size if size < left else left, needed)
            try:
                start, stop, first, following, needed = kernel.cut_batches(data, offset, end_offset, bytes_max)
            except CorruptBatchError as error:
                raise self._damaged(position, str(error)) from None
            if not needed:
                if start == stop or (stop - start > bytes_max and not at_least_one):
                    return Slice(b"", offset, offset)
                if stop - start == len(data):
                    return Slice(data, first, following)
                return Slice(memoryview(data)[start:stop], first, following)
            if needed > HEADER_BYTES and needed > bytes_max and not at_least_one:
                return Slice(b"", offset, offset)
            position += start
            if needed > self.size_bytes - position > 0:
                raise self._damaged(position, "a batch is cut short")
            size = needed if needed > bytes_max else bytes_max
        return None

    def _bytes(self, fd: int, position: int, size: int, needed: int) -> Buffer:
        """Return `size` bytes, or fewer but at least `needed`."""
        if size >= MAP_READ_BYTES_MIN and needed <= MAP_BYTES:
            view = self._maps.view(self, fd, position, size, self.size_bytes)
            if view is not None:
                return view
        data = os.pread(fd, size, position)
        if len(data) != size:
            raise self._damaged(position, f"{size - len(data)} bytes are missing")
        return data

    def position_of(self, offset: int) -> int:
        """Return a position at or before the batch with this offset, close to it."""
        if self._tail is not None and offset >= self._tail[0]:
            return self._tail[1]
        low, near = self.index.around(offset)
        if (
            0 <= near <= self.size_bytes - HEADER_BYTES
            and _base_offset.unpack(os.pread(self.file.fd(), 8, near))[0] <= offset
        ):
            return near
        return low

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the positions and headers of the batches from `position` on."""
        while position < self.size_bytes:
            header = self.header_at(position)
            if header is None:
                raise self._damaged(position, "a header is cut short")
            if header.size < HEADER_BYTES:
                raise self._damaged(position, f"a batch of {header.size} bytes")
            yield position, header
            position += header.size

    def header_at(self, position: int) -> BatchHeader | None:
        """Return the bytes at a position as a header, unchecked; None if the file ends before it does."""
        data = os.pread(self.file.fd(), HEADER_BYTES, position)
        return BatchHeader(*header_layout.unpack(data)) if len(data) == HEADER_BYTES else None

    def first_headers(self) -> list[BatchHeader]:
        """Return the headers of the intact batches at the beginning, with any offsets."""
        batches, _ = next(self.scan(verify=True, offset_min=0), ([], ""))
        return [header for _, header in batches]

    def batch_bytes(self, position: int, header: BatchHeader) -> bytes:
        """Return the bytes of a batch."""
        data = os.pread(self.file.fd(), header.size, position)
        if len(data) != header.size:
            raise self._damaged(position, "a batch is cut short")
        return data

    def _damaged(self, position: int, problem: str) -> BrokerError:
        """Return a CORRUPT_MESSAGE error: clients raise it, while they would retry KAFKA_STORAGE_ERROR endlessly."""
        text = f"{self.file.path} is damaged at byte {position}: {problem}"
        if not self._damage_is_logged:
            self._damage_is_logged = True
            logger.error("%s; fetches of it fail with CORRUPT_MESSAGE", text)
        return BrokerError(text, code=Code.CORRUPT_MESSAGE)

    # --- loading ---

    def load_tail(self) -> int:
        """Read the batches behind the last index entry, and return the offset after them.

        Raise ValueError if they are torn or damaged.
        """
        index = self.index
        first_position = index.positions[-1] if len(index) else 0
        self._unindexed_bytes = self.size_bytes - first_position
        self._tail = None
        self._max_timestamp = None
        next_offset = self.base_offset
        for batches, problem in self.scan(verify=True, position=first_position):
            for position, header in batches:
                self._tail = (header.base_offset, position, header.crc)
                next_offset = header.last_offset + 1
                if header.max_timestamp > self.max_timestamp_entry[0]:
                    self._max_timestamp = (header.max_timestamp, header.last_offset)
            if problem:
                raise ValueError(f"after byte {first_position}: {problem}")
        return next_offset

    def _load_indexes(self) -> None:
        """Load both indexes from their files, or rebuild both."""
        index_path, times_path = self.path(INDEX), self.path(TIME_INDEX)
        index = OffsetIndex.read(index_path, self.base_offset, self.size_bytes)
        times = TimeIndex.read(times_path, self.base_offset)
        saved = self.checkpoint
        is_saved = saved is None or (file_crc(index_path), file_crc(times_path)) == (saved.index_crc, saved.times_crc)
        if index is not None and times is not None and is_saved and self._is_plausible(index):
            self._index, self._times = index, times
            return
        if self.size_bytes > UNINDEXED_BYTES_MAX or not is_saved:
            logger.warning("%s: its indexes are missing or damaged and are rebuilt", self.file.path)
        self.rebuild_indexes(REBUILT_INDEX_INTERVAL_BYTES)
        index_crc, times_crc = self._write_indexes()
        if saved is not None:
            self.checkpoint = saved._replace(index_crc=index_crc, times_crc=times_crc)

    def rebuild_indexes(self, interval_bytes: int) -> int:
        """Rebuild the indexes from the records up to the first damaged batch, and return the offset after the last."""
        self.reset_indexes()
        next_offset = self.base_offset
        for batches, _ in self.scan(verify=False):
            for position, header in batches:
                if header.base_offset < next_offset or header.last_offset - self.base_offset > OFFSETS_MAX:
                    return next_offset  # the base offset is not covered by the checksum of a batch
                self.add_to_index(position, header, header.base_offset, interval_bytes)
                next_offset = header.last_offset + 1
        return next_offset

    def _is_plausible(self, index: OffsetIndex) -> bool:
        """Return whether the first, a middle and the last entry of an index match the file."""
        for number in {0, len(index) // 2, len(index) - 1} if len(index) else ():
            header = self.header_at(index.positions[number])
            if header is None or header.magic != 2 or header.last_offset != self.base_offset + index.lasts[number]:
                return False
        return True

    def reset_indexes(self) -> None:
        """Start with empty indexes, to be filled by `add_to_index`."""
        self._index, self._times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = self._first_crc = self._tail = None
        self._unindexed_bytes = 0

    def scan(
        self, *, verify: bool, position: int = 0, offset_min: int | None = None
    ) -> Iterator[tuple[list[tuple[int, BatchHeader]], str]]:
        """Yield lists of (position, header) of all batches; with the last list, the problem behind it, if any.

        An offset below `offset_min` is a problem. The default is the base offset of the segment.
        """
        if not self.size_bytes:
            return
        offset_min = self.base_offset if offset_min is None else offset_min
        with mmap.mmap(self.file.fd(), self.size_bytes, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            data.madvise(mmap.MADV_SEQUENTIAL)
            problem = ""
            while position < self.size_bytes and not problem:
                headers, _, problem = kernel.scan_batches(view, position, offset_min, SCAN_BATCHES_MAX, verify)
                batches = []
                for header in headers:
                    batches.append((position, header))
                    position += header.length + 12
                    offset_min = header.last_offset + 1
                yield batches, problem


def with_ends(segments: Sequence[Segment], end_offset: int) -> Iterable[tuple[Segment, int]]:
    """Pair each segment with the base offset of the next one; the last with `end_offset`."""
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    return zip(segments, ends, strict=False)


def _write_rest(fd: int, parts: Sequence[Buffer], position: int, written: int) -> None:
    """Complete a write that stopped early, because of a nearly full disk or a signal."""
    rest = memoryview(b"".join(parts))[written:]
    position += written
    while rest:
        count = os.pwrite(fd, rest, position)
        rest = rest[count:]
        position += count
