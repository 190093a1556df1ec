"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL, Topic
from headrace.broker.configs import ConfigSource
from headrace.broker.context import Context, HandlerResult
from headrace.broker.partition import Partition
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.broker.topic_manager import Assignment
from headrace.errors import BrokerError, Code
from headrace.wire.api.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.wire.fields import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- CreateTopics --------------------------------------------------------------------------------


def handle_create_topics(broker: Broker, context: Context, request: CreateTopicsRequest) -> HandlerResult:
    """Create topics.

    v1+ validate_only · v4+ -1 selects the default number of partitions or replicas · v5+ the response describes the
    topic.
    """
    occurrences = Counter(topic.name for topic in request.topics)
    # One result per name: clients look results up by name.
    topics = {topic.name: topic for topic in request.topics}
    return CreateTopicsResponse(
        topics=[_create_topic(broker, context, request, topic, occurrences[name]) for name, topic in topics.items()]
    )


def _create_topic(
    broker: Broker, context: Context, request: CreateTopicsRequest, topic: CreatableTopic, occurrences: int
) -> CreatableTopicResult:
    try:
        if occurrences > 1:
            raise BrokerError(
                f"duplicate topic {topic.name}: it occurs {occurrences} times in the request", code=Code.INVALID_REQUEST
            )
        if not broker.authorizer.allows(context.session, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            broker.authorizer.require(context.session, Operation.CREATE, Resource.TOPIC, topic.name)
        configs = {config.name: config.value for config in topic.configs}
        broker.topic_manager.check_configs(configs)
        created = broker.topic_manager.create(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {name: value for name, value in configs.items() if value is not None},
            assignment=_replica_assignment(topic) if topic.assignments else None,
            validate_only=request.validate_only,
        )
    except BrokerError as error:
        return CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.args[0] or None)
    return _created_topic(
        broker, context, created, {name: value or "" for name, value in configs.items()}, request.validate_only
    )


def _replica_assignment(topic: CreatableTopic) -> Assignment:
    brokers = {row.partition_index: row.broker_ids for row in topic.assignments}
    if sorted(brokers) != list(range(len(topic.assignments))):
        raise BrokerError(
            "invalid replica assignment: partitions must be numbered from 0 without gaps or duplicates",
            code=Code.INVALID_REPLICA_ASSIGNMENT,
        )
    return [brokers[index] for index in range(len(brokers))]


