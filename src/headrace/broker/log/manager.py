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
from typing import Any

from headrace.broker.catalog.topics import NAME_CHARACTERS_MAX, check_name
from headrace.broker.clock import Clock, Timer
from headrace.broker.log import checkpoints, compaction
from headrace.broker.log.checkpoints import NO_TOPIC_ID, Partition
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import METADATA, FileCache, replace_file
from headrace.broker.log.log import Host, Log
from headrace.broker.log.recovery import Known, open_log
from headrace.broker.log.retention import delete_old_segments, remove_files
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
        self._watermarks: dict[Partition, int] = {}  # as they were last written by `write_watermarks`
        self._doomed: list[Path] = []  # files and folders that are to be removed after their delay
        self.lost_tails: list[Partition] = []  # logs that ended below their high watermark when they were opened
        self._host = Host(
            clock,
            FileCache(),
            self._rolled.add,
            lambda _: self._write_start_offsets(),
            lambda _: self._write_ends(),
        )
        root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _lock(root / LOCK)

    @property
    def all(self) -> list[Log]:
        """Every log."""
        return list(self._logs.values())

    # --- one log ---

    def get(self, topic: str, index: int) -> Log | None:
        return self._logs.get((topic, index))

    def create(self, topic: str, index: int, topic_id: bytes, config: LogConfig) -> Log:
        """The log of a partition: a new one, or the one that is there, if it is of the same topic."""
        check_name(topic)
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
        try:
            folder.mkdir(exist_ok=True)
            checkpoints.write_metadata(folder / METADATA, topic_id)
            fresh = open_log(self._host, folder, topic, index, topic_id, config)
        except OSError as error:
            raise BrokerError(f"{folder}: cannot be made: {error}", code=Code.KAFKA_STORAGE_ERROR) from error
        self._logs[topic, index] = fresh
        return fresh

    def delete(self, topic: str, index: int) -> None:
        """Remove a log. Its name is free at once; its files go in the background."""
        gone = self._logs.pop((topic, index), None)
        if gone is None:
            return
        gone.close(clean=False)
        self._rolled.discard(gone)
        suffix = f"-{index}.{uuid.uuid4().hex}-delete"
        away = self.root / (topic[: NAME_CHARACTERS_MAX - len(suffix)] + suffix)
        os.replace(gone.directory, away)
        self._remove_later([away], gone.config.file_delete_delay_ms)

    async def flushed(self, of: Log) -> None:
        """Return when everything that is in the log now is on disk. Who waits at the same time shares the work."""
        target = of.end_offset
        # A few times at most: a flush that began before we came may have missed what we wait for.
        while not of.closed and (of.recovery_point < target or of.names_changed):
            task = self._flushing.get(of)
            if task is None:
                task = self._flushing[of] = asyncio.create_task(self._flush(of, of.flush))
            await asyncio.shield(task)

    async def _closed_flushed(self, of: Log) -> None:
        """Return when all segments but the last are on disk."""
        while (other := self._flushing.get(of)) is not None:  # it may have begun before the last one was closed
            await asyncio.shield(other)
        task = self._flushing[of] = asyncio.create_task(self._flush(of, of.flush_closed))
        await asyncio.shield(task)

    async def _flush(self, of: Log, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise BrokerError(f"{of.name}: {error}", code=Code.KAFKA_STORAGE_ERROR) from error
        finally:
            del self._flushing[of]

    # --- start and stop ---

    def load(self) -> None:
        """Open every log in the root folder. What was not closed cleanly is recovered."""
        clean = (self.root / CLEAN_STOP).exists()
        (self.root / CLEAN_STOP).unlink(missing_ok=True)
        points = checkpoints.read_offsets(self.root / RECOVERY_POINTS)
        starts = checkpoints.read_offsets(self.root / START_OFFSETS)
        watermarks = checkpoints.read_offsets(self.root / HIGH_WATERMARKS)
        cleaned = checkpoints.read_offsets(self.root / CLEANER_OFFSETS)
        config = LogConfig.resolve({}, self._defaults)
        folders = self._folders()
        reported = begun = time.monotonic()
        for number, (key, folder) in enumerate(folders.items()):
            known = Known(clean, points.get(key, 0), starts.get(key, 0), watermarks.get(key, 0))
            topic_id = checkpoints.read_metadata(folder / METADATA)
            found = open_log(self._host, folder, *key, topic_id, config, known)
            if found.end_offset < known.high_watermark:
                self.lost_tails.append(key)
                log.error(
                    "%s ends at %d, but was committed up to %d", found.name, found.end_offset, known.high_watermark
                )
            found.first_dirty_offset = min(max(cleaned.get(key, 0), found.start_offset), found.end_offset)
            self._logs[key] = found
            if time.monotonic() - reported > LOAD_REPORT_SECONDS:
                reported = time.monotonic()
                log.info("%d of %d logs opened", number + 1, len(folders))
        if folders:
            how = "clean" if clean else "recovered"
            log.info("%d logs opened in %.1f s (%s)", len(folders), time.monotonic() - begun, how)

    def _folders(self) -> dict[Partition, Path]:
        """Those of partitions. What was deleted and is still there is removed."""
        found = {}
        for folder in sorted(path for path in self.root.iterdir() if path.is_dir()):
            name = _FOLDER.fullmatch(folder.name)
            if _AWAY.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
            elif name is not None:
                try:
                    check_name(name[1])
                except BrokerError:
                    continue
                found[name[1], int(name[2])] = folder
        return found

    def start(self) -> None:
        """Begin with the work in the background."""
        work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "log.retention.check.interval.ms": self.delete_old,
            "log.cleaner.backoff.ms": self.compact,
            "log.flush.offset.checkpoint.interval.ms": self.write_checkpoints,
            "producer.id.expiration.check.interval.ms": self.expire_producers,
        }
        for option, job in work.items():
            self._every(option, self._setting(option, _INTERVALS_MS[option]), job)
        self._every("flush", FLUSH_CHECK_MS, self.flush_due)

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
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End the work in the background, close all logs, and note that it was done cleanly."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
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
                if not each.closed:  # else its files were taken away under us: its topic is deleted
                    log.warning("%s: not compacted: %s", each.name, error)

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
        logs = self._logs.items()
        points = self._recovery_points()
        watermarks = {key: each.high_watermark for key, each in logs}
        cleaned = {key: each.first_dirty_offset for key, each in logs if each.config.compact}
        starts = self._start_offsets()

        def write() -> None:
            checkpoints.write_offsets(self.root / RECOVERY_POINTS, points)
            checkpoints.write_offsets(self.root / HIGH_WATERMARKS, watermarks)
            checkpoints.write_offsets(self.root / CLEANER_OFFSETS, cleaned)
            checkpoints.write_offsets(self.root / START_OFFSETS, starts)

        await asyncio.to_thread(write)

    async def write_watermarks(self) -> None:
        """High watermarks alone: where there are several replicas, a new leader begins with the last that it noted."""
        watermarks = {key: each.high_watermark for key, each in self._logs.items()}
        if watermarks != self._watermarks:
            self._watermarks = watermarks
            await asyncio.to_thread(checkpoints.write_offsets, self.root / HIGH_WATERMARKS, watermarks)

    def _recovery_points(self) -> dict[Partition, int]:
        return {key: min(each.recovery_point, each.end_offset) for key, each in self._logs.items()}

    def _write_ends(self) -> None:
        """A log was cut: neither what is on disk nor the high watermark may be believed to reach further."""
        checkpoints.write_offsets(self.root / RECOVERY_POINTS, self._recovery_points())
        watermarks = {key: each.high_watermark for key, each in self._logs.items()}
        checkpoints.write_offsets(self.root / HIGH_WATERMARKS, watermarks)

    def _start_offsets(self) -> dict[Partition, int]:
        """Of the logs that begin in the middle of a segment: the others begin where their first one does."""
        logs = self._logs.items()
        return {key: each.start_offset for key, each in logs if each.start_offset > each.segments[0].base_offset}

    def _write_start_offsets(self) -> None:
        """Tried again with all checkpoints: a full disk must not keep records from being deleted."""
        try:
            checkpoints.write_offsets(self.root / START_OFFSETS, self._start_offsets())
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


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    remove_files(path for path in paths if not path.is_dir())


def _lock(path: Path) -> int:
    """Hold the folder for this process; the system lets go of it when we end, however we end."""
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
