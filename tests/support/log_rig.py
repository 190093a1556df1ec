"""Logs on a clock that tests advance.

rig = LogRig(tmp_path)
log = rig.log("t", **{"internal.segment.bytes": "4096"})
rig.append(log, b"a", b"b")                 a batch of two records; committed: the high watermark follows
again = rig.crash()                         the files as a killed process leaves them, opened by another process
again = await rig.restart()                 a clean stop, and a start
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker.log import AbortedRange, AppendInfo, Log, LogConfig, LogManager, OffsetAndTimestamp, Origin
from headrace.broker.log.decompression import Decompression, DecompressionLimits
from headrace.broker.log.log_segments import find_record
from headrace.broker.log.recovery import NO_FACTS, PartitionFacts
from headrace.wire.layout import Record
from headrace.wire.primitives import Buffer
from headrace.wire.records import NO_PRODUCER, BatchProducer, Marker, RecordBatch, encode, read_batches
from tests.support.fake_internal import START_MS, HandClock

TOPIC_ID = bytes(range(16))
Value = bytes | tuple[bytes | None, bytes | None]
"""A value, or a key and a value."""


def batch(
    *values: Value,
    producer: BatchProducer = NO_PRODUCER,
    codec: int = 0,
    time_ms: int = START_MS,
    step_ms: int = 0,
    offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return a batch as a producer sends it."""
    pairs = [value if isinstance(value, tuple) else (None, value) for value in values]
    rows = [
        Record(offset + index, time_ms + index * step_ms, key, value, ()) for index, (key, value) in enumerate(pairs)
    ]
    return bytes(encode(rows, producer=producer, codec=codec, leader_epoch=leader_epoch))


_managers: list[LogManager] = []


class LogRig:
    """A LogManager with helpers for tests."""

    def __init__(
        self,
        root: Path,
        clock: HandClock | None = None,
        defaults: Mapping[str, str] | None = None,
        facts: PartitionFacts = NO_FACTS,
    ) -> None:
        self.root = root
        self.facts = facts  # facts of every partition at the next start
        self.clock = clock or HandClock()
        self.defaults = dict(defaults or {})
        self.manager = LogManager(root, self.clock, self.defaults)
        self.manager.load(lambda topic, index: facts)
        self._copies = 0
        _managers.append(self.manager)

    def log(self, topic: str = "t", index: int = 0, /, **options: str) -> Log:
        """Return the log of a partition; `segment_bytes` and so on are topic options."""
        named = {name.replace("_", "."): value for name, value in options.items()}
        return self.manager.create(topic, index, TOPIC_ID, LogConfig.resolve(named, self.defaults))

    def append(self, log: Log, *values: Value, committed: bool = True, **how: Any) -> AppendInfo:
        info = log.append(batch(*values, **how))
        if committed:
            log.advance_high_watermark(log.end_offset)
        return info

    def mark(
        self, log: Log, producer_id: int, epoch: int, *, committed: bool, coordinator: int = 0, **how: Any
    ) -> AppendInfo:
        info = log.append_marker(producer_id, epoch, Marker(committed, coordinator), leader_epoch=0, **how)
        log.advance_high_watermark(log.end_offset)
        return info

    def crash(self) -> LogRig:
        """Open a copy of the files in their current state. This rig continues to work."""
        self._copies += 1
        copy = self.root.with_name(f"{self.root.name}-{self._copies}")
        shutil.copytree(self.root, copy)
        return LogRig(copy, self.clock, self.defaults, self.facts)

    async def restart(self) -> LogRig:
        await self.manager.stop()
        return LogRig(self.root, self.clock, self.defaults, self.facts)


def let_go() -> None:
    """Close the files of all rigs of a test, also of those that "crashed"."""
    for manager in _managers:
        for log in manager.all:
            log.close(clean=False)
        manager.release()
    _managers.clear()


def batches_of(log: Log, offset: int | None = None) -> list[RecordBatch]:
    return list(log.batches(offset))


def values_of(log: Log) -> list[bytes | None]:
    """Return the values of all records, without markers."""
    return [row.value for row in rows_of(log)]


def rows_of(log: Log) -> list[Record]:
    return [row for each in log.batches() if not each.header.is_control for row in each.records()]


def read_all(log: Log, *, bytes_max: int = 1 << 20, end_offset: int | None = None) -> bytes:
    """Return all batches, as a consumer fetches them."""
    end = log.high_watermark if end_offset is None else end_offset
    parts, at = [], log.start_offset
    while at < end:
        part = log.read(at, bytes_max, end_offset=end, at_least_one=True)
        if not part.data:
            break
        parts.append(bytes(part.data))
        at = part.next_offset
    return b"".join(parts)


def committed_values(log: Log) -> list[bytes | None]:
    """Return what a read_committed consumer sees: it skips the aborted transactions of the response."""
    stable = log.last_stable_offset
    data = read_all(log, end_offset=stable)
    aborted = sorted(log.aborted.between(log.start_offset, stable), key=lambda each: each.first_offset)
    return [row.value for row in visible(data, aborted)]


def visible(data: Buffer, aborted: Sequence[AbortedRange]) -> Iterator[Record]:
    """Yield the records of a response that a read_committed consumer returns; `aborted` is sorted by first offset."""
    waiting = deque(aborted)
    ongoing: set[int] = set()
    for each in read_batches(data):
        header = each.header
        while waiting and waiting[0].first_offset <= header.last_offset:
            ongoing.add(waiting.popleft().producer_id)
        if header.is_control:
            if header.record_count and each.records()[0].key == b"\0\0\0\0":
                ongoing.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ongoing):
            yield from each.records()


def find_by_time(log: Log, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Return the first record with this timestamp or a later one, as ListOffsets does."""
    first_offset = log.start_offset
    while (batch_with_time := log.segments.batch_for_time(timestamp_ms, first_offset)) is not None:
        match = find_record(batch_with_time, timestamp_ms, first_offset, Decompression(DecompressionLimits()))
        if match is not None:
            return match
        first_offset = batch_with_time.header.last_offset + 1
    return None


def producers_of(log: Log) -> dict[int, tuple[Any, ...]]:
    """Return the state of each producer that must survive a restart."""
    return {
        producer_id: (e.epoch, e.coordinator_epoch, e.last_timestamp, e.transaction_start, *e.batches)
        for producer_id, e in log.producers.entries.items()
    }


def state_of(log: Log) -> dict[str, Any]:
    """Return what must be the same after a restart."""
    return {
        "offsets": (log.start_offset, log.high_watermark, log.last_stable_offset, log.end_offset),
        "producers": (producers_of(log), dict(log.producers.unreplicated)),
        "aborted": log.aborted.entries(0, 2**62),
        "epochs": log.epochs.rows,
        "bytes": b"".join(bytes(each.view) for each in log.batches()),
    }


def replicate(leader: Log, follower: Log, *, bytes_max: int = 1 << 20) -> None:
    """Append to the follower what its fetches return, until it has everything."""
    while follower.end_offset < leader.end_offset:
        part = leader.read(follower.end_offset, bytes_max, end_offset=leader.end_offset, at_least_one=True)
        follower.append(part.data, origin=Origin.REPLICATION)
        follower.advance_high_watermark(leader.high_watermark)


def keys_and_values(rows: Iterable[Record] | Sequence[Record]) -> dict[bytes | None, bytes | None]:
    return {row.key: row.value for row in rows}
