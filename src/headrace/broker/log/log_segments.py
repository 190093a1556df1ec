"""The segments of a log: their order, their checkpoints, truncation, flush to disk and look-up by timestamp."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from headrace.broker.disk import sync_path
from headrace.broker.log.checkpoints import SegmentCheckpoint, write_segment_checkpoints
from headrace.broker.log.decompression import Decompression
from headrace.broker.log.files import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_CHECKPOINTS,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    FileCache,
    sync_if_exists,
)
from headrace.broker.log.segment import Segment, with_ends
from headrace.wire.kernel import kernel
from headrace.wire.layout import LOG_APPEND_TIME
from headrace.wire.records import RecordBatch

logger = logging.getLogger("headrace.broker.log")

_ANY_TIMESTAMP = -(2**63)


class LogSegments(Sequence[Segment]):
    """The segments of a log, ascending; at least one. Event loop only, except `sync`."""

    def __init__(
        self,
        directory: Path,
        files: FileCache,
        segments: list[Segment],
        *,
        saved: list[SegmentCheckpoint],
        lost: list[SegmentCheckpoint],
    ) -> None:
        """`saved` are the checkpoints on disk; `lost` those of them whose files are gone."""
        self.directory = directory
        self.files = files
        self.active = segments[-1]  # the one that is written to
        self.lost = lost
        self.files_changed = True  # files other than the last `.log` are new; `sync` resets it, on its thread
        self._segments = segments
        self._saved = saved

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that an offset belongs to."""
        return max(0, bisect.bisect_right(self._segments, offset, key=_base_offset) - 1)

    def end_of(self, segment: Segment) -> int:
        """Return the base offset of the segment that follows a closed one."""
        return self._segments[self._segments.index(segment) + 1].base_offset

    # --- changes ---

    def begin(self, base_offset: int, created_ms: int, jitter_ms: int) -> None:
        """Add an empty segment, which is written to from now on."""
        segment = Segment(self.directory, base_offset, self.files, created_ms=created_ms)
        segment.jitter_ms = jitter_ms
        segment.file.fd()  # creates the file: the segment is there after a restart
        self._segments.append(segment)
        self.active = segment
        self.files_changed = True

    def remove_first(self, count: int, start_offset: int) -> list[Segment]:
        """Remove segments from the beginning and return them. `start_offset` is the new start of the log."""
        removed, self._segments = self._segments[:count], self._segments[count:]
        self.lost = [checkpoint for checkpoint in self.lost if checkpoint.records_end > start_offset]
        return removed

    def replace(self, originals: list[Segment], compacted: Segment) -> None:
        """Replace segments by the one that compaction made of them."""
        index = self._segments.index(originals[0])
        self._segments[index : index + len(originals)] = [compacted]

    def truncate(self, offset: int) -> int:
        """Remove all records from `offset` on and return the new end offset: a batch with `offset` is removed whole."""
        index = self.index_of(offset)
        removed, self._segments = self._segments[index + 1 :], self._segments[: index + 1]
        last = self.active = self._segments[-1]
        last.checkpoint = None
        self._delete(removed, offset)
        for position, header in last.headers(last.position_of(offset)):
            if header.last_offset >= offset:
                end_offset = min(offset, header.base_offset)
                last.truncate(position, end_offset)
                return end_offset
        return offset

    def clear(self) -> None:
        """Delete all segments. `begin` has to follow. If a file cannot be deleted, the log keeps its segments."""
        for segment in self._segments:
            segment.checkpoint = None
        self._delete(self._segments, 0)
        self._segments = []

    def _delete(self, segments: list[Segment], end_offset: int) -> None:
        """Delete segments, after their checkpoints: a checkpoint without its segment would count as a loss."""
        self.lost = [checkpoint for checkpoint in self.lost if checkpoint.base_offset < end_offset]
        self.save_checkpoints(with_active=False)
        self.files_changed = True
        for segment in segments:
            segment.delete()

    # --- disk ---

    def save_checkpoints(self, *, with_active: bool) -> None:
        """Write the checkpoints of the segments if they have changed. Call it before files of segments are deleted.

        `with_active` includes the last segment: it has not been written to since its checkpoint was made.
        """
        segments = self._segments if with_active else self._segments[:-1]
        checkpoints = sorted([*self.lost, *(each.checkpoint for each in segments if each.checkpoint is not None)])
        if not any(checkpoint.size_bytes for checkpoint in checkpoints):
            checkpoints = []
        if checkpoints == self._saved:
            return
        try:
            if checkpoints:
                write_segment_checkpoints(self.directory, checkpoints)
        except OSError as error:  # a full disk must not keep retention from freeing space
            name = SEGMENT_CHECKPOINTS
            logger.warning("%s: cannot write %s: %s; the next start reads all segments", self.directory, name, error)
            checkpoints = []
        if not checkpoints:
            (self.directory / SEGMENT_CHECKPOINTS).unlink(missing_ok=True)
        self._saved = checkpoints
        self.files_changed = True

    def sync(self, first_offset: int, end_offset: int) -> None:
        """Force the records from `first_offset` up to `end_offset` to disk, and all other files that are new.

        From any thread, while appends continue: the files are opened for it.
        """
        files_changed, self.files_changed = self.files_changed, False
        segments = list(self._segments)
        for segment, end in with_ends(segments, end_offset):
            if end > first_offset and segment.base_offset < end_offset:
                sync_if_exists(segment.path(LOG))
            if files_changed and end >= first_offset:
                for suffix in (SNAPSHOT, INDEX, TIME_INDEX, TRANSACTION_INDEX):
                    sync_if_exists(segment.path(suffix))
        if files_changed:
            sync_if_exists(self.directory / LEADER_EPOCHS)
            if len(segments) > 1:  # for a single segment recovery by its records is as good
                sync_if_exists(self.directory / SEGMENT_CHECKPOINTS)
            sync_path(self.directory)

    # --- look-up by timestamp ---

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp; -1 if there is none."""
        return max(segment.max_timestamp for segment in self._segments)

    def batch_for_time(self, timestamp_ms: int, first_offset: int) -> RecordBatch | None:
        """Return the first batch with records from `first_offset` on and this timestamp or a later one."""
        for segment in self._segments:
            if segment.max_timestamp < timestamp_ms:
                continue
            start = segment.position_of(max(segment.times.floor(timestamp_ms), first_offset))
            for position, header in segment.headers(start):
                if header.max_timestamp >= timestamp_ms and header.last_offset >= first_offset:
                    return RecordBatch(header, memoryview(segment.batch_bytes(position, header)))
        return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


class OffsetAndTimestamp(NamedTuple):
    """The result of a search by timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def find_record(
    batch: RecordBatch, timestamp_ms: int, first_offset: int, decompression: Decompression
) -> OffsetAndTimestamp | None:
    """Return the first record of a batch from `first_offset` on with this timestamp or a later one. From any thread.

    Raise BrokerError, WireError, or OffLoopError if this is the event loop and the batch is large.
    """
    header = batch.header
    has_append_time = bool(header.attributes & LOG_APPEND_TIME)
    if has_append_time and header.max_timestamp < timestamp_ms:
        return None
    delta_min = _ANY_TIMESTAMP if has_append_time else timestamp_ms - header.base_timestamp
    payload = decompression.payload(batch)
    match = kernel.find_timestamp(payload, header.record_count, delta_min, first_offset - header.base_offset)
    if match is None:
        return None
    offset_delta, timestamp_delta = match
    timestamp_ms = header.max_timestamp if has_append_time else header.base_timestamp + timestamp_delta
    return OffsetAndTimestamp(header.base_offset + offset_delta, timestamp_ms, header.leader_epoch)
