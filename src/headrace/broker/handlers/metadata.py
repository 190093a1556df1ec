"""Metadata and DescribeTopicPartitions: brokers, topics and partition leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.catalog.topics import INTERNAL, PartitionRegistration, Topic, check_name
from headrace.broker.context import Context, HandlerResult
from headrace.broker.nodes import controller_id, nodes, offline
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    TopicCursor,
)
from headrace.wire.fields import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.cluster.role import ClusterRole

# -- Metadata ------------------------------------------------------------------------------------


def handle_metadata(broker: Broker, context: Context, request: MetadataRequest) -> HandlerResult:
    """Return the brokers, topics and partition leaders; auto-create missing topics where allowed.

    v0 an empty list means all topics · v4+ the client may disable auto-creation · v8+ authorized operations ·
    v12+ topics by id.
    """
    if broker.cluster is not None and (missing := _topics_to_create(broker, context, request)):
        return _create_then_respond(broker, broker.cluster, context, request, missing)
    return _metadata_response(broker, context, request)


def _metadata_response(broker: Broker, context: Context, request: MetadataRequest) -> MetadataResponse:
    topics = request.topics
    if topics is None or (context.api_version == 0 and not topics):
        topic_responses = _all_topics(broker, context, request)
    else:
        topic_responses = [_topic_response(broker, context, request, requested) for requested in topics]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes(broker, context.session.listener)
        ],
        cluster_id=broker.catalog.identity.cluster_id,
        controller_id=controller_id(broker),
        topics=topic_responses,
    )
    if request.include_cluster_authorized_operations:
        operations = broker.authorizer.authorized_operations(context.session, Resource.CLUSTER, CLUSTER_NAME)
        return response.replace(cluster_authorized_operations=operations)
    return response


def _topics_to_create(broker: Broker, context: Context, request: MetadataRequest) -> list[str]:
    """Return the missing topics that the request auto-creates."""
    if not request.allow_auto_topic_creation or not broker.config.of(bool, "auto.create.topics.enable"):
        return []
    names = [requested.name for requested in request.topics or () if requested.name and requested.topic_id == ZERO_UUID]
    known = broker.catalog.topics.by_name
    allows, session = broker.authorizer.allows, context.session
    return [
        name
        for name in names
        if name not in known
        and allows(session, Operation.DESCRIBE, Resource.TOPIC, name)
        and (name in INTERNAL or _may_create_topic(broker, context, name))
    ]


async def _create_then_respond(
    broker: Broker, cluster: ClusterRole, context: Context, request: MetadataRequest, names: list[str]
) -> MetadataResponse:
    """Have the controller create topics, then respond. Clients retry for those that it could not create."""
    failed: dict[str, int] = {}
    for name in names:
        try:
            await cluster.create_topic(name)
        except BrokerError as error:
            failed[name] = error.code
    response = _metadata_response(broker, context, request.replace(allow_auto_topic_creation=False))
    if not failed:
        return response
    topics = [topic.replace(error_code=failed.get(topic.name or "", topic.error_code)) for topic in response.topics]
    return response.replace(topics=topics)


def _all_topics(broker: Broker, context: Context, request: MetadataRequest) -> list[MetadataResponseTopic]:
    """Return the topics that the client is authorized to describe."""
    return [
        _describe_topic(broker, context, request, topic)
        for topic in broker.catalog.topics.by_name.values()
        if broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, topic.name)
    ]


def _topic_response(
    broker: Broker, context: Context, request: MetadataRequest, requested: MetadataRequestTopic
) -> MetadataResponseTopic:
    try:
        return _describe_topic(broker, context, request, _find_topic(broker, context, request, requested))
    except BrokerError as error:
        name, topic_id = requested.name, requested.topic_id
        if name is None and context.api_version < 12:
            name = ""
        internal = name in INTERNAL
        response = MetadataResponseTopic(error_code=error.code, name=name, topic_id=topic_id, is_internal=internal)
        if error.code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION):
            return _with_authorized_operations(broker, context, request, response)
        return response


def _find_topic(broker: Broker, context: Context, request: MetadataRequest, requested: MetadataRequestTopic) -> Topic:
    """Return a topic by name or id; auto-create it if allowed."""
    allows, session = broker.authorizer.allows, context.session
    if requested.name is None or requested.topic_id != ZERO_UUID:
        if context.api_version < 12:
            raise BrokerError("invalid request: topic ids need Metadata v12", code=Code.INVALID_REQUEST)
        topic = broker.catalog.topics.by_id.get(requested.topic_id)
        if topic is None or not allows(session, Operation.DESCRIBE, Resource.TOPIC, topic.name):
            raise BrokerError(f"unknown topic id {requested.topic_id.hex()}", code=Code.UNKNOWN_TOPIC_ID)
        return topic
    name = requested.name
    broker.authorizer.require(session, Operation.DESCRIBE, Resource.TOPIC, name)
    topic = broker.catalog.topics.by_name.get(name)
    if topic is not None:
        return topic
    if not request.allow_auto_topic_creation or not broker.config.of(bool, "auto.create.topics.enable"):
        check_name(name)
        raise BrokerError(f"unknown topic {name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if name in INTERNAL:
        broker.internal.ensure(name)
        return broker.catalog.topics.by_name[name]
    if not allows(session, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME):
        broker.authorizer.require(session, Operation.CREATE, Resource.TOPIC, name)
    return broker.topic_manager.auto_create(name)


def _may_create_topic(broker: Broker, context: Context, name: str) -> bool:
    allows, session = broker.authorizer.allows, context.session
    return allows(session, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME) or allows(
        session, Operation.CREATE, Resource.TOPIC, name
    )


def _describe_topic(broker: Broker, context: Context, request: MetadataRequest, topic: Topic) -> MetadataResponseTopic:
    response = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(**_partition_fields(broker, index, partition))
            for index, partition in enumerate(topic.partitions)
        ],
    )
    return _with_authorized_operations(broker, context, request, response)


def _partition_fields(broker: Broker, index: int, partition: PartitionRegistration) -> dict[str, Any]:
    """Return the fields that a partition has in both responses."""
    return {
        "error_code": Code.NONE if partition.leader >= 0 else Code.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": offline(broker, partition.replicas),
    }


def _with_authorized_operations(
    broker: Broker, context: Context, request: MetadataRequest, response: MetadataResponseTopic
) -> MetadataResponseTopic:
    if not request.include_topic_authorized_operations:
        return response
    operations = broker.authorizer.authorized_operations(context.session, Resource.TOPIC, response.name or "")
    return response.replace(topic_authorized_operations=operations)


# -- DescribeTopicPartitions ---------------------------------------------------------------------


def handle_describe_topic_partitions(
    broker: Broker, context: Context, request: DescribeTopicPartitionsRequest
) -> HandlerResult:
    """Return topics and their partitions in pages, ordered by topic name (KIP-966)."""
    start_topic, start_index = "", 0
    if request.cursor is not None:
        start_topic, start_index = request.cursor.topic_name, request.cursor.partition_index
    limit = broker.config.of(int, "max.request.partition.size.limit")
    remaining = max(1, min(request.response_partition_limit, limit))
    responses: list[DescribeTopicPartitionsResponseTopic] = []
    for name in _requested_names(broker, context, request):
        if name < start_topic:
            continue
        first = start_index if name == start_topic else 0
        if not remaining:
            cursor = TopicCursor(topic_name=name, partition_index=first)
            return DescribeTopicPartitionsResponse(topics=responses, next_cursor=cursor)
        topic = broker.catalog.topics.by_name.get(name)
        response = _describe_page(broker, context, name, topic, first=first, count=remaining)
        responses.append(response)
        remaining -= len(response.partitions)
        if topic is not None and first + len(response.partitions) < len(topic.partitions):
            cursor = TopicCursor(topic_name=name, partition_index=first + len(response.partitions))
            return DescribeTopicPartitionsResponse(topics=responses, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=responses)


def _requested_names(broker: Broker, context: Context, request: DescribeTopicPartitionsRequest) -> list[str]:
    """Return the requested topic names, sorted; without any, all that the client is authorized to describe."""
    if request.topics:
        return sorted({topic.name for topic in request.topics})
    return sorted(name for name in broker.catalog.topics.by_name if _may_describe(broker, context, name))


def _may_describe(broker: Broker, context: Context, name: str) -> bool:
    return broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name)


def _describe_page(
    broker: Broker, context: Context, name: str, topic: Topic | None, *, first: int, count: int
) -> DescribeTopicPartitionsResponseTopic:
    if not _may_describe(broker, context, name):
        return DescribeTopicPartitionsResponseTopic(error_code=Code.TOPIC_AUTHORIZATION_FAILED, name=name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
            name=name,
            is_internal=name in INTERNAL,
            topic_authorized_operations=broker.authorizer.authorized_operations(context.session, Resource.TOPIC, name),
        )
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                **_partition_fields(broker, index, partition),
                # The protocol allows null, but Java's admin client fails on it.
                eligible_leader_replicas=partition.elr,
                last_known_elr=partition.last_known_elr,
            )
            for index, partition in enumerate(topic.partitions[first : first + count], start=first)
        ],
        topic_authorized_operations=broker.authorizer.authorized_operations(context.session, Resource.TOPIC, name),
    )
