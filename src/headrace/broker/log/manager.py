"""All logs of a root folder, and what is done to them in the background.

    <root>/
        .lock                               held by the process that uses the folder
        .kafka_cleanshutdown                there after a clean stop only
        recovery-point-offset-checkpoint    below it a log is on disk
        replication-offset-checkpoint       high watermarks
        log-start-offset-checkpoint         where DeleteRecords moved the start to
        cleaner-offset-checkpoint           below it a log is compacted
        <topic>-<partition>/                see files.py

The background is timers on the event loop. Blocking parts run in threads, on files that nobody changes; what they
bring about happens on the event loop again.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.broker.catalog.topics import NAME_CHARACTERS_MAX, check_name
from headrace.broker.clock import Clock, Timer
from headrace.broker.log import checkpoints, compaction
from headrace.broker.log.checkpoints import NO_TOPIC_ID, OffsetCheckpoint, Partition
from headrace.broker.log.config import LogConfig
from headrace.broker.log.copying import DamagedSegmentError
from headrace.broker.log.files import LOG, METADATA, UNFINISHED, FileCache, offset_name, replace_file
from headrace.broker.log.log import Host, Log
from headrace.broker.log.recovery import NO_FACTS, Known, PartitionFacts, open_log
from headrace.broker.log.retention import delete_old_segments, remove_files
from headrace.broker.log.segment import Segment
from headrace.broker.log.verification import (
    CHUNK_BYTES,
    VERIFY_AT_START_BYTES,
    VERIFY_BYTES_A_SECOND,
    SegmentVerifier,
)
from headrace.broker.tasks import start_task
from headrace.errors import BrokerError, Code, IllegalStateError, WireError

log = logging.getLogger("headrace.broker.log")

LOCK = ".lock"
CLEAN_STOP = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"

FLUSH_CHECK_MS = 1_000
"""How often segments that were closed, and logs with flush.ms, are looked after."""
FLUSH_THREADS_MAX = 8
"""Logs that are forced to disk at the same time when all of them are."""
LOAD_REPORT_SECONDS = 5.0
"""How often loading says how far it is."""
_INTERVALS_MS = {
    "log.retention.check.interval.ms": 300_000,
    "log.cleaner.backoff.ms": 15_000,
    "log.flush.offset.checkpoint.interval.ms": 60_000,
    "producer.id.expiration.check.interval.ms": 600_000,
}
_PRODUCER_EXPIRATION_MS = 86_400_000
_FOLDER = re.compile(r"(.+)-([0-9]+)")
_AWAY = re.compile(r".+\.[0-9a-f]{32}-delete")


class Stray(NamedTuple):
    """A folder with records that belong to no partition of this broker, as far as it knows."""

    folder: Path
    topic_id: bytes
    reason: str


class LogManager:
    """The logs of one broker. Event loop only."""

    def __init__(self, root: Path, clock: Clock, defaults: Mapping[str, Any]) -> None:
        self.root = root
        self._clock = clock
        self._defaults = defaults
        self._logs: dict[Partition, Log] = {}
        self._rolled: set[Log] = set()  # have segments that are closed but perhaps not on disk
        self._flushing: dict[Log, asyncio.Task[None]] = {}
        self._timers: dict[str, Timer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._noted_watermarks: dict[Partition, int] = {}  # as they were last written by `write_watermarks`
        self._deletions = 0
        self._deleted: dict[Partition, int] = {}  # logs that checkpoints may still have, and which deletion it was
        self._doomed: list[Path] = []  # files and folders that are to be removed after their delay
        self.lost_tails: list[Partition] = []  # logs that ended below their high watermark when they were opened
        self.missing: dict[Partition, int] = {}  # high watermarks of logs without a folder; until `start`
        self.strays: dict[Partition, Stray] = {}
        self._facts_of: Callable[[str, int], PartitionFacts] = _no_facts
        self.last_producer_id = -1  # the highest one in the logs when they were opened
        self._host = Host(
            clock,
            FileCache(),
            self._rolled.add,
            lambda _: self._write_start_offsets(),
            lambda _: self._write_ends(),
        )
        self._points = OffsetCheckpoint(root / RECOVERY_POINTS, "after a crash all logs are read from their start")
        self._watermarks = OffsetCheckpoint(root / HIGH_WATERMARKS, "high watermarks begin at the start of the logs")
        self._starts = OffsetCheckpoint(root / START_OFFSETS, "records that DeleteRecords deleted may be there again")
        self._cleaned = OffsetCheckpoint(root / CLEANER_OFFSETS, "compaction begins at the start of the logs")
        root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock_folder(root)

    @property
    def all(self) -> list[Log]:
        """Every log."""
        return list(self._logs.values())

    def damages(self) -> list[str]:
        """What cannot be read, for the status."""
        return [f"{each.name}: {damage}" for each in self._logs.values() for damage in each.damaged]

    # --- one log ---

    def get(self, topic: str, index: int) -> Log | None:
        return self._logs.get((topic, index))

    def create(self, topic: str, index: int, topic_id: bytes, config: LogConfig) -> Log:
        """The log of a partition: a new one, or the one that is there, if it is of the same topic."""
        check_name(topic)
        stray = self.strays.get((topic, index))
        if stray is not None and stray.topic_id != topic_id:
            raise BrokerError(f"{stray.folder}: {stray.reason}", code=Code.KAFKA_STORAGE_ERROR)
        existing = self._logs.get((topic, index))
        if existing is not None:
            if existing.topic_id not in (topic_id, NO_TOPIC_ID):
                raise BrokerError(
                    f"{existing.name} is there already, of another topic of that name", code=Code.INCONSISTENT_TOPIC_ID
                )
            existing.topic_id = topic_id
            existing.reconfigure(config)
            return existing
        folder = self.root / f"{topic}-{index}"
        known = Known()
        if lost := self.missing.pop((topic, index), 0):
            # Without other replicas offsets go on: one that was given out must not be another record's.
            known = Known(start_offset=lost if self._facts_of(topic, index).is_alone else 0)
            log.error("%s is missing: its records up to offset %d are lost here", folder, lost)
        try:
            if (topic, index) in self._deleted:
                self._forget_deleted()
            folder.mkdir(exist_ok=True)
            checkpoints.write_metadata(folder / METADATA, topic_id)
            fresh = open_log(self._host, folder, topic, index, topic_id, config, known)
        except OSError as error:
            raise BrokerError(f"{folder}: cannot be made: {error}", code=Code.KAFKA_STORAGE_ERROR) from error
        self._logs[topic, index] = fresh
        self.strays.pop((topic, index), None)
        return fresh

    def delete(self, topic: str, index: int) -> None:
        """Remove a log. Its name is free at once; its files go in the background."""
        gone = self._logs.pop((topic, index), None)
        if gone is None:
            return
        gone.close(clean=False)
        self._rolled.discard(gone)
        self._deletions += 1
        self._deleted[topic, index] = self._deletions
        self._remove_folder(gone.directory, topic, index, gone.config.file_delete_delay_ms)

    def _remove_folder(self, folder: Path, topic: str, index: int, delay_ms: int) -> None:
        suffix = f"-{index}.{uuid.uuid4().hex}-delete"
        away = self.root / (topic[: NAME_CHARACTERS_MAX - len(suffix)] + suffix)
        os.replace(folder, away)
        self._remove_later([away], delay_ms)

    def set_aside(self, topic: str, index: int, reason: str) -> Stray:
        """Close a log that no topic is known for, and leave its folder as it is: nothing is done to it any more."""
        stray_log = self._logs.pop((topic, index))
        stray_log.flush()  # a clean stop says that all is on disk
        stray_log.close(clean=False)
        self._rolled.discard(stray_log)
        stray = self.strays[topic, index] = Stray(stray_log.directory, stray_log.topic_id, reason)
        return stray

    def delete_stray(self, topic: str, index: int) -> None:
        """Remove a stray folder: its topic is known to be deleted."""
        self._remove_folder(self.strays.pop((topic, index)).folder, topic, index, 0)

    async def flushed(self, of: Log) -> None:
        """Return when everything that is in the log now is on disk. Who waits at the same time shares the work."""
        target = of.end_offset
        # A few times at most: a flush that began before we came may have missed what we wait for.
        # What a truncation takes away meanwhile will never be on disk.
        while not of.closed and (of.recovery_point < min(target, of.end_offset) or of.names_changed):
            task = self._flushing.get(of)
            if task is None:
                task = self._flushing[of] = self._start_flush(of, of.flush)
            await asyncio.shield(task)

    async def _closed_flushed(self, of: Log) -> None:
        """Return when all segments but the last are on disk."""
        while (other := self._flushing.get(of)) is not None:  # it may have begun before the last one was closed
            await asyncio.shield(other)
        task = self._flushing[of] = self._start_flush(of, of.flush_closed)
        await asyncio.shield(task)

    def _start_flush(self, of: Log, work: Callable[[], None]) -> asyncio.Task[None]:
        return start_task(self._flush(of, work), "flush", outcomes=(BrokerError,))

    async def _flush(self, of: Log, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise BrokerError(f"{of.name}: {error}", code=Code.KAFKA_STORAGE_ERROR) from error
        finally:
            del self._flushing[of]

    # --- start and stop ---

    def load(self, facts_of: Callable[[str, int], PartitionFacts] | None = None) -> None:
        """Open every log in the root folder. What was not closed cleanly is recovered."""
        self._facts_of = facts_of or _no_facts
        clean = (self.root / CLEAN_STOP).exists()
        (self.root / CLEAN_STOP).unlink(missing_ok=True)
        points, starts = self._points.read(), self._starts.read()
        watermarks, cleaned = self._watermarks.read(), self._cleaned.read()
        config = LogConfig.resolve({}, self._defaults)
        for path in self.root.glob(f"*-checkpoint.*{UNFINISHED}"):
            path.unlink()
        folders = self._folders()
        verify_bytes_max = VERIFY_AT_START_BYTES
        self.missing = {key: offset for key, offset in watermarks.items() if offset}
        reported = begun = time.monotonic()
        for number, (key, folder) in enumerate(folders.items()):
            known = Known(
                clean,
                points.get(key, 0),
                starts.get(key, 0),
                watermarks.get(key, 0),
                verify_bytes_max,
                self._facts_of(*key),
            )
            topic_id = checkpoints.read_metadata(folder / METADATA)
            try:
                found = open_log(self._host, folder, *key, topic_id or NO_TOPIC_ID, config, known)
            except Exception as error:
                raise IllegalStateError(f"the log in {folder} cannot be opened: {error}") from error
            verify_bytes_max = max(0, verify_bytes_max - found.size_bytes)
            self.last_producer_id = max(self.last_producer_id, *found.producers.entries, -1)
            if found.end_offset < known.high_watermark:
                self.lost_tails.append(key)
                log.error(
                    "%s ends at offset %d, but was committed up to %d: %s is cut, %s is missing, or %s is wrong",
                    folder,
                    found.end_offset,
                    known.high_watermark,
                    offset_name(found.segments[-1].base_offset, LOG),
                    offset_name(found.end_offset, LOG),
                    HIGH_WATERMARKS,
                )
            found.first_dirty_offset = min(max(cleaned.get(key, 0), found.start_offset), found.end_offset)
            self._logs[key] = found
            self.missing.pop(key, None)
            if topic_id is None and found.end_offset > 0:
                reason = f"{METADATA} is damaged: it is not known which topic {found.name} the records are of"
                log.error("%s: %s; it stays offline", folder, self.set_aside(*key, reason).reason)
            if time.monotonic() - reported > LOAD_REPORT_SECONDS:
                reported = time.monotonic()
                log.info("%d of %d logs opened", number + 1, len(folders))
        if folders:
            how = "clean" if clean else "recovered"
            log.info("%d logs opened in %.1f s (%s)", len(folders), time.monotonic() - begun, how)

    def _folders(self) -> dict[Partition, Path]:
        """Those of partitions. What was deleted and is still there is removed."""
        for folder in self.root.iterdir():
            if _AWAY.fullmatch(folder.name) and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        return partition_folders(self.root)

    def start(self) -> None:
        """Begin with the work in the background."""
        self.missing = {}
        work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "log.retention.check.interval.ms": self.delete_old,
            "log.cleaner.backoff.ms": self.compact,
            "log.flush.offset.checkpoint.interval.ms": self.write_checkpoints,
            "producer.id.expiration.check.interval.ms": self.expire_producers,
        }
        for option, job in work.items():
            self._every(option, self._setting(option, _INTERVALS_MS[option]), job)
        self._every("flush", FLUSH_CHECK_MS, self.flush_due)
        self._spawn(self.verify_segments())

    def note_watermarks(self, interval_ms: int) -> None:
        """Note high watermarks more often, from now on: there are other replicas that may be ahead."""
        self._every("replica.high.watermark.checkpoint.interval.ms", interval_ms, self.write_watermarks)

    def _setting(self, option: str, default: int) -> int:
        value = self._defaults.get(option)
        return default if value is None else int(value)

    def _every(self, name: str, interval_ms: int, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a job again and again, each time so long after it was done."""

        async def run() -> None:
            try:
                await job()
            except Exception:
                log.exception("%s failed; it is tried again in %d ms", name, interval_ms)
            self._timers[name] = self._clock.call_later(interval_ms, begin)

        def begin() -> None:
            self._spawn(run())

        self._timers[name] = self._clock.call_later(interval_ms, begin)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work, "log manager")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End the work in the background, close all logs, and note that it was done cleanly."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
        self._is_stopping = True
        await asyncio.gather(*self._tasks, *self._flushing.values(), return_exceptions=True)
        for timer in self._timers.values():  # of jobs that were running when we came
            timer.cancel()
        failed = await self._close_all()
        await asyncio.to_thread(_remove, self._doomed)
        try:
            await self.write_checkpoints()
        except OSError as error:
            log.error("%s: checkpoints are not written, the next start recovers all logs: %s", self.root, error)
            failed = True
        if not failed:
            replace_file(self.root / CLEAN_STOP, b'{"version":0,"brokerEpoch":-1}')
        self.release()

    def release(self) -> None:
        """Let another broker use the folder. May be called again."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    async def _close_all(self) -> bool:
        """Whether one of them could not be brought to disk."""
        failed = False
        for each in self.all:
            try:
                each.leave_clean()
            except OSError as error:
                log.error("%s cannot be closed cleanly, the next start recovers it: %s", each.directory, error)
                failed = True
        failed |= await self._flush_all(self.all, self.flushed)
        for each in self.all:
            each.close(clean=False)
        return failed

    async def _flush_all(self, logs: Iterable[Log], flush: Callable[[Log], Awaitable[None]]) -> bool:
        """Several at a time. Whether one of them failed."""
        turns = asyncio.Semaphore(FLUSH_THREADS_MAX)

        async def one(each: Log) -> None:
            async with turns:
                await flush(each)

        results = await asyncio.gather(*(one(each) for each in logs if each.is_dirty), return_exceptions=True)
        return any(isinstance(result, BaseException) for result in results)

    # --- the work in the background ---

    async def flush_due(self) -> None:
        """Force closed segments to disk, and what flush.messages or flush.ms say."""
        due = {each for each in self._logs.values() if each.needs_flush}
        rolled = self._rolled - due
        self._rolled.clear()
        await self._flush_all(due, self.flushed)
        await self._flush_all(rolled, self._closed_flushed)

    async def verify_segments(self) -> None:
        """Look for damage in segments that the start has not read, slowly."""
        for each in self.all:
            while each.unverified and not each.closed and not self._is_stopping:
                await self._verify_segment(each, each.unverified.pop())

    async def _verify_segment(self, of: Log, segment: Segment) -> None:
        if segment not in of.segments:
            return
        truncations = of.truncations
        ends = [each.base_offset for each in of.segments[1:]] + [of.end_offset]
        end_offset = ends[of.segments.index(segment)]
        is_active = segment is of.segments[-1]  # of its end nothing is known: it may have been written to
        verifier = SegmentVerifier(segment, end_offset, of.epochs.rows, None if is_active else segment.row)
        try:
            while not await asyncio.to_thread(verifier.step) and not self._is_stopping:
                await asyncio.sleep(CHUNK_BYTES / VERIFY_BYTES_A_SECOND)
        except OSError as error:
            if segment in of.segments and not of.closed:
                log.error("%s cannot be verified: %s", segment.file.path, error)
            return
        other_epochs = [each for each in verifier.other_epochs if each.first_offset >= of.start_offset]
        if len(other_epochs) == 1 and other_epochs[0].first_offset < verifier.last_fitting_offset:
            verifier.damages += other_epochs
        if verifier.damages and segment in of.segments and of.truncations == truncations:
            of.add_damage(verifier.damages)
            if segment is of.segments[-1]:
                of.roll()  # a recovery would end the log where it is damaged

    async def delete_old(self) -> None:
        """Retention."""
        for each in self.all:
            try:
                gone = delete_old_segments(each, self._clock.time_ms())
            except (OSError, BrokerError) as error:
                log.error("%s: old segments are not deleted: %s; it is tried again", each.name, error)
                continue
            if gone:
                log.info("%s: %d files deleted, the log begins at offset %d", each.name, len(gone), each.start_offset)
                self._remove_later(gone, each.config.file_delete_delay_ms)

    async def compact(self) -> None:
        """Compact what is dirty enough, the dirtiest first."""
        if str(self._defaults.get("log.cleaner.enable", "true")).lower() == "false":
            return
        for each in compaction.by_need(self.all, self._clock.time_ms()):
            try:
                await self._compact_one(each)
            except (OSError, WireError) as error:
                if each.closed:
                    continue  # its files were taken away under us: its topic is deleted
                log.warning("%s: not compacted: %s", each.name, error)
                if isinstance(error, DamagedSegmentError):
                    each.unverified = each.segments[:-1]
                    await self.verify_segments()  # what is damaged is not compacted again

    async def _compact_one(self, of: Log) -> None:
        plan = None if of.closed else compaction.plan(of, self._clock.time_ms())
        if plan is None:
            return
        result = await asyncio.to_thread(compaction.run, plan)
        if not of.closed:
            self._remove_later(compaction.swap_in(of, plan, result), of.config.file_delete_delay_ms)

    async def expire_producers(self) -> None:
        """Forget producers that have written nothing for long."""
        expiration_ms = self._setting("producer.id.expiration.ms", _PRODUCER_EXPIRATION_MS)
        for each in self.all:
            each.producers.expire(self._clock.time_ms(), expiration_ms)

    async def write_checkpoints(self) -> None:
        """What saves work after a crash."""
        deletions, write = self._deletions, self._checkpoint_write()
        await asyncio.to_thread(write)
        self._deleted = {key: number for key, number in self._deleted.items() if number > deletions}

    def _checkpoint_write(self) -> Callable[[], None]:
        """Write all checkpoints as they are now; a thread may do it."""
        cleaned = {key: each.first_dirty_offset for key, each in self._logs.items() if each.config.compact}
        writes = [
            self._points.prepare(self._recovery_points()),
            self._watermarks.prepare(self._high_watermarks()),
            self._cleaned.prepare(cleaned),
            self._starts.prepare(self._start_offsets()),
        ]

        def write() -> None:
            for each in writes:
                each()

        return write

    def _forget_deleted(self) -> None:
        """Take deleted logs out of the checkpoints: after a crash their rows would be used for new logs of the name."""
        self._checkpoint_write()()
        self._deleted.clear()

    async def write_watermarks(self) -> None:
        """High watermarks alone: where there are several replicas, a new leader begins with the last that it noted."""
        watermarks = self._high_watermarks()
        if watermarks != self._noted_watermarks:
            self._noted_watermarks = watermarks
            await asyncio.to_thread(self._watermarks.prepare(watermarks))

    def _high_watermarks(self) -> dict[Partition, int]:
        """Those of missing logs stay until the work begins: if a start fails before, the next one misses them, too."""
        return self.missing | {key: each.high_watermark for key, each in self._logs.items()}

    def _recovery_points(self) -> dict[Partition, int]:
        return {key: min(each.recovery_point, each.end_offset) for key, each in self._logs.items()}

    def _write_ends(self) -> None:
        """A log was cut: neither what is on disk nor the high watermark may be believed to reach further."""
        self._points.prepare(self._recovery_points())()
        self._watermarks.prepare(self._high_watermarks())()

    def _start_offsets(self) -> dict[Partition, int]:
        """Of the logs that begin in the middle of a segment: the others begin where their first one does."""
        logs = self._logs.items()
        return {key: each.start_offset for key, each in logs if each.start_offset > each.segments[0].base_offset}

    def _write_start_offsets(self) -> None:
        """Tried again with all checkpoints: a full disk must not keep records from being deleted."""
        try:
            self._starts.prepare(self._start_offsets())()
        except OSError as error:
            log.warning("%s is not written, deleted records may be back after a crash: %s", START_OFFSETS, error)

    def _remove_later(self, paths: list[Path], delay_ms: int) -> None:
        if not paths:
            return
        self._doomed += paths
        name = f"remove {paths[0]}"

        def begin() -> None:
            self._timers.pop(name, None)
            self._doomed = [path for path in self._doomed if path not in set(paths)]
            self._spawn(asyncio.to_thread(_remove, paths))

        self._timers[name] = self._clock.call_later(delay_ms, begin)


def _no_facts(topic: str, index: int) -> PartitionFacts:
    """Return what is known of a partition without a catalog."""
    return NO_FACTS


def partition_folders(root: Path) -> dict[Partition, Path]:
    """Return the folders of partitions in a data folder."""
    found = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        name = _FOLDER.fullmatch(folder.name)
        if name is not None and not _AWAY.fullmatch(folder.name):
            try:
                check_name(name[1])
            except BrokerError:
                continue
            found[name[1], int(name[2])] = folder
    return found


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    remove_files(path for path in paths if not path.is_dir())


def lock_folder(root: Path) -> int:
    """Hold a data folder for this process, until the descriptor that is returned is closed or the process ends."""
    path = root / LOCK
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise IllegalStateError(
            f"{path.parent} is used by another broker (process {holder}): stop that one, or use another folder"
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, b"%d\n" % os.getpid())
    return fd
