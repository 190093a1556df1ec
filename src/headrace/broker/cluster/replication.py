"""What a broker does with the others of its cluster, for replicas and for transactions: started and stopped as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.cluster import Cluster
from headrace.broker.cluster.follower_sessions import FollowerSessions
from headrace.broker.cluster.in_sync import InSyncSets
from headrace.broker.cluster.leader_fetcher import FetchSettings
from headrace.broker.cluster.nearest import RACK_AWARE, RackAwareSelector
from headrace.broker.cluster.replica_fetcher import ReplicaFetchers
from headrace.broker.cluster.transaction_links import TransactionLinks
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class Replication:
    """Follows leaders, keeps in-sync sets, and lets coordinators and leaders find each other. Event loop only."""

    def __init__(self, broker: Broker, cluster: Cluster) -> None:
        config, replicas = broker.config, broker.replicas
        self._broker = broker
        self._sessions = FollowerSessions()
        self._watermarks_ms = config.of(int, "replica.high.watermark.checkpoint.interval.ms")
        lag_ms_max = config.of(int, "replica.lag.time.max.ms")
        self._in_sync = InSyncSets(replicas, cluster, broker.clock, lag_ms_max)
        self._fetchers = ReplicaFetchers(
            broker.node_id,
            replicas,
            cluster.peers,
            lambda: cluster.broker_epoch,
            broker.clock,
            FetchSettings.of(config),
        )
        broker.transactions.join(TransactionLinks(broker.node_id, broker.catalog.topics, cluster.peers))
        if not cluster.is_controller:
            broker.internal.create_on_controller = cluster.create_topic
        selector = config.optional(str, "replica.selector.class")
        if selector == RACK_AWARE:
            replicas.nearest = RackAwareSelector(broker.node_id, broker.catalog.brokers)
        elif selector:
            raise ConfigError(f"replica.selector.class is {selector!r}: {RACK_AWARE} is the only one that there is")

    def start(self) -> None:
        """After the partitions are there."""
        self._broker.logs.note_watermarks(self._watermarks_ms)
        self._broker.replicas.follower_sessions = self._sessions
        self._in_sync.start()
        self._fetchers.start()

    async def stop(self) -> None:
        self._sessions.close()
        await self._fetchers.stop()
        await self._in_sync.stop()
