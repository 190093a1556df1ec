"""Logs on a clock that is turned by hand.

rig = LogRig(tmp_path)
log = rig.log("t", **{"internal.segment.bytes": "4096"})
rig.append(log, b"a", b"b")                 a batch of two records; committed: the high watermark follows
again = rig.crash()                         what a killed process would leave behind, opened by another one
again = await rig.restart()                 a clean stop, and a start
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.broker.log import AppendInfo, FoundOffset, Log, LogConfig, LogManager, Origin
from headrace.broker.log.aborted import AbortedTransaction
from headrace.broker.log.decompression import Decompression, DecompressionLimits
from headrace.broker.log.lookup import find_record
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
    """A batch as a producer sends it."""
    pairs = [value if isinstance(value, tuple) else (None, value) for value in values]
    rows = [
        Record(offset + place, time_ms + place * step_ms, key, value, ()) for place, (key, value) in enumerate(pairs)
    ]
    return bytes(encode(rows, producer=producer, codec=codec, leader_epoch=leader_epoch))


_managers: list[LogManager] = []


class LogRig:
    """A manager of logs, and what tests do with it."""

    def __init__(
        self,
        root: Path,
        clock: HandClock | None = None,
        defaults: Mapping[str, str] | None = None,
        facts: PartitionFacts = NO_FACTS,
    ) -> None:
        self.root = root
        self.facts = facts  # what the next start knows of every partition
        self.clock = clock or HandClock()
        self.defaults = dict(defaults or {})
        self.manager = LogManager(root, self.clock, self.defaults)
        self.manager.load(lambda topic, index: facts)
        self._copies = 0
        _managers.append(self.manager)

    def log(self, topic: str = "t", index: int = 0, /, **options: str) -> Log:
        """The log of a partition; `segment_bytes` and the like are its topic's options."""
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
        """Another process that finds what is on disk now. This one goes on as if nothing had happened."""
        self._copies += 1
        copy = self.root.with_name(f"{self.root.name}-{self._copies}")
        shutil.copytree(self.root, copy)
        return LogRig(copy, self.clock, self.defaults, self.facts)

    async def restart(self) -> LogRig:
        await self.manager.stop()
        return LogRig(self.root, self.clock, self.defaults, self.facts)


def let_go() -> None:
    """Close what all rigs of a test have open: processes that "crashed" never did."""
    for manager in _managers:
        for file in [*manager._host.files._open]:
            file.close()
        if manager._lock_fd >= 0:
            os.close(manager._lock_fd)
    _managers.clear()


def batches_of(log: Log, offset: int | None = None) -> list[RecordBatch]:
    return list(log.batches(offset))


def values_of(log: Log) -> list[bytes | None]:
    """The values of all records, markers left out."""
    return [row.value for row in rows_of(log)]


def rows_of(log: Log) -> list[Record]:
    return [row for each in log.batches() if not each.header.is_control for row in each.records()]


def read_all(log: Log, *, bytes_max: int = 1 << 20, end_offset: int | None = None) -> bytes:
    """Everything, as a consumer gets it fetch by fetch."""
    end = log.high_watermark if end_offset is None else end_offset
    parts, at = [], log.start_offset
    while at < end:
        found = log.read(at, bytes_max, end_offset=end, at_least_one=True)
        if not found.data:
            break
        parts.append(bytes(found.data))
        at = found.next_offset
    return b"".join(parts)


def committed_values(log: Log) -> list[bytes | None]:
    """What a reader of committed records sees, by the rules of a consumer: the aborted list says what to leave out."""
    stable = log.last_stable_offset
    data = read_all(log, end_offset=stable)
    aborted = sorted(log.aborted_transactions(log.start_offset, stable), key=lambda each: each.first_offset)
    return [row.value for row in visible(data, aborted)]


def visible(data: Buffer, aborted: Sequence[AbortedTransaction]) -> Iterator[Record]:
    """The records that a consumer of committed records gets of a response; `aborted` in the order of first offsets."""
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


def find_by_time(log: Log, timestamp_ms: int) -> FoundOffset | None:
    """The first record with that timestamp or a later one, as ListOffsets finds it."""
    first_offset = log.start_offset
    while (found_in := log.batch_for_time(timestamp_ms, first_offset)) is not None:
        found = find_record(found_in, timestamp_ms, first_offset, Decompression(DecompressionLimits()))
        if found is not None:
            return found
        first_offset = found_in.header.last_offset + 1
    return None


def state_of(log: Log) -> dict[str, Any]:
    """What must survive."""
    return {
        "offsets": (log.start_offset, log.high_watermark, log.last_stable_offset, log.end_offset),
        "producers": log.producers.facts(),
        "aborted": log.aborted.rows(0, 2**62),
        "epochs": log.epochs.rows,
        "bytes": b"".join(bytes(each.view) for each in log.batches()),
    }


def replicate(leader: Log, follower: Log, *, bytes_max: int = 1 << 20) -> None:
    """What a follower's fetches do, until it has everything."""
    while follower.end_offset < leader.end_offset:
        found = leader.read(follower.end_offset, bytes_max, end_offset=leader.end_offset, at_least_one=True)
        follower.append(found.data, origin=Origin.REPLICATION)
        follower.advance_high_watermark(leader.high_watermark)


def keys_and_values(rows: Iterable[Record] | Sequence[Record]) -> dict[bytes | None, bytes | None]:
    return {row.key: row.value for row in rows}
