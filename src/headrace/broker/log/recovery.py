"""From a folder to a log: what a crash left behind is put right, and what is only in memory is read again.

    left-overs        .cleaned is thrown away, .swap takes its place, .deleted goes
    after a crash     segments from the recovery point on are read batch by batch; the log ends before the first one
                      that is torn or damaged, and what comes after it is kept in files named .damaged. Without other
                      replicas it ends there only if no intact batch follows: those that do get a segment of their own,
                      and what is between is a damaged range
    other segments    are compared with segment-checkpoint: those that are lost, cut or altered stay in the log as
                      damaged ranges (verification.py); a transaction index that was altered is made anew
    producers         from the newest snapshot, and the batches after it

After a clean stop the last snapshot is that of the end, and nothing has to be read but the last few batches.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import time
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from headrace.broker.disk import numbered, private, unused
from headrace.broker.log.aborted import AbortedIndex
from headrace.broker.log.config import LogConfig
from headrace.broker.log.epochs import EpochCache
from headrace.broker.log.files import (
    CLEANED,
    DAMAGED,
    DELETED,
    GAPS,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_SUFFIXES,
    SEGMENTS,
    SNAPSHOT,
    SWAP,
    TRANSACTION_INDEX,
    UNFINISHED,
    offset_name,
    replace_file,
)
from headrace.broker.log.log import Contents, Host, Log, report_damage
from headrace.broker.log.producer_state import ProducerState
from headrace.broker.log.replaying import find_undecided, replay_aborted, replay_batch, replay_producers
from headrace.broker.log.segment import RESERVE_FROM_BYTES, SCAN_BATCHES_MAX, Segment
from headrace.broker.log.segment_checkpoint import (
    NO_FILE,
    SegmentRow,
    crc_of_file,
    read_segment_rows,
    write_segment_rows,
)
from headrace.broker.log.snapshots import load_newest, snapshot_offsets
from headrace.broker.log.verification import NO_EPOCH, Damage, SegmentVerifier, find_intact
from headrace.wire.kernel import kernel
from headrace.wire.layout import BatchHeader

log = logging.getLogger("headrace.broker.log")

OFFSETS_PER_SEGMENT_MAX = 2**31 - 1
"""Indexes have offsets relative to their segment's. The offset of a batch is outside its checksum."""

OFFSET_MAX = 2**63 - 1
BLOCK_BYTES = 512  # what stat counts in
SLOW_SECONDS = 1.0
"""A recovery that takes longer is worth a line in the log."""


class PartitionFacts(NamedTuple):
    """What the catalog says of a partition."""

    is_alone: bool = False  # no other broker may have what is lost here
    is_contiguous: bool = False  # it is not compacted: in the last segment a batch begins where the one before it ends


NO_FACTS = PartitionFacts()


class Known(NamedTuple):
    """What the checkpoints of the root folder say of a partition."""

    clean: bool = False  # the last stop was
    recovery_point: int = 0
    start_offset: int = 0
    high_watermark: int = 0
    verify_bytes_max: int = 0  # of segments that would not have to be read
    facts: PartitionFacts = NO_FACTS


NOTHING = Known()


def open_log(
    host: Host, directory: Path, topic: str, index: int, topic_id: bytes, config: LogConfig, known: Known = NOTHING
) -> Log:
    """The log in a folder, or a new one if there is nothing in it."""
    return _Opening(host, directory, topic, index, topic_id, config, known).open()


