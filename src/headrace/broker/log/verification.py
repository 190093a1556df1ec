"""Verification: find damage in segments that are not recovered, after a clean stop and below the recovery point.

The checksum of a batch does not cover its base offset, length and leader epoch, and nothing in a file shows that
batches are missing at its end. So batches are compared with their neighbours, and with the checkpoint of the segment
(checkpoints.py). Reading everything would make a start slow: VERIFY_AT_START_BYTES are read, the newest segments of
each log first. The rest follows in the background, VERIFY_BYTES_A_SECOND.

A damaged range stays in the log: fetches of it get CORRUPT_MESSAGE, and the records before and after it can be read.
Transactions that are open where it begins are undecided, because their markers may have been in it. read_committed
readers get CORRUPT_MESSAGE from the first of these on (`replay.find_undecided`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import NamedTuple

from headrace.broker.log.checkpoints import SegmentCheckpoint
from headrace.broker.log.producer_state import NO_TRANSACTION
from headrace.broker.log.segment import SCAN_BATCHES_MAX, Segment
from headrace.wire.kernel import kernel
from headrace.wire.layout import CHECKSUM_PROBLEM, HEADER_BYTES, OFFSET_PROBLEM, BatchHeader, header_layout

VERIFY_AT_START_BYTES = 32 * 1024 * 1024
"""Of all segments of a broker, before it is ready: some 10 ms from memory, some 200 ms from a disk."""
VERIFY_BYTES_A_SECOND = 32 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024

NO_EPOCH = -1


class Damage(NamedTuple):
    """A range of offsets that cannot be read."""

    first_offset: int
    end_offset: int
    reason: str
    undecided_offset: int = NO_TRANSACTION  # of the first transaction whose marker may have been in the range

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
    """Reads a segment that is not written to, in chunks, from any thread: it opens the file itself."""

    def __init__(
        self, segment: Segment, end_offset: int, epochs: list[tuple[int, int]], saved: SegmentCheckpoint | None = None
    ) -> None:
        """`end_offset` is where the next segment begins; `epochs` are the log's leader epochs and first offsets.

        `saved` is the checkpoint of the segment, if it has not been written to since.
        """
        self.segment = segment
        self.damages: list[Damage] = []
        self.epoch_mismatches: list[Damage] = []  # batches with another leader epoch than the log has for their offset
        self.last_match_offset = -1  # of the last batch with the right leader epoch
        self.good_bytes = 0  # up to the first batch whose end is unknown
        self._path = segment.file.path
        self._size_bytes = segment.size_bytes
        self._saved = saved
        self.crcs: list[int] = []  # of the first batch and the last
        self._end_offset = end_offset
        self._epochs = [epoch for epoch, _ in epochs]
        self._starts = [start for _, start in epochs]
        self.next_offset = segment.base_offset  # after the last batch that was read
        self._expected_offset = segment.base_offset  # where that batch should have begun
        self._is_done = False

    def run(self) -> list[Damage]:
        """Read the whole segment and return the damaged ranges."""
        while not self.step():
            pass
        return self.damages

    def step(self) -> bool:
        """Read the next chunk and return whether it was the last."""
        if not self._is_done and self.good_bytes < self._size_bytes:
            self._check(self._read())
        if not self._is_done and self.good_bytes >= self._size_bytes:
            self._is_done = True
            if self._saved is not None:
                self._check_end(self._saved)
        return self._is_done

    def _check_end(self, saved: SegmentCheckpoint) -> None:
        """Compare the end with the checkpoint: the last base offset may be wrong, or the file another segment's."""
        is_same = not self.crcs or (self.crcs[0], self.crcs[-1]) == (saved.first_crc, saved.last_crc)
        if self.next_offset == saved.records_end and (is_same or self.damages):
            return
        first = self.next_offset
        if self.crcs and not self.damages and saved.first_crc not in (0, self.crcs[0]):
            first = self.segment.base_offset
        elif first > saved.records_end:
            first = self._expected_offset if self._expected_offset < saved.records_end else self.segment.base_offset
        elif first == saved.records_end:
            first = self.segment.base_offset
        reason = f"it ends at offset {self.next_offset}, expected {saved.records_end}"
        if self.next_offset == saved.records_end:
            reason = "its first or last batch is not the one that it was closed with"
        self._add_damage(first, self._end_offset, reason)

    def _read(self) -> bytes:
        """Return a chunk from the next batch on, or that batch if it is larger."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            left = self._size_bytes - self.good_bytes
            data = os.pread(fd, min(CHUNK_BYTES, left), self.good_bytes)
            if len(data) >= HEADER_BYTES:
                size = _header(data, 0).size
                if len(data) < size <= left:
                    data = os.pread(fd, size, self.good_bytes)
            return data
        finally:
            os.close(fd)

    def _check(self, data: bytes) -> None:
        at, is_last = 0, self.good_bytes + len(data) >= self._size_bytes
        while at < len(data) and not self._is_done:
            headers, after, problem = kernel.scan_batches(data, at, self.next_offset, SCAN_BATCHES_MAX, True)
            for header in headers:
                self._check_epoch(header)
                at += header.size
            if not problem:
                continue
            if problem == CHECKSUM_PROBLEM:
                at = self._skip_damaged(data, after)
            elif is_last or after == 0:
                first = self._expected_offset if problem == OFFSET_PROBLEM else self.next_offset
                self._add_damage(first, self._end_offset, f"at byte {self.good_bytes + after}: {problem}")
                self._is_done = True
            else:
                break  # the rest of the batch is in the next chunk
        self.good_bytes += at

    def _check_epoch(self, header: BatchHeader) -> None:
        """Pass an intact batch, and compare its leader epoch with that of the log."""
        self._expected_offset, self.next_offset = self.next_offset, header.last_offset + 1
        self.crcs = [*self.crcs[:1], header.crc]
        index = bisect_right(self._starts, header.base_offset) - 1
        expected = self._epochs[index] if index >= 0 else NO_EPOCH
        if expected == header.leader_epoch:
            self.last_match_offset = header.base_offset
        elif self._epochs and header.leader_epoch >= 0:
            reason = f"{self._path}: a batch has leader epoch {header.leader_epoch}, expected {expected}"
            self.epoch_mismatches.append(Damage(header.base_offset, self.next_offset, reason))

    def _skip_damaged(self, data: bytes, at: int) -> int:
        """Skip a batch with a wrong checksum: the batches behind it can be read if its length and offsets are right."""
        header = _header(data, at)
        after = at + header.size
        end_offset = header.last_offset + 1
        follows = end_offset
        if after + HEADER_BYTES <= len(data):
            follows = _header(data, after).base_offset
        elif self.good_bytes + after >= self._size_bytes and self._saved is not None:
            follows = self._saved.records_end
        if follows != end_offset:
            end_offset = self._end_offset
            self._is_done = True
        self._add_damage(self.next_offset, end_offset, f"at byte {self.good_bytes + at}: {CHECKSUM_PROBLEM}")
        self._expected_offset, self.next_offset = self.next_offset, end_offset
        return at if self._is_done else after

    def _add_damage(self, first_offset: int, end_offset: int, reason: str) -> None:
        if first_offset < end_offset:
            self.damages.append(Damage(first_offset, end_offset, f"{self._path}: {reason}"))


def single_mismatch(mismatches: list[Damage], last_match_offset: int) -> list[Damage]:
    """Return the batch whose leader epoch alone differs from those around it.

    If several batches differ, or the last one, then not a batch but the list of leader epochs is wrong.
    """
    is_single = len(mismatches) == 1 and mismatches[0].first_offset < last_match_offset
    return mismatches if is_single else []


def _header(data: bytes, position: int) -> BatchHeader:
    return BatchHeader(*header_layout.unpack_from(data, position))
