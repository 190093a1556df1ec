"""Transactions across brokers: their coordinator is on one, the partitions they write to are on others.

coordinator ─ WriteTxnMarkers ─► leaders of partitions
leader of a partition ─ AddPartitionsToTxn (verify, or add) ─► coordinator
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.broker.catalog.topics import TRANSACTION_STATE, Topics
from headrace.broker.cluster.link import Peers
from headrace.broker.replica_manager import MARKER_TIMEOUT_MS
from headrace.broker.transactions.transaction import Transaction
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.records import Marker

MARKERS_VERSION = 2
ADD_VERSION = 5
LINES = 4
"""Connections to each broker, for a server answers one request of a connection after the other."""
ANSWER_MS = 5_000
"""For the way there and back, on top of what the other one may wait for."""
NOWHERE = -1


class TransactionLinks:
    """Other brokers, as far as transactions go. Event loop only."""

    def __init__(self, node_id: int, topics: Topics, peers: Peers) -> None:
        self._node_id = node_id
        self._topics = topics
        self._peers = peers

    def leader_elsewhere(self, partition: TopicPartition) -> int | None:
        """The broker that leads a partition; None if we do, or nobody: then it is for us to find out."""
        topic, index = partition
        found = self._topics.by_name.get(topic)
        if found is None or index >= len(found.partitions):
            return None
        leader = found.partitions[index].leader
        return None if leader in (NOWHERE, self._node_id) else leader

    def coordinator_elsewhere(self, transactional_id: str) -> int | None:
        """The broker that coordinates a transactional id; None if we do, or nobody."""
        found = self._topics.by_name.get(TRANSACTION_STATE)
        if found is None:
            return None
        return self.leader_elsewhere(
            TopicPartition(TRANSACTION_STATE, coordinator_partition(transactional_id, len(found.partitions)))
        )

    async def write_markers(
        self, node: int, transaction: Transaction, partitions: Sequence[TopicPartition], marker: Marker
    ) -> dict[TopicPartition, int]:
        """End a transaction in partitions that another broker leads: a code for each of them."""
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
        peer = self._peers.to(node, f"markers-{transaction.producer_id % LINES}")
        response = await peer.ask(WriteTxnMarkersRequest(markers=[row]), MARKERS_VERSION, MARKER_TIMEOUT_MS + ANSWER_MS)
        assert isinstance(response, WriteTxnMarkersResponse)
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
        """Ask the coordinator whether partitions belong to a transaction, or to let them: a code for each of them."""
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
        peer = self._peers.to(node, f"verify-{producer_id % LINES}")
        response = await peer.ask(AddPartitionsToTxnRequest(transactions=[row]), ADD_VERSION, 2 * ANSWER_MS)
        assert isinstance(response, AddPartitionsToTxnResponse)
        if response.error_code:
            raise BrokerError("the coordinator does not say", code=response.error_code)
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
