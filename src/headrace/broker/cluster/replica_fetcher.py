"""Replica fetchers: one task for each leader, which fetches all partitions that this broker follows there.

    partitions that changed ─► Fetch, a long poll ─► each partition: truncate | append, high watermark, start offset

The leader detects where the logs diverge: a fetch contains the epoch of the follower's last record, and the response
where that epoch ends on the leader (KIP-595). Nothing is appended, and the high watermark does not advance, before the
follower's log is truncated to the common end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.clock import TimerClock
from headrace.broker.cluster.peer import Peer, Peers
from headrace.broker.log import Log
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.tasks import start_loop
from headrace.config import Config
from headrace.config.backoff import exponential_backoff
from headrace.errors import BrokerError, ClosedError, Code, HeadraceError
from headrace.types import TopicPartition
from headrace.wire.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

log = logging.getLogger("headrace.broker.replication")

FETCH_VERSION = 18
LIST_OFFSETS_VERSION = 7
LATEST, EARLIEST = -1, -2
NO_HIGH_WATERMARK_UPDATES = 0x7FFFFFFFFFFFFFFF
"""The high watermark in a fetch that need not return early for a higher one (KIP-1166)."""
RETRY_MS_MIN = 10.0
"""The first back-off; it doubles up to replica.fetch.backoff.ms."""
FAILURES_A_WARNING = 5
"""Consecutive failures of a partition before a warning: fewer are normal while metadata propagates."""
STOP_SECONDS_MAX = 2.0


class FetchSettings(NamedTuple):
    """The options of a follower."""

    bytes_min: int
    wait_ms_max: int
    partition_bytes_max: int
    bytes_max: int
    backoff_ms: int
    timeout_ms: int
    is_read_from: bool  # consumers may read from this follower: they need the high watermark early

    @classmethod
    def of(cls, config: Config) -> FetchSettings:
        return cls(
            config.of(int, "replica.fetch.min.bytes"),
            config.of(int, "replica.fetch.wait.max.ms"),
            config.of(int, "replica.fetch.max.bytes"),
            config.of(int, "replica.fetch.response.max.bytes"),
            config.of(int, "replica.fetch.backoff.ms"),
            config.of(int, "replica.socket.timeout.ms"),
            config.optional(str, "replica.selector.class") is not None,
        )


class _FetchState:
    """A partition that is fetched in one leader epoch."""

    __slots__ = ("failures", "leader_epoch", "partition", "retry_at_ms")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        self.retry_at_ms = 0.0


class _Requested(NamedTuple):
    """The last requested position of a partition in the fetch session."""

    state: _FetchState
    offset: int
    last_epoch: int
    start_offset: int


class LeaderFetcher:
    """Fetches from one leader. Event loop only."""

    def __init__(
        self,
        node_id: int,
        peer: Peer,
        replicas: ReplicaManager,
        *,
        broker_epoch: Callable[[], int],
        clock: TimerClock,
        settings: FetchSettings,
    ) -> None:
        self.states: dict[TopicPartition, _FetchState] = {}
        self._node_id = node_id
        self._peer = peer
        self._replicas = replicas
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._settings = settings
        self._changed = asyncio.Event()
        self._is_polling = False
        self._failures = 0
        self._session_id = self._session_epoch = 0
        self._session_broker_epoch = -1
        self._requested: dict[tuple[bytes, int], _Requested] = {}  # what the leader's fetch session contains
        self._task = start_loop(self._run, "replica fetcher")

    def add(self, partition: Partition) -> None:
        self.states[partition.key] = _FetchState(partition)
        if not self._changed.is_set():
            self._changed.set()
            # A pending fetch lacks the partition. Interrupt it once for all partitions that are added now.
            asyncio.get_running_loop().call_soon(self._interrupt)

    def remove(self, key: TopicPartition) -> None:
        self.states.pop(key, None)

    def stop(self) -> asyncio.Task[None]:
        """Cancel the task and return it."""
        self._task.cancel()
        self._peer.disconnect("no partition is followed there any more")
        return self._task

    def _interrupt(self) -> None:
        if self._is_polling:
            self._peer.disconnect("more partitions are followed")

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            due = [state for state in self.states.values() if state.retry_at_ms <= now_ms]
            self._changed.clear()
            if not due:
                waits = (state.retry_at_ms - now_ms for state in self.states.values())
                await self._pause(min(waits, default=self._settings.backoff_ms))
                continue
            try:
                await self._fetch(due)
                self._failures = 0
            except ClosedError:
                return
            except HeadraceError as error:
                if not self._changed.is_set():  # otherwise `add` has interrupted the fetch
                    self._failures += 1
                    log.log(logging.INFO if self._failures == 1 else logging.DEBUG, "replica fetch failed: %s", error)
                    await self._pause(self._backoff_ms(self._failures))

    async def _pause(self, wait_ms: float) -> None:
        """Wait until partitions are added, or for the timeout."""
        timer = self._clock.call_later(wait_ms, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _backoff_ms(self, failures: int) -> float:
        return exponential_backoff(min(RETRY_MS_MIN, self._settings.backoff_ms), self._settings.backoff_ms, failures)

    # -- request ---------------------------------------------------------------------------------

    async def _fetch(self, due: list[_FetchState]) -> None:
        settings = self._settings
        broker_epoch = self._broker_epoch()
        if broker_epoch != self._session_broker_epoch:
            self._begin_session(broker_epoch)  # every partition needs the new epoch
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=self._max_wait_ms(len(due)),
            min_bytes=settings.bytes_min,
            max_bytes=settings.bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._changed_topics(due),
            forgotten_topics_data=self._forgotten_topics(due),
        )
        self._is_polling = True
        try:
            response = await self._peer.request(request, FETCH_VERSION, settings.wait_ms_max + settings.timeout_ms)
        except BaseException:
            self._begin_session(broker_epoch)
            raise
        finally:
            self._is_polling = False
        if response.error_code:
            self._begin_session(broker_epoch)
            raise BrokerError("the leader rejected the fetch", code=response.error_code)
        self._session_id = response.session_id
        self._session_epoch += 1
        await self._process(response)

    def _begin_session(self, broker_epoch: int) -> None:
        """Start a new fetch session: the next fetch contains all partitions."""
        self._session_id = self._session_epoch = 0
        self._session_broker_epoch = broker_epoch
        self._requested = {}

    def _changed_topics(self, due: list[_FetchState]) -> list[FetchTopic]:
        """Return the partitions whose position differs from that in the fetch session, and update it."""
        topics: dict[bytes, list[FetchPartition]] = {}
        for state in due:
            partition, partition_log = state.partition, state.partition.log
            key = (partition.topic_id, partition.index)
            requested = _Requested(
                state, partition_log.end_offset, partition_log.latest_epoch, partition_log.start_offset
            )
            if self._requested.get(key) == requested:
                continue
            self._requested[key] = requested
            row = FetchPartition(
                partition=partition.index,
                current_leader_epoch=state.leader_epoch,
                fetch_offset=requested.offset,
                last_fetched_epoch=requested.last_epoch,
                log_start_offset=requested.start_offset,
                partition_max_bytes=self._settings.partition_bytes_max,
                high_watermark=partition_log.high_watermark
                if self._settings.is_read_from
                else NO_HIGH_WATERMARK_UPDATES,
            )
            topics.setdefault(partition.topic_id, []).append(row)
        return [FetchTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]

    def _forgotten_topics(self, due: list[_FetchState]) -> list[ForgottenTopic]:
        """Return the partitions of the fetch session that are not due, and remove them."""
        if len(self._requested) == len(due):
            return []
        due_keys = {(state.partition.topic_id, state.partition.index) for state in due}
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in [key for key in self._requested if key not in due_keys]:
            del self._requested[topic_id, index]
            topics.setdefault(topic_id, []).append(index)
        return [ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]

    def _max_wait_ms(self, due: int) -> int:
        """Return how long the leader may wait: not beyond the next retry of a failed partition."""
        if due == len(self.states):
            return self._settings.wait_ms_max
        now_ms = self._clock.monotonic_ms()
        waits = [state.retry_at_ms - now_ms for state in self.states.values() if state.retry_at_ms > now_ms]
        return int(min(self._settings.wait_ms_max, max(min(waits, default=0.0), 1.0)))

    # -- response --------------------------------------------------------------------------------

    async def _process(self, response: FetchResponse) -> None:
        out_of_range = []
        for topic in response.responses:
            for row in topic.partitions:
                requested = self._requested.get((topic.topic_id, row.partition_index))
                if requested is None or not self._is_current(requested):
                    continue
                try:
                    if self._process_partition(requested.state.partition, row):
                        requested.state.failures = 0
                    else:
                        out_of_range.append(requested)
                except BrokerError as error:
                    self._delay(requested.state, error)
        for requested in out_of_range:
            if self._is_current(requested):
                try:
                    await self._handle_out_of_range(requested)
                except BrokerError as error:
                    self._delay(requested.state, error)

    def _is_current(self, requested: _Requested) -> bool:
        """Return whether leader, epoch and log are unchanged since the request."""
        state, partition = requested.state, requested.state.partition
        return (
            self.states.get(partition.key) is state
            and state.leader_epoch == partition.leader_epoch
            and not partition.is_leader
            and partition.log.end_offset == requested.offset
        )

    def _process_partition(self, partition: Partition, row: PartitionData) -> bool:
        """Truncate or append as the leader says; return False if the fetch offset is out of range."""
        if row.error_code == Code.OFFSET_OUT_OF_RANGE:
            return False
        if row.error_code:
            raise BrokerError(f"{partition.log.name}: the leader returned an error", code=row.error_code)
        diverging = row.diverging_epoch
        if diverging.epoch >= 0:
            _truncate(partition.log, common_end(partition.log, diverging.epoch, diverging.end_offset))
            return True
        records = row.records
        assert records is None or isinstance(records, bytes | bytearray | memoryview)
        self._replicas.append_as_follower(partition, records or b"", row.high_watermark, row.log_start_offset)
        return True

    def _delay(self, state: _FetchState, error: BrokerError) -> None:
        """Retry a partition later. Most errors are epochs that leader or follower do not know yet."""
        state.failures += 1
        state.retry_at_ms = self._clock.monotonic_ms() + self._backoff_ms(state.failures)
        key = (state.partition.topic_id, state.partition.index)
        if (requested := self._requested.get(key)) is not None:
            # Request it again explicitly: a leader that did not know the partition has nothing in its session.
            self._requested[key] = requested._replace(offset=-1)
        log.log(
            logging.DEBUG if state.failures < FAILURES_A_WARNING else logging.WARNING,
            "%s: replication failed: %s",
            state.partition.key,
            error,
        )

    async def _handle_out_of_range(self, requested: _Requested) -> None:
        """Truncate a log that is longer than the leader's, or restart one that ends before the leader's start."""
        partition_log = requested.state.partition.log
        latest = await self._leader_offset(requested.state, LATEST)
        if latest < requested.offset:
            if self._is_current(requested):
                _truncate(partition_log, latest)
            return
        earliest = await self._leader_offset(requested.state, EARLIEST)
        if not self._is_current(requested):
            return
        if earliest <= requested.offset:
            raise BrokerError(
                f"{partition_log.name}: the leader has offset {requested.offset} but reports it out of range",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        log.info("%s: restarting at offset %d, the start of the leader's log", partition_log.name, earliest)
        partition_log.truncate_fully(earliest)

    async def _leader_offset(self, state: _FetchState, timestamp: int) -> int:
        partition = state.partition
        row = ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=state.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._node_id, topics=[ListOffsetsTopic(name=partition.topic, partitions=[row])]
        )
        response = await self._peer.request(request, LIST_OFFSETS_VERSION, self._settings.timeout_ms)
        result = response.topics[0].partitions[0]
        if result.error_code:
            raise BrokerError(f"{partition.log.name}: the leader rejected ListOffsets", code=result.error_code)
        return result.offset


def common_end(partition_log: Log, epoch: int, leader_end: int) -> int:
    """Return where to truncate a log if `epoch`, the last that both may share, ends at `leader_end` on the leader.

    If the log does not have that epoch, it is truncated to the end of the one before; the next fetch tells more.
    """
    known, end = partition_log.end_of_epoch(epoch)
    if known < 0:
        return min(leader_end, partition_log.end_offset)
    return min(end, leader_end) if known == epoch else end


def _truncate(partition_log: Log, offset: int) -> None:
    if offset < partition_log.high_watermark:
        log.error(
            "%s: truncated to offset %d, below its high watermark %d: the elected leader has fewer records",
            partition_log.name,
            offset,
            partition_log.high_watermark,
        )
    elif offset < partition_log.end_offset:
        log.info(
            "%s: truncated from %d to offset %d, where the leader's log diverges",
            partition_log.name,
            partition_log.end_offset,
            offset,
        )
    partition_log.truncate(offset)


class ReplicaFetchers:
    """The fetchers of all leaders that this broker follows. Event loop only."""

    def __init__(
        self,
        node_id: int,
        replicas: ReplicaManager,
        peers: Peers,
        *,
        broker_epoch: Callable[[], int],
        clock: TimerClock,
        settings: FetchSettings,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._settings = settings
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._leaders: dict[TopicPartition, int] = {}  # the leader that each partition is fetched from
        self._stopping: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for partition in self._replicas.partitions():
            self.update(partition)
        self._replicas.leadership_listeners.append(self.update)

    async def stop(self) -> None:
        self._replicas.leadership_listeners.remove(self.update)
        for leader in [*self._fetchers]:
            self._stop(leader)
        if self._stopping:
            await asyncio.wait([*self._stopping], timeout=STOP_SECONDS_MAX)

    def update(self, partition: Partition) -> None:
        """Fetch a partition from its current leader, or stop if there is none; called when leader or epoch change."""
        key = partition.key
        before = self._leaders.pop(key, None)
        if before is not None:
            fetcher = self._fetchers[before]
            fetcher.remove(key)
            if not fetcher.states and before != partition.leader:
                self._stop(before)
        if partition.is_deleted or partition.is_leader or partition.leader in (-1, self._node_id):
            return
        leader = self._leaders[key] = partition.leader
        if leader not in self._fetchers:
            self._fetchers[leader] = LeaderFetcher(
                self._node_id,
                self._peers.to(leader, "fetch"),
                self._replicas,
                broker_epoch=self._broker_epoch,
                clock=self._clock,
                settings=self._settings,
            )
        self._fetchers[leader].add(partition)

    def _stop(self, leader: int) -> None:
        task = self._fetchers.pop(leader).stop()
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
