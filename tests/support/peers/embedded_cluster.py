"""Three embedded brokers with the interface of one (peers/broker.py)."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from headrace.broker import EmbeddedCluster
from headrace.broker.embedded_cluster import ClusterBroker
from tests.support.peers import broker
from tests.support.waiting import eventually

COORDINATING = "__transaction_state"
BROKERS = 3
ASK_SECONDS_MAX = 10


class OwnCluster(broker.Broker):
    """An `EmbeddedCluster` behind the `Broker` interface. Topics have a copy on each of its brokers.

    What is killed is one broker: the one that coordinates transactions, whose topic has one partition for that, and
    that leads a partition of every topic with at least three.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self.cluster = EmbeddedCluster(BROKERS, {**options, "transaction.state.log.num.partitions": 1})
        self.cluster.start()

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        return broker.create_topic(self.bootstrap, name, partitions, configs, BROKERS)

    def kill(self) -> None:
        self._coordinator().kill()

    def stop(self) -> None:
        self.cluster.stop()

    def restart(self) -> None:
        """Start who is down, and return when nobody lacks anything."""
        self.cluster.start()
        eventually("all replicas in sync", self._is_whole)

    def remove(self) -> None:
        """Stop all brokers and delete their data."""
        self.cluster.close()

    def _coordinator(self) -> ClusterBroker:
        (partition,) = self.cluster.describe_topic(COORDINATING)
        return self.cluster.broker(partition["leader"])

    def _is_whole(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return all(
            len(part.isrs) == len(part.replicas)
            for topic in admin.list_topics(timeout=ASK_SECONDS_MAX).topics.values()
            for part in topic.partitions.values()
        )
