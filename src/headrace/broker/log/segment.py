"""A segment: a file of batches from one offset on, with its two indexes.

The last segment of a log is written to; the others do not change. What is appended is in the file when `write` returns,
so it outlives the process; `Log.flush` makes it outlive the machine.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.files import INDEX, LOG, TIME_INDEX, UNFINISHED, File, FileCache, offset_name, replace_file
from headrace.broker.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from headrace.broker.log.segment_checkpoint import SegmentRow, crc_of_data, crc_of_file
from headrace.broker.log.windows import WINDOW_BYTES
from headrace.errors import BrokerError, Code, CorruptBatchError
from headrace.wire.kernel import kernel
from headrace.wire.layout import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, header_layout
from headrace.wire.primitives import Buffer

RESERVE_FROM_BYTES = 1024 * 1024
"""Up to this size a segment reserves no room on disk ahead of what is written."""
FIRST_READ_BYTES = 4096 + HEADER_BYTES
"""A read asks for this much at least: what may have to be skipped between two entries of an index."""
COPY_BYTES = 1024 * 1024
"""Copied at once where a file has to be made anew."""
SCAN_BATCHES_MAX = 4096
"""Headers that a scan holds at once."""
WINDOW_READ_BYTES_MIN = 128 * 1024
"""Reads of this much go through windows, smaller ones are read."""
LOST_INDEX_INTERVAL_BYTES = 4096
"""How dense an index becomes that is made anew because its file is lost."""
SMALL_BYTES = 64 * 1024
"""Of a segment up to this size an index may be missing without a word."""
OFFSETS_MAX = 2**31 - 1
"""Offsets in a segment: the indexes count them in 32 bits."""

log = logging.getLogger("headrace.broker.log")

_base_offset = struct.Struct(">q")


class Slice(NamedTuple):
    """Whole batches, as they are read."""

    data: Buffer
    first_offset: int
    next_offset: int


class Segment:
    """One file of batches. Event loop only, but for scans of segments that are closed."""

    def __init__(
        self, folder: Path, base_offset: int, cache: FileCache, *, created_ms: int, size_bytes: int = 0
    ) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.jitter_ms = 0  # comes off segment.ms
        self.row: SegmentRow | None = None  # as it was last noted; None: not yet, or not any more
        self._windows = cache.windows
        self.file = File(str(folder / offset_name(base_offset, LOG)), cache)
        self._index = None if size_bytes else OffsetIndex(base_offset)
        self._times = None if size_bytes else TimeIndex(base_offset)
        self._max_timestamp: tuple[int, int] | None = None if size_bytes else (NO_TIMESTAMP, base_offset)
        self._first_timestamp: int | None = None
        self._unindexed_bytes = 0
        self._tail: tuple[int, int, int] | None = None  # base offset, position and checksum of the last batch, if known
        self._first_crc: int | None = None  # checksum of the first batch, if known
        self._reserved_end = max(RESERVE_FROM_BYTES, size_bytes)  # up to here a write needs no more room
        self._damage_is_logged = False

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size_bytes} bytes)"

    # --- what it holds ---

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
        """The highest timestamp in it; -1 if it has none."""
        return self.max_timestamp_entry[0]

    @property
    def max_timestamp_entry(self) -> tuple[int, int]:
        """The highest timestamp, and the last offset of the first batch that has it."""
        if self._max_timestamp is None:
            times = self.times
            last = len(times) - 1
            self._max_timestamp = (
                (times.timestamps[last], self.base_offset + times.offsets[last])
                if last >= 0
                else (NO_TIMESTAMP, self.base_offset)
            )
        return self._max_timestamp

    @property
    def first_timestamp(self) -> int:
        """The highest timestamp of the first batch; -1 where there is none."""
        if self._first_timestamp is None:
            if not self.size_bytes:
                return NO_TIMESTAMP
            self._first_timestamp = next(self.headers(0))[1].max_timestamp
        return self._first_timestamp

    def is_full(self, config_segment_bytes: int, config_index_bytes: int, size_bytes: int, last_offset: int) -> bool:
        """Whether a batch of that size, up to that offset, has to go to the next segment."""
        index, times = self._index, self._times
        if index is None or times is None:
            index, times = self.index, self.times
        return (
            self.size_bytes + size_bytes > config_segment_bytes
            or last_offset - self.base_offset > OFFSETS_MAX
            or len(index.lasts) >= config_index_bytes // OFFSET_ENTRY_BYTES
            or len(times.offsets) >= config_index_bytes // TIME_ENTRY_BYTES - 1
        )

    # --- writing ---

    def write(self, parts: Sequence[Buffer], size_bytes: int) -> int:
        """Put bytes at the end, all or none, and return where they begin. Raises OSError."""
        fd = self.file.fd()
        position = self.size_bytes
        if position + size_bytes > self._reserved_end:
            self._reserve(fd, position + size_bytes)
        try:
            written = os.pwritev(fd, parts, position)
            if written != size_bytes:
                _write_rest(fd, parts, position, written)
        except OSError:
            os.ftruncate(fd, position)
            raise
        self.size_bytes = position + size_bytes
        return position

    def _reserve(self, fd: int, end: int) -> None:
        from headrace.broker.log.reserving import reserve  # only busy logs ever need it

        self._reserved_end = reserve(fd, end)

    def _release(self) -> None:
        """Give back what was reserved and not used."""
        if self._reserved_end > max(RESERVE_FROM_BYTES, self.size_bytes):
            os.ftruncate(self.file.fd(), self.size_bytes)
        self._reserved_end = max(RESERVE_FROM_BYTES, self.size_bytes)

    def note(self, position: int, header: BatchHeader, base_offset: int, interval_bytes: int) -> None:
        """Enter a batch that was written at `position` into the indexes."""
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
        """Cut off everything from `position` on, which is where `end_offset` begins."""
        self.index.truncate(position)
        self.times.truncate(end_offset)
        self._cut_file(position)
        self.size_bytes = position
        self._reserved_end = max(RESERVE_FROM_BYTES, position)
        if not position:
            self._first_timestamp = self._first_crc = None
        self.load_tail()

    def _cut_file(self, size_bytes: int) -> None:
        """Shorten the file. Who still looks at its end through a window keeps the old file."""
        if self._windows.forget(self):
            os.ftruncate(self.file.fd(), size_bytes)
            return
        fresh = f"{self.file.path}{UNFINISHED}"
        with open(self.file.path, "rb") as source, open(fresh, "wb") as target:
            left = size_bytes
            while left:
                part = source.read(min(left, COPY_BYTES))
                target.write(part)
                left -= len(part)
        self.file.close()
        os.replace(fresh, self.file.path)

    def limit(self, size_bytes: int) -> None:
        """Read no further: what follows is damaged. The file stays as it is."""
        self.index.truncate(size_bytes)
        self.size_bytes = size_bytes
        self._reserved_end = max(RESERVE_FROM_BYTES, size_bytes)

    def close(self) -> None:
        """Let go of the file."""
        self._windows.forget(self)
        self.file.close()

    def write_indexes(self) -> tuple[int, int]:
        """Put the indexes on disk, and return their checksums: the segment is complete, or the log is being closed.

        A segment with nothing in its index needs no files: it is read faster than they are. Many logs are that small.
        """
        self._release()
        self.end_times()
        return (
            self._write_index(INDEX, self.index.to_bytes()),
            self._write_index(TIME_INDEX, self.times.to_bytes() if len(self.index) else b""),
        )

    def close_with(self, records_end: int, aborted_crc: int) -> None:
        """Write the indexes, and note what the segment is now. `aborted_crc` is of its transaction index."""
        if self._first_crc is None:
            self._first_crc = next(self.headers(0))[1].crc if self.size_bytes else 0
        last_crc = self._tail[2] if self._tail is not None else 0
        index_crc, times_crc = self.write_indexes()
        self.row = SegmentRow(
            self.base_offset, records_end, self.size_bytes, self._first_crc, last_crc, index_crc, times_crc, aborted_crc
        )

    def end_times(self) -> None:
        """The last entry of the time index says the highest timestamp of all."""
        self.times.append(*self.max_timestamp_entry)

    def _write_index(self, suffix: str, data: bytes) -> int:
        path = self.folder / offset_name(self.base_offset, suffix)
        if data:
            replace_file(path, data, sync=False)
        else:
            path.unlink(missing_ok=True)
        return crc_of_data(data)

    # --- reading ---

    def read(self, offset: int, bytes_max: int, end_offset: int, at_least_one: bool) -> Slice | None:
        """Whole batches from the one that has `offset`, or the next one. None: there is none in this segment."""
        fd = self.file.fd()
        position = self.position_of(offset)
        want = bytes_max if bytes_max > FIRST_READ_BYTES else FIRST_READ_BYTES
        needed = 0
        while position < self.size_bytes:  # every turn gets nearer to the batch, or has it whole
            left = self.size_bytes - position
            data = self._bytes(fd, position, want if want < left else left, needed)
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
            want = needed if needed > bytes_max else bytes_max
        return None

    def _bytes(self, fd: int, position: int, size: int, needed: int) -> Buffer:
        """As many bytes, or fewer if it is not less than is needed."""
        if size >= WINDOW_READ_BYTES_MIN and needed <= WINDOW_BYTES:
            view = self._windows.view(self, fd, position, size, self.size_bytes)
            if view is not None:
                return view
        data = os.pread(fd, size, position)
        if len(data) != size:
            raise self._damaged(position, f"{size - len(data)} bytes are missing")
        return data

    def position_of(self, offset: int) -> int:
        """Where a search for the batch with this offset may begin."""
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
        """Positions and headers of the batches from `position` on."""
        while position < self.size_bytes:
            data = os.pread(self.file.fd(), HEADER_BYTES, position)
            if len(data) < HEADER_BYTES:
                raise self._damaged(position, "a header is cut short")
            header = BatchHeader._make(header_layout.unpack(data))
            if header.size < HEADER_BYTES:
                raise self._damaged(position, f"a batch of {header.size} bytes")
            yield position, header
            position += header.size

    def header_at(self, position: int) -> BatchHeader | None:
        """What is in the place of a header, unchecked; None if the segment ends before it would."""
        data = os.pread(self.file.fd(), HEADER_BYTES, position)
        return BatchHeader._make(header_layout.unpack(data)) if len(data) == HEADER_BYTES else None

    def batch_bytes(self, position: int, header: BatchHeader) -> bytes:
        """A batch as it lies in the file."""
        data = os.pread(self.file.fd(), header.size, position)
        if len(data) != header.size:
            raise self._damaged(position, "a batch is cut short")
        return data

    def _damaged(self, position: int, what: str) -> BrokerError:
        """An error that clients give to their users: KAFKA_STORAGE_ERROR they would retry for ever, without a word."""
        text = f"{self.file.path} is damaged at byte {position}: {what}"
        if not self._damage_is_logged:
            self._damage_is_logged = True
            log.error("%s; fetches of it fail with CORRUPT_MESSAGE", text)
        return BrokerError(text, code=Code.CORRUPT_MESSAGE)

    # --- from disk ---

    def load_tail(self) -> int:
        """Learn what the indexes do not say from the last batches, and return the offset after them.

        Raises ValueError if they are torn or damaged.
        """
        index = self.index
        position = index.positions[-1] if len(index) else 0
        self._unindexed_bytes = self.size_bytes - position
        self._tail = None
        self._max_timestamp = None
        next_offset = self.base_offset
        for placed, problem in self.scan(verify=True, position=position):
            for at, header in placed:
                self._tail = (header.base_offset, at, header.crc)
                next_offset = header.last_offset + 1
                if header.max_timestamp > self.max_timestamp_entry[0]:
                    self._max_timestamp = (header.max_timestamp, header.last_offset)
            if problem:
                raise ValueError(f"after byte {position}: {problem}")
        return next_offset

    def _load_indexes(self) -> None:
        """Both from their files, or both from the records."""
        index_path = self.folder / offset_name(self.base_offset, INDEX)
        times_path = self.folder / offset_name(self.base_offset, TIME_INDEX)
        index = OffsetIndex.read(index_path, self.base_offset, self.size_bytes)
        times = TimeIndex.read(times_path, self.base_offset)
        row = self.row
        is_noted = row is None or (crc_of_file(index_path), crc_of_file(times_path)) == (row.index_crc, row.times_crc)
        if index is not None and times is not None and is_noted and self._fits(index):
            self._index, self._times = index, times
            return
        if self.size_bytes > SMALL_BYTES or not is_noted:
            log.warning("%s: its indexes are missing or damaged, and made anew", self.file.path)
        self._make_indexes()
        index_crc, times_crc = self.write_indexes()
        if row is not None:
            self.row = row._replace(index_crc=index_crc, times_crc=times_crc)

    def _make_indexes(self) -> None:
        """From the records, up to what is damaged: nothing behind that can be found."""
        self.forget_indexes()
        for placed, _ in self.scan(verify=False):
            for position, header in placed:
                self.note(position, header, header.base_offset, LOST_INDEX_INTERVAL_BYTES)

    def _fits(self, index: OffsetIndex) -> bool:
        """Whether some entries of an index are right: the first, one in the middle, the last."""
        places = {0, len(index) // 2, len(index) - 1} if len(index) else set()
        for place in places:
            data = os.pread(self.file.fd(), HEADER_BYTES, index.positions[place])
            if len(data) < HEADER_BYTES:
                return False
            header = BatchHeader._make(header_layout.unpack(data))
            if header.magic != 2 or header.last_offset != self.base_offset + index.lasts[place]:
                return False
        return True

    def forget_indexes(self) -> None:
        """Begin the indexes anew, to be filled by `note`."""
        self._index, self._times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = self._first_crc = self._tail = None
        self._unindexed_bytes = 0

    def scan(
        self, *, verify: bool, position: int = 0, offset_min: int | None = None
    ) -> Iterator[tuple[list[tuple[int, BatchHeader]], str]]:
        """Positions and headers of all batches, some at a time; with the last ones what is wrong after them.

        Offsets below `offset_min` are wrong; unless it is said, those below the segment's.
        """
        if not self.size_bytes:
            return
        offset_min = self.base_offset if offset_min is None else offset_min
        with mmap.mmap(self.file.fd(), self.size_bytes, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            data.madvise(mmap.MADV_SEQUENTIAL)
            problem = ""
            while position < self.size_bytes and not problem:
                headers, _, problem = kernel.scan_batches(view, position, offset_min, SCAN_BATCHES_MAX, verify)
                placed = []
                for header in headers:
                    placed.append((position, header))
                    position += header.length + 12
                    offset_min = header.last_offset + 1
                yield placed, problem


def _write_rest(fd: int, parts: Sequence[Buffer], position: int, written: int) -> None:
    """What a write that stopped early has left over: a disk nearly full, a signal."""
    rest = memoryview(b"".join(parts))[written:]
    position += written
    while rest:
        done = os.pwrite(fd, rest, position)
        rest = rest[done:]
        position += done
