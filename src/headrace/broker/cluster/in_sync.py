"""In-sync sets of the partitions that this broker leads: who joins, who leaves, and asking the controller for it.

    a replica that is not in sync has fetched, and has all that is committed ─► larger set ─┐
    a replica has not caught up for replica.lag.time.max.ms ─► smaller set ─────────────────┴► controller ─► catalog

The set changes when the catalog says so, not before: until then the larger of both counts (KIP-497). A request whose
outcome is not known is repeated, and is refused if it was carried out; the catalog brings what is true.
"""

from __future__ import annotations

import asyncio
import logging

from headrace.broker.clock import Clock, Timer
from headrace.broker.cluster.cluster import Cluster
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.tasks import start_loop
from headrace.config.backoff import exponential_backoff
from headrace.errors import BrokerError, ClosedError, Code, HeadraceError

log = logging.getLogger("headrace.broker.replication")

RETRY_MS_MIN = 20.0
RETRY_MS_MAX = 1_000.0
STOP_SECONDS_MAX = 1.0

_DECIDED_OTHERWISE = frozenset(
    {
        Code.NEW_LEADER_ELECTED,
        Code.FENCED_LEADER_EPOCH,
        Code.INVALID_UPDATE_VERSION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_ID,
        Code.NOT_LEADER_OR_FOLLOWER,
    }
)
"""The controller knows something that we are about to hear of."""
_REFUSED = frozenset({Code.INELIGIBLE_REPLICA, Code.INVALID_REQUEST, Code.OPERATION_NOT_ATTEMPTED})


class InSyncSets:
    """Asks for other in-sync sets, one question a partition at a time. Event loop only."""

    def __init__(self, replicas: ReplicaManager, cluster: Cluster, clock: Clock, lag_ms_max: int) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._interval_ms = lag_ms_max / 2
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._replicas.out_of_sync_fetch = self._fetched
        self._timer = self._clock.call_later(self._interval_ms, self._look)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=STOP_SECONDS_MAX)

    def _fetched(self, partition: Partition, node: int) -> None:
        if partition.may_join(node):
            self._ask_for(partition, (*partition.isr, node))

    def _look(self) -> None:
        """From time to time: who does not keep up?"""
        self._timer = self._clock.call_later(self._interval_ms, self._look)
        for partition in self._replicas.partitions():
            if not partition.followers:
                continue
            self._replicas.raise_high_watermark(partition)  # the time to wait for somebody to join may be over
            self._replicas.consider(partition, [*partition.followers])
            if partition.proposed_isr is None and (slow := partition.laggards()):
                log.warning("%s-%d: replicas %s do not keep up", partition.topic, partition.index, slow)
                self._ask_for(partition, tuple(node for node in partition.isr if node not in slow))

    def _ask_for(self, partition: Partition, isr: tuple[int, ...]) -> None:
        partition.propose(isr)
        task = start_loop(lambda: self._ask(partition, isr), "in-sync set")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, partition: Partition, isr: tuple[int, ...]) -> None:
        """As long as we lead, and nothing is decided."""
        failures = 0
        while partition.proposed_isr is isr and partition.is_leader:
            try:
                await self._ask_once(partition, isr)
                return
            except ClosedError:
                return
            except BrokerError as error:
                if error.code in _DECIDED_OTHERWISE:
                    return  # the catalog will tell; until then the larger set counts
                if error.code in _REFUSED:
                    self._give_up(partition, isr)
                    return
                log.debug("%s: in-sync set %s: %s", partition.key, isr, error)
            except HeadraceError as error:
                log.debug("%s: in-sync set %s: %s", partition.key, isr, error)
            failures += 1
            await self._pause(exponential_backoff(RETRY_MS_MIN, RETRY_MS_MAX, failures))

    async def _ask_once(self, partition: Partition, isr: tuple[int, ...]) -> None:
        epochs = {node: follower.broker_epoch for node, follower in partition.followers.items()}
        answer = await self._cluster.alter_partition(
            partition.topic_id,
            partition.index,
            partition.leader_epoch,
            partition.partition_epoch,
            {node: epochs.get(node, self._cluster.broker_epoch) for node in isr},
        )
        if answer.partition_epoch == partition.partition_epoch:
            self._give_up(partition, isr)  # it is so already, and no event will come

    def _give_up(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if partition.proposed_isr is isr:
            partition.propose(None)
            self._replicas.raise_high_watermark(partition)

    async def _pause(self, wait_ms: float) -> None:
        over = asyncio.Event()
        timer = self._clock.call_later(wait_ms, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()
