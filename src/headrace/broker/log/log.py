"""The log of a partition: what is appended gets the next offsets, and stays until retention or compaction takes it.

    append   bytes ─ validation.prepare ─► ProducerState.admit ─► roll? ─► Segment.write ─► indexes, producers, epochs
    read     offset ─► segment ─► index ─► pread ─► cut at whole batches

    start_offset ≤ last_stable_offset ≤ high_watermark ≤ end_offset

What the log believes is checked nowhere twice: `recovery.py` makes a `Log` from a folder, `retention.py` and
`compaction.py` take segments out of it and put them in, `lookup.py` searches it by time.
"""

from __future__ import annotations

import bisect
import logging
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.broker.clock import Clock
from headrace.broker.log.aborted import AbortedIndex, AbortedTransaction
from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import Decompression, DecompressionLimits
from headrace.broker.log.epochs import EpochCache
from headrace.broker.log.files import GAPS, SEGMENTS, SNAPSHOT, FileCache, offset_name, replace_file
from headrace.broker.log.flushing import flush
from headrace.broker.log.lookup import batch_for_time
from headrace.broker.log.producer_state import NO_TRANSACTION, ProducerState, ProducerView
from headrace.broker.log.replaying import find_undecided, last_sequence, marker_of, note_producer
from headrace.broker.log.segment import Segment, Slice
from headrace.broker.log.segment_checkpoint import SegmentRow, write_segment_rows
from headrace.broker.log.snapshots import snapshot_offsets, write_snapshot
from headrace.broker.log.truncation import truncate, truncate_fully
from headrace.broker.log.validation import Origin, Prepared, check_batch, prepare, refusal
from headrace.broker.log.verification import Damage
from headrace.config import LONG_MAX
from headrace.errors import BrokerError, Code
from headrace.wire.layout import NO_PRODUCER_ID, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader
from headrace.wire.primitives import Buffer
from headrace.wire.records import Marker, RecordBatch, encode_marker, read_batches

log = logging.getLogger("headrace.broker.log")

REPLAY_BYTES = 1024 * 1024
"""Read at once when all batches are wanted."""
REPORT_MS = 1_000
"""How often a log says that it cannot write: who is refused tries again, and soon."""

_prefix = struct.Struct(">qii")  # base offset, length, leader epoch


class AppendInfo(NamedTuple):
    """What became of an append."""

    first_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic has LogAppendTime
    duplicate: bool
    size_bytes: int


class Host(NamedTuple):
    """What logs share."""

    clock: Clock
    files: FileCache
    rolled: Callable[[Log], None]  # a segment was closed: it should get to disk
    start_moved: Callable[[Log], None]  # records were deleted: that should be remembered
    truncated: Callable[[Log], None]  # its end was taken back: less is on disk than was noted


class Contents(NamedTuple):
    """What a log is made of when it is opened."""

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    aborted: AbortedIndex
    start_offset: int
    end_offset: int
    high_watermark: int
    recovery_point: int  # below it everything is on disk
    rows: list[SegmentRow]  # of segments, as they are noted on disk
    lost: list[SegmentRow]  # of those whose files are gone
    damaged: list[Damage]
    unverified: list[Segment]


