"""Loading: from a folder to a `Log`.

    files of an interrupted compaction    are deleted or put in use (compaction.py)
    segments from the recovery point on   are recovered after a crash (recovery.py)
    other segments                        are compared with their checkpoints: those that are lost, truncated or altered
                                          become damaged ranges (verification.py); an altered transaction index is
                                          rebuilt
    producers                             come from the newest snapshot and the batches after it

After a clean stop the last snapshot is that of the end, and only the last few batches have to be read.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.checkpoints import SegmentCheckpoint, file_crc
from headrace.broker.log.compaction import finish_interrupted
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import (
    LEADER_EPOCHS,
    LOG,
    RESERVE_FROM_BYTES,
    SEGMENT_CHECKPOINTS,
    SNAPSHOT,
    TRANSACTION_INDEX,
    offset_name,
)
from headrace.broker.log.log import LoadedLog, Log, LogEnv
from headrace.broker.log.log_segments import LogSegments
from headrace.broker.log.producer_snapshots import restore_newest, snapshot_offsets
from headrace.broker.log.recovery import NO_FACTS, LogRecovery, LogState, PartitionFacts
from headrace.broker.log.replay import find_undecided, replay_aborted, replay_producers
from headrace.broker.log.segment import OFFSET_MAX, Segment, with_ends
from headrace.broker.log.verification import Damage, SegmentVerifier, single_mismatch
from headrace.types import TopicPartition

logger = logging.getLogger("headrace.broker.log")

BLOCK_BYTES = 512  # the unit of st_blocks
SLOW_SECONDS = 1.0
"""Loading that takes longer is logged."""


class SavedState(NamedTuple):
    """What the checkpoints of the root folder and the catalog say about a log."""

    clean: bool = False  # whether the last stop was clean
    recovery_point: int = 0
    start_offset: int = 0
    high_watermark: int = 0
    verify_bytes_max: int = 0  # of segments that need no recovery
    facts: PartitionFacts = NO_FACTS


class LogLoader:
    """Loads the log in a folder; an empty folder gives an empty log."""

    def __init__(
        self, env: LogEnv, directory: Path, partition: TopicPartition, config: LogConfig, saved: SavedState
    ) -> None:
        self._env = env
        self._directory = directory
        self._partition = partition
        self._saved = saved
        self._state = LogState(directory, str(partition), config, env.files, saved.facts, env.clock.time_ms())
        self._lost: list[SegmentCheckpoint] = []
        self._unverified: list[Segment] = []
        self._suspect: Segment | None = None  # damaged for sure, to be verified in any case
        self._replayed_from = 0  # offset of the producer snapshot; batches since then are replayed

    def load(self, topic_id: bytes) -> Log:
        """Load the log."""
        started = time.monotonic()
        state, saved = self._state, self._saved
        finish_interrupted(self._directory)
        state.segments = self._find_segments()
        if self._is_outdated():
            path = self._directory / SEGMENT_CHECKPOINTS
            logger.warning("%s does not match this log and is not used: all its segments are read again", path)
            state.checkpoints = {}
        self._find_lost()
        first_offset = min([state.segments[0].base_offset, *(each.base_offset for each in self._lost)])
        start_offset = max(saved.start_offset, first_offset)
        recover_from = self._first_to_recover()
        recovered_bytes = sum(segment.size_bytes for segment in state.segments[recover_from:])
        self._read(recover_from, start_offset)
        start_offset = min(start_offset, state.end_offset)
        state.epochs.truncate_end(state.end_offset)
        state.epochs.truncate_start(start_offset)
        state.aborted.truncate_start(start_offset)
        high_watermark = min(max(saved.high_watermark, start_offset), state.end_offset)
        self._verify(recover_from, start_offset)
        self._replay_around_damage(start_offset)
        state.producers.high_watermark_moved(high_watermark)
        seconds = time.monotonic() - started
        if seconds > SLOW_SECONDS:
            logger.info("%s: loaded in %.1f s, %.0f MB recovered", self._directory, seconds, recovered_bytes / 1e6)
        checkpoints = sorted(state.checkpoints.values())
        loaded = LoadedLog(
            LogSegments(self._directory, self._env.files, state.segments, saved=checkpoints, lost=self._lost),
            state.producers,
            state.epochs,
            state.aborted,
            start_offset,
            state.end_offset,
            high_watermark,
            min(saved.recovery_point, state.end_offset),
            state.damaged,
            self._unverified,
        )
        opened = Log(self._env, self._directory, self._partition, topic_id, state.config, loaded=loaded)
        for damage in opened.damaged:
            opened.report_damage(damage)
        opened.unclean = opened.segments.files_changed = not saved.clean
        opened.save_segment_checkpoints()
        return opened

    # --- segments and their checkpoints ---

    def _find_segments(self) -> list[Segment]:
        state = self._state
        segments = []
        for name in sorted(os.listdir(self._directory)):
            if name.endswith(LOG) and name[: -len(LOG)].isdecimal():
                status = os.stat(self._directory / name)
                if status.st_blocks * BLOCK_BYTES > status.st_size + RESERVE_FROM_BYTES:
                    os.truncate(self._directory / name, status.st_size)  # releases space reserved before a crash
                created_ms = int(status.st_mtime * 1000)
                segments.append(state.new_segment(int(name[: -len(LOG)]), created_ms, status.st_size))
        if not segments:
            ends = [checkpoint.records_end for checkpoint in state.checkpoints.values()]
            segments.append(state.new_segment(max([self._saved.start_offset, *ends]), state.now_ms, 0))
        return segments

    def _is_outdated(self) -> bool:
        """Return whether the checkpoints are older than the segments: these differ, but are intact and contiguous."""
        segments, checkpoints = self._state.segments, self._state.checkpoints
        bases = [segment.base_offset for segment in segments]
        closed = {segment.base_offset: segment for segment in segments[:-1]}
        missing = [each for base_offset, each in checkpoints.items() if base_offset not in bases]
        sizes = ((each.size_bytes, closed[base].size_bytes) for base, each in checkpoints.items() if base in closed)
        if not missing and all(saved == current for saved, current in sizes):
            return False
        if any(each.base_offset < bases[0] or each.records_end > bases[-1] for each in missing):
            return False  # no segment has these offsets
        for segment, end_offset in zip(segments, bases[1:], strict=False):
            verifier = SegmentVerifier(segment, end_offset, [])
            if verifier.run() or verifier.next_offset != end_offset:
                return False
            checkpoint = checkpoints.get(segment.base_offset)
            if checkpoint is not None and verifier.crcs[:1] != [checkpoint.first_crc]:
                return False  # it may be a segment of another partition
        return True

    def _find_lost(self) -> None:
        """Find segments that have a checkpoint but no file. Without the last ones the log ends earlier."""
        segments, checkpoints = self._state.segments, self._state.checkpoints
        bases = [segment.base_offset for segment in segments]
        for base_offset, checkpoint in sorted(checkpoints.items()):
            if base_offset in bases or checkpoint.records_end <= self._saved.start_offset:
                continue
            path = self._directory / offset_name(base_offset, LOG)
            following = bisect_right(bases, base_offset)
            if following < len(bases):
                self._lost.append(checkpoint)
                self._state.damaged.append(Damage(base_offset, bases[following], f"{path} is missing"))
            else:
                logger.error("%s is missing: offsets %d to %d are lost", path, base_offset, checkpoint.records_end - 1)
        for segment in segments:
            segment.checkpoint = checkpoints.get(segment.base_offset)

    # --- the end of the log ---

    def _first_to_recover(self) -> int:
        """Return the index of the first segment to recover, and set the end offset to the end of those before it."""
        state, segments = self._state, self._state.segments
        last = len(segments) - 1
        if self._saved.clean:
            try:
                state.end_offset = segments[-1].load_tail()
                self._check_clean(segments[-1])
                return last + 1
            except ValueError as error:
                if self._is_complete(segments[-1]):
                    self._suspect = segments[-1]
                    return last + 1
                logger.warning("%s: recovering it although the last stop was clean: %s", segments[-1].file.path, error)
                state.end_offset = segments[-1].base_offset
                return last
        segments[-1].checkpoint = None  # it may have been written to since
        bases = [segment.base_offset for segment in segments]
        index = min(max(0, bisect_right(bases, self._saved.recovery_point) - 1), last)
        state.end_offset = bases[index]
        return index

    def _check_clean(self, last: Segment) -> None:
        """Raise ValueError if the last segment differs from the checkpoint of the clean stop."""
        saved, end_offset = last.checkpoint, self._state.end_offset
        if saved is not None and (saved.size_bytes, saved.records_end) != (last.size_bytes, end_offset):
            raise ValueError(
                f"{last.size_bytes} bytes up to offset {end_offset}, expected {saved.size_bytes} bytes up to "
                f"{saved.records_end}"
            )

    def _is_complete(self, last: Segment) -> bool:
        """Return whether the last segment of a cleanly closed log has damaged batches but no missing ones.

        Then none is cut off. The same is true for a file of another log, which has no batch of this one.
        """
        state, saved = self._state, last.checkpoint
        if saved is not None:
            state.end_offset = saved.records_end
            headers = last.first_headers()
            is_foreign = bool(headers) and saved.first_crc not in (0, headers[0].crc)
            return saved.size_bytes == last.size_bytes or is_foreign
        state.end_offset = self._saved.recovery_point  # everything was on disk
        verifier = SegmentVerifier(last, state.end_offset, [])
        verifier.run()
        return verifier.good_bytes == last.size_bytes and verifier.next_offset == state.end_offset

    # --- epochs, aborted transactions and producers ---

    def _read(self, recover_from: int, start_offset: int) -> None:
        """Load what a log has in memory, and recover the segments from the index `recover_from` on."""
        state = self._state
        closed = state.segments[:recover_from]
        known_epochs = state.epochs.rows
        if not known_epochs:
            self._replay_epochs(closed)
        self._load_aborted(closed)
        first = self._replayed_from = self._load_producers(start_offset, state.end_offset)
        if first < state.end_offset:
            replay_producers(closed, state.producers, first, state.end_offset, now_ms=state.now_ms)
        LogRecovery(state, replay_from=first).run(recover_from)
        self._delete_stray_snapshots()
        if state.epochs.rows != known_epochs:
            state.epochs.save()

    def _replay_epochs(self, segments: list[Segment]) -> None:
        """Rebuild the leader epochs from the batches because their file is lost."""
        for segment in segments:
            for batches, _ in segment.scan(verify=False):
                for _, header in batches:
                    self._state.epochs.replay(header.leader_epoch, header.base_offset)

    def _load_aborted(self, segments: list[Segment]) -> None:
        """Load the aborted transactions from their indexes, or from the log if these are lost or altered."""
        state = self._state
        invalid = []
        for segment in segments:
            path = segment.path(TRANSACTION_INDEX)
            if segment.checkpoint is None:
                if len(segments) > 1 or path.exists():
                    invalid.append(segment)
            elif not state.aborted.read(self._directory, segment.base_offset, segment.checkpoint.aborted_crc):
                logger.warning("%s is damaged or lost and is rebuilt from the log", path)
                invalid.append(segment)
        if not invalid:
            return
        first_offset = invalid[0].base_offset
        replayed = replay_aborted(self._directory, segments, first_offset, state.name, state.now_ms)
        state.aborted.replace(first_offset, OFFSET_MAX, replayed)
        for segment, end_offset in with_ends(segments, state.end_offset):
            if segment in invalid:
                aborted_crc = state.aborted.write(self._directory, segment.base_offset, end_offset)
                if segment.checkpoint is not None:
                    segment.checkpoint = segment.checkpoint._replace(aborted_crc=aborted_crc)
                else:
                    segment.seal(segment.rebuild_indexes(state.config.index_interval_bytes), aborted_crc)

    def _load_producers(self, start_offset: int, offset_max: int) -> int:
        """Restore the newest snapshot up to `offset_max`, and return the offset from which to replay batches."""
        offset = restore_newest(self._state.producers, self._directory, offset_max)
        return start_offset if offset is None else offset

    def _delete_stray_snapshots(self) -> None:
        """Delete all snapshots but the newest and those at the beginning of a segment."""
        offsets = snapshot_offsets(self._directory)
        keep = {segment.base_offset for segment in self._state.segments}
        keep.update([offset for offset in offsets if offset <= self._state.end_offset][-1:])
        for offset in offsets:
            if offset not in keep:
                (self._directory / offset_name(offset, SNAPSHOT)).unlink(missing_ok=True)

    # --- damage ---

    def _verify(self, recovered_from: int, start_offset: int) -> None:
        """Look for damage in segments that differ from their checkpoint, and in others up to `verify_bytes_max`."""
        state = self._state
        bytes_left = self._saved.verify_bytes_max
        mismatches: list[Damage] = []
        last_match_offset = -1
        closed = list(with_ends(state.segments, state.end_offset))[:recovered_from]
        for segment, end_offset in reversed(closed):
            saved = segment.checkpoint
            is_cut = saved is not None and saved.size_bytes != segment.size_bytes
            if not is_cut and segment.size_bytes > bytes_left and segment is not self._suspect:
                self._unverified.append(segment)
                continue
            bytes_left -= segment.size_bytes
            verifier = SegmentVerifier(segment, end_offset, state.epochs.rows, saved)
            damages = verifier.run()
            state.damaged += damages
            mismatches += [each for each in verifier.epoch_mismatches if each.first_offset >= start_offset]
            last_match_offset = max(last_match_offset, verifier.last_match_offset)
            if is_cut and verifier.good_bytes < segment.size_bytes:
                segment.limit_to(verifier.good_bytes)
            if damages and segment is state.segments[-1]:
                self._close_damaged(segment)

        if single := single_mismatch(mismatches, last_match_offset):
            state.damaged += single
        elif mismatches:
            path = self._directory / LEADER_EPOCHS
            logger.warning("%s does not match this log and is not used: it is rebuilt from the log", path)
            state.epochs.clear()
            self._replay_epochs(state.segments)
            state.epochs.truncate_start(start_offset)
            state.epochs.save()

    def _close_damaged(self, last: Segment) -> None:
        """Close the last segment and begin another: a recovery would end the log where it is damaged."""
        state = self._state
        if last.checkpoint is None:
            last.seal(state.end_offset, file_crc(last.path(TRANSACTION_INDEX)))
        segment = state.new_segment(state.end_offset, state.now_ms, 0)
        segment.file.fd()  # creates the file: the segment is there after a restart
        state.segments.append(segment)

    def _replay_around_damage(self, start_offset: int) -> None:
        """Find the transactions that damage leaves undecided: they must not hold back the last stable offset."""
        state = self._state
        damaged = [damage for damage in state.damaged if damage.end_offset > start_offset]
        state.damaged = find_undecided(state.segments, damaged, state.name, state.now_ms)
        if any(damage.end_offset > self._replayed_from for damage in damaged):
            state.producers.clear()
            first = self._load_producers(start_offset, self._replayed_from)
            replay_producers(
                state.segments, state.producers, first, state.end_offset, now_ms=state.now_ms, damaged=state.damaged
            )
