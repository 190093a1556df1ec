"""The share coordinator: the state of share partitions, in the partitions of `__share_group_state` that this broker
leads.

    write → InternalTopics.append (replicated) → memory        the only way to change memory
    load  → InternalTopics.batches, record by record → memory

Changes of one share partition come one after the other. After `records.per.snapshot` updates the next record is a
snapshot; what is older than the oldest snapshot of all is deleted from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.catalog.topics import SHARE_GROUP_STATE, Topics
from headrace.broker.clock import Timer, TimerClock
from headrace.broker.internal_topics import code_for_clients
from headrace.broker.share import records
from headrace.broker.share.records import ShareUpdateValue, StateChange
from headrace.broker.share.state import (
    NO_EPOCH,
    UNINITIALIZED_COUNT,
    UNINITIALIZED_OFFSET,
    SharePartitionKey,
    ShareState,
    StateUpdate,
    merge,
)
from headrace.broker.tasks import TaskSet
from headrace.config import Config
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.layout import Record
from headrace.wire.records import RecordBatch

if TYPE_CHECKING:
    from headrace.broker.internal_topics import InternalTopics

log = logging.getLogger("headrace.broker.share")

T = TypeVar("T")

LOAD_SLICE_BATCHES = 2_000
"""How many batches are loaded before the event loop runs other tasks."""
PRUNE_INTERVAL_MS = 300_000
"""How often old records are deleted. A share partition without a snapshot for that long gets one."""


@dataclass(slots=True)
class _Entry:
    """A share partition: its state, and where its last snapshot is in the log."""

    state: ShareState
    snapshot_offset: int
    updates: int = 0  # since the snapshot


@dataclass(slots=True, eq=False)
class _StatePartition:
    """A partition of the topic that this broker leads."""

    index: int
    entries: dict[SharePartitionKey, _Entry] = field(default_factory=dict)
    locks: dict[SharePartitionKey, asyncio.Lock] = field(default_factory=dict)
    is_loading: bool = True
    failure: str = ""  # why it could not be loaded
    prune_timer: Timer | None = None


class ShareCoordinator:
    """Reads and writes the state of share partitions. Event loop only."""

    def __init__(self, internal: InternalTopics, topics: Topics, clock: TimerClock, config: Config) -> None:
        self._internal = internal
        self._topics = topics
        self._clock = clock
        self._updates_max = config.of(int, "share.coordinator.snapshot.update.records.per.snapshot")
        self._partitions: dict[int, _StatePartition] = {}
        self._tasks = TaskSet("share coordinator", outcomes=(BrokerError,))

    # -- requests --------------------------------------------------------------------------------

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Start a new state at an offset; records in flight are forgotten."""
        await self._shielded(self._initialize(key, state_epoch, start_offset))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state for a leader. A leader of an older epoch is fenced from now on."""
        return await self._shielded(self._read(key, leader_epoch))

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        """Change the state, as the leader of an epoch."""
        await self._shielded(self._write(key, update))

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete the state, if there is one."""
        await self._shielded(self._delete(key))

    async def _shielded(self, operation: Coroutine[Any, Any, T]) -> T:
        """Complete an operation even if its client disconnects: log and memory stay consistent."""
        return await asyncio.shield(self._tasks.start(operation))

    async def _initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        partition = self._partition_of(key)
        async with self._lock(partition, key):
            entry = partition.entries.get(key)
            if entry is not None:
                _check_state_epoch(entry.state, state_epoch)
            now_ms = self._clock.time_ms()
            state = ShareState(
                snapshot_epoch=0 if entry is None else entry.state.snapshot_epoch + 1,
                state_epoch=state_epoch,
                leader_epoch=0,
                start_offset=start_offset,
                complete_count=UNINITIALIZED_COUNT if start_offset == UNINITIALIZED_OFFSET else 0,
                created_ms=now_ms,
                written_ms=now_ms,
            )
            await self._snapshot(partition, key, state)

    async def _read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        partition = self._partition_of(key)
        async with self._lock(partition, key):
            state = _initialized(partition, key).state
            if state.leader_epoch > leader_epoch:
                raise BrokerError(
                    "The leader epoch in the request is older than the epoch on the broker.",
                    code=Code.FENCED_LEADER_EPOCH,
                )
            if leader_epoch not in (NO_EPOCH, state.leader_epoch):
                await self._update(
                    partition,
                    key,
                    StateUpdate(state.state_epoch, leader_epoch, state.start_offset, state.complete_count, ()),
                )
            return state

    async def _write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        partition = self._partition_of(key)
        async with self._lock(partition, key):
            state = _initialized(partition, key).state
            if update.leader_epoch != NO_EPOCH and state.leader_epoch > update.leader_epoch:
                raise BrokerError(
                    "The leader epoch in the request is older than the epoch on the broker.",
                    code=Code.FENCED_LEADER_EPOCH,
                )
            _check_state_epoch(state, update.state_epoch)
            await self._update(partition, key, update)

    async def _delete(self, key: SharePartitionKey) -> None:
        partition = self._partition_of(key)
        async with self._lock(partition, key):
            if key in partition.entries:
                record = records.tombstone(key, self._clock.time_ms())
                await self._append(partition, [record], lambda _: partition.entries.pop(key, None))

    def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state; an uninitialized one if there is none."""
        entry = self._partition_of(key).entries.get(key)
        return ShareState(state_epoch=0, leader_epoch=0) if entry is None else entry.state

    def topic_deleted(self, topic_id: bytes) -> None:
        """Delete the states of a deleted topic."""
        for partition in self._partitions.values():
            keys = [key for key in partition.entries if key.topic_id == topic_id]
            if keys and not partition.is_loading:
                self._tasks.start(self._delete_all(partition, keys))

    async def _delete_all(self, partition: _StatePartition, keys: list[SharePartitionKey]) -> None:
        now_ms = self._clock.time_ms()

        def apply(_: int) -> None:
            for key in keys:
                partition.entries.pop(key, None)

        try:
            await self._append(partition, [records.tombstone(key, now_ms) for key in keys], apply)
        except BrokerError as error:
            log.warning("failed to delete the states of a deleted topic: %s", error)

    # -- look-up ---------------------------------------------------------------------------------

    def partition_for(self, key: SharePartitionKey) -> int:
        """Return the partition of the topic for a share partition."""
        return coordinator_partition(key.coordinator_key, self._internal.ensure(SHARE_GROUP_STATE))

    def _partition_of(self, key: SharePartitionKey) -> _StatePartition:
        topic = self._topics.by_id.get(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            raise BrokerError("This server does not host this topic-partition.", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        index = self.partition_for(key)
        if index not in self._partitions and index in self._internal.partitions_led(SHARE_GROUP_STATE):
            self.load(index)  # the topic has just been created
        partition = self._partitions.get(index)
        if partition is None:
            raise BrokerError(f"{SHARE_GROUP_STATE}-{index} is led by another broker", code=Code.NOT_COORDINATOR)
        if partition.failure:
            raise BrokerError(partition.failure, code=Code.COORDINATOR_NOT_AVAILABLE)
        if partition.is_loading:
            raise BrokerError(f"{SHARE_GROUP_STATE}-{index} is being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        return partition

    @staticmethod
    def _lock(partition: _StatePartition, key: SharePartitionKey) -> asyncio.Lock:
        return partition.locks.setdefault(key, asyncio.Lock())

    # -- writing ---------------------------------------------------------------------------------

    async def _update(self, partition: _StatePartition, key: SharePartitionKey, update: StateUpdate) -> None:
        entry = partition.entries[key]
        state, now_ms = entry.state, self._clock.time_ms()
        if entry.updates >= self._updates_max:
            start_offset = state.start_offset if update.start_offset == -1 else update.start_offset
            snapshot = ShareState(
                snapshot_epoch=state.snapshot_epoch + 1,
                state_epoch=state.state_epoch,
                leader_epoch=max(state.leader_epoch, update.leader_epoch),
                start_offset=start_offset,
                complete_count=update.complete_count,
                created_ms=now_ms,
                written_ms=now_ms,
                batches=merge(state.batches, update.batches, start_offset),
            )
            await self._snapshot(partition, key, snapshot)
            return
        value = ShareUpdateValue(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=max(state.leader_epoch, update.leader_epoch),
            start_offset=update.start_offset,
            delivery_complete_count=update.complete_count,
            state_batches=merge((), update.batches, update.start_offset),
        )

        def apply(_: int) -> None:
            entry.state = records.apply_update(entry.state, value)
            entry.updates += 1

        await self._append(partition, [records.update_record(key, value, now_ms)], apply)

    async def _snapshot(self, partition: _StatePartition, key: SharePartitionKey, state: ShareState) -> None:
        def apply(offset: int) -> None:
            partition.entries[key] = _Entry(state, offset)

        await self._append(partition, [records.snapshot_record(key, state, self._clock.time_ms())], apply)

    async def _append(self, partition: _StatePartition, appended: list[Record], apply: Callable[[int], object]) -> None:
        """Append records, then apply them; raise unless this broker leads the partition before and after."""
        self._check_current(partition)
        try:
            offset = await self._internal.append(SHARE_GROUP_STATE, partition.index, appended)
        except BrokerError as error:
            code = code_for_clients(error)
            raise BrokerError(f"failed to write {SHARE_GROUP_STATE}: {error}", code=code) from error
        except OSError as error:
            raise BrokerError(f"failed to write {SHARE_GROUP_STATE}: {error}", code=Code.NOT_COORDINATOR) from error
        self._check_current(partition)
        apply(offset)

    def _check_current(self, partition: _StatePartition) -> None:
        if self._partitions.get(partition.index) is not partition:
            raise BrokerError(
                f"{SHARE_GROUP_STATE}-{partition.index} is led by another broker", code=Code.NOT_COORDINATOR
            )

    # -- loading ---------------------------------------------------------------------------------

    def load(self, index: int) -> None:
        """Load a partition that this broker leads. Requests meanwhile fail with COORDINATOR_LOAD_IN_PROGRESS."""
        self.unload(index)
        partition = self._partitions[index] = _StatePartition(index)
        self._load_slice(partition, self._internal.batches(SHARE_GROUP_STATE, index))

    def unload(self, index: int) -> None:
        """Drop a partition that another broker leads now."""
        partition = self._partitions.pop(index, None)
        if partition is not None and partition.prune_timer is not None:
            partition.prune_timer.cancel()

    def _load_slice(self, partition: _StatePartition, batches: Iterator[RecordBatch]) -> None:
        if self._partitions.get(partition.index) is not partition:
            return
        count = 0
        try:
            for batch in islice(batches, LOAD_SLICE_BATCHES):
                _replay(batch, partition.entries)
                count += 1
        except (BrokerError, WireError, OSError) as error:
            partition.failure = f"failed to load {SHARE_GROUP_STATE}-{partition.index}: {error}"
            log.error("%s", partition.failure)
            return
        if count == LOAD_SLICE_BATCHES:
            self._clock.call_later(0, self._load_slice, partition, batches)
        else:
            self._internal.when_confirmed(SHARE_GROUP_STATE, partition.index, lambda: self._finish_load(partition))

    def _finish_load(self, partition: _StatePartition) -> None:
        if self._partitions.get(partition.index) is not partition:
            return
        partition.is_loading = False
        if partition.entries:
            log.info("loaded %s-%d: %d share partitions", SHARE_GROUP_STATE, partition.index, len(partition.entries))
        self._schedule_prune(partition)

    # -- pruning ---------------------------------------------------------------------------------

    def _schedule_prune(self, partition: _StatePartition) -> None:
        partition.prune_timer = self._clock.call_later(
            PRUNE_INTERVAL_MS, lambda: self._tasks.start(self._prune_and_reschedule(partition))
        )

    async def _prune_and_reschedule(self, partition: _StatePartition) -> None:
        try:
            await self.prune(partition.index)
        except BrokerError as error:
            log.warning("failed to prune %s-%d, will retry: %s", SHARE_GROUP_STATE, partition.index, error)
        if self._partitions.get(partition.index) is partition:
            self._schedule_prune(partition)

    async def prune(self, index: int) -> None:
        """Write snapshots of states that have had none for a while, then delete the records before all snapshots."""
        partition = self._partitions.get(index)
        if partition is None or partition.is_loading or not partition.entries:
            return
        if any(entry.updates for entry in partition.entries.values()):
            await self._snapshot_cold(partition)
        offset = min(entry.snapshot_offset for entry in partition.entries.values())
        self._internal.delete_before(SHARE_GROUP_STATE, index, offset)

    async def _snapshot_cold(self, partition: _StatePartition) -> None:
        before_ms = self._clock.time_ms() - PRUNE_INTERVAL_MS
        for key in [key for key, entry in partition.entries.items() if entry.state.written_ms <= before_ms]:
            async with self._lock(partition, key):
                entry = partition.entries.get(key)
                if entry is not None:
                    epoch, now_ms = entry.state.snapshot_epoch + 1, self._clock.time_ms()
                    await self._snapshot(partition, key, replace(entry.state, snapshot_epoch=epoch, written_ms=now_ms))

    # -- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop timers and background tasks."""
        for index in list(self._partitions):
            self.unload(index)
        await self._tasks.cancel()


