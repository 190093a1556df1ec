"""Looking for damage in segments that are not recovered: after a clean stop, and below the recovery point.

A batch carries a checksum, but not of its base offset, length and leader epoch, and nothing tells that the batches at
the end of a file are missing. So batches are compared with their neighbours, and with what was noted when the segment
was closed (segment_checkpoint.py). To read everything costs too much for a start, so that is done for
VERIFY_AT_START_BYTES, the newest of each log first. The rest follows in the background, VERIFY_BYTES_A_SECOND.

A damaged range stays in the log: fetches of it get CORRUPT_MESSAGE, and what is before and after it can be read.
Transactions that are open where it begins are undecided, because their markers may have been in it. Readers of
committed records get CORRUPT_MESSAGE from the first of these on (replaying.py finds them).
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from typing import NamedTuple

from headrace.broker.log.producer_state import NO_TRANSACTION
from headrace.broker.log.segment import SCAN_BATCHES_MAX, Segment
from headrace.broker.log.segment_checkpoint import SegmentRow
from headrace.wire.kernel import kernel
from headrace.wire.layout import CHECKSUM_PROBLEM, HEADER_BYTES, OFFSET_PROBLEM, BatchHeader, header_layout

VERIFY_AT_START_BYTES = 32 * 1024 * 1024
"""Of all segments of a broker, before it is ready: some 10 ms from memory, some 200 ms from a disk."""
VERIFY_BYTES_A_SECOND = 32 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024

NO_EPOCH = -1
_base_offset = struct.Struct(">q")


class Damage(NamedTuple):
    """Offsets that cannot be read."""

    first_offset: int
    end_offset: int
    reason: str
    undecided_offset: int = NO_TRANSACTION  # where the first transaction begins whose marker may have been in it

    def refused_from(self, committed_only: bool) -> int:
        """Return the first offset that a reader is refused because of this damage."""
        return self.undecided_offset if committed_only and self.undecided_offset >= 0 else self.first_offset

    def __str__(self) -> str:
        text = f"offsets {self.first_offset} to {self.end_offset - 1} are lost or damaged: {self.reason}"
        if self.undecided_offset >= 0:
            text += (
                f"; transactions that were open at offset {self.first_offset} may have ended there, so readers of "
                f"committed records are refused from offset {self.undecided_offset} on"
            )
        return text


class SegmentVerifier:
    """Reads a segment that nobody writes to, a chunk at a time, from any thread: through a handle of its own."""

    def __init__(
        self, segment: Segment, end_offset: int, epochs: list[tuple[int, int]], row: SegmentRow | None = None
    ) -> None:
        """`end_offset` is where the next segment begins, `epochs` those of the log with their first offsets.

        `row` is what was noted of the segment, if it has not been written to since.
        """
        self.segment = segment
        self.damages: list[Damage] = []
        self.other_epochs: list[Damage] = []  # batches whose leader epoch is not what the log knows
        self.last_fitting_offset = -1  # of a batch whose leader epoch is
        self.good_bytes = 0  # up to the first batch that cannot be told from its neighbours
        self._path = segment.file.path
        self._size_bytes = segment.size_bytes
        self._row = row
        self.crcs: list[int] = []  # of the first batch and the last one
        self._end_offset = end_offset
        self._epochs = [epoch for epoch, _ in epochs]
        self._starts = [start for _, start in epochs]
        self.next_offset = segment.base_offset  # after the last batch that was read
        self._doubtful_offset = segment.base_offset  # where that batch should have begun
        self._is_over = False

    def run(self) -> list[Damage]:
        """Read all of it; what is damaged."""
        while not self.step():
            pass
        return self.damages

    def step(self) -> bool:
        """Read the next chunk; whether that was the last one."""
        if not self._is_over and self.good_bytes < self._size_bytes:
            self._check(self._read())
        if not self._is_over and self.good_bytes >= self._size_bytes:
            self._is_over = True
            if self._row is not None:
                self._check_end(self._row)
        return self._is_over

    def _check_end(self, row: SegmentRow) -> None:
        """Whether it ends as it did. The last batch's base offset may be wrong, or this may be another file."""
        is_same = not self.crcs or (self.crcs[0], self.crcs[-1]) == (row.first_crc, row.last_crc)
        if self.next_offset == row.records_end and (is_same or self.damages):
            return
        first = self.next_offset
        if self.crcs and not self.damages and row.first_crc not in (0, self.crcs[0]):
            first = self.segment.base_offset
        elif first > row.records_end:
            first = self._doubtful_offset if self._doubtful_offset < row.records_end else self.segment.base_offset
        elif first == row.records_end:
            first = self.segment.base_offset
        reason = f"it ends at offset {self.next_offset}, expected {row.records_end}"
        if self.next_offset == row.records_end:
            reason = "its first or last batch is another one than when it was closed"
        self._note(first, self._end_offset, reason)

    def _read(self) -> bytes:
        """From the next batch on: a chunk, or that batch if it is larger."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            left = self._size_bytes - self.good_bytes
            data = os.pread(fd, min(CHUNK_BYTES, left), self.good_bytes)
            if len(data) >= HEADER_BYTES:
                size = BatchHeader._make(header_layout.unpack_from(data)).size
                if len(data) < size <= left:
                    data = os.pread(fd, size, self.good_bytes)
            return data
        finally:
            os.close(fd)

    def _check(self, data: bytes) -> None:
        at, is_last = 0, self.good_bytes + len(data) >= self._size_bytes
        while at < len(data) and not self._is_over:
            headers, after, problem = kernel.scan_batches(data, at, self.next_offset, SCAN_BATCHES_MAX, True)
            for header in headers:
                self._pass(header)
                at += header.size
            if not problem:
                continue
            if problem == CHECKSUM_PROBLEM:
                at = self._pass_damaged(data, after)
            elif is_last or after == 0:
                first = self._doubtful_offset if problem == OFFSET_PROBLEM else self.next_offset
                self._note(first, self._end_offset, f"at byte {self.good_bytes + after}: {problem}")
                self._is_over = True
            else:
                break  # the rest of it is in the next chunk
        self.good_bytes += at

    def _pass(self, header: BatchHeader) -> None:
        self._doubtful_offset, self.next_offset = self.next_offset, header.last_offset + 1
        self.crcs = [*self.crcs[:1], header.crc]
        place = bisect_right(self._starts, header.base_offset) - 1
        expected = self._epochs[place] if place >= 0 else NO_EPOCH
        if expected == header.leader_epoch:
            self.last_fitting_offset = header.base_offset
        elif self._epochs and header.leader_epoch >= 0:
            reason = f"{self._path}: a batch has leader epoch {header.leader_epoch}, expected {expected}"
            self.other_epochs.append(Damage(header.base_offset, self.next_offset, reason))

    def _pass_damaged(self, data: bytes, at: int) -> int:
        """A batch with a wrong checksum: what is behind it can be read if its length and offsets are right."""
        header = BatchHeader._make(header_layout.unpack_from(data, at))
        after = at + header.size
        end_offset = header.last_offset + 1
        follows = end_offset
        if after + HEADER_BYTES <= len(data):
            follows = BatchHeader._make(header_layout.unpack_from(data, after)).base_offset
        elif self.good_bytes + after >= self._size_bytes and self._row is not None:
            follows = self._row.records_end
        if follows != end_offset:
            end_offset = self._end_offset
            self._is_over = True
        self._note(self.next_offset, end_offset, f"at byte {self.good_bytes + at}: {CHECKSUM_PROBLEM}")
        self._doubtful_offset, self.next_offset = self.next_offset, end_offset
        return at if self._is_over else after

    def _note(self, first_offset: int, end_offset: int, reason: str) -> None:
        if first_offset < end_offset:
            self.damages.append(Damage(first_offset, end_offset, f"{self._path}: {reason}"))


def find_intact(view: memoryview, position: int, next_offset: int, offset_max: int) -> tuple[int, int] | None:
    """Return where batches go on behind damage at `position`, and their first offset; None if it is a torn tail.

    They have offsets above `next_offset`, where the damage begins, up to `offset_max`.
    """

    def intact(at: int) -> BatchHeader | None:
        headers, _, _ = kernel.scan_batches(view, at, next_offset + 1, 1, True)
        return headers[0] if headers and headers[0].last_offset <= offset_max else None

    here = intact(position)
    if here is not None:  # it leaves a gap: it is at the wrong offset if the next batch is nearer
        following = intact(position + here.size)
        if following is not None and following.base_offset <= here.last_offset:
            return position + here.size, following.base_offset
        return position, here.base_offset
    is_torn = False
    if position + HEADER_BYTES <= len(view):
        header = BatchHeader._make(header_layout.unpack_from(view, position))
        if header.size >= HEADER_BYTES and (following := intact(position + header.size)) is not None:
            return position + header.size, following.base_offset
        is_torn = header.base_offset == next_offset and position + header.size > len(view)
    # The length is damaged: look for a base offset and a magic that fit. A torn batch may have others among its
    # records: they are not taken for batches of the log unless all that follows is whole, up to the end.
    high_bytes = {_base_offset.pack(offset)[:4] for offset in (next_offset, offset_max)}
    pattern = re.compile(b"(?s)(?=(?:%b).{12}\x02)" % b"|".join(map(re.escape, high_bytes)))
    for match in pattern.finditer(view, position + 1):
        at = match.start()
        if (found := intact(at)) is not None and not (is_torn and _has_problem(view, at)):
            return at, found.base_offset
    return None


def _has_problem(view: memoryview, position: int) -> bool:
    """Whether batches from `position` on are not whole, up to the end."""
    problem, offset_min = "", 0
    while position < len(view) and not problem:
        headers, position, problem = kernel.scan_batches(view, position, offset_min, SCAN_BATCHES_MAX, True)
        offset_min = headers[-1].last_offset + 1 if headers else offset_min
    return bool(problem)
