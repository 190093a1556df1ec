"""Replication of partitions between brokers: all its parts, started and stopped together; and the replica selector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.cluster import Brokers
from headrace.broker.cluster.follower_sessions import FollowerSessions
from headrace.broker.cluster.isr import IsrManager
from headrace.broker.cluster.replica_fetcher import FetchSettings, ReplicaFetchers
from headrace.broker.cluster.role import ClusterRole
from headrace.broker.cluster.transaction_links import TransactionLinks
from headrace.broker.partition import Partition
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
THIS_BROKER = -1


class Replication:
    """Fetches from leaders, maintains in-sync sets and connects transaction coordinators. Event loop only."""

    def __init__(self, broker: Broker, cluster: ClusterRole) -> None:
        config, replicas = broker.config, broker.replicas
        self._broker = broker
        self._sessions = FollowerSessions()
        self._checkpoint_ms = config.of(int, "replica.high.watermark.checkpoint.interval.ms")
        self._isr = IsrManager(replicas, cluster, broker.clock, config.of(int, "replica.lag.time.max.ms"))
        self._fetchers = ReplicaFetchers(
            broker.node_id,
            replicas,
            cluster.peers,
            broker_epoch=lambda: cluster.broker_epoch,
            clock=broker.clock,
            settings=FetchSettings.of(config),
        )
        broker.transactions.join(TransactionLinks(broker.node_id, broker.catalog.topics, cluster.peers))
        if not cluster.is_controller:
            broker.internal.create_on_controller = cluster.create_topic
        selector = config.optional(str, "replica.selector.class")
        if selector == RACK_AWARE:
            replicas.replica_selector = RackAwareSelector(broker.node_id, broker.catalog.brokers)
        elif selector:
            raise ConfigError(f"replica.selector.class is {selector!r}; it may be {RACK_AWARE}")

    def start(self) -> None:
        """Start replication, after the partitions are opened."""
        self._broker.logs.note_watermarks(self._checkpoint_ms)
        self._broker.replicas.follower_sessions = self._sessions
        self._isr.start()
        self._fetchers.start()

    async def stop(self) -> None:
        self._sessions.close()
        await self._fetchers.stop()
        await self._isr.stop()


class RackAwareSelector:
    """Selects an in-sync replica on the rack of a consumer (KIP-392)."""

    def __init__(self, node_id: int, brokers: Brokers) -> None:
        self._node_id = node_id
        self._brokers = brokers

    def __call__(self, partition: Partition, rack: str, offset: int) -> int:
        """Return the broker to read from; THIS_BROKER if no other replica is on the rack and has the offset."""
        if self._rack_of(self._node_id) == rack:
            return THIS_BROKER
        candidates = [
            (follower.end_offset, -node)
            for node, follower in partition.followers.items()
            if node in partition.isr
            and self._rack_of(node) == rack
            and self._brokers.is_live(node)
            and offset <= follower.end_offset
        ]
        return -max(candidates)[1] if candidates else THIS_BROKER

    def _rack_of(self, node: int) -> str | None:
        broker = self._brokers.by_id.get(node)
        return None if broker is None else broker.rack
