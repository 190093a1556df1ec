"""Apache Kafka, three nodes in three processes, for comparison with a headrace cluster.

The first node is broker and controller, as in headrace; the others are brokers. Sessions have Kafka's default times.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.peers.real_kafka import RealKafka, new_cluster_id

COPIES = 3
_DEFAULT_SESSION = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
_COPIED = {
    "offsets.topic.replication.factor": str(COPIES),
    "transaction.state.log.replication.factor": str(COPIES),
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": str(COPIES),
    "min.insync.replicas": "2",
}


class KafkaCluster:
    """Nodes by their numbers, 1 to 3."""

    def __init__(self, jars: Path, data_dir: Path, jvm_options: tuple[str, ...]) -> None:
        cluster_id = new_cluster_id()
        common = _DEFAULT_SESSION | _COPIED
        first = RealKafka(jars, data_dir / "1", common, jvm_options, cluster_id)
        self.nodes = {1: first}
        for number in range(2, COPIES + 1):
            own = common | _of_a_broker(number, first.controller_port)
            self.nodes[number] = node = RealKafka(jars, data_dir / str(number), own, jvm_options, cluster_id)
            node.set(listeners=f"PLAINTEXT://127.0.0.1:{node.port}")

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def close(self) -> None:
        """Stop all nodes and delete their data."""
        for node in reversed(self.nodes.values()):
            node.remove()


def _of_a_broker(number: int, controller_port: int) -> dict[str, str]:
    return {
        "node.id": str(number),
        "process.roles": "broker",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
