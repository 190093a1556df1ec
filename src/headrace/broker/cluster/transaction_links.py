"""Transaction requests to other brokers: between a coordinator and the leaders of the partitions.

coordinator ─ WriteTxnMarkers ─► leaders of partitions
leader of a partition ─ AddPartitionsToTxn (verify, or add) ─► coordinator
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.broker.catalog.topics import NO_LEADER, TRANSACTION_STATE, Topics
from headrace.broker.cluster.peer import Peers
from headrace.broker.replica_manager import MARKER_TIMEOUT_MS
from headrace.broker.transactions.transaction import Transaction
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.records import Marker

MARKERS_VERSION = 2
ADD_VERSION = 5
CONNECTIONS = 4
"""Connections to each broker, because a server handles the requests of a connection in order."""
RESPONSE_MS = 5_000
"""The time-out for the network, in addition to what the other broker may wait for."""


class TransactionLinks:
    """Sends transaction requests to other brokers. Event loop only."""

    def __init__(self, node_id: int, topics: Topics, peers: Peers) -> None:
        self._node_id = node_id
        self._topics = topics
        self._peers = peers

    def remote_leader(self, partition: TopicPartition) -> int | None:
        """Return the broker that leads a partition; None if it is this broker, or there is no leader."""
        topic, index = partition
        known = self._topics.by_name.get(topic)
        if known is None or index >= len(known.partitions):
            return None
        leader = known.partitions[index].leader
        return None if leader in (NO_LEADER, self._node_id) else leader

    def remote_coordinator(self, transactional_id: str) -> int | None:
        """Return the coordinator of a transactional id; None if it is this broker, or there is none."""
        topic = self._topics.by_name.get(TRANSACTION_STATE)
        if topic is None:
            return None
        return self.remote_leader(
            TopicPartition(TRANSACTION_STATE, coordinator_partition(transactional_id, len(topic.partitions)))
        )

    async def write_markers(
        self, node: int, transaction: Transaction, partitions: Sequence[TopicPartition], marker: Marker
    ) -> dict[TopicPartition, int]:
        """Write markers to partitions that another broker leads; return an error code for each of them."""
        row = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            transaction_result=marker.committed,
            topics=[
                WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in _by_topic(partitions).items()
            ],
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=transaction.version,
        )
        peer = self._peers.to(node, f"markers-{transaction.producer_id % CONNECTIONS}")
        response = await peer.request(
            WriteTxnMarkersRequest(markers=[row]), MARKERS_VERSION, MARKER_TIMEOUT_MS + RESPONSE_MS
        )
        return {
            TopicPartition(topic.name, part.partition_index): part.error_code
            for result in response.markers
            for topic in result.topics
            for part in topic.partitions
        }

    async def ensure_partitions(
        self,
        node: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, Code]:
        """Verify that partitions are in a transaction, or add them; return an error code for each of them."""
        row = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=not add,
            topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in _by_topic(partitions).items()
            ],
        )
        peer = self._peers.to(node, f"verify-{producer_id % CONNECTIONS}")
        response = await peer.request(AddPartitionsToTxnRequest(transactions=[row]), ADD_VERSION, 2 * RESPONSE_MS)
        if response.error_code:
            raise BrokerError("the coordinator rejected AddPartitionsToTxn", code=response.error_code)
        return {
            TopicPartition(topic.name, part.partition_index): Code(part.partition_error_code)
            for result in response.results_by_transaction
            for topic in result.topic_results
            for part in topic.results_by_partition
        }


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
