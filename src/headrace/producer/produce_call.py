"""The batches of one produce request: as a message in the version of the broker, and whose the answers are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headrace.client.metadata import Cluster
from headrace.producer.batch import ProducerBatch
from headrace.producer.transactions import TransactionManager
from headrace.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

BATCHES_OF_MAGIC_2 = 3  # older versions carry message sets, which know no producer ids
V2_TRANSACTIONS = 12
NEEDS_TOPIC_IDS = 13


class ProduceCall:
    """At most one batch of a partition."""

    def __init__(self, batches: list[ProducerBatch], cluster: Cluster) -> None:
        self.batches = batches
        self.by_topic: defaultdict[str, list[ProducerBatch]] = defaultdict(list)
        for batch in batches:
            self.by_topic[batch.topic].append(batch)
        self._ids = {topic: cluster.topic_id(topic) for topic in self.by_topic}

    def versions(self, transactions: TransactionManager | None) -> tuple[int, int]:
        """The oldest and the newest that will do."""
        oldest = 0 if transactions is None else BATCHES_OF_MAGIC_2
        if transactions is not None and transactions.is_transactional and not transactions.v2_enabled:
            return oldest, V2_TRANSACTIONS - 1  # v12 would add partitions to a transaction by itself
        return oldest, NEEDS_TOPIC_IDS if all(self._ids.values()) else NEEDS_TOPIC_IDS - 1

    def message(self, version: int, transactional_id: str | None, acks: int, timeout_ms: int) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=tuple(
                TopicProduceData(
                    name=topic,
                    topic_id=self._ids[topic] or bytes(16),
                    partition_data=tuple(_partition_data(batch, version) for batch in batches),
                )
                for topic, batches in self.by_topic.items()
            ),
        )

    def answers(self, response: ProduceResponse) -> Iterator[tuple[ProducerBatch, PartitionProduceResponse | None]]:
        """Each batch with what the broker says of it; those last that it left out."""
        names = {topic_id: topic for topic, topic_id in self._ids.items()}
        waiting = {(batch.topic, batch.partition): batch for batch in self.batches}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for answer in topic.partition_responses:
                batch = waiting.pop((name, answer.partition_index), None)
                if batch is not None:
                    yield batch, answer
        for batch in waiting.values():
            yield batch, None


def _partition_data(batch: ProducerBatch, version: int) -> PartitionProduceData:
    return PartitionProduceData(
        partition_index=batch.partition,
        records=batch.sealed if version >= BATCHES_OF_MAGIC_2 else batch.as_message_set(version),
    )
