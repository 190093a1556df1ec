"""In-sync sets of the partitions that this broker leads, and the requests to change them.

    a replica outside the set has fetched all committed records ─► larger set ──┐
    a replica has not caught up for replica.lag.time.max.ms ─► smaller set ─────┴► AlterPartition ─► catalog

The set changes when the catalog has the change. Until then the larger of both sets counts (KIP-497). A request with an
unknown outcome is retried, and rejected if it had succeeded; the catalog then brings the new set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.cluster.peer import Peer
from headrace.broker.cluster.role import ClusterRole, IsrChange
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.tasks import TaskSet, start_task
from headrace.config.backoff import exponential_backoff
from headrace.errors import BrokerError, ClosedError, Code, HeadraceError
from headrace.wire.api.inter_broker import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    PartitionResult,
    TopicData,
)

log = logging.getLogger("headrace.broker.replication")

ALTER_PARTITION_VERSION = 3
PARTITIONS_A_REQUEST_MAX = 1_000
RETRY_MS_MIN = 20.0
RETRY_MS_MAX = 1_000.0
STOP_SECONDS_MAX = 1.0

_SUPERSEDED = frozenset(
    {
        Code.NEW_LEADER_ELECTED,
        Code.FENCED_LEADER_EPOCH,
        Code.INVALID_UPDATE_VERSION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_ID,
        Code.NOT_LEADER_OR_FOLLOWER,
    }
)
"""The controller has a change of the partition that will arrive with the catalog."""
_REJECTED = frozenset({Code.INELIGIBLE_REPLICA, Code.INVALID_REQUEST, Code.OPERATION_NOT_ATTEMPTED})


class IsrManager:
    """Proposes new in-sync sets, one at a time for each partition. Event loop only."""

    def __init__(self, replicas: ReplicaManager, cluster: ClusterRole, clock: TimerClock, lag_ms_max: int) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._interval_ms = lag_ms_max / 2
        self._timer: Timer | None = None
        self._tasks = TaskSet("in-sync set")

    def start(self) -> None:
        self._replicas.isr_candidate_listener = self._expand_isr
        self._timer = self._clock.call_later(self._interval_ms, self._check)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel(STOP_SECONDS_MAX)

    def _expand_isr(self, partition: Partition, node: int) -> None:
        if partition.can_join_isr(node):
            self._propose(partition, (*partition.isr, node))

    def _check(self) -> None:
        """Remove lagging replicas from in-sync sets, periodically."""
        self._timer = self._clock.call_later(self._interval_ms, self._check)
        for partition in self._replicas.partitions():
            if not partition.followers:
                continue
            self._replicas.raise_high_watermark(partition)  # it may have waited for a replica that lags by now
            self._replicas.check_isr_candidates(partition, [*partition.followers])
            if partition.proposed_isr is None and (lagging := partition.lagging_replicas()):
                log.warning("%s-%d: replicas %s lag behind", partition.topic, partition.index, lagging)
                self._propose(partition, tuple(node for node in partition.isr if node not in lagging))

    def _propose(self, partition: Partition, isr: tuple[int, ...]) -> None:
        partition.propose_isr(isr)
        self._tasks.start_loop(lambda: self._alter_until_decided(partition, isr))

    async def _alter_until_decided(self, partition: Partition, isr: tuple[int, ...]) -> None:
        """Retry a proposal while this broker leads the partition and the proposal is undecided."""
        failures = 0
        while partition.proposed_isr is isr and partition.is_leader:
            try:
                await self._alter(partition, isr)
                return
            except ClosedError:
                return
            except BrokerError as error:
                if error.code in _SUPERSEDED:
                    return  # the catalog brings the new state; until then the larger set counts
                if error.code in _REJECTED:
                    self._withdraw(partition, isr)
                    return
                log.debug("%s: in-sync set %s: %s", partition.key, isr, error)
            except HeadraceError as error:
                log.debug("%s: in-sync set %s: %s", partition.key, isr, error)
            failures += 1
            await self._pause(exponential_backoff(RETRY_MS_MIN, RETRY_MS_MAX, failures))

    async def _alter(self, partition: Partition, isr: tuple[int, ...]) -> None:
        epochs = {node: follower.broker_epoch for node, follower in partition.followers.items()}
        registration = await self._cluster.alter_partition(
            IsrChange(
                partition.topic_id,
                partition.index,
                partition.leader_epoch,
                partition.partition_epoch,
                {node: epochs.get(node, self._cluster.broker_epoch) for node in isr},
            )
        )
        if registration.partition_epoch == partition.partition_epoch:
            self._withdraw(partition, isr)  # nothing changed, and no event will come

    def _withdraw(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if partition.proposed_isr is isr:
            partition.propose_isr(None)
            self._replicas.raise_high_watermark(partition)

    async def _pause(self, wait_ms: float) -> None:
        over = asyncio.Event()
        timer = self._clock.call_later(wait_ms, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()


class _PendingChange(NamedTuple):
    topic_id: bytes
    row: PartitionData
    result: asyncio.Future[PartitionResult]


class AlterPartitionManager:
    """Sends AlterPartition, one request at a time, with all changes that are pending. Event loop only."""

    def __init__(self, peer: Peer, node_id: int, broker_epoch: Callable[[], int], timeout_ms: int) -> None:
        self._peer = peer
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._timeout_ms = timeout_ms
        self._pending: list[_PendingChange] = []  # at most one for each partition
        self._task: asyncio.Task[None] | None = None

    async def alter(self, change: IsrChange) -> PartitionResult:
        """Return the controller's result for one partition, or raise its error."""
        row = PartitionData(
            partition_index=change.partition,
            leader_epoch=change.leader_epoch,
            partition_epoch=change.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=node, broker_epoch=epoch) for node, epoch in change.isr.items()],
        )
        pending = _PendingChange(change.topic_id, row, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._task is None:
            self._task = start_task(self._send_all(), "AlterPartition")
        return await pending.result

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        _fail(self._pending, ClosedError("the broker is stopping"))

    async def _send_all(self) -> None:
        try:
            while self._pending:
                changes, self._pending = (
                    self._pending[:PARTITIONS_A_REQUEST_MAX],
                    self._pending[PARTITIONS_A_REQUEST_MAX:],
                )
                try:
                    await self._send(changes)
                except HeadraceError as error:
                    _fail(changes, error)
                except Exception as error:  # the callers retry
                    _fail(changes, BrokerError(f"AlterPartition failed: {error!r}", code=Code.UNKNOWN_SERVER_ERROR))
                    raise
                finally:
                    _fail(changes, ClosedError("the broker is stopping"))  # if this task was cancelled
        finally:
            self._task = None

    async def _send(self, changes: list[_PendingChange]) -> None:
        topics: dict[bytes, list[PartitionData]] = {}
        for change in changes:
            topics.setdefault(change.topic_id, []).append(change.row)
        request = AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=[TopicData(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()],
        )
        response = await self._peer.request(request, ALTER_PARTITION_VERSION, self._timeout_ms)
        if response.error_code:
            raise BrokerError("the controller rejected AlterPartition", code=response.error_code)
        rows = {(topic.topic_id, row.partition_index): row for topic in response.topics for row in topic.partitions}
        for change in changes:
            row = rows[change.topic_id, change.row.partition_index]
            if change.result.done():
                continue
            if row.error_code:
                text = f"the controller rejected the in-sync set of partition {row.partition_index}"
                change.result.set_exception(BrokerError(text, code=row.error_code))
            else:
                change.result.set_result(row)


def _fail(changes: list[_PendingChange], error: HeadraceError) -> None:
    for change in changes:
        if not change.result.done():
            change.result.set_exception(error)