def _created_topic(
    broker: Broker, context: Context, topic: Topic, configs: dict[str, str], validate_only: bool
) -> CreatableTopicResult:
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=bytes(16) if validate_only else topic.id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
    )
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name):
        return result.replace(
            topic_config_error_code=Code.TOPIC_AUTHORIZATION_FAILED,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
    return result.replace(
        configs=[
            CreatableTopicConfigs(
                name=entry.option.name,
                value=configs.get(entry.option.name, entry.value),
                config_source=ConfigSource.DYNAMIC_TOPIC if entry.option.name in configs else entry.source,
                read_only=entry.read_only,
                is_sensitive=entry.is_sensitive,
            )
            for entry in broker.configurations.of_topic(topic.name)
        ]
    )


# -- DeleteTopics --------------------------------------------------------------------------------


TOPIC_STATES_MIN_VERSION = 6


def handle_delete_topics(broker: Broker, context: Context, request: DeleteTopicsRequest) -> HandlerResult:
    """Delete topics by name, or by id (v6+)."""
    if context.api_version >= TOPIC_STATES_MIN_VERSION:
        states = list(request.topics)
    else:
        states = [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(responses=[_delete_topic(broker, context, state) for state in states])


def _delete_topic(broker: Broker, context: Context, state: DeleteTopicState) -> DeletableTopicResult:
    name, topic_id = state.name, state.topic_id
    try:
        topic = _find_deletable(broker, context, state)
        name, topic_id = topic.name, topic.id
        broker.authorizer.require(context.session, Operation.DELETE, Resource.TOPIC, topic.name)
        if topic.is_internal:
            raise BrokerError(f"topic {name} is internal and cannot be deleted", code=Code.INVALID_REQUEST)
        broker.topic_manager.delete(topic)
    except BrokerError as error:
        return DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=error.code, error_message=error.args[0] or None
        )
    return DeletableTopicResult(name=name, topic_id=topic_id)


def _find_deletable(broker: Broker, context: Context, state: DeleteTopicState) -> Topic:
    topics = broker.catalog.topics
    if state.name is None:
        by_id = topics.by_id.get(state.topic_id)
        if by_id is None or not broker.authorizer.allows(
            context.session, Operation.DESCRIBE, Resource.TOPIC, by_id.name
        ):
            raise BrokerError(f"unknown topic id {state.topic_id.hex()}", code=Code.UNKNOWN_TOPIC_ID)
        return by_id
    if state.topic_id != ZERO_UUID:
        raise BrokerError("invalid request: a topic has either a name or an id, not both", code=Code.INVALID_REQUEST)
    broker.authorizer.require(context.session, Operation.DESCRIBE, Resource.TOPIC, state.name)
    by_name = topics.by_name.get(state.name)
    if by_name is None:
        raise BrokerError(f"unknown topic {state.name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    return by_name


# -- CreatePartitions ----------------------------------------------------------------------------


def handle_create_partitions(broker: Broker, context: Context, request: CreatePartitionsRequest) -> HandlerResult:
    """Add partitions to topics."""
    occurrences = Counter(topic.name for topic in request.topics)
    results = []
    for name, requested in {topic.name: topic for topic in request.topics}.items():
        try:
            if occurrences[name] > 1:
                raise BrokerError(f"duplicate topic {name}", code=Code.INVALID_REQUEST)
            _add_partitions(broker, context, requested, validate_only=request.validate_only)
        except BrokerError as error:
            text = str(error.args[0])
            results.append(CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=text))
        else:
            results.append(CreatePartitionsTopicResult(name=name))
    return CreatePartitionsResponse(results=results)


def _add_partitions(broker: Broker, context: Context, requested: CreatePartitionsTopic, *, validate_only: bool) -> None:
    broker.authorizer.require(context.session, Operation.ALTER, Resource.TOPIC, requested.name)
    topic = broker.catalog.topics.by_name.get(requested.name)
    if topic is None:
        raise BrokerError(f"unknown topic {requested.name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        raise BrokerError(
            f"cannot add partitions to {topic.name}: its number of partitions determines the coordinators",
            code=Code.INVALID_TOPIC_EXCEPTION,
        )
    assignment = None if requested.assignments is None else [row.broker_ids for row in requested.assignments]
    broker.topic_manager.add_partitions(topic, requested.partition_count, assignment, validate_only=validate_only)


# -- DeleteRecords -------------------------------------------------------------------------------


HIGH_WATERMARK = -1
_UNKNOWN_WATERMARK = -1


def handle_delete_records(broker: Broker, context: Context, request: DeleteRecordsRequest) -> HandlerResult:
    """Delete the records before an offset on the leader; respond when all live replicas have done the same."""
    topics = [
        (
            topic.name,
            [_delete_records_before(broker, context, topic.name, row, request.timeout_ms) for row in topic.partitions],
        )
        for topic in request.topics
    ]
    if any(deletion.replicated is not None for _, rows in topics for deletion in rows):
        return _await_replicas(broker, topics)
    return _delete_records_response(broker, topics)


@dataclass(slots=True)
class _Deletion:
    """The deletion of records in one partition, and its result."""

    index: int
    partition: Partition | None = None
    replicated: asyncio.Future[None] | None = None  # done when the other replicas have deleted too
    error_code: int = Code.NONE


_Deletions = list[tuple[str, list[_Deletion]]]


def _delete_records_before(
    broker: Broker, context: Context, topic: str, row: DeleteRecordsPartition, timeout_ms: int
) -> _Deletion:
    deletion = _Deletion(row.partition_index)
    try:
        broker.authorizer.require(context.session, Operation.DELETE, Resource.TOPIC, topic)
        partition, before = _deletion_target(broker, topic, row)
        broker.replicas.delete_records(partition, before)
        deletion.partition, deletion.replicated = partition, broker.replicas.deleted(partition, before, timeout_ms)
    except BrokerError as error:
        deletion.error_code = error.code
    return deletion


def _deletion_target(broker: Broker, topic: str, row: DeleteRecordsPartition) -> tuple[Partition, int]:
    """Return the partition, and the offset before which records are deleted."""
    if topic in INTERNAL:
        raise BrokerError(
            f"topic {topic} is internal: its records cannot be deleted", code=Code.INVALID_TOPIC_EXCEPTION
        )
    partition = broker.replicas.partition(topic, row.partition_index)
    log = partition.log
    if not log.config.delete:
        raise BrokerError(f"cleanup.policy of topic {topic} does not include delete", code=Code.POLICY_VIOLATION)
    before = log.high_watermark if row.offset == HIGH_WATERMARK else row.offset
    if not 0 <= before <= log.high_watermark:
        raise BrokerError(
            f"offset {before} is out of range: expected 0 to the high watermark {log.high_watermark}",
            code=Code.OFFSET_OUT_OF_RANGE,
        )
    return partition, before


async def _await_replicas(broker: Broker, topics: _Deletions) -> DeleteRecordsResponse:
    """Respond when the followers have deleted too: they learn the new start offset with their next fetch."""
    for _, rows in topics:
        for deletion in rows:
            if deletion.replicated is not None:
                try:
                    await deletion.replicated
                except BrokerError as error:
                    deletion.error_code = error.code
    return _delete_records_response(broker, topics)


def _delete_records_response(broker: Broker, topics: _Deletions) -> DeleteRecordsResponse:
    def low_watermark(partition: Partition | None) -> int:
        return _UNKNOWN_WATERMARK if partition is None else broker.replicas.low_watermark(partition)

    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=deletion.index,
                        low_watermark=low_watermark(deletion.partition),
                        error_code=deletion.error_code,
                    )
                    for deletion in rows
                ],
            )
            for name, rows in topics
        ]
    )
