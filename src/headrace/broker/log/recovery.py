"""Recovery: read the segments from the recovery point on after a crash, and repair what is torn or damaged.

Segments are read batch by batch. The log ends before the first batch that is torn or damaged, and the bytes behind it
are kept in files named `.damaged`. Without other replicas the log ends there only if no intact batch follows: otherwise
the intact batches get a new segment, and the offsets between are a damaged range.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.broker.disk import numbered, private, unused
from headrace.broker.log.checkpoints import (
    NO_FILE,
    SegmentCheckpoint,
    read_segment_checkpoints,
    write_segment_checkpoints,
)
from headrace.broker.log.config import LogConfig
from headrace.broker.log.epochs import EpochCache
from headrace.broker.log.files import DAMAGED, GAPS, LEADER_EPOCHS, LOG, FileCache, offset_name, replace_file
from headrace.broker.log.index import AbortedIndex
from headrace.broker.log.producer_state import ProducerStateManager
from headrace.broker.log.replay import replay_batch
from headrace.broker.log.segment import OFFSETS_MAX, SCAN_BATCHES_MAX, Segment
from headrace.broker.log.verification import NO_EPOCH, Damage
from headrace.wire.kernel import kernel
from headrace.wire.layout import HEADER_BYTES, BatchHeader, header_layout

logger = logging.getLogger("headrace.broker.log")

_base_offset = struct.Struct(">q")


class PartitionFacts(NamedTuple):
    """What the catalog knows of a partition."""

    is_alone: bool = False  # no other broker can have the records that are lost here
    is_contiguous: bool = False  # not compacted: in the last segment each batch begins where the previous one ends


NO_FACTS = PartitionFacts()


@dataclass
class LogState:
    """A log while it is loaded."""

    directory: Path
    name: str
    config: LogConfig
    files: FileCache
    facts: PartitionFacts
    now_ms: int

    def __post_init__(self) -> None:
        self.producers = ProducerStateManager(self.name)
        self.epochs = EpochCache(self.directory / LEADER_EPOCHS)
        self.aborted = AbortedIndex()
        self.checkpoints = read_segment_checkpoints(self.directory)  # by base offset
        self.segments: list[Segment] = []
        self.damaged: list[Damage] = []
        self.end_offset = 0

    def new_segment(self, base_offset: int, created_ms: int, size_bytes: int) -> Segment:
        return Segment(self.directory, base_offset, self.files, created_ms=created_ms, size_bytes=size_bytes)


class LogRecovery:
    """Recovers the last segments of a log."""

    def __init__(self, state: LogState, replay_from: int) -> None:
        """`replay_from` is the offset from which batches are added to the state of producers."""
        self._state = state
        self._replay_from = replay_from

    def run(self, first: int) -> None:
        """Recover the segments from the index `first` on."""
        index = first
        while index < len(self._state.segments):
            if not self._recover(index):
                self._remove_after(index)
            index += 1

    def _recover(self, index: int) -> bool:
        """Read a segment and repair it. Return whether the log may continue with the next one."""
        state = self._state
        segment = state.segments[index]
        # Compaction leaves gaps, also between segments.
        state.end_offset = max(state.end_offset, segment.base_offset)
        good_bytes, problem = self._read(index)
        is_last = index + 1 == len(state.segments)
        saved = segment.checkpoint
        if not problem and not is_last and saved is not None and state.end_offset < saved.records_end:
            problem = f"it ends here, expected offset {saved.records_end}"
        if problem and state.facts.is_alone:
            self._save_intact(index, good_bytes)
            if index + 1 < len(state.segments):
                self._keep_damaged(index, good_bytes, problem)
                return True
        if problem:
            self._cut(segment, good_bytes, problem)
        if index + 1 < len(state.segments):
            self._seal(segment, state.end_offset)
        return not problem

    def _read(self, index: int) -> tuple[int, str]:
        """Add the batches of a segment to the state. Return the size of the intact part and the problem behind it."""
        state = self._state
        segment = state.segments[index]
        segment.reset_indexes()
        good_bytes, epoch = 0, NO_EPOCH
        for batches, problem in segment.scan(verify=True):
            for position, header in batches:
                if header.base_offset != state.end_offset or header.leader_epoch != epoch:
                    if misplaced := self._misplaced(index, position, header, epoch):
                        return good_bytes, misplaced
                    epoch = header.leader_epoch
                segment.add_to_index(position, header, header.base_offset, state.config.index_interval_bytes)
                state.epochs.replay(header.leader_epoch, header.base_offset)
                if header.base_offset >= self._replay_from:
                    aborted = replay_batch(state.producers, segment, position, header, state.now_ms)
                    if aborted is not None:
                        state.aborted.append(aborted)
                good_bytes = position + header.size
                state.end_offset = header.last_offset + 1
            if problem:
                return good_bytes, problem
        return good_bytes, ""

    def _misplaced(self, index: int, position: int, header: BatchHeader, epoch: int) -> str:
        """Return why the offset or the leader epoch of a batch is wrong, if it is: no checksum covers these two.

        `epoch` is that of the batch before it.
        """
        state = self._state
        segment, end_offset = state.segments[index], state.end_offset
        problem = f"a batch has offset {header.base_offset}, expected {end_offset}"
        if header.last_offset > self._offset_max(index):
            return problem
        following = segment.header_at(position + header.size)
        is_last = index + 1 == len(state.segments)
        if header.base_offset > end_offset:
            if is_last and state.facts.is_contiguous and not (state.directory / GAPS).exists():
                return problem
            if following is not None and end_offset < following.base_offset <= header.last_offset:
                return f"{problem}: the next one has {following.base_offset}"
            if is_last and (position == 0 or following is None):
                logger.warning(
                    "%s: at byte %d %s: compaction has removed the offsets between, or this is damaged, or of another "
                    "log",
                    segment.file.path,
                    position,
                    problem,
                )
        if following is not None and header.leader_epoch != epoch == following.leader_epoch:
            return f"a batch has leader epoch {header.leader_epoch}, those before and after it {epoch}"
        return ""

    def _offset_max(self, index: int) -> int:
        """Return the highest offset that a segment can have."""
        segment, *following = self._state.segments[index : index + 2]
        return min([segment.base_offset + OFFSETS_MAX, *(each.base_offset - 1 for each in following)])

    def _save_intact(self, index: int, good_bytes: int) -> None:
        """Move the intact batches behind damage to a new segment: no other broker has them.

        The bytes between are kept as well. The checkpoint of the damaged segment keeps its size and end, so that each
        start reports the loss.
        """
        state = self._state
        segment, end_offset = state.segments[index], state.end_offset
        if good_bytes == segment.size_bytes or (good_bytes == 0 and self._is_of_another_log(segment)):
            return
        with (
            open(segment.file.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            intact = find_intact(view, good_bytes, end_offset, self._offset_max(index))
            if intact is None:
                return
            position, first_offset = intact
            if position > good_bytes:
                replace_file(self._damaged_path(), view[good_bytes:position])
            replace_file(state.directory / offset_name(first_offset, LOG), view[position:])
            size_bytes = len(view)
        checkpoint = SegmentCheckpoint(segment.base_offset, first_offset, size_bytes, 0, 0, NO_FILE, NO_FILE, NO_FILE)
        segment.checkpoint = state.checkpoints[segment.base_offset] = checkpoint
        write_segment_checkpoints(state.directory, sorted(state.checkpoints.values()))
        segment.truncate(good_bytes, end_offset)
        state.segments.insert(index + 1, state.new_segment(first_offset, segment.created_ms, size_bytes - position))

    def _is_of_another_log(self, segment: Segment) -> bool:
        """Return whether the first two batches of a segment are intact and contiguous but contradict the file name."""
        headers = segment.first_headers()
        if len(headers) < 2 or headers[0].base_offset == segment.base_offset:
            return False
        if headers[0].base_offset > segment.base_offset and not self._state.facts.is_contiguous:
            return False  # compaction leaves gaps
        return headers[1].base_offset == headers[0].last_offset + 1

    def _keep_damaged(self, index: int, good_bytes: int, problem: str) -> None:
        """Make the end of a segment a damaged range, and continue behind it: no other broker has the next segments."""
        state = self._state
        segment, end_offset = state.segments[index], state.segments[index + 1].base_offset
        reason = f"{segment.file.path}: at byte {good_bytes}: {problem}"
        state.damaged.append(Damage(state.end_offset, end_offset, reason))
        saved, size_bytes = segment.checkpoint, segment.size_bytes
        segment.limit_to(good_bytes)
        self._seal(segment, end_offset)
        assert segment.checkpoint is not None
        size_bytes, records_end = (size_bytes, end_offset) if saved is None else (saved.size_bytes, saved.records_end)
        segment.checkpoint = segment.checkpoint._replace(size_bytes=size_bytes, records_end=records_end)
        state.end_offset = end_offset

    def _seal(self, segment: Segment, end_offset: int) -> None:
        segment.seal(end_offset, self._state.aborted.write(self._state.directory, segment.base_offset, end_offset))

    def _cut(self, segment: Segment, good_bytes: int, problem: str) -> None:
        """Truncate a segment before a torn or damaged batch. The bytes behind it are kept: some may be intact."""
        end_offset, kept = self._state.end_offset, self._damaged_path()
        has_rest = good_bytes < segment.size_bytes
        if has_rest:
            with open(segment.file.path, "rb") as source, open(kept, "wb", opener=private) as target:
                source.seek(good_bytes)
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        logger.warning(
            "%s: %d of %d bytes cut off at offset %d%s: %s",
            segment.file.path,
            segment.size_bytes - good_bytes,
            segment.size_bytes,
            end_offset,
            f" and kept in {kept.name}" if has_rest else "",
            problem,
        )
        segment.truncate(good_bytes, end_offset)

    def _damaged_path(self) -> Path:
        """Return an unused path for bytes that are removed at the end of the log."""
        return unused(numbered(self._state.directory / offset_name(self._state.end_offset, f"{LOG}{DAMAGED}")))

    def _remove_after(self, index: int) -> None:
        """Remove the segments after a damaged one from the log, and keep their records in `.damaged` files."""
        segments = self._state.segments
        for segment in segments[index + 1 :]:
            kept = unused(numbered(Path(f"{segment.file.path}{DAMAGED}")))
            logger.error("%s: the log ends before it; it is kept as %s", segment.file.path, kept.name)
            segment.close()
            os.replace(segment.file.path, kept)
            segment.delete()
        del segments[index + 1 :]
        segments[-1].checkpoint = None


def find_intact(view: memoryview, position: int, next_offset: int, offset_max: int) -> tuple[int, int] | None:
    """Return the position and offset of the first intact batch behind damage at `position`; None for a torn tail.

    Intact batches have offsets above `next_offset`, where the damage begins, up to `offset_max`.
    """

    def intact(at: int) -> BatchHeader | None:
        headers, _, _ = kernel.scan_batches(view, at, next_offset + 1, 1, True)
        return headers[0] if headers and headers[0].last_offset <= offset_max else None

    here = intact(position)
    if here is not None:  # it leaves a gap: its offset is wrong if the next batch is nearer
        following = intact(position + here.size)
        if following is not None and following.base_offset <= here.last_offset:
            return position + here.size, following.base_offset
        return position, here.base_offset
    is_torn = False
    if position + HEADER_BYTES <= len(view):
        header = BatchHeader(*header_layout.unpack_from(view, position))
        if header.size >= HEADER_BYTES and (following := intact(position + header.size)) is not None:
            return position + header.size, following.base_offset
        is_torn = header.base_offset == next_offset and position + header.size > len(view)
    # The length is damaged: search for a plausible base offset and magic. The records of a torn batch may contain
    # batches: these are not accepted unless everything up to the end is intact.
    high_bytes = {_base_offset.pack(offset)[:4] for offset in (next_offset, offset_max)}
    pattern = re.compile(b"(?s)(?=(?:%b).{12}\x02)" % b"|".join(map(re.escape, high_bytes)))
    for match in pattern.finditer(view, position + 1):
        at = match.start()
        if (following := intact(at)) is not None and not (is_torn and _has_problem(view, at)):
            return at, following.base_offset
    return None


def _has_problem(view: memoryview, position: int) -> bool:
    """Return whether there is a problem between `position` and the end."""
    problem, offset_min = "", 0
    while position < len(view) and not problem:
        headers, position, problem = kernel.scan_batches(view, position, offset_min, SCAN_BATCHES_MAX, True)
        offset_min = headers[-1].last_offset + 1 if headers else offset_min
    return bool(problem)