class Log:
    """One partition. Event loop only, except `flush`."""

    def __init__(
        self, host: Host, directory: Path, topic: str, index: int, topic_id: bytes, config: LogConfig, has: Contents
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.start_offset = has.start_offset
        self.end_offset = has.end_offset
        self.high_watermark = has.high_watermark
        self.segments = has.segments
        self.producers = has.producers
        self.aborted = has.aborted
        self.epochs = has.epochs
        self.recovery_point = has.recovery_point  # `flush` raises it, from its thread
        self.truncations = 0  # `flush` looks whether there was one meanwhile
        self.names_changed = True  # files beside the last segment's are new; `flush` sets it back, from its thread
        self.last_flush_ms = host.clock.time_ms()
        self.first_dirty_offset = has.start_offset  # what is below it is compacted
        self.unclean = True  # there is something that only recovery would find
        self.failed = ""  # why nothing more is written: the disk is not to be trusted
        self.closed = False
        self.host = host
        self.lost = has.lost
        self.damaged = has.damaged  # sorted, mostly empty; put in by `add_damage`
        self.unverified = has.unverified  # segments that may be damaged: LogManager looks
        self._rows_on_disk = has.rows
        self._reported_ms = 0  # when it last said that it cannot write
        self._active = has.segments[-1]
        self._has_gaps = False  # whether a file has been written that says so, as far as this run knows

    def __repr__(self) -> str:
        return f"Log({self.name}, offsets {self.start_offset} to {self.end_offset})"

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided, and the decision is replicated."""
        first = self.producers.first_unstable
        if first < 0 or first >= self.high_watermark:
            return self.high_watermark
        return max(first, self.start_offset)

    # --- append ---

    def prepare(
        self,
        records: Buffer,
        origin: Origin = Origin.CLIENT,
        magic_allowed: int = 2,
        decompression: Decompression | None = None,
    ) -> Prepared:
        """Check a batch, so that `append` need not. Raises BrokerError, and OffLoopError. From any thread.

        With `magic_allowed` below 2 message sets are taken too, and converted.
        """
        if decompression is None:
            decompression = Decompression(DecompressionLimits())
        view = memoryview(records).cast("B")
        return prepare(view, self.config, origin, self.host.clock.time_ms(), magic_allowed, decompression)

    def append(
        self, records: Buffer | Prepared, *, origin: Origin = Origin.CLIENT, leader_epoch: int = 0
    ) -> AppendInfo:
        """Check a batch unless it is prepared, give it the next offsets and write it. The high watermark stays.

        Raises BrokerError, and then nothing was written.
        """
        if not isinstance(records, Prepared):
            if origin is Origin.REPLICATION:
                return self._append_replicated(memoryview(records).cast("B"))
            records = self.prepare(records, origin)
        header, body, size, append_time_ms = records
        now_ms = self.host.clock.time_ms()
        if header.producer_id != NO_PRODUCER_ID:
            duplicate = self.producers.admit(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                last_sequence(header),
                bool(header.attributes & TRANSACTIONAL),
                origin is Origin.CLIENT,
            )
            if duplicate is not None:
                time_ms = duplicate.timestamp if self.config.log_append_time else NO_TIMESTAMP
                return AppendInfo(duplicate.first_offset, duplicate.last_offset, time_ms, True, size)
        first_offset = self.end_offset
        self._write(header, body, size, leader_epoch, now_ms)
        return AppendInfo(first_offset, self.end_offset - 1, append_time_ms, False, size)

    def append_marker(
        self, producer_id: int, epoch: int, marker: Marker, *, leader_epoch: int, transaction_version: int = 1
    ) -> AppendInfo:
        """End a transaction here. Zombies, producers and coordinators, are refused."""
        self.producers.admit_marker(producer_id, epoch, marker, transaction_version)
        now_ms = self.host.clock.time_ms()
        view = encode_marker(marker, producer_id, epoch, now_ms)
        header = check_batch(view, len(view))
        first_offset = self.end_offset
        self._write(header, [view[16:]], len(view), leader_epoch, now_ms, marker)
        return AppendInfo(first_offset, first_offset, NO_TIMESTAMP, False, len(view))

    def _write(
        self,
        header: BatchHeader,
        body: list[Buffer],
        size: int,
        leader_epoch: int,
        now_ms: int,
        marker: Marker | None = None,
    ) -> None:
        base_offset = self.end_offset
        segment = self._segment_for(size, base_offset + header.last_offset_delta, header.max_timestamp, now_ms)
        try:
            if leader_epoch != self.epochs.latest:
                self.begin_epoch(leader_epoch)
            position = segment.write([_prefix.pack(base_offset, size - 12, leader_epoch), *body], size)
        except OSError as error:
            raise self._storage_error(error) from error
        self._note(segment, position, header, base_offset, now_ms, marker)

    def _note(
        self, segment: Segment, position: int, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None
    ) -> None:
        """Enter a batch that is written into everything that is kept in memory."""
        self.unclean = True
        segment.note(position, header, base_offset, self.config.index_interval_bytes)
        self.end_offset = base_offset + header.last_offset_delta + 1
        if header.producer_id != NO_PRODUCER_ID:
            note_producer(self.producers, self.aborted, header, base_offset, now_ms, marker)

    def _append_replicated(self, view: memoryview) -> AppendInfo:
        """Batches of the leader, at the offsets it gave them."""
        now_ms = self.host.clock.time_ms()
        first_offset = self.end_offset
        size = 0
        for batch in self._check_replicated(view):
            header = batch.header
            if header.base_offset > self.end_offset and not self._has_gaps:
                self._note_gaps()
            segment = self._segment_for(
                header.size, header.last_offset, header.max_timestamp, now_ms, header.base_offset
            )
            try:
                if header.leader_epoch != self.epochs.latest:
                    self.epochs.assign(header.leader_epoch, header.base_offset)
                    self.names_changed = True
                position = segment.write([batch.view], header.size)
            except OSError as error:
                raise self._storage_error(error) from error
            self._note(segment, position, header, header.base_offset, now_ms, marker_of(batch))
            size += header.size
        return AppendInfo(first_offset, self.end_offset - 1, NO_TIMESTAMP, False, size)

    def _note_gaps(self) -> None:
        """Let a recovery know, before the first one: the topic may be one that is not compacted by then."""
        path = self.directory / GAPS
        try:
            if not path.exists():
                replace_file(path, b"")
        except OSError as error:
            raise self._storage_error(error) from error
        self._has_gaps = True

    def _check_replicated(self, view: memoryview) -> list[RecordBatch]:
        """All of them, before the first is written."""
        batches = []
        next_offset = self.end_offset
        while view:
            header = check_batch(view, len(view))
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise refusal(
                    f"{self.name}: the leader sent offset {header.base_offset}, expected {next_offset} or more",
                    Code.CORRUPT_MESSAGE,
                )
            batches.append(RecordBatch(header, view[: header.size]))
            next_offset = header.last_offset + 1
            view = view[header.size :]
        return batches

    def _storage_error(self, error: OSError) -> BrokerError:
        now_ms = self.host.clock.time_ms()
        if now_ms - self._reported_ms >= REPORT_MS:
            self._reported_ms = now_ms
            log.error("%s: cannot write: %s", self.directory, error)
        return BrokerError(f"{self.name}: cannot write: {error}", code=Code.KAFKA_STORAGE_ERROR)

    # --- segments ---

    def _segment_for(
        self, size: int, last_offset: int, timestamp: int, now_ms: int, base_offset: int | None = None
    ) -> Segment:
        """The segment that a batch goes to: the last one, or a new one if that has had its time or is full."""
        config = self.config
        if size > config.segment_bytes:
            raise refusal(
                f"a batch of {size} bytes is larger than a segment may be ({config.segment_bytes})",
                Code.RECORD_LIST_TOO_LARGE,
            )
        if self.failed:
            raise BrokerError(f"{self.name}: {self.failed}", code=Code.KAFKA_STORAGE_ERROR)
        active = self._active
        if active.size_bytes and (
            active.is_full(config.segment_bytes, config.segment_index_bytes, size, last_offset)
            or self._has_had_its_time(active, timestamp, now_ms)
        ):
            return self.roll(base_offset)
        return active

    def _has_had_its_time(self, segment: Segment, timestamp: int, now_ms: int) -> bool:
        first = segment.first_timestamp
        age_ms = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
        return age_ms > self.config.roll_ms - segment.jitter_ms

    def roll(self, base_offset: int | None = None) -> Segment:
        """Close the last segment and begin the next one. An empty one is left as it is."""
        old = self._active
        if not old.size_bytes:
            return old
        base_offset = self.end_offset if base_offset is None else base_offset
        try:
            self._close_segment(old, base_offset)
            write_snapshot(self.directory, base_offset, self.producers)
            self.begin_segment(base_offset)
            self.save_segment_rows()
        except OSError as error:
            raise self._storage_error(error) from error
        self.host.rolled(self)
        return self._active

    def _close_segment(self, segment: Segment, end_offset: int) -> None:
        """Write what is beside the records of the last segment, and note it."""
        segment.close_with(self.end_offset, self.aborted.write(self.directory, segment.base_offset, end_offset))

    def save_segment_rows(self) -> None:
        """Write what is known of the segments, if that has changed. To be called before files of segments go."""
        segments = self.segments[:-1] if self.unclean else self.segments  # of one that is written to nothing is known
        rows = sorted([*self.lost, *(segment.row for segment in segments if segment.row is not None)])
        if not any(row.size_bytes for row in rows):
            rows = []
        if rows == self._rows_on_disk:
            return
        try:
            if rows:
                write_segment_rows(self.directory, rows)
        except OSError as error:  # a full disk must not keep retention from making room
            log.warning("%s: %s is not written: %s; the next start reads all segments", self.directory, SEGMENTS, error)
            rows = []
        if not rows:
            (self.directory / SEGMENTS).unlink(missing_ok=True)
        self._rows_on_disk = rows
        self.names_changed = True

    def begin_segment(self, base_offset: int) -> None:
        """Add an empty segment, the one that is written to from now on."""
        fresh = Segment(self.directory, base_offset, self.host.files, created_ms=self.host.clock.time_ms())
        fresh.jitter_ms = int(random.random() * min(self.config.segment_jitter_ms, self.config.segment_ms))
        fresh.file.fd()  # an empty file: the segment is there after a restart
        self.segments.append(fresh)
        self._active = fresh
        self.names_changed = True

    def set_segments(self, segments: list[Segment]) -> None:
        """Go on with these; the last one is written to."""
        self.segments = segments
        self._active = segments[-1]

    def segment_of(self, offset: int) -> int:
        """The place of the segment that an offset belongs to."""
        return max(0, bisect.bisect_right(self.segments, offset, key=_base_offset) - 1)

    def take_out(self, count: int) -> list[Segment]:
        """Forget the first segments, and give them to the caller to delete. One is left always."""
        if count == len(self.segments):
            try:
                self.roll()
            except BrokerError:  # no room for another one: let the others make some
                count -= 1
        gone, self.segments = self.segments[:count], self.segments[count:]
        self._move_start(max(self.start_offset, self.segments[0].base_offset))
        self.lost = [row for row in self.lost if row.records_end > self.start_offset]
        self.save_segment_rows()
        return gone

    def put_in(self, old: list[Segment], fresh: Segment) -> None:
        """Put a compacted segment in the place of those it was made of."""
        place = self.segments.index(old[0])
        self.segments[place : place + len(old)] = [fresh]

    # --- read ---

    def read(
        self, offset: int, bytes_max: int, *, end_offset: int, at_least_one: bool, committed_only: bool = False
    ) -> Slice:
        """Whole batches from the one that has `offset` on, none that reaches `end_offset`.

        They come to `bytes_max` at most, unless the first one alone is larger and `at_least_one` is wanted. With
        `committed_only` none is of a transaction whose marker may be lost.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise BrokerError(
                f"{self.name}: offset {offset} is not between {self.start_offset} and {self.end_offset}",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        if offset >= end_offset or offset >= self.end_offset:
            return Slice(b"", offset, offset)
        damage = None
        if self.damaged and (damage := self._next_damage(offset, end_offset, committed_only)) is not None:
            end_offset = damage.refused_from(committed_only)
        found = None
        active = self._active
        if offset >= active.base_offset:
            found = active.read(offset, bytes_max, end_offset, at_least_one)
        else:
            for place in range(self.segment_of(offset), len(self.segments)):
                found = self.segments[place].read(offset, bytes_max, end_offset, at_least_one)
                if found is not None:
                    break
        if damage is not None and at_least_one and (found is None or not found.data):
            raise self._damaged_error(damage)
        return found or Slice(b"", offset, offset)

    def _next_damage(self, offset: int, end_offset: int, committed_only: bool) -> Damage | None:
        """What a read has to stop at: to pass over it would lose acknowledged records silently. Raises at it."""
        ahead = [(each.refused_from(committed_only), each) for each in self.damaged if offset < each.end_offset]
        first_offset, damage = min(ahead, default=(end_offset, None))
        if damage is not None and first_offset <= offset:
            raise self._damaged_error(damage)
        return damage if first_offset < end_offset else None

    def damage_up_to(self, offset: int) -> Damage | None:
        """Return the damaged range that an offset is in, or directly behind."""
        return next((each for each in self.damaged if each.first_offset < offset <= each.end_offset), None)

    def _damaged_error(self, damage: Damage) -> BrokerError:
        return BrokerError(f"{self.name}: {damage}", code=Code.CORRUPT_MESSAGE)

    def add_damage(self, damages: Iterable[Damage]) -> None:
        """Keep readers from what is damaged."""
        fresh = set(damages)
        self.damaged = find_undecided(self.segments, [*self.damaged, *fresh], self.name, self.host.clock.time_ms())
        for damage in self.damaged:
            if damage._replace(undecided_offset=NO_TRANSACTION) in fresh:
                report_damage(self.name, damage)

    def batches(self, offset: int | None = None) -> Iterator[RecordBatch]:
        """All batches from an offset on, or from the start."""
        at = self.start_offset if offset is None else offset
        while at < self.end_offset:
            found = self.read(at, REPLAY_BYTES, end_offset=self.end_offset, at_least_one=True)
            if not found.data:
                return
            yield from read_batches(found.data)
            at = found.next_offset

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """What a reader of committed records has to leave out of the records from `first_offset` up to `end_offset`."""
        return self.aborted.between(first_offset, end_offset)

    def batch_for_time(self, timestamp_ms: int, first_offset: int) -> RecordBatch | None:
        """The first batch from an offset on that has a timestamp as high as that; `lookup.find_record` looks inside."""
        return batch_for_time(self.segments, timestamp_ms, first_offset)

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp; -1 if there is none."""
        return max(segment.max_timestamp for segment in self.segments)

    # --- offsets and epochs ---

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last records; -1: there never were any."""
        return self.epochs.latest

    def begin_epoch(self, epoch: int) -> None:
        """A leader begins: its records will be of this epoch."""
        self.epochs.assign(epoch, self.end_offset)
        self.names_changed = True

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` that has records, and the offset after them; (-1, -1): not known."""
        return self.epochs.end_of(epoch, self.end_offset)

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise it; it never goes back, nor beyond the end. Whether it moved."""
        offset = min(offset, self.end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.high_watermark_moved(offset)
        return True

    def delete_records(self, before: int) -> int:
        """Forget records below an offset (-1: all that are replicated), and return the new start offset."""
        before = self.high_watermark if before == -1 else before
        if not 0 <= before <= self.high_watermark:
            raise BrokerError(
                f"{self.name}: cannot delete up to offset {before}: the high watermark is {self.high_watermark}",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        if before > self.start_offset:
            self._move_start(before)
            self.host.start_moved(self)
        return self.start_offset

    def _move_start(self, offset: int) -> None:
        self.start_offset = offset
        self.damaged = [damage for damage in self.damaged if damage.end_offset > offset]
        self.high_watermark = max(self.high_watermark, offset)
        self.first_dirty_offset = max(self.first_dirty_offset, offset)
        try:
            self.epochs.truncate_start(offset)
        except OSError as error:  # a full disk must not keep records from being deleted: the start of the log is known
            log.warning("%s: the epochs of deleted records are not forgotten on disk: %s", self.directory, error)
        self.aborted.truncate_start(offset)
        self.producers.high_watermark_moved(self.high_watermark)

    def truncate(self, offset: int) -> None:
        """Take back everything from an offset on: another leader's log went on differently there."""
        truncate(self, offset)

    def truncate_fully(self, offset: int) -> None:
        """Forget everything and begin again at an offset, as a follower whose leader no longer has what it needs."""
        truncate_fully(self, offset)

    # --- producers ---

    def open_producers(self) -> list[ProducerView]:
        """The producers that are known here."""
        return self.producers.views()

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether it has a transaction open here, in that epoch."""
        return self.producers.is_open(producer_id, epoch)

    # --- the disk ---

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything that a flush would bring to disk."""
        return self.end_offset > self.recovery_point or self.names_changed

    @property
    def needs_flush(self) -> bool:
        """Whether flush.messages or flush.ms say that it is time."""
        waiting = self.end_offset - self.recovery_point
        if waiting <= 0:
            return False
        config = self.config
        if waiting >= config.flush_messages:
            return True
        return config.flush_ms != LONG_MAX and self.host.clock.time_ms() - self.last_flush_ms >= config.flush_ms

    def flush(self) -> None:
        """Force everything appended so far to disk. From any thread, while appends go on."""
        flush(self)
        self.last_flush_ms = self.host.clock.time_ms()

    def flush_closed(self) -> None:
        """Force the segments to disk that are not written to any more. From any thread, while appends go on."""
        flush(self, closed_only=True)

    def reconfigure(self, config: LogConfig) -> None:
        """Take over other options, from the next append on."""
        self.config = config

    def leave_clean(self) -> None:
        """Write what is only in memory beside the records, so that after the next flush nothing has to be recovered."""
        if self.unclean:
            self.unclean = False
            self._close_segment(self._active, self.end_offset)
            write_snapshot(self.directory, self.end_offset, self.producers)
            self.names_changed = True
        self.save_segment_rows()

    def close(self, clean: bool = True) -> None:
        """Let go of the files. `clean` leaves nothing to be recovered."""
        if self.closed:
            return
        if clean:
            self.leave_clean()
            self.flush()
        self.closed = True
        for segment in self.segments:
            segment.close()

    def drop_snapshots(self, first_offset: int, end_offset: int) -> None:
        """Delete the producers' snapshots of these offsets."""
        for offset in snapshot_offsets(self.directory):
            if first_offset <= offset < end_offset:
                (self.directory / offset_name(offset, SNAPSHOT)).unlink(missing_ok=True)


def report_damage(name: str, damage: Damage) -> None:
    """Say what cannot be read, and what follows from it."""
    log.error(
        "%s: %s; fetches of them fail with CORRUPT_MESSAGE, the others can be read (docs/operations.md, Damaged log "
        "files)",
        name,
        damage,
    )


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
