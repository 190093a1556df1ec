"""Following the leaders of partitions: which broker each partition follows, as the catalog says. One task a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.clock import Clock
from headrace.broker.cluster.leader_fetcher import FetchSettings, LeaderFetcher
from headrace.broker.cluster.link import Peers
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import Key, ReplicaManager

STOP_SECONDS_MAX = 2.0


class ReplicaFetchers:
    """All leaders that this broker follows. Event loop only."""

    def __init__(
        self,
        node_id: int,
        replicas: ReplicaManager,
        peers: Peers,
        broker_epoch: Callable[[], int],
        clock: Clock,
        settings: FetchSettings,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._settings = settings
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._leaders: dict[Key, int] = {}  # whom each partition follows
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for partition in self._replicas.partitions():
            self.placed(partition)
        self._replicas.placed.append(self.placed)

    async def stop(self) -> None:
        self._replicas.placed.remove(self.placed)
        for leader in [*self._fetchers]:
            self._end(leader)
        if self._ending:
            await asyncio.wait([*self._ending], timeout=STOP_SECONDS_MAX)

    def placed(self, partition: Partition) -> None:
        """A partition came, went, or has another leader or epoch."""
        key = partition.key
        before = self._leaders.pop(key, None)
        if before is not None:
            fetcher = self._fetchers[before]
            fetcher.remove(key)
            if not fetcher.followed and before != partition.leader:
                self._end(before)
        if partition.is_deleted or partition.is_leader or partition.leader in (-1, self._node_id):
            return
        leader = self._leaders[key] = partition.leader
        found = self._fetchers.get(leader)
        if found is None:
            found = self._fetchers[leader] = LeaderFetcher(
                self._node_id,
                self._peers.to(leader, "fetch"),
                self._replicas,
                self._broker_epoch,
                self._clock,
                self._settings,
            )
        found.add(partition)

    def _end(self, leader: int) -> None:
        task = self._fetchers.pop(leader).end()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
