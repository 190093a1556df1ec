"""The checkpoints of a root folder: offsets of all logs, which save work after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.broker.log.checkpoints import OffsetCheckpoint
from headrace.broker.log.log import Log
from headrace.types import TopicPartition

logger = logging.getLogger("headrace.broker.log")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"  # below it a log is on disk
HIGH_WATERMARKS = "replication-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"  # of logs that begin within a segment, after DeleteRecords
CLEANER_OFFSETS = "cleaner-offset-checkpoint"  # below it a log is compacted

Offsets = dict[TopicPartition, int]


class RootCheckpoints:
    """Reads and writes the checkpoints of all logs. Event loop only, except the writing itself."""

    def __init__(self, root: Path, logs: Mapping[TopicPartition, Log], missing: Mapping[TopicPartition, int]) -> None:
        """`logs` and `missing`, the high watermarks of logs without a folder, are the manager's and change."""
        self._logs = logs
        self._missing = missing
        self.recovery_points = OffsetCheckpoint(root / RECOVERY_POINTS, "after a crash all logs are read completely")
        self.high_watermarks = OffsetCheckpoint(root / HIGH_WATERMARKS, "high watermarks begin at the log start")
        self.start_offsets = OffsetCheckpoint(root / START_OFFSETS, "deleted records (DeleteRecords) may be back")
        self.cleaner_offsets = OffsetCheckpoint(root / CLEANER_OFFSETS, "compaction begins at the start of the logs")
        self._saved_watermarks: Offsets = {}  # as `write_watermarks` has written them
        self._deletions = 0
        self._deleted: Offsets = {}  # deleted logs that the files may still contain → number of the deletion

    async def write(self) -> None:
        """Write all checkpoints."""
        deletions, write = self._deletions, self._prepare()
        await asyncio.to_thread(write)
        self._deleted = {key: number for key, number in self._deleted.items() if number > deletions}

    def _prepare(self) -> Callable[[], None]:
        """Return a function that writes all checkpoints with the offsets of now, from any thread."""
        cleaned = {key: each.first_dirty_offset for key, each in self._logs.items() if each.config.compact}
        writes = [
            self.recovery_points.prepare(self._recovery_points()),
            self.high_watermarks.prepare(self._high_watermarks()),
            self.cleaner_offsets.prepare(cleaned),
            self.start_offsets.prepare(self._start_offsets()),
        ]

        def write() -> None:
            for each in writes:
                each()

        return write

    def add_deleted(self, partition: TopicPartition) -> None:
        """Remember that a log was deleted: the files may still contain it."""
        self._deletions += 1
        self._deleted[partition] = self._deletions

    def before_create(self, partition: TopicPartition) -> None:
        """Remove deleted logs from the files: after a crash their offsets would be used for the new log."""
        if partition in self._deleted:
            self._prepare()()
            self._deleted.clear()

    async def write_watermarks(self) -> None:
        """Write the high watermarks if they have changed: a new leader begins with the last one that it has saved."""
        watermarks = self._high_watermarks()
        if watermarks != self._saved_watermarks:
            self._saved_watermarks = watermarks
            await asyncio.to_thread(self.high_watermarks.prepare(watermarks))

    def write_ends(self) -> None:
        """Write recovery points and high watermarks after a truncation: the saved ones may be too high."""
        self.recovery_points.prepare(self._recovery_points())()
        self.high_watermarks.prepare(self._high_watermarks())()

    def write_start_offsets(self) -> None:
        """Write the start offsets. An error is logged: a full disk must not keep records from being deleted."""
        try:
            self.start_offsets.prepare(self._start_offsets())()
        except OSError as error:
            logger.warning("cannot write %s: %s; deleted records may be back after a crash", START_OFFSETS, error)

    def _high_watermarks(self) -> Offsets:
        # Those of missing logs stay until the start is complete: if it fails before, the next start reports them too.
        return {**self._missing, **{key: each.high_watermark for key, each in self._logs.items()}}

    def _recovery_points(self) -> Offsets:
        return {key: min(each.recovery_point, each.end_offset) for key, each in self._logs.items()}

    def _start_offsets(self) -> Offsets:
        """Return those of logs that begin within a segment; the others begin with their first segment."""
        logs = self._logs.items()
        return {key: each.start_offset for key, each in logs if each.start_offset > each.segments[0].base_offset}
