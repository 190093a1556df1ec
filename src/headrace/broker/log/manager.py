"""All logs of a root folder, and their background tasks.

    <root>/
        .lock                               held by the process that uses the folder
        .kafka_cleanshutdown                exists only after a clean stop
        …-checkpoint                        offsets of all logs (root_checkpoints.py)
        <topic>-<partition>/                files of a log (files.py)

Background tasks are timers on the event loop. Their blocking parts run on threads, on files that do not change; the
results are applied on the event loop.
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headrace.broker.catalog.topics import NAME_CHARACTERS_MAX, check_name
from headrace.broker.clock import Timer, TimerClock
from headrace.broker.log import compaction
from headrace.broker.log.checkpoints import NO_TOPIC_ID, read_metadata, write_metadata
from headrace.broker.log.compaction_filter import DamagedSegmentError
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import LOG, METADATA, UNFINISHED, FileCache, offset_name, replace_file
from headrace.broker.log.loader import LogLoader, SavedState
from headrace.broker.log.log import Log, LogEnv
from headrace.broker.log.recovery import NO_FACTS, PartitionFacts
from headrace.broker.log.retention import delete_old_segments
from headrace.broker.log.root_checkpoints import HIGH_WATERMARKS, RootCheckpoints
from headrace.broker.log.segment import Segment, with_ends
from headrace.broker.log.verification import (
    CHUNK_BYTES,
    VERIFY_AT_START_BYTES,
    VERIFY_BYTES_A_SECOND,
    SegmentVerifier,
    single_mismatch,
)
from headrace.broker.tasks import TaskSet, start_task
from headrace.errors import BrokerError, Code, IllegalStateError, WireError
from headrace.types import TopicPartition

logger = logging.getLogger("headrace.broker.log")

LOCK = ".lock"
CLEAN_STOP = ".kafka_cleanshutdown"

FLUSH_CHECK_MS = 1_000
"""Interval of flushing closed segments, and of checking flush.ms."""
FLUSH_THREADS_MAX = 8
"""Logs that are forced to disk at the same time."""
LOAD_REPORT_SECONDS = 5.0
"""Interval of log lines about the progress of loading."""
_PRODUCER_EXPIRATION_MS = 86_400_000
_FOLDER = re.compile(r"(.+)-([0-9]+)")
_DELETED_FOLDER = re.compile(r".+\.[0-9a-f]{32}-delete")

FactsOf = Callable[[str, int], PartitionFacts]


class Stray(NamedTuple):
    """A folder with records that belong to no known partition of this broker."""

    folder: Path
    topic_id: bytes
    reason: str


class LogManager:
    """The logs of one broker. Event loop only."""

    def __init__(self, root: Path, clock: TimerClock, defaults: Mapping[str, Any]) -> None:
        self.root = root
        self._clock = clock
        self._defaults = defaults
        self._logs: dict[TopicPartition, Log] = {}
        self._rolled: set[Log] = set()  # logs with closed segments that may not be on disk
        self._flushing: dict[Log, asyncio.Task[None]] = {}
        self._timers: dict[str, Timer] = {}
        self._tasks = TaskSet("log manager")
        self._is_stopping = False
        self._to_remove: list[Path] = []  # files and folders that wait for their delay
        self.lost_tails: list[TopicPartition] = []  # logs that ended below their high watermark when they were loaded
        self.missing: dict[TopicPartition, int] = {}  # high watermarks of logs without a folder; until `start`
        self.strays: dict[TopicPartition, Stray] = {}
        self._facts_of: FactsOf = _no_facts
        self.last_producer_id = -1  # the highest in the logs when they were loaded
        self._checkpoints = RootCheckpoints(root, self._logs, self.missing)
        self._env = LogEnv(
            clock,
            FileCache(),
            self._rolled.add,
            lambda _: self._checkpoints.write_start_offsets(),
            lambda _: self._checkpoints.write_ends(),
        )
        root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock_folder(root)

    @property
    def all(self) -> list[Log]:
        """All logs."""
        return list(self._logs.values())

    def damages(self) -> list[str]:
        """Return a description of each damaged range, for the status."""
        return [f"{log.name}: {damage}" for log in self._logs.values() for damage in log.damaged]

    # --- one log ---

    def get(self, topic: str, index: int) -> Log | None:
        return self._logs.get(TopicPartition(topic, index))

    def create(self, topic: str, index: int, topic_id: bytes, config: LogConfig) -> Log:
        """Return the log of a partition: a new one, or the existing one if it has the same topic id."""
        check_name(topic)
        partition = TopicPartition(topic, index)
        stray = self.strays.get(partition)
        if stray is not None and stray.topic_id != topic_id:
            raise BrokerError(f"{stray.folder}: {stray.reason}", code=Code.KAFKA_STORAGE_ERROR)
        existing = self._logs.get(partition)
        if existing is not None:
            if existing.topic_id not in (topic_id, NO_TOPIC_ID):
                raise BrokerError(
                    f"{existing.name} exists with another topic id: it belongs to another topic of that name",
                    code=Code.INCONSISTENT_TOPIC_ID,
                )
            existing.topic_id = topic_id
            existing.reconfigure(config)
            return existing
        folder = self.root / str(partition)
        saved = SavedState()
        if lost := self.missing.pop(partition, 0):
            # Without other replicas offsets continue: an offset must not be assigned to two records.
            saved = SavedState(start_offset=lost if self._facts_of(topic, index).is_alone else 0)
            logger.error("%s is missing: its records up to offset %d are lost here", folder, lost)
        try:
            self._checkpoints.before_create(partition)
            folder.mkdir(exist_ok=True)
            write_metadata(folder / METADATA, topic_id)
            created = LogLoader(self._env, folder, partition, config, saved).load(topic_id)
        except OSError as error:
            raise BrokerError(f"cannot create {folder}: {error}", code=Code.KAFKA_STORAGE_ERROR) from error
        self._logs[partition] = created
        self.strays.pop(partition, None)
        return created

    def delete(self, topic: str, index: int) -> None:
        """Delete a log. Its name is free at once; its files are removed in the background."""
        partition = TopicPartition(topic, index)
        deleted = self._logs.pop(partition, None)
        if deleted is None:
            return
        deleted.close(clean=False)
        self._rolled.discard(deleted)
        self._checkpoints.add_deleted(partition)
        self._remove_folder(deleted.directory, partition, deleted.config.file_delete_delay_ms)

    def _remove_folder(self, folder: Path, partition: TopicPartition, delay_ms: int) -> None:
        suffix = f"-{partition.partition}.{uuid.uuid4().hex}-delete"
        renamed = self.root / (partition.topic[: NAME_CHARACTERS_MAX - len(suffix)] + suffix)
        os.replace(folder, renamed)
        self._remove_later([renamed], delay_ms)

    def set_aside(self, topic: str, index: int, reason: str) -> Stray:
        """Close a log that belongs to no known topic, and make its folder a stray, which is not touched any more."""
        partition = TopicPartition(topic, index)
        closed = self._logs.pop(partition)
        closed.flush()  # a clean stop means that everything is on disk
        closed.close(clean=False)
        self._rolled.discard(closed)
        stray = self.strays[partition] = Stray(closed.directory, closed.topic_id, reason)
        return stray

    def delete_stray(self, topic: str, index: int) -> None:
        """Remove a stray folder whose topic is known to be deleted."""
        partition = TopicPartition(topic, index)
        self._remove_folder(self.strays.pop(partition).folder, partition, 0)

    # --- flush ---

    async def flushed(self, log: Log) -> None:
        """Return when everything that is in the log now is on disk. Concurrent callers share a flush."""
        target = log.end_offset
        # A few passes at most: a flush that began before this call may have missed some records.
        # Records that a truncation removes meanwhile will never be on disk.
        while not log.closed and (log.recovery_point < min(target, log.end_offset) or log.segments.files_changed):
            task = self._flushing.get(log)
            if task is None:
                task = self._flushing[log] = self._start_flush(log, log.flush)
            await asyncio.shield(task)

    async def _closed_flushed(self, log: Log) -> None:
        """Return when all segments but the last are on disk."""
        while (other := self._flushing.get(log)) is not None:  # it may have begun before the last one was closed
            await asyncio.shield(other)
        task = self._flushing[log] = self._start_flush(log, log.flush_closed)
        await asyncio.shield(task)

    def _start_flush(self, log: Log, work: Callable[[], None]) -> asyncio.Task[None]:
        return start_task(self._flush(log, work), "flush", outcomes=(BrokerError,))

    async def _flush(self, log: Log, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise BrokerError(f"{log.name}: {error}", code=Code.KAFKA_STORAGE_ERROR) from error
        finally:
            del self._flushing[log]

    async def _flush_all(self, logs: Iterable[Log], flush: Callable[[Log], Awaitable[None]]) -> bool:
        """Flush several logs at a time. Return whether all succeeded."""
        semaphore = asyncio.Semaphore(FLUSH_THREADS_MAX)

        async def flush_one(log: Log) -> None:
            async with semaphore:
                await flush(log)

        results = await asyncio.gather(*(flush_one(log) for log in logs if log.is_dirty), return_exceptions=True)
        return not any(isinstance(result, BaseException) for result in results)

    # --- start and stop ---

    def load(self, facts_of: FactsOf | None = None) -> None:
        """Load every log in the root folder, and recover those that were not closed cleanly."""
        self._facts_of = facts_of or _no_facts
        clean = (self.root / CLEAN_STOP).exists()
        (self.root / CLEAN_STOP).unlink(missing_ok=True)
        checkpoints = self._checkpoints
        recovery_points, high_watermarks = checkpoints.recovery_points.read(), checkpoints.high_watermarks.read()
        start_offsets, cleaner_offsets = checkpoints.start_offsets.read(), checkpoints.cleaner_offsets.read()
        for path in self.root.glob(f"*-checkpoint.*{UNFINISHED}"):
            path.unlink()
        config, folders = LogConfig.resolve({}, self._defaults), self._folders()
        verify_bytes_max = VERIFY_AT_START_BYTES
        self.missing.update((key, offset) for key, offset in high_watermarks.items() if offset)
        reported = started = time.monotonic()
        for number, (partition, folder) in enumerate(folders.items(), 1):
            saved = SavedState(
                clean,
                recovery_points.get(partition, 0),
                start_offsets.get(partition, 0),
                high_watermarks.get(partition, 0),
                verify_bytes_max,
                self._facts_of(*partition),
            )
            loaded = self._load(partition, folder, config, saved)
            verify_bytes_max = max(0, verify_bytes_max - loaded.size_bytes)
            cleaned_offset = cleaner_offsets.get(partition, 0)
            loaded.first_dirty_offset = min(max(cleaned_offset, loaded.start_offset), loaded.end_offset)
            if time.monotonic() - reported > LOAD_REPORT_SECONDS:
                reported = time.monotonic()
                logger.info("%d of %d logs loaded", number, len(folders))
        if folders:
            seconds = time.monotonic() - started
            logger.info("%d logs loaded in %.1f s (%s)", len(folders), seconds, "clean" if clean else "recovered")

    def _load(self, partition: TopicPartition, folder: Path, config: LogConfig, saved: SavedState) -> Log:
        """Load one log. It becomes a stray if its topic id is unreadable."""
        topic_id = read_metadata(folder / METADATA)
        try:
            loaded = LogLoader(self._env, folder, partition, config, saved).load(topic_id or NO_TOPIC_ID)
        except Exception as error:
            raise IllegalStateError(f"the log in {folder} cannot be opened: {error}") from error
        self.last_producer_id = max(self.last_producer_id, *loaded.producers.entries, -1)
        if loaded.end_offset < saved.high_watermark:
            self.lost_tails.append(partition)
            logger.error(
                "%s ends at offset %d, but was committed up to %d: %s is cut, %s is missing, or %s is wrong",
                folder,
                loaded.end_offset,
                saved.high_watermark,
                offset_name(loaded.segments[-1].base_offset, LOG),
                offset_name(loaded.end_offset, LOG),
                HIGH_WATERMARKS,
            )
        self._logs[partition] = loaded
        self.missing.pop(partition, None)
        if topic_id is None and loaded.end_offset > 0:
            reason = f"{METADATA} is damaged: the topic id of {loaded.name} is unknown"
            logger.error("%s: %s; it stays offline", folder, self.set_aside(*partition, reason).reason)
        return loaded

    def _folders(self) -> dict[TopicPartition, Path]:
        """Return the folders of partitions, and remove those of deleted partitions."""
        for folder in self.root.iterdir():
            if _DELETED_FOLDER.fullmatch(folder.name) and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        return partition_folders(self.root)

    def start(self) -> None:
        """Start the background tasks."""
        self.missing.clear()
        for option, default_ms, job in (
            ("log.retention.check.interval.ms", 300_000, self.delete_old),
            ("log.cleaner.backoff.ms", 15_000, self.compact),
            ("log.flush.offset.checkpoint.interval.ms", 60_000, self.write_checkpoints),
            ("producer.id.expiration.check.interval.ms", 600_000, self.expire_producers),
        ):
            self._every(option, partial(self._setting, option, default_ms), job)
        self._every("flush", lambda: FLUSH_CHECK_MS, self.flush_due)
        self._tasks.start(self.verify_segments())

    def reconfigure(self, defaults: Mapping[str, Any]) -> None:
        """Use other options of the broker from now on, in background tasks from their next run on."""
        self._defaults = defaults

    def note_watermarks(self, interval_ms: int) -> None:
        """Write high watermarks more often from now on: other replicas may be ahead."""
        name = "replica.high.watermark.checkpoint.interval.ms"
        self._every(name, lambda: interval_ms, self._checkpoints.write_watermarks)

    def _setting(self, option: str, default: int) -> int:
        value = self._defaults.get(option)
        return default if value is None else int(value)

    def _every(self, name: str, interval_ms: Callable[[], int], job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a job repeatedly, each time `interval_ms()` after the last run ended."""

        async def run() -> None:
            try:
                await job()
            except Exception:
                logger.exception("%s failed; retrying in %d ms", name, interval_ms())
            self._timers[name] = self._clock.call_later(interval_ms(), begin)

        def begin() -> None:
            self._tasks.start(run())

        self._timers[name] = self._clock.call_later(interval_ms(), begin)

    async def stop(self) -> None:
        """Stop the background tasks, close all logs, and record that the stop was clean."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
        self._is_stopping = True
        await asyncio.gather(*self._tasks, *self._flushing.values(), return_exceptions=True)
        for timer in self._timers.values():  # of jobs that were running
            timer.cancel()
        clean = await self._close_all()
        await asyncio.to_thread(_remove, self._to_remove)
        try:
            await self.write_checkpoints()
        except OSError as error:
            logger.error("%s: cannot write checkpoints: %s; the next start recovers all logs", self.root, error)
            clean = False
        if clean:
            replace_file(self.root / CLEAN_STOP, b'{"version":0,"brokerEpoch":-1}')
        self.release()

    def release(self) -> None:
        """Release the lock of the folder. May be called again."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    async def _close_all(self) -> bool:
        """Close all logs. Return whether all of them are on disk."""
        clean = True
        for log in self.all:
            try:
                log.leave_clean()
            except OSError as error:
                logger.error("%s: cannot close the log cleanly: %s; the next start recovers it", log.directory, error)
                clean = False
        clean &= await self._flush_all(self.all, self.flushed)
        for log in self.all:
            log.close(clean=False)
        return clean

    # --- background tasks ---

    async def flush_due(self) -> None:
        """Force closed segments to disk, and logs with flush.messages or flush.ms."""
        due = {log for log in self._logs.values() if log.needs_flush}
        rolled = self._rolled - due
        self._rolled.clear()
        await self._flush_all(due, self.flushed)
        await self._flush_all(rolled, self._closed_flushed)

    async def verify_segments(self) -> None:
        """Verify the segments that were not read at the start, slowly."""
        for log in self.all:
            while log.unverified and not log.closed and not self._is_stopping:
                await self._verify_segment(log, log.unverified.pop())

    async def _verify_segment(self, log: Log, segment: Segment) -> None:
        if segment not in log.segments:
            return
        truncations = log.truncations
        end_offset = dict(with_ends(log.segments, log.end_offset))[segment]
        is_active = segment is log.segments.active  # it may have been written to: its checkpoint is not valid
        verifier = SegmentVerifier(segment, end_offset, log.epochs.rows, None if is_active else segment.checkpoint)
        try:
            while not await asyncio.to_thread(verifier.step) and not self._is_stopping:
                await asyncio.sleep(CHUNK_BYTES / VERIFY_BYTES_A_SECOND)
        except OSError as error:
            if segment in log.segments and not log.closed:
                logger.error("%s cannot be verified: %s", segment.file.path, error)
            return
        mismatches = [each for each in verifier.epoch_mismatches if each.first_offset >= log.start_offset]
        damages = verifier.damages + single_mismatch(mismatches, verifier.last_match_offset)
        if damages and segment in log.segments and log.truncations == truncations:
            log.add_damage(damages)
            if segment is log.segments.active:
                log.roll()  # a recovery would end the log where it is damaged

    async def delete_old(self) -> None:
        """Delete old segments."""
        for log in self.all:
            try:
                deleted = delete_old_segments(log, self._clock.time_ms())
            except (OSError, BrokerError) as error:
                logger.error("%s: cannot delete old segments: %s; retrying later", log.name, error)
                continue
            if deleted:
                logger.info(
                    "%s: %d files deleted, the log begins at offset %d", log.name, len(deleted), log.start_offset
                )
                self._remove_later(deleted, log.config.file_delete_delay_ms)

    async def compact(self) -> None:
        """Compact the logs that are dirty enough, the dirtiest first."""
        if str(self._defaults.get("log.cleaner.enable", "true")).lower() == "false":
            return
        for log in compaction.by_need(self.all, self._clock.time_ms()):
            try:
                await self._compact(log)
            except (OSError, WireError) as error:
                if log.closed:
                    continue  # its topic was deleted during the round
                logger.warning("%s: not compacted: %s", log.name, error)
                if isinstance(error, DamagedSegmentError):
                    log.unverified = log.segments[:-1]
                    await self.verify_segments()  # a damaged log is not compacted again

    async def _compact(self, log: Log) -> None:
        plan = None if log.closed else compaction.plan(log, self._clock.time_ms())
        if plan is None:
            return
        result = await asyncio.to_thread(compaction.run, plan)
        if not log.closed:
            self._remove_later(compaction.swap_in(log, plan, result), log.config.file_delete_delay_ms)

    async def expire_producers(self) -> None:
        """Remove producers that have not written for producer.id.expiration.ms."""
        expiration_ms = self._setting("producer.id.expiration.ms", _PRODUCER_EXPIRATION_MS)
        for log in self.all:
            log.producers.expire(self._clock.time_ms(), expiration_ms)

    async def write_checkpoints(self) -> None:
        """Write the checkpoints of all logs."""
        await self._checkpoints.write()

    def _remove_later(self, paths: list[Path], delay_ms: int) -> None:
        if not paths:
            return
        self._to_remove += paths
        name = f"remove {paths[0]}"

        def begin() -> None:
            self._timers.pop(name, None)
            self._to_remove = [path for path in self._to_remove if path not in set(paths)]
            self._tasks.start(asyncio.to_thread(_remove, paths))

        self._timers[name] = self._clock.call_later(delay_ms, begin)


def _no_facts(topic: str, index: int) -> PartitionFacts:
    """Return the facts of a partition without a catalog."""
    return NO_FACTS


def partition_folders(root: Path) -> dict[TopicPartition, Path]:
    """Return the folders of partitions in a root folder."""
    folders = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        name = _FOLDER.fullmatch(folder.name)
        if name is not None and not _DELETED_FOLDER.fullmatch(folder.name):
            try:
                check_name(name[1])
            except BrokerError:
                continue
            folders[TopicPartition(name[1], int(name[2]))] = folder
    return folders


def _remove(paths: list[Path]) -> None:
    """Remove files and folders. On a thread: a file of a gigabyte takes a while."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def lock_folder(root: Path) -> int:
    """Lock a root folder until the returned descriptor is closed or the process ends."""
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
