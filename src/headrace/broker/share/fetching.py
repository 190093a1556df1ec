"""ShareFetch: acquire records of several partitions, or wait until some are available.

    load share partitions → read each from its next offset → at least min.bytes? acquire → respond
                            ▲                                 else wait: new records, released records, timeout
                            └────────────────────────────────────────┘

Nothing waits between reading and acquiring, so two fetches never acquire the same record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.log import AbortedRange
from headrace.broker.partition import Partition
from headrace.broker.share.in_flight import AcquireLimits, OffsetRange, RecordState, Run
from headrace.broker.share.manager import SharePartitionManager
from headrace.broker.share.partition import SharePartition
from headrace.broker.share.state import SharePartitionKey
from headrace.errors import BrokerError, Code
from headrace.wire.api.share_fetch import AcquiredRecords
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch, decode_marker, read_batches

if TYPE_CHECKING:
    from headrace.broker.share.sessions import ShareSession, TopicIdPartition

RECORD_LIMIT_MODE = 1
"""The acquire mode in which a fetch never gets more than max.records; by default it gets whole batches."""

_FOR_CLIENTS: dict[int, int] = {
    Code.FENCED_LEADER_EPOCH: Code.NOT_LEADER_OR_FOLLOWER,
    Code.FENCED_STATE_EPOCH: Code.NOT_LEADER_OR_FOLLOWER,
    Code.INVALID_REQUEST: Code.UNKNOWN_SERVER_ERROR,  # the state is not initialized: the member heartbeats, and retries
}


class ShareFetchLimits(NamedTuple):
    """The limits of a share fetch."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    records_max: int
    batch_size: int
    acquire_mode: int


@dataclass(slots=True)
class Fetched:
    """The result for a partition."""

    data: Buffer = b""
    acquired: Sequence[AcquiredRecords] = ()
    error: BrokerError | None = None


@dataclass(slots=True)
class _Read:
    """Data of a partition that were read and not acquired yet."""

    offset: int
    data: Buffer
    aborted: Sequence[AbortedRange] = ()