class _Opening:
    """The steps of opening one log."""

    def __init__(
        self, host: Host, directory: Path, topic: str, index: int, topic_id: bytes, config: LogConfig, known: Known
    ) -> None:
        self._host = host
        self._directory = directory
        self._identity = (topic, index, topic_id)
        self._config = config
        self._known = known
        self._now_ms = host.clock.time_ms()
        self._segments: list[Segment] = []
        self._producers = ProducerState(f"{topic}-{index}")
        self._epochs = EpochCache(directory / LEADER_EPOCHS)
        self._aborted = AbortedIndex()
        self._rows = read_segment_rows(directory)
        self._lost: list[SegmentRow] = []
        self._damaged: list[Damage] = []
        self._unverified: list[Segment] = []
        self._suspect: Segment | None = None
        self._replayed_from = 0  # the offset of the snapshot of producers; batches since then are replayed
        self._end_offset = 0

    def open(self) -> Log:
        begun = time.monotonic()
        _tidy(self._directory)
        self._segments = self._find_segments()
        if self._is_outdated():
            path = self._directory / SEGMENTS
            log.warning("%s is not of this log as it is, and not used: all its segments are read again", path)
            self._rows = {}
        self._find_lost()
        first_offset = min([self._segments[0].base_offset, *(row.base_offset for row in self._lost)])
        start_offset = max(self._known.start_offset, first_offset)
        recovery_point = self._known.recovery_point
        unsure = self._first_unsure()
        scanned_bytes = sum(segment.size_bytes for segment in self._segments[unsure:])
        self._read(unsure, start_offset)
        start_offset = min(start_offset, self._end_offset)
        self._epochs.truncate_end(self._end_offset)
        self._epochs.truncate_start(start_offset)
        self._aborted.truncate_start(start_offset)
        high_watermark = min(max(self._known.high_watermark, start_offset), self._end_offset)
        self._verify(self._segments[:unsure], start_offset)
        self._pass_damaged(start_offset)
        self._producers.high_watermark_moved(high_watermark)
        took = time.monotonic() - begun
        if took > SLOW_SECONDS:
            log.info("%s: opened in %.1f s, %.0f MB of it read", self._directory, took, scanned_bytes / 1e6)
        contents = Contents(
            self._segments,
            self._producers,
            self._epochs,
            self._aborted,
            start_offset,
            self._end_offset,
            high_watermark,
            min(recovery_point, self._end_offset),
            sorted(self._rows.values()),
            self._lost,
            self._damaged,
            self._unverified,
        )
        opened = Log(self._host, self._directory, *self._identity, self._config, contents)
        for damage in opened.damaged:
            report_damage(opened.name, damage)
        opened.unclean = opened.names_changed = not self._known.clean
        opened.save_segment_rows()
        return opened

    def _find_segments(self) -> list[Segment]:
        found = []
        for name in sorted(os.listdir(self._directory)):
            if name.endswith(LOG) and name[: -len(LOG)].isdecimal():
                status = os.stat(self._directory / name)
                if status.st_blocks * BLOCK_BYTES > status.st_size + RESERVE_FROM_BYTES:
                    os.truncate(self._directory / name, status.st_size)  # what was reserved before a crash
                created_ms = int(status.st_mtime * 1000)
                found.append(self._segment(int(name[: -len(LOG)]), created_ms, status.st_size))
        if not found:
            ends = [row.records_end for row in self._rows.values()]
            found.append(self._segment(max([self._known.start_offset, *ends]), self._now_ms, 0))
        return found

    def _is_outdated(self) -> bool:
        """Whether the segments differ from what was noted, but are whole and without a gap: then the notes are old."""
        bases = [segment.base_offset for segment in self._segments]
        closed = {segment.base_offset: segment for segment in self._segments[:-1]}
        missing = [row for base_offset, row in self._rows.items() if base_offset not in bases]
        differing = [
            row
            for row in self._rows.values()
            if row.base_offset in closed and row.size_bytes != closed[row.base_offset].size_bytes
        ]
        if not missing and not differing:
            return False
        if any(row.base_offset < bases[0] or row.records_end > bases[-1] for row in missing):
            return False  # nothing that is there has these offsets
        for segment, end_offset in zip(self._segments, bases[1:], strict=False):
            verifier = SegmentVerifier(segment, end_offset, [])
            if verifier.run() or verifier.next_offset != end_offset:
                return False
            row = self._rows.get(segment.base_offset)
            if row is not None and verifier.crcs[:1] != [row.first_crc]:
                return False  # it may be a segment of another partition
        return True

    def _find_lost(self) -> None:
        """Segments that were noted and are not there. Without the last ones the log ends earlier."""
        bases = [segment.base_offset for segment in self._segments]
        for base_offset, row in sorted(self._rows.items()):
            if base_offset in bases or row.records_end <= self._known.start_offset:
                continue
            path = self._directory / offset_name(base_offset, LOG)
            place = bisect_right(bases, base_offset)
            if place < len(bases):
                self._lost.append(row)
                self._damaged.append(Damage(base_offset, bases[place], f"{path} is missing"))
            else:
                log.error("%s is missing: offsets %d to %d are lost", path, base_offset, row.records_end - 1)
        for segment in self._segments:
            segment.row = self._rows.get(segment.base_offset)

    def _segment(self, base_offset: int, created_ms: int, size_bytes: int) -> Segment:
        return Segment(self._directory, base_offset, self._host.files, created_ms=created_ms, size_bytes=size_bytes)

    def _first_unsure(self) -> int:
        """The place of the first segment that has to be read whole; the end is that of what is before it."""
        last = len(self._segments) - 1
        if self._known.clean:
            try:
                self._end_offset = self._segments[-1].load_tail()
                self._check_clean(self._segments[-1])
                return last + 1
            except ValueError as error:
                if self._is_complete(self._segments[-1]):
                    self._suspect = self._segments[-1]
                    return last + 1
                log.warning("%s: not closed as cleanly as it says: %s", self._segments[-1].file.path, error)
                self._end_offset = self._segments[-1].base_offset
                return last
        self._segments[-1].row = None  # it may have been written to since it was noted
        bases = [segment.base_offset for segment in self._segments]
        place = min(max(0, bisect_right(bases, self._known.recovery_point) - 1), last)
        self._end_offset = bases[place]
        return place

    def _check_clean(self, last: Segment) -> None:
        """Raise ValueError if the last segment is not as a clean stop has noted it."""
        row = last.row
        if row is not None and (row.size_bytes, row.records_end) != (last.size_bytes, self._end_offset):
            raise ValueError(
                f"{last.size_bytes} bytes up to offset {self._end_offset}, expected {row.size_bytes} bytes up to "
                f"{row.records_end}"
            )

    def _is_complete(self, last: Segment) -> bool:
        """Whether batches of a log that was closed cleanly are damaged, but none is missing: then none is cut off.

        The same goes for a file of another log: no batch of it is one of this log.
        """
        row = last.row
        if row is not None:
            self._end_offset = row.records_end
            headers = _first_headers(last)
            return row.size_bytes == last.size_bytes or (bool(headers) and row.first_crc not in (0, headers[0].crc))
        self._end_offset = self._known.recovery_point  # everything was on disk
        verifier = SegmentVerifier(last, self._end_offset, [])
        verifier.run()
        return verifier.good_bytes == last.size_bytes and verifier.next_offset == self._end_offset

    # --- what is not recovered ---

    def _read_aborted(self, sure: list[Segment]) -> None:
        """Aborted transactions: from their files, and from the log where those are not what was noted."""
        stale = []
        for segment in sure:
            row = segment.row
            path = self._directory / offset_name(segment.base_offset, TRANSACTION_INDEX)
            if row is None:
                if len(sure) > 1 or path.exists():
                    stale.append(segment)
            elif not self._aborted.read(self._directory, segment.base_offset, row.aborted_crc):
                log.warning("%s is damaged or lost, and made anew from the log", path)
                stale.append(segment)
        if not stale:
            return
        first_offset = stale[0].base_offset
        replayed = replay_aborted(self._directory, sure, first_offset, self._identity[0], self._now_ms)
        self._aborted.replace(first_offset, OFFSET_MAX, replayed.rows(first_offset, OFFSET_MAX))
        ends = [segment.base_offset for segment in sure[1:]] + [self._end_offset]
        for segment, end_offset in zip(sure, ends, strict=True):
            if segment in stale:
                aborted_crc = self._aborted.write(self._directory, segment.base_offset, end_offset)
                self._note(segment, aborted_crc)

    def _note(self, segment: Segment, aborted_crc: int) -> None:
        """Note a segment: as it was, with its new transaction index, or, if that is not known, as it is now."""
        if segment.row is not None:
            segment.row = segment.row._replace(aborted_crc=aborted_crc)
            return
        segment.forget_indexes()
        records_end = segment.base_offset
        for placed, _ in segment.scan(verify=False):
            for position, header in placed:
                segment.note(position, header, header.base_offset, self._config.index_interval_bytes)
                records_end = header.last_offset + 1
        segment.close_with(records_end, aborted_crc)

    def _verify(self, sure: list[Segment], start_offset: int) -> None:
        """Look for damage: in what is not as it was noted always, in the rest as far as a start may take."""
        left = self._known.verify_bytes_max
        other_epochs: list[Damage] = []
        last_fitting_offset = -1
        ends = [segment.base_offset for segment in self._segments[1:]] + [self._end_offset]
        for segment, end_offset in reversed([*zip(sure, ends, strict=False)]):
            row = segment.row
            is_cut = row is not None and row.size_bytes != segment.size_bytes
            if not is_cut and segment.size_bytes > left and segment is not self._suspect:
                self._unverified.append(segment)
                continue
            left -= segment.size_bytes
            verifier = SegmentVerifier(segment, end_offset, self._epochs.rows, row)
            damages = verifier.run()
            self._damaged += damages
            other_epochs += [each for each in verifier.other_epochs if each.first_offset >= start_offset]
            last_fitting_offset = max(last_fitting_offset, verifier.last_fitting_offset)
            if is_cut and verifier.good_bytes < segment.size_bytes:
                segment.limit(verifier.good_bytes)
            if damages and segment is self._segments[-1]:
                self._close_damaged(segment)

        if len(other_epochs) == 1 and other_epochs[0].first_offset < last_fitting_offset:
            self._damaged += other_epochs  # one batch differs from those around it
        elif other_epochs:
            path = self._directory / LEADER_EPOCHS
            log.warning("%s is not of this log as it is, and not used: it is made anew from the log", path)
            self._epochs.clear()
            self._find_epochs(self._segments)
            self._epochs.truncate_start(start_offset)
            self._epochs.save()

    def _close_damaged(self, last: Segment) -> None:
        """Write behind it no more: a recovery would end the log where it is damaged."""
        if last.row is None:
            path = self._directory / offset_name(last.base_offset, TRANSACTION_INDEX)
            last.close_with(self._end_offset, crc_of_file(path))
        fresh = self._segment(self._end_offset, self._now_ms, 0)
        fresh.file.fd()  # an empty file: the segment is there after a restart
        self._segments.append(fresh)

    def _pass_damaged(self, start_offset: int) -> None:
        """Find the transactions that damage leaves undecided, and let none of them hold the last stable offset."""
        damaged = [damage for damage in self._damaged if damage.end_offset > start_offset]
        self._damaged = find_undecided(self._segments, damaged, self._identity[0], self._now_ms)
        if any(damage.end_offset > self._replayed_from for damage in damaged):
            self._producers.restore((), {})
            first = self._load_producers(start_offset, self._replayed_from)
            replay_producers(self._segments, self._producers, first, self._end_offset, self._now_ms, self._damaged)

    # --- reading again ---

    def _read(self, unsure: int, start_offset: int) -> None:
        """Make what is only in memory. Segments from `unsure` on are checked, and ended where they must be."""
        sure = self._segments[:unsure]
        known_epochs = self._epochs.rows
        if not known_epochs:
            self._find_epochs(sure)
        self._read_aborted(sure)
        first = self._replayed_from = self._load_producers(start_offset, self._end_offset)
        if first < self._end_offset:
            replay_producers(sure, self._producers, first, self._end_offset, self._now_ms)
        place = unsure
        while place < len(self._segments):
            if not self._check(place, replay_from=first):
                self._take_out_after(place)
            place += 1
        self._drop_stray_snapshots()
        if self._epochs.rows != known_epochs:
            self._epochs.save()

    def _find_epochs(self, segments: list[Segment]) -> None:
        """Their file is lost: every batch says its epoch."""
        for segment in segments:
            for placed, _ in segment.scan(verify=False):
                for _, header in placed:
                    self._epochs.replay(header.leader_epoch, header.base_offset)

    def _load_producers(self, start_offset: int, offset_max: int) -> int:
        """Take over the newest snapshot up to `offset_max`; the offset from which batches are to be read again."""
        found = load_newest(self._directory, offset_max)
        if found is None:
            return start_offset
        offset, entries, unreplicated = found
        self._producers.restore(entries, unreplicated)
        return offset

    def _check(self, place: int, replay_from: int) -> bool:
        """Read a segment that may be torn, and end it before the first batch that is. Whether it was whole."""
        segment = self._segments[place]
        segment.forget_indexes()
        if segment.base_offset > self._end_offset:
            # Compaction leaves gaps, even between segments.
            self._end_offset = segment.base_offset
        row = segment.row
        good_bytes, problem, epoch = 0, "", NO_EPOCH
        for placed, found in segment.scan(verify=True):
            problem = found
            for position, header in placed:
                if header.base_offset != self._end_offset or header.leader_epoch != epoch:
                    if misplaced := self._misplaced(place, position, header, epoch):
                        problem = misplaced
                        break
                    epoch = header.leader_epoch
                segment.note(position, header, header.base_offset, self._config.index_interval_bytes)
                self._epochs.replay(header.leader_epoch, header.base_offset)
                if header.base_offset >= replay_from:
                    replay_batch(segment, position, header, self._producers, self._aborted, self._now_ms)
                good_bytes = position + header.size
                self._end_offset = header.last_offset + 1
            if problem:
                break
        if not problem and row is not None and place + 1 < len(self._segments) and self._end_offset < row.records_end:
            problem = f"it ends here, expected offset {row.records_end}"
        if problem and self._known.facts.is_alone:
            self._save_intact(place, good_bytes)
            if place + 1 < len(self._segments):
                self._pass_over(place, good_bytes, problem)
                return True
        if problem:
            self._cut(segment, good_bytes, problem)
        if place + 1 < len(self._segments):
            aborted_crc = self._aborted.write(self._directory, segment.base_offset, self._end_offset)
            segment.close_with(self._end_offset, aborted_crc)
        return not problem

    def _misplaced(self, place: int, position: int, header: BatchHeader, epoch: int) -> str:
        """Return why a batch is at a wrong offset or of a wrong leader epoch: no checksum covers these two.

        `epoch` is that of the batch before it.
        """
        segment, end_offset = self._segments[place], self._end_offset
        problem = f"a batch has offset {header.base_offset}, expected {end_offset}"
        if header.last_offset > self._offset_max(place):
            return problem
        following = segment.header_at(position + header.size)
        is_last = place + 1 == len(self._segments)
        if header.base_offset > end_offset:
            if is_last and self._known.facts.is_contiguous and not (self._directory / GAPS).exists():
                return problem
            if following is not None and end_offset < following.base_offset <= header.last_offset:
                return f"{problem}: the next one has {following.base_offset}"
            if is_last and (position == 0 or following is None):
                log.warning(
                    "%s: at byte %d %s: compaction has taken what is between, or this is damaged, or of another log",
                    segment.file.path,
                    position,
                    problem,
                )
        if following is not None and header.leader_epoch != epoch == following.leader_epoch:
            return f"a batch has leader epoch {header.leader_epoch}, those before and after it {epoch}"
        return ""

    def _offset_max(self, place: int) -> int:
        """Return the highest offset that a segment may have."""
        segment, *following = self._segments[place : place + 2]
        return min([segment.base_offset + OFFSETS_PER_SEGMENT_MAX, *(each.base_offset - 1 for each in following)])

    def _save_intact(self, place: int, good_bytes: int) -> None:
        """Give the intact batches behind a damaged one a segment of their own: nobody else has them.

        What is between is kept as well. The damaged segment is noted as it was, so that each start misses its end.
        """
        segment, end_offset = self._segments[place], self._end_offset
        if good_bytes == segment.size_bytes or (good_bytes == 0 and self._is_of_another_log(segment)):
            return
        with (
            open(segment.file.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            found = find_intact(view, good_bytes, end_offset, self._offset_max(place))
            if found is None:
                return
            position, first_offset = found
            if position > good_bytes:
                kept = unused(numbered(self._directory / offset_name(end_offset, f"{LOG}{DAMAGED}")))
                replace_file(kept, view[good_bytes:position])
            replace_file(self._directory / offset_name(first_offset, LOG), view[position:])
            size_bytes = len(view)
        segment.row = SegmentRow(segment.base_offset, first_offset, size_bytes, 0, 0, NO_FILE, NO_FILE, NO_FILE)
        self._rows[segment.base_offset] = segment.row
        write_segment_rows(self._directory, sorted(self._rows.values()))
        segment.truncate(good_bytes, end_offset)
        self._segments.insert(place + 1, self._segment(first_offset, segment.created_ms, size_bytes - position))

    def _is_of_another_log(self, segment: Segment) -> bool:
        """Whether the first two batches of a segment are intact and fit each other, but not the name of the file."""
        headers = _first_headers(segment)
        if len(headers) < 2 or headers[0].base_offset == segment.base_offset:
            return False
        if headers[0].base_offset > segment.base_offset and not self._known.facts.is_contiguous:
            return False  # compaction leaves gaps
        return headers[1].base_offset == headers[0].last_offset + 1

    def _pass_over(self, place: int, good_bytes: int, problem: str) -> None:
        """Go on behind a segment that is damaged: nobody else has what comes after it."""
        segment, end_offset = self._segments[place], self._segments[place + 1].base_offset
        reason = f"{segment.file.path}: at byte {good_bytes}: {problem}"
        self._damaged.append(Damage(self._end_offset, end_offset, reason))
        row, size_bytes = segment.row, segment.size_bytes
        segment.limit(good_bytes)
        aborted_crc = self._aborted.write(self._directory, segment.base_offset, end_offset)
        segment.close_with(end_offset, aborted_crc)
        assert segment.row is not None
        noted = (size_bytes, end_offset) if row is None else (row.size_bytes, row.records_end)
        segment.row = segment.row._replace(size_bytes=noted[0], records_end=noted[1])
        self._end_offset = end_offset

    def _cut(self, segment: Segment, good_bytes: int, problem: str) -> None:
        """End a segment before a batch that is torn or damaged. What is behind it may be whole: it is kept."""
        kept = unused(numbered(self._directory / offset_name(self._end_offset, f"{LOG}{DAMAGED}")))
        with open(segment.file.path, "rb") as source:
            source.seek(good_bytes)
            if is_worth_keeping := good_bytes < segment.size_bytes:
                with open(kept, "wb", opener=private) as target:
                    shutil.copyfileobj(source, target)
                    target.flush()
                    os.fsync(target.fileno())
        log.warning(
            "%s: %d of %d bytes cut off at offset %d%s: %s",
            segment.file.path,
            segment.size_bytes - good_bytes,
            segment.size_bytes,
            self._end_offset,
            f" and kept in {kept.name}" if is_worth_keeping else "",
            problem,
        )
        segment.truncate(good_bytes, self._end_offset)

    def _take_out_after(self, place: int) -> None:
        """What comes after a damaged batch does not follow from what is before it, but it is kept."""
        for segment in self._segments[place + 1 :]:
            kept = unused(numbered(Path(f"{segment.file.path}{DAMAGED}")))
            log.error("%s: the log ends before it; it is kept as %s", segment.file.path, kept.name)
            segment.close()
            os.replace(segment.file.path, kept)
            for suffix in SEGMENT_SUFFIXES:
                (self._directory / offset_name(segment.base_offset, suffix)).unlink(missing_ok=True)
        del self._segments[place + 1 :]
        self._segments[-1].row = None

    def _drop_stray_snapshots(self) -> None:
        """Keep those of the beginnings of segments, and the newest one."""
        found = snapshot_offsets(self._directory)
        keep = {segment.base_offset for segment in self._segments}
        keep.update([offset for offset in found if offset <= self._end_offset][-1:])
        for offset in found:
            if offset not in keep:
                (self._directory / offset_name(offset, SNAPSHOT)).unlink(missing_ok=True)


def _first_headers(segment: Segment) -> list[BatchHeader]:
    """Return the headers of the first batches of a segment that are intact, whatever their offsets are."""
    placed, _ = next(segment.scan(verify=True, offset_min=0), ([], ""))
    return [header for _, header in placed]


def _tidy(directory: Path) -> None:
    """Finish what was being done to the files when the process ended."""
    left_over = [name for name in os.listdir(directory) if name.endswith((CLEANED, SWAP, DELETED, UNFINISHED))]
    if not left_over:
        return
    for path in sorted(directory.glob(f"*{LOG}{SWAP}")):
        base_offset = int(path.name.split(".")[0])
        end_offset, problem = _end_of_file(path, verify=True)
        if (problem or not end_offset) and _restore_originals(directory, base_offset):
            kept = unused(numbered(directory / offset_name(base_offset, f"{LOG}{DAMAGED}")))
            os.replace(path, kept)
            problem = f"behind offset {end_offset - 1} {problem}" if problem else "it is empty"
            log.warning("%s is kept as %s, and the segments it was to replace are used: %s", path, kept.name, problem)
        else:
            log.info("%s: finishing a compaction that was interrupted", directory)
            _finish_swap(directory, base_offset)
    for name in left_over:  # of swap files only indexes are left, whose log was not renamed yet
        (directory / name).unlink(missing_ok=True)


def _restore_originals(directory: Path, base_offset: int) -> bool:
    """Bring back the segments that were compacted into the one of `base_offset`; whether they are there.

    They are renamed in the order of their offsets, before the copy is. What overlaps with them was retired earlier.
    """
    if (directory / offset_name(base_offset, LOG)).exists():
        return True
    bases = [int(path.stem) for path in directory.glob(f"*{LOG}") if path.stem.isdecimal()]
    after = min((base for base in bases if base > base_offset), default=OFFSET_MAX)
    retired: list[Path] = []
    end_offset = base_offset
    for path in sorted(directory.glob(f"*{LOG}{DELETED}")):
        base = int(path.name.split(".")[0])
        if base == base_offset or (retired and end_offset <= base < after):
            retired.append(path)
            end_offset = max(base + 1, _end_of_file(path)[0])
    for path in reversed(retired):  # the first one last: until then this can be done again
        original = path.with_suffix("")
        for suffix in SEGMENT_SUFFIXES:
            original.with_suffix(suffix).unlink(missing_ok=True)  # indexes of the copy
        os.replace(path, original)
    return bool(retired)


def _finish_swap(directory: Path, base_offset: int) -> None:
    """A compacted segment takes the place of those it was made of: the ones within its offsets."""
    end_offset = max(base_offset + 1, _end_of_file(directory / f"{offset_name(base_offset, LOG)}{SWAP}")[0])
    for old in directory.glob(f"*{LOG}"):
        if old.stem.isdecimal() and base_offset <= int(old.stem) < end_offset:
            for suffix in SEGMENT_SUFFIXES:
                old.with_suffix(suffix).unlink(missing_ok=True)
    for suffix in reversed(SEGMENT_SUFFIXES):  # the log itself last: until then this can be done again
        fresh = directory / f"{offset_name(base_offset, suffix)}{SWAP}"
        if fresh.exists():
            os.replace(fresh, fresh.with_suffix(""))


def _end_of_file(path: Path, *, verify: bool = False) -> tuple[int, str]:
    """Return the offset after the last batch of a file, 0 if it has none, and what is wrong behind it."""
    size = path.stat().st_size
    if not size:
        return 0, ""
    position = end_offset = 0
    problem = ""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        while position < size and not problem:
            headers, position, problem = kernel.scan_batches(view, position, end_offset, SCAN_BATCHES_MAX, verify)
            end_offset = headers[-1].last_offset + 1 if headers else end_offset
    return end_offset, problem
