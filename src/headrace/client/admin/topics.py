"""Topics, partitions, records and offsets; and the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.metadata import PartitionInfo
from headrace.client.offsets import Isolation, PartitionOffset, by_topic, list_offsets
from headrace.errors import Code
from headrace.types import TopicPartition
from headrace.wire.api.metadata import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from headrace.wire.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)

BROKERS_DEFAULT = -1
TO_THE_END = -1
"""The offset for `delete_records` that deletes all records."""
_MISSING = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION, Code.TOPIC_AUTHORIZATION_FAILED)


@dataclass(slots=True, frozen=True)
class NewTopic:
    """A topic to create; the defaults are the broker's."""

    name: str
    partitions: int = BROKERS_DEFAULT
    replication_factor: int = BROKERS_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Broker ids by partition, instead of the two numbers."""


@dataclass(slots=True, frozen=True)
class TopicDescription:
    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(slots=True, frozen=True)
class BrokerDescription:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True, frozen=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerDescription, ...]


class TopicAdmin(Admin):
    """Topics and records."""

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create topics. Their partitions may not have leaders at once."""
        message = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics],
            timeout_ms=self._request_timeout_ms,
            validate_only=validate_only,
        )
        self.change(message, lambda response: map(_failure, response.topics))

    def delete_topics(self, names: Iterable[str]) -> None:
        names = list(names)

        def build(version: int) -> DeleteTopicsRequest:
            if version < 6:
                return DeleteTopicsRequest(topic_names=names, timeout_ms=self._request_timeout_ms)
            topics = [DeleteTopicState(name=name) for name in names]
            return DeleteTopicsRequest(topics=topics, timeout_ms=self._request_timeout_ms)

        self.change(
            build,
            lambda response: map(_failure, response.responses),
            versions=(1, 6),
            api_key=DeleteTopicsRequest.api_key,
        )

    def create_partitions(
        self, counts: Mapping[str, int], assignments: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> None:
        """Increase the number of partitions of topics; `assignments` has the broker ids of each new one."""
        topics = []
        for name, count in counts.items():
            brokers = (assignments or {}).get(name)
            assigned = None if brokers is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in brokers]
            topics.append(CreatePartitionsTopic(name=name, partition_count=count, assignments=assigned))
        message = CreatePartitionsRequest(topics=topics, timeout_ms=self._request_timeout_ms)
        self.change(message, lambda response: map(_failure, response.results))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        response = self.client.request(MetadataRequest(topics=None), versions=(1, 12))
        return sorted(topic.name for topic in response.topics if topic.name and (internal or not topic.is_internal))

    def describe_topics(self, names: Iterable[str], *, missing_ok: bool = False) -> dict[str, TopicDescription]:
        """Return partitions, leaders and replicas of topics.

        A topic that does not exist, or is not authorized, is an error; with `missing_ok` it is left out.
        """
        topics = [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = self.client.request(
            message, versions=(4, 12), codes=lambda response: [topic.error_code for topic in response.topics]
        )
        existing = [topic for topic in response.topics if not missing_ok or topic.error_code not in _MISSING]
        raise_failures(Failure(f"topic {topic.name!r}", topic.error_code) for topic in existing)
        return {topic.name: _description(topic.name, topic) for topic in existing if topic.name}

    def describe_all_topics(self) -> dict[str, TopicDescription]:
        """Return all authorized topics, sorted, including internal ones."""
        response = self.client.request(MetadataRequest(topics=None), versions=(1, 12))
        topics = {topic.name: topic for topic in response.topics if topic.name and not topic.error_code}
        return {name: _description(name, topics[name]) for name in sorted(topics)}

    def describe_cluster(self) -> ClusterDescription:
        response = self.client.request(DescribeClusterRequest())
        raise_failures([Failure("the cluster", response.error_code, response.error_message)])
        brokers = (BrokerDescription(b.broker_id, b.host, b.port, b.rack) for b in response.brokers)
        in_order = tuple(sorted(brokers, key=lambda broker: broker.node_id))
        return ClusterDescription(response.cluster_id, response.controller_id, in_order)

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        isolation: str | Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, PartitionOffset]:
        """Return the offsets for times in milliseconds, or for LATEST, EARLIEST, MAX_TIMESTAMP (see offsets.py)."""
        return list_offsets(
            self.client, {TopicPartition(*tp): time for tp, time in times.items()}, Isolation.of(isolation)
        )

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before these offsets (or TO_THE_END); returns the new log start offsets."""
        offsets = {TopicPartition(*tp): offset for tp, offset in before.items()}

        def build(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
            topics = [
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=n, offset=offsets[TopicPartition(topic, n)])
                        for n in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions).items()
            ]
            return DeleteRecordsRequest(topics=topics, timeout_ms=self._request_timeout_ms)

        def read(response: DeleteRecordsResponse) -> Iterator[tuple[TopicPartition, int, int]]:
            for topic in response.topics:
                for p in topic.partitions:
                    yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

        return self.client.request_leaders(offsets, build, read)

    @property
    def _request_timeout_ms(self) -> int:
        return int(self.client.settings.request_timeout_ms)


def _failure(topic: CreatableTopicResult | DeletableTopicResult | CreatePartitionsTopicResult) -> Failure:
    return Failure(f"topic {topic.name!r}", topic.error_code, topic.error_message)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=BROKERS_DEFAULT if topic.assignments else topic.partitions,
        replication_factor=BROKERS_DEFAULT if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=ids)
            for number, ids in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _description(name: str, topic: MetadataResponseTopic) -> TopicDescription:
    partitions = sorted(
        PartitionInfo(p.partition_index, p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes))
        for p in topic.partitions
    )
    return TopicDescription(name, uuid.UUID(bytes=topic.topic_id), topic.is_internal, tuple(partitions))
