"""The log of a partition: append, read, truncate, flush.

    append   bytes ─ validation.prepare ─► ProducerStateManager.admit ─► roll? ─► Segment.write ─► indexes, state
    read     offset ─► segment ─► index ─► pread ─► cut at whole batches

    start_offset ≤ last_stable_offset ≤ high_watermark ≤ end_offset

`LogLoader` (loader.py) creates a `Log` from a folder; retention.py and compaction.py remove and replace segments.
"""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import Decompression, DecompressionLimits
from headrace.broker.log.epochs import EpochCache
from headrace.broker.log.files import GAPS, FileCache, replace_file
from headrace.broker.log.index import AbortedIndex
from headrace.broker.log.log_segments import LogSegments
from headrace.broker.log.producer_snapshots import delete_snapshots, restore_newest, write_snapshot
from headrace.broker.log.producer_state import NO_TRANSACTION, ProducerStateManager
from headrace.broker.log.replay import find_undecided, marker_of, replay_producers
from headrace.broker.log.segment import OFFSET_MAX, Segment, Slice
from headrace.broker.log.validation import (
    Origin,
    Prepared,
    check_batch,
    invalid,
    is_message_set,
    prepare,
    prepare_message_set,
    split_replicated,
)
from headrace.broker.log.verification import Damage
from headrace.config import LONG_MAX
from headrace.config.clock import Clock
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.layout import NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeader
from headrace.wire.primitives import Buffer
from headrace.wire.records import Marker, RecordBatch, encode_marker, read_batches

logger = logging.getLogger("headrace.broker.log")

READ_ALL_BYTES = 1024 * 1024
"""Read at once by `Log.batches`."""
WRITE_ERROR_LOG_MS = 1_000
"""Shortest interval between two log lines about failed writes: producers retry quickly."""

_prefix = struct.Struct(">qii")  # base offset, length, leader epoch


class AppendInfo(NamedTuple):
    """The result of an append."""

    first_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic has LogAppendTime
    duplicate: bool
    size_bytes: int


class LogEnv(NamedTuple):
    """What all logs of a broker share."""

    clock: Clock
    files: FileCache
    on_roll: Callable[[Log], None]  # a segment was closed: it should be forced to disk
    on_start_moved: Callable[[Log], None]  # records were deleted: the new start should be saved
    on_truncated: Callable[[Log], None]  # the end moved back: saved offsets may be too high


class LoadedLog(NamedTuple):
    """The state of a log when it is opened."""

    segments: LogSegments
    producers: ProducerStateManager
    epochs: EpochCache
    aborted: AbortedIndex
    start_offset: int
    end_offset: int
    high_watermark: int
    recovery_point: int  # everything below is on disk
    damaged: list[Damage]
    unverified: list[Segment]