class _Waiter:
    """A fetch that waits; it tries again after every event."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: object) -> bool:
        self.expire()
        return True

    def expire(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True)
class ShareFetch:
    """A fetch of a member."""

    manager: SharePartitionManager
    session: ShareSession
    partitions: Mapping[TopicIdPartition, Partition]
    limits: ShareFetchLimits
    results: dict[TopicIdPartition, Fetched] = field(default_factory=dict)

    async def run(self) -> dict[TopicIdPartition, Fetched]:
        """Return the result for each partition."""
        clock = self.manager.clock
        deadline_ms = clock.monotonic_ms() + max(self.limits.wait_ms, 0)
        while True:
            loading = self._load()
            left_ms = deadline_ms - clock.monotonic_ms()
            is_active = self.manager.sessions.is_current(self.session)  # it ends with its connection
            if not is_active or self._try(is_last=left_ms <= 0) or left_ms <= 0:
                return {key: self.results.get(key, Fetched()) for key in self.partitions}
            await self._wait(left_ms, loading)

    def _load(self) -> list[asyncio.Task[None]]:
        """Start to load share partitions; return those that are being loaded."""
        tasks = []
        for (topic_id, index), partition in self.partitions.items():
            if (topic_id, index) in self.results:
                continue
            if not partition.is_leader or partition.is_deleted:
                error = BrokerError(f"{partition.key} has another leader now", code=Code.NOT_LEADER_OR_FOLLOWER)
                self.results[topic_id, index] = Fetched(error=error)
                continue
            task = self.manager.load(SharePartitionKey(self.session.group_id, topic_id, index), partition)
            if task is not None:
                task.add_done_callback(lambda done, key=(topic_id, index): self._on_loaded(key, done))  # type: ignore[misc]
                tasks.append(task)
        return tasks

    def _on_loaded(self, key: TopicIdPartition, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BrokerError):
            code = _FOR_CLIENTS.get(error.code, error.code)
            self.results[key] = Fetched(error=BrokerError(str(error.args[0]), code=code))

    async def _wait(self, timeout_ms: float, loading: Sequence[asyncio.Task[None]]) -> None:
        """Wait for records in the log, records that are released, a loaded share partition, or the timeout."""
        waiter = _Waiter()
        share_keys = [SharePartitionKey(self.session.group_id, *key) for key in self.partitions]
        self.manager.waiting.watch(waiter, share_keys, timeout_ms)
        log_keys = [partition.key for partition in self.partitions.values()]
        self.manager.replicas.delayed_fetches.watch(waiter, log_keys, timeout_ms)
        for task in loading:
            task.add_done_callback(lambda _: waiter.expire())
        try:
            await waiter.done
        finally:
            self.manager.waiting.forget(waiter)
            self.manager.replicas.delayed_fetches.forget(waiter)

    # -- read and acquire ------------------------------------------------------------------------

    def _try(self, *, is_last: bool) -> bool:
        """Acquire what is there; return whether to respond now."""
        if any(result.error is not None for result in self.results.values()):
            is_last = True  # respond with the errors, and what is there
        committed_only = self.manager.settings_of(self.session.group_id).committed_only
        reads: dict[TopicIdPartition, tuple[SharePartition, _Read]] = {}
        left = self.limits.bytes_max
        total_bytes = 0
        for key, partition in self.partitions.items():
            share_partition = self.manager.find(SharePartitionKey(self.session.group_id, *key))
            if key in self.results or share_partition is None or not share_partition.can_acquire:
                continue
            try:
                read = _read(partition, share_partition, left, committed_only=committed_only, first=not total_bytes)
            except BrokerError as error:
                self.results[key] = Fetched(error=error)
                is_last = True
                continue
            if len(read.data):
                reads[key] = share_partition, read
                total_bytes += len(read.data)
                left = max(left - len(read.data), 0)
        if total_bytes < self.limits.bytes_min and not is_last:
            return False
        self._acquire(reads)
        return is_last or any(result.acquired for result in self.results.values())

    def _acquire(self, reads: Mapping[TopicIdPartition, tuple[SharePartition, _Read]]) -> None:
        settings = self.manager.settings_of(self.session.group_id)
        records_left = self.limits.records_max
        for key, (share_partition, read) in reads.items():
            if records_left <= 0:
                break
            limits = AcquireLimits(
                records_left,
                self.limits.batch_size,
                self.limits.acquire_mode == RECORD_LIMIT_MODE,
                settings.locks_max,
                settings.delivery_count_max,
            )
            batches = list(read_batches(read.data))
            ranges = [OffsetRange(batch.header.base_offset, batch.header.last_offset) for batch in batches]
            runs = share_partition.acquire(self.session.member_id, read.offset, ranges, limits)
            if read.aborted:
                runs = _without_aborted(share_partition, runs, batches, read.aborted)
            if runs:
                records_left -= sum(run.count for run in runs)
                data = _slice(read.data, batches, runs[0].first, runs[-1].last)
                self.results[key] = Fetched(data, [run.acquired() for run in runs])


def _read(
    partition: Partition, share_partition: SharePartition, bytes_max: int, *, committed_only: bool, first: bool
) -> _Read:
    """Read from the first offset that can be acquired."""
    log, records = partition.log, share_partition.records
    if records.start_offset < log.start_offset:
        records.move_start(log.start_offset)
    offset = records.next_fetch_offset()
    end = log.last_stable_offset if committed_only else log.high_watermark
    if offset >= end:
        return _Read(offset, b"")
    part = log.read(offset, bytes_max, end_offset=end, at_least_one=first, committed_only=committed_only)
    aborted: Sequence[AbortedRange] = ()
    if committed_only and len(part.data):
        aborted = log.aborted.between(offset, part.next_offset)
    return _Read(offset, part.data, aborted)


def _without_aborted(
    share_partition: SharePartition,
    runs: Sequence[Run],
    batches: Sequence[RecordBatch],
    aborted: Sequence[AbortedRange],
) -> list[Run]:
    """Archive the records of aborted transactions; return what is left of the acquired runs."""
    acquired = [OffsetRange(run.first, run.last) for run in runs]
    for first, last in _aborted_batches(batches, aborted):
        for run in acquired:
            if first <= run.last and last >= run.first:
                share_partition.records.archive(max(first, run.first), min(last, run.last))
    return [
        run
        for first, last in acquired
        for run in share_partition.records.between(first, last)
        if run.state is RecordState.ACQUIRED
    ]


def _aborted_batches(batches: Sequence[RecordBatch], aborted: Sequence[AbortedRange]) -> list[OffsetRange]:
    """Return the batches of aborted transactions."""
    pending = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
    producers: set[int] = set()
    ranges = []
    for batch in batches:
        header = batch.header
        while pending and pending[-1].first_offset <= header.last_offset:
            producers.add(pending.pop().producer_id)
        if header.is_control:
            marker: Any = decode_marker(batch.records()[0]) if header.record_count else None
            if marker is not None and not marker.committed:
                producers.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in producers:
            ranges.append(OffsetRange(header.base_offset, header.last_offset))
    return ranges


def _slice(data: Buffer, batches: Sequence[RecordBatch], first: int, last: int) -> Buffer:
    """Return the batches with the acquired records."""
    position = begin = 0
    end = len(data)
    for batch in batches:
        if batch.header.last_offset < first:
            begin = position + len(batch.view)
        elif batch.header.base_offset > last:
            end = position
            break
        position += len(batch.view)
    return memoryview(data)[begin:end]
