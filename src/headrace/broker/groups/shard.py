"""One partition of __consumer_offsets: its groups and their offsets.

Writing: a record is appended to the log and, when it is replicated, applied to memory. Concurrent writes are applied in
log order, whichever is replicated first. This requires that `InternalTopics.append` appends before its first `await`.

Loading: records are replayed from the start. Records of transactions wait for their marker, as they do live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.clock import Timer, TimerClock
from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_records import ConsumerChange, GroupEpoch, is_tombstone
from headrace.broker.groups.group import Group, GroupState
from headrace.broker.groups.offsets import Offsets
from headrace.broker.groups.records import GroupChange, KeyValue, OffsetChange, decode
from headrace.broker.groups.share_group import ShareGroup
from headrace.broker.groups.share_records import ShareChange, ShareGroupEpoch, is_share_tombstone
from headrace.broker.internal_topics import code_for_clients
from headrace.broker.tasks import TaskSet
from headrace.config import Config
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.layout import NO_PRODUCER_ID, Record
from headrace.wire.records import NO_PRODUCER, BatchProducer, RecordBatch, decode_marker

_MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options of the group coordinator."""

    session_timeout_min_ms: int
    session_timeout_max_ms: int
    initial_rebalance_delay_ms: int
    members_max: int
    offset_metadata_max: int
    offsets_retention_ms: int
    expiry_interval_ms: int

    @classmethod
    def of(cls, config: Config) -> GroupSettings:
        return cls(
            session_timeout_min_ms=config.of(int, "group.min.session.timeout.ms"),
            session_timeout_max_ms=config.of(int, "group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.of(int, "group.initial.rebalance.delay.ms"),
            members_max=config.of(int, "group.max.size"),
            offset_metadata_max=config.of(int, "offset.metadata.max.bytes"),
            offsets_retention_ms=config.of(int, "offsets.retention.minutes") * _MS_PER_MINUTE,
            expiry_interval_ms=config.of(int, "offsets.retention.check.interval.ms"),
        )


@dataclass(slots=True)
class _Timer:
    due_ms: float
    wakes_ms: float  # not after due_ms
    callback: Callable[..., object]
    arguments: tuple[object, ...]
    timer: Timer | None = None


class Timers:
    """The timers of a shard, by key. Scheduling a key again replaces its timer.

    Every heartbeat postpones a session timeout. That only moves `due_ms`: the clock's timer stays, and is set again if
    it fires too early. So a member costs one timer of the event loop per session, not one per heartbeat.
    """

    def __init__(self, clock: TimerClock) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Timer] = {}

    def schedule(self, key: Hashable, delay_ms: float, callback: Callable[..., object], *arguments: object) -> None:
        due_ms = self._clock.monotonic_ms() + delay_ms
        entry = self._entries.get(key)
        if entry is not None and entry.wakes_ms <= due_ms:
            entry.due_ms, entry.callback, entry.arguments = due_ms, callback, arguments
            return
        self.cancel(key)
        entry = self._entries[key] = _Timer(due_ms, due_ms, callback, arguments)
        self._arm(key, entry, delay_ms)

    def cancel(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None and entry.timer is not None:
            entry.timer.cancel()

    def cancel_all(self) -> None:
        for key in list(self._entries):
            self.cancel(key)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def _arm(self, key: Hashable, entry: _Timer, delay_ms: float) -> None:
        entry.wakes_ms = entry.due_ms
        entry.timer = self._clock.call_later(delay_ms, self._wake, key, entry)

    def _wake(self, key: Hashable, entry: _Timer) -> None:
        if self._entries.get(key) is not entry:
            return
        left_ms = entry.due_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            self._arm(key, entry, left_ms)
            return
        del self._entries[key]
        entry.callback(*entry.arguments)


log = logging.getLogger("headrace.broker.groups")

AnyGroup = Group | ConsumerGroup | ShareGroup

LOAD_SLICE_BATCHES = 1000
"""How many batches are loaded before the event loop runs other tasks."""


class InternalLog(Protocol):
    """The part of InternalTopics that is used here."""

    def ensure(self, topic: str) -> int: ...

    def partitions_led(self, topic: str) -> list[int]: ...

    async def append(
        self, topic: str, index: int, records: Sequence[Record], *, producer: BatchProducer = NO_PRODUCER
    ) -> int: ...

    def batches(self, topic: str, index: int) -> Iterator[RecordBatch]: ...

    def when_confirmed(self, topic: str, index: int, then: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class _GroupLock:
    """The lock of a group, and how many operations hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Shard:
    """Groups and offsets of one partition. Event loop only."""

    def __init__(self, index: int, internal: InternalLog, clock: TimerClock) -> None:
        self.index = index
        self.is_loading = True
        self._is_closed = False
        self.groups: dict[str, Group] = {}  # classic groups, and offsets without members
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.share_groups: dict[str, ShareGroup] = {}  # a group id is in one of the three
        self._locks: dict[str, _GroupLock] = {}
        self.offsets = Offsets()
        self.timers = Timers(clock)
        self.clock = clock
        self._internal = internal
        self._last_write: asyncio.Future[None] | None = None
        self._ended_while_loading: list[tuple[int, bool]] = []
        self._tasks = TaskSet("group coordinator", outcomes=(BrokerError,))

    # -- groups ----------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group:
        """Return a group or raise GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise BrokerError(f"unknown group {group_id!r}", code=Code.GROUP_ID_NOT_FOUND)
        return group

    def group_or_new(self, group_id: str) -> Group:
        assert group_id not in self.consumer_groups
        assert group_id not in self.share_groups
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def remove(self, group: AnyGroup) -> None:
        """Remove a group whose tombstones are in the log, unless a member has joined meanwhile."""
        if isinstance(group, ShareGroup):
            if self.share_groups.get(group.id) is group:
                self.replace_group(group.id, None)
            return
        if isinstance(group, ConsumerGroup):
            if self.consumer_groups.get(group.id) is group:
                self.replace_group(group.id, None)
            return
        if self.groups.get(group.id) is group and group.state is GroupState.EMPTY:
            group.transition(GroupState.DEAD, self.clock.time_ms())
            del self.groups[group.id]

    def replace_group(self, group_id: str, group: AnyGroup | None) -> None:
        """Make a group of any protocol the only one with its id; None: only its offsets are left, if any."""
        self.groups.pop(group_id, None)
        self.consumer_groups.pop(group_id, None)
        self.share_groups.pop(group_id, None)
        if isinstance(group, ShareGroup):
            self.share_groups[group_id] = group
        elif isinstance(group, ConsumerGroup):
            self.consumer_groups[group_id] = group
        elif group is not None:
            self.groups[group_id] = group
        elif self.offsets.of(group_id):
            self.group_or_new(group_id)

    @asynccontextmanager
    async def exclusive(self, group_id: str) -> AsyncIterator[None]:
        """Let one operation at a time change a consumer group, from reading it until its records are replicated."""
        entry = self._locks.setdefault(group_id, _GroupLock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[group_id]

    def is_changing(self, group_id: str) -> bool:
        """Return whether an operation has exclusive access to a group."""
        return group_id in self._locks

    # -- writing ---------------------------------------------------------------------------------

    def spawn(self, operation: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start an operation that completes even if the client disconnects."""
        return self._tasks.start(operation)

    async def write(
        self, entries: Sequence[KeyValue], apply: Callable[[int], object], *, producer: BatchProducer = NO_PRODUCER
    ) -> None:
        """Append records, then call `apply` with the offset of the first one, in log order."""
        now_ms = self.clock.time_ms()
        records = [Record(0, now_ms, entry.key, entry.value, ()) for entry in entries]
        before, mine = self._last_write, asyncio.get_running_loop().create_future()
        self._last_write = mine
        try:
            first_offset = await self._internal.append(CONSUMER_OFFSETS, self.index, records, producer=producer)
            if before is not None:
                await before
            apply(first_offset)
        except BrokerError as error:
            code = code_for_clients(error)
            raise BrokerError(f"partition {self.index} of {CONSUMER_OFFSETS}: {error}", code=code) from error
        finally:
            if before is None or before.done():
                mine.set_result(None)
            else:
                before.add_done_callback(lambda _: mine.set_result(None))

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker, after the writes before it."""
        if self.is_loading:
            self._ended_while_loading.append((producer_id, committed))
        elif self._last_write is None or self._last_write.done():
            self.offsets.complete(producer_id, committed)
        else:
            self._last_write.add_done_callback(lambda _: self.offsets.complete(producer_id, committed))

    # -- loading ---------------------------------------------------------------------------------

    def load(self, loaded: Callable[[], object]) -> None:
        """Replay the partition and call `loaded`. Short ones are replayed at once, long ones in the background."""
        batches = self._internal.batches(CONSUMER_OFFSETS, self.index)
        is_last = self._try_replay_slice(batches)
        if is_last:
            self._confirm(loaded)
        elif is_last is not None:
            self.spawn(self._continue_loading(batches, loaded))

    async def _continue_loading(self, batches: Iterator[RecordBatch], loaded: Callable[[], object]) -> None:
        is_last: bool | None = False
        while is_last is False and not self._is_closed:
            await asyncio.sleep(0)
            is_last = self._try_replay_slice(batches)
        if is_last and not self._is_closed:
            self._confirm(loaded)

    def _try_replay_slice(self, batches: Iterator[RecordBatch]) -> bool | None:
        """Replay some batches; return whether these were the last, None if the log is unreadable."""
        try:
            return self._replay_slice(batches)
        except (WireError, BrokerError, OSError):
            # Unavailable groups are better than groups with half of their state.
            log.exception("failed to load %s-%d: its groups stay unavailable", CONSUMER_OFFSETS, self.index)
            return None

    def _confirm(self, loaded: Callable[[], object]) -> None:
        """Finish loading when everything that was read is replicated: other records may still be lost."""
        self._internal.when_confirmed(CONSUMER_OFFSETS, self.index, lambda: self._finish_loading(loaded))

    def _replay_slice(self, batches: Iterator[RecordBatch]) -> bool:
        chunk = list(islice(batches, LOAD_SLICE_BATCHES))
        for batch in chunk:
            self._replay(batch)
        return len(chunk) < LOAD_SLICE_BATCHES

    def _replay(self, batch: RecordBatch) -> None:
        header = batch.header
        if not header.record_count:
            return  # an empty batch, left by compaction
        if header.is_control:
            marker = decode_marker(batch.records()[0])
            if marker is not None:
                self.offsets.complete(header.producer_id, marker.committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in batch.records():
            try:
                change = decode(record)
            except WireError:
                log.exception("skipping undecodable record %d of %s-%d", record.offset, CONSUMER_OFFSETS, self.index)
                continue
            if isinstance(change, OffsetChange):
                self.apply_offset(change, producer_id)
            elif isinstance(change, GroupChange):
                self._apply_group(change)
            elif isinstance(change, ConsumerChange):
                self._apply_consumer(change)
            elif change is not None:
                self._apply_share(change)

    def apply_offset(self, change: OffsetChange, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply an offset record, live or in replay."""
        if change.committed is None:
            self.offsets.remove(change.group_id, change.partition)
        else:
            if change.group_id not in self.consumer_groups and change.group_id not in self.share_groups:
                self.group_or_new(change.group_id)  # a group may consist of offsets only
            self.offsets.store(change.group_id, change.partition, change.committed, producer_id)

    def _apply_group(self, change: GroupChange) -> None:
        if change.group is not None:
            self.replace_group(change.group_id, change.group)
        elif change.group_id in self.groups:
            self.replace_group(change.group_id, None)

    def _apply_consumer(self, change: ConsumerChange) -> None:
        group = self.consumer_groups.get(change.group_id)
        if isinstance(change, GroupEpoch) and change.epoch is None:
            if group is not None:
                self.replace_group(change.group_id, None)
            return
        if group is None:
            if is_tombstone(change):
                return
            group = ConsumerGroup(change.group_id)
            self.replace_group(change.group_id, group)
        group.apply(change)

    def _apply_share(self, change: ShareChange) -> None:
        group = self.share_groups.get(change.group_id)
        if isinstance(change, ShareGroupEpoch) and change.epoch is None:
            if group is not None:
                self.replace_group(change.group_id, None)
            return
        if group is None:
            if is_share_tombstone(change):
                return
            group = ShareGroup(change.group_id)
            self.replace_group(change.group_id, group)
        group.apply(change)

    def _finish_loading(self, loaded: Callable[[], object]) -> None:
        if self._is_closed:
            return
        for producer_id, committed in self._ended_while_loading:
            self.offsets.complete(producer_id, committed)
        self._ended_while_loading.clear()
        self.is_loading = False
        count = len(self.groups) + len(self.consumer_groups) + len(self.share_groups)
        if count:
            log.info("loaded %s-%d: %d groups", CONSUMER_OFFSETS, self.index, count)
        loaded()

    def close(self) -> Iterable[asyncio.Task[Any]]:
        """Stop the timers; return the tasks that still write."""
        self._is_closed = True
        self.timers.cancel_all()
        return tuple(self._tasks)