def _initialized(partition: _StatePartition, key: SharePartitionKey) -> _Entry:
    entry = partition.entries.get(key)
    if entry is None:
        raise BrokerError(
            f"the state of {key.coordinator_key} is not initialized: a heartbeat of a member does that",
            code=Code.INVALID_REQUEST,
        )
    return entry


def _check_state_epoch(state: ShareState, epoch: int) -> None:
    if epoch != NO_EPOCH and state.state_epoch > epoch:
        raise BrokerError(
            "The share coordinator rejected the request because the share-group state epoch did not match.",
            code=Code.FENCED_STATE_EPOCH,
        )


def _replay(batch: RecordBatch, entries: dict[SharePartitionKey, _Entry]) -> None:
    if batch.header.is_control or not batch.header.record_count:
        return
    for record in batch.records():
        change = records.decode(record)
        if change is None:
            log.warning("%s: skipping a record of unknown type at offset %d", SHARE_GROUP_STATE, record.offset)
        else:
            _apply(change, record.offset, entries)


def _apply(change: StateChange, offset: int, entries: dict[SharePartitionKey, _Entry]) -> None:
    key, value = change
    if value is None:
        entries.pop(key, None)
    elif isinstance(value, ShareState):
        entries[key] = _Entry(value, offset)
    else:
        entry = entries.setdefault(key, _Entry(ShareState(snapshot_epoch=value.snapshot_epoch), offset))
        entry.state = records.apply_update(entry.state, value)
        entry.updates += 1
