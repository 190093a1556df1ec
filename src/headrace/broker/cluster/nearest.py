"""Which replica a consumer should read from: one in its own rack, if there is one (KIP-392)."""

from __future__ import annotations

from headrace.broker.catalog.brokers import Brokers
from headrace.broker.partition import Partition

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one that Apache Kafka brings along; replica.selector.class may name no other."""
HERE = -1


class RackAwareSelector:
    """Chooses among the in-sync replicas that have what is asked for."""

    def __init__(self, node_id: int, brokers: Brokers) -> None:
        self._node_id = node_id
        self._brokers = brokers

    def __call__(self, partition: Partition, rack: str, offset: int) -> int:
        """The node to read from; HERE if nobody is nearer."""
        if self._rack_of(self._node_id) == rack:
            return HERE
        near = [
            (follower.end_offset, -node)
            for node, follower in partition.followers.items()
            if node in partition.isr
            and self._rack_of(node) == rack
            and self._brokers.is_live(node)
            and offset <= follower.end_offset
        ]
        return -max(near)[1] if near else HERE

    def _rack_of(self, node: int) -> str | None:
        row = self._brokers.by_id.get(node)
        return None if row is None else row.rack