class Log:
    """The log of a partition. Event loop only, except `prepare`, `flush` and `flush_closed`."""

    def __init__(
        self,
        env: LogEnv,
        directory: Path,
        partition: TopicPartition,
        topic_id: bytes,
        config: LogConfig,
        *,
        loaded: LoadedLog,
    ) -> None:
        self.topic, self.index = partition
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        self.high_watermark = loaded.high_watermark
        self.segments = loaded.segments
        self.producers = loaded.producers
        self.aborted = loaded.aborted
        self.epochs = loaded.epochs
        self.recovery_point = loaded.recovery_point  # Raised by the thread that flushes.
        self.truncations = 0  # number of truncations, for work on threads that a truncation makes invalid
        self.last_flush_ms = env.clock.time_ms()
        self.first_dirty_offset = loaded.start_offset  # everything below is compacted
        self.unclean = True  # a restart now would have to recover the log
        self.failed = ""  # why writes are refused: a flush failed
        self.closed = False
        self.env = env
        self.damaged = loaded.damaged  # sorted, mostly empty; extended by `add_damage`
        self.unverified = loaded.unverified  # segments that LogManager verifies in the background
        self._write_error_ms = 0  # when the last failed write was logged
        self._has_gaps_file = False  # as far as this process knows

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
        """The offset below which every transaction has ended and its end is replicated."""
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
        """Check a batch before `append`. Raise BrokerError and OffLoopError. From any thread.

        With `magic_allowed` below 2, message sets are accepted too and converted.
        """
        if decompression is None:
            decompression = Decompression(DecompressionLimits())
        view = memoryview(records).cast("B")
        now_ms = self.env.clock.time_ms()
        if magic_allowed < 2 and is_message_set(view):
            return prepare_message_set(view, self.config, now_ms, decompression)
        return prepare(view, self.config, origin, now_ms, decompression)

    def append(
        self, records: Buffer | Prepared, *, origin: Origin = Origin.CLIENT, leader_epoch: int = 0
    ) -> AppendInfo:
        """Check a batch unless it is prepared, assign its offsets and write it. The high watermark does not change.

        Raise BrokerError if nothing was written.
        """
        if not isinstance(records, Prepared):
            if origin is Origin.REPLICATION:
                return self._append_replicated(memoryview(records).cast("B"))
            records = self.prepare(records, origin)
        header, _, size, append_time_ms = records
        now_ms = self.env.clock.time_ms()
        if header.producer_id != NO_PRODUCER_ID:
            duplicate = self.producers.admit(header, origin is Origin.CLIENT)
            if duplicate is not None:
                time_ms = duplicate.timestamp if self.config.log_append_time else NO_TIMESTAMP
                return AppendInfo(duplicate.first_offset, duplicate.last_offset, time_ms, True, size)
        first_offset = self.end_offset
        self._write(records, leader_epoch, now_ms)
        return AppendInfo(first_offset, self.end_offset - 1, append_time_ms, False, size)

    def append_marker(
        self, producer_id: int, epoch: int, marker: Marker, *, leader_epoch: int, transaction_version: int = 1
    ) -> AppendInfo:
        """Write the marker that ends a transaction. Raise BrokerError if its producer or coordinator is fenced."""
        self.producers.admit_marker(producer_id, epoch, marker, transaction_version)
        now_ms = self.env.clock.time_ms()
        view = encode_marker(marker, producer_id, epoch, now_ms)
        prepared = Prepared(check_batch(view, len(view)), [view[16:]], len(view), NO_TIMESTAMP)
        first_offset = self.end_offset
        self._write(prepared, leader_epoch, now_ms, marker)
        return AppendInfo(first_offset, first_offset, NO_TIMESTAMP, False, len(view))

    def _write(self, prepared: Prepared, leader_epoch: int, now_ms: int, marker: Marker | None = None) -> None:
        header, body, size, _ = prepared
        base_offset = self.end_offset
        segment = self._segment_for(size, base_offset + header.last_offset_delta, header.max_timestamp, now_ms)
        try:
            if leader_epoch != self.epochs.latest:
                self.begin_epoch(leader_epoch)
            position = segment.write([_prefix.pack(base_offset, size - 12, leader_epoch), *body], size)
        except OSError as error:
            raise self._storage_error(error) from error
        segment.add_to_index(position, header, base_offset, self.config.index_interval_bytes)
        self._written(header, base_offset, now_ms, marker)

    def _written(self, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None) -> None:
        """Update the state after a write."""
        self.unclean = True
        self.end_offset = base_offset + header.last_offset_delta + 1
        if header.producer_id != NO_PRODUCER_ID:
            aborted = self.producers.add(header, base_offset, marker, now_ms)
            if aborted is not None:
                self.aborted.append(aborted)

    def _append_replicated(self, view: memoryview) -> AppendInfo:
        """Append batches of the leader with their offsets."""
        now_ms = self.env.clock.time_ms()
        first_offset = self.end_offset
        size = 0
        for batch in split_replicated(view, self.end_offset, self.name):
            header = batch.header
            if header.base_offset > self.end_offset and not self._has_gaps_file:
                self._write_gaps_file()
            segment = self._segment_for(
                header.size, header.last_offset, header.max_timestamp, now_ms, header.base_offset
            )
            try:
                if header.leader_epoch != self.epochs.latest:
                    self.epochs.assign(header.leader_epoch, header.base_offset)
                    self.segments.files_changed = True
                position = segment.write([batch.view], header.size)
            except OSError as error:
                raise self._storage_error(error) from error
            segment.add_to_index(position, header, header.base_offset, self.config.index_interval_bytes)
            self._written(header, header.base_offset, now_ms, marker_of(batch))
            size += header.size
        return AppendInfo(first_offset, self.end_offset - 1, NO_TIMESTAMP, False, size)

    def _write_gaps_file(self) -> None:
        """Record, before the first gap, that gaps are normal: by the next recovery compaction may be switched off."""
        path = self.directory / GAPS
        try:
            if not path.exists():
                replace_file(path, b"")
        except OSError as error:
            raise self._storage_error(error) from error
        self._has_gaps_file = True

    def _storage_error(self, error: OSError) -> BrokerError:
        now_ms = self.env.clock.time_ms()
        if now_ms - self._write_error_ms >= WRITE_ERROR_LOG_MS:
            self._write_error_ms = now_ms
            logger.error("%s: cannot write: %s", self.directory, error)
        return BrokerError(f"{self.name}: cannot write: {error}", code=Code.KAFKA_STORAGE_ERROR)

    # --- segments ---

    def _segment_for(
        self, size: int, last_offset: int, timestamp: int, now_ms: int, base_offset: int | None = None
    ) -> Segment:
        """Return the segment for a batch: the last one, or a new one if that is full or old enough."""
        config = self.config
        if size > config.segment_bytes:
            raise invalid(
                f"a batch of {size} bytes is larger than a segment ({config.segment_bytes} bytes)",
                Code.RECORD_LIST_TOO_LARGE,
            )
        if self.failed:
            raise BrokerError(f"{self.name}: {self.failed}", code=Code.KAFKA_STORAGE_ERROR)
        active = self.segments.active
        if active.size_bytes and (
            active.is_full(config.segment_bytes, config.segment_index_bytes, size, last_offset)
            or self._is_old(active, timestamp, now_ms)
        ):
            return self.roll(base_offset)
        return active

    def _is_old(self, segment: Segment, timestamp: int, now_ms: int) -> bool:
        first = segment.first_timestamp
        age_ms = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
        return age_ms > self.config.roll_ms - segment.jitter_ms

    def roll(self, base_offset: int | None = None) -> Segment:
        """Close the last segment unless it is empty, begin the next one and return it."""
        last = self.segments.active
        if not last.size_bytes:
            return last
        base_offset = self.end_offset if base_offset is None else base_offset
        try:
            self._seal(last, base_offset)
            write_snapshot(self.directory, base_offset, self.producers)
            self._begin_segment(base_offset)
            self.save_segment_checkpoints()
        except OSError as error:
            raise self._storage_error(error) from error
        self.env.on_roll(self)
        return self.segments.active

    def _begin_segment(self, base_offset: int) -> None:
        jitter_ms = int(random.random() * min(self.config.segment_jitter_ms, self.config.segment_ms))
        self.segments.begin(base_offset, self.env.clock.time_ms(), jitter_ms)

    def _seal(self, segment: Segment, end_offset: int) -> None:
        """Write the indexes of the last segment and set its checkpoint."""
        segment.seal(self.end_offset, self.aborted.write(self.directory, segment.base_offset, end_offset))

    def save_segment_checkpoints(self) -> None:
        """Write the checkpoints of the segments if they have changed."""
        self.segments.save_checkpoints(with_active=not self.unclean)

    def remove_segments(self, count: int) -> list[Segment]:
        """Remove the first segments, and return them to the caller, which deletes the files. At least one is left."""
        if count == len(self.segments):
            try:
                self.roll()
            except BrokerError:  # no space for another segment: removing the others makes some
                count -= 1
        self._move_start(max(self.start_offset, self.segments[count].base_offset))
        removed = self.segments.remove_first(count, self.start_offset)
        self.save_segment_checkpoints()
        delete_snapshots(self.directory, 0, self.segments[0].base_offset)
        return removed

    # --- read ---

    def read(
        self, offset: int, bytes_max: int, *, end_offset: int, at_least_one: bool, committed_only: bool = False
    ) -> Slice:
        """Return whole batches from the one with `offset` on, none of which reaches `end_offset`.

        They have `bytes_max` bytes at most, unless the first batch is larger and `at_least_one` is set. With
        `committed_only`, no batch is of a transaction whose marker may be lost.
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
        part = None
        segments = self.segments
        if offset >= segments.active.base_offset:
            part = segments.active.read(offset, bytes_max, end_offset, at_least_one)
        else:
            for index in range(segments.index_of(offset), len(segments)):
                part = segments[index].read(offset, bytes_max, end_offset, at_least_one)
                if part is not None:
                    break
        if damage is not None and at_least_one and (part is None or not part.data):
            raise self._damaged_error(damage)
        return part or Slice(b"", offset, offset)

    def _next_damage(self, offset: int, end_offset: int, committed_only: bool) -> Damage | None:
        """Return the damage that a read has to stop at: skipping it would lose acknowledged records silently.

        Raise BrokerError if the read begins in it.
        """
        ahead = [(each.refused_from(committed_only), each) for each in self.damaged if offset < each.end_offset]
        first_offset, damage = min(ahead, default=(end_offset, None))
        if damage is not None and first_offset <= offset:
            raise self._damaged_error(damage)
        return damage if first_offset < end_offset else None

    def damage_up_to(self, offset: int) -> Damage | None:
        """Return the damaged range that contains an offset or ends directly before it."""
        return next((each for each in self.damaged if each.first_offset < offset <= each.end_offset), None)

    def _damaged_error(self, damage: Damage) -> BrokerError:
        return BrokerError(f"{self.name}: {damage}", code=Code.CORRUPT_MESSAGE)

    def add_damage(self, damages: Iterable[Damage]) -> None:
        """Refuse reads of damaged ranges from now on."""
        added = set(damages)
        self.damaged = find_undecided(self.segments, [*self.damaged, *added], self.name, self.env.clock.time_ms())
        for damage in self.damaged:
            if damage._replace(undecided_offset=NO_TRANSACTION) in added:
                self.report_damage(damage)

    def report_damage(self, damage: Damage) -> None:
        """Log a damaged range and its consequence."""
        logger.error(
            "%s: %s; fetches of them fail with CORRUPT_MESSAGE, the others can be read (docs/operations.md, Damaged "
            "log files)",
            self.name,
            damage,
        )

    def batches(self, offset: int | None = None) -> Iterator[RecordBatch]:
        """Yield all batches from an offset, or from the start, on."""
        next_offset = self.start_offset if offset is None else offset
        while next_offset < self.end_offset:
            part = self.read(next_offset, READ_ALL_BYTES, end_offset=self.end_offset, at_least_one=True)
            if not part.data:
                return
            yield from read_batches(part.data)
            next_offset = part.next_offset

    # --- offsets and epochs ---

    @property
    def latest_epoch(self) -> int:
        """The leader epoch of the last records; -1 if there have never been any."""
        return self.epochs.latest

    def begin_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the end of the log."""
        self.epochs.assign(epoch, self.end_offset)
        self.segments.files_changed = True

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` that has records, and the offset after them; (-1, -1) if unknown."""
        return self.epochs.end_of(epoch, self.end_offset)

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`, but not beyond the end. Return whether it moved."""
        offset = min(offset, self.end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.high_watermark_moved(offset)
        return True

    def delete_records(self, before: int) -> int:
        """Delete the records below an offset (-1: below the high watermark) and return the new start offset."""
        before = self.high_watermark if before == -1 else before
        if not 0 <= before <= self.high_watermark:
            raise BrokerError(
                f"{self.name}: cannot delete up to offset {before}: the high watermark is {self.high_watermark}",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        if before > self.start_offset:
            self._move_start(before)
            self.env.on_start_moved(self)
        return self.start_offset

    def _move_start(self, offset: int) -> None:
        self.start_offset = offset
        self.damaged = [damage for damage in self.damaged if damage.end_offset > offset]
        self.high_watermark = max(self.high_watermark, offset)
        self.first_dirty_offset = max(self.first_dirty_offset, offset)
        try:
            self.epochs.truncate_start(offset)
        except OSError as error:  # a full disk must not prevent deletion: the file may have more epochs than the log
            logger.warning("%s: cannot remove the epochs of deleted records from disk: %s", self.directory, error)
        self.aborted.truncate_start(offset)
        self.producers.high_watermark_moved(self.high_watermark)

    # --- truncate ---

    def truncate(self, offset: int) -> None:
        """Remove all records from an offset on, where the leader's log diverges.

        An offset within a batch removes the whole batch.
        """
        if offset >= self.end_offset:
            # A former leader that wrote nothing has an epoch that other replicas do not have: it would diverge forever.
            self.epochs.truncate_end(self.end_offset)
            return
        if offset <= self.segments[0].base_offset:
            self.truncate_fully(offset)
            return
        self.truncations += 1
        self.unclean = True
        self.damaged = [damage for damage in self.damaged if damage.first_offset < offset]
        end_offset = self.segments.truncate(offset)
        self.end_offset = end_offset
        self.start_offset = min(self.start_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.epochs.truncate_end(end_offset)
        self.aborted.truncate_end(end_offset)
        delete_snapshots(self.directory, end_offset + 1, OFFSET_MAX)
        self._reload_producers()
        self.env.on_truncated(self)

    def truncate_fully(self, offset: int) -> None:
        """Delete everything and start again at an offset: the leader no longer has the records that should follow."""
        self.truncations += 1
        self.unclean = True
        self.damaged = []
        delete_snapshots(self.directory, 0, OFFSET_MAX)
        self.segments.clear()
        self._begin_segment(offset)
        self.start_offset = self.end_offset = self.high_watermark = offset
        self.recovery_point = self.first_dirty_offset = offset
        self.epochs.clear()
        self.aborted.truncate_end(0)
        self.producers.clear()
        self.env.on_truncated(self)

    def _reload_producers(self) -> None:
        """Restore the producers at the end of the log, from the newest snapshot and the batches after it."""
        self.producers.clear()
        offset = restore_newest(self.producers, self.directory, self.end_offset)
        if offset is None:
            offset = self.start_offset
        segments, now_ms = self.segments[self.segments.index_of(offset) :], self.env.clock.time_ms()
        replay_producers(segments, self.producers, offset, self.end_offset, now_ms=now_ms, damaged=self.damaged)
        self.producers.high_watermark_moved(self.high_watermark)

    # --- flush and close ---

    @property
    def is_dirty(self) -> bool:
        """Whether a flush would write anything."""
        return self.end_offset > self.recovery_point or self.segments.files_changed

    @property
    def needs_flush(self) -> bool:
        """Whether flush.messages or flush.ms require a flush now."""
        waiting = self.end_offset - self.recovery_point
        if waiting <= 0:
            return False
        config = self.config
        if waiting >= config.flush_messages:
            return True
        return config.flush_ms != LONG_MAX and self.env.clock.time_ms() - self.last_flush_ms >= config.flush_ms

    def flush(self) -> None:
        """Force everything appended so far to disk. From any thread, while appends continue."""
        self._flush(closed_only=False)
        self.last_flush_ms = self.env.clock.time_ms()

    def flush_closed(self) -> None:
        """Force all segments but the last to disk: writes to a file wait while it is forced to disk.

        From any thread, while appends continue.
        """
        self._flush(closed_only=True)

    def _flush(self, *, closed_only: bool) -> None:
        """Force files to disk, then raise the recovery point: what is on disk is a prefix of the log."""
        truncations = self.truncations
        end_offset = self.segments.active.base_offset if closed_only else self.end_offset
        if end_offset <= self.recovery_point and not self.segments.files_changed:
            return
        try:
            self.segments.sync(self.recovery_point, end_offset)
        except OSError as error:
            if not self.directory.exists():
                return  # the topic was deleted meanwhile
            # The operating system drops pages that it could not write: what is on disk is unknown from here on.
            self.failed = f"cannot force its files to disk ({error}); restart the broker to recover the log"
            logger.error("%s: %s", self.directory, self.failed)
            raise
        if self.truncations == truncations:
            self.recovery_point = max(self.recovery_point, end_offset)

    def reconfigure(self, config: LogConfig) -> None:
        """Use other options from the next append on."""
        self.config = config

    def leave_clean(self) -> None:
        """Write what is only in memory, so that after the next flush nothing has to be recovered."""
        if self.unclean:
            self.unclean = False
            self._seal(self.segments.active, self.end_offset)
            write_snapshot(self.directory, self.end_offset, self.producers)
            self.segments.files_changed = True
        self.save_segment_checkpoints()

    def close(self, clean: bool = True) -> None:
        """Close the files. With `clean`, nothing has to be recovered."""
        if self.closed:
            return
        if clean:
            self.leave_clean()
            self.flush()
        self.closed = True
        for segment in self.segments:
            segment.close()
