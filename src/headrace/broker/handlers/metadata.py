"""Key 3: brokers, topics, and who leads their partitions. Makes topics that are asked for, where that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.authorized_operations import authorized_operations
from headrace.broker.catalog.topics import INTERNAL, Topic, check_name
from headrace.broker.context import Answer, Context
from headrace.broker.nodes import controller_id, nodes, offline
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.cluster.cluster import Cluster


def handle(broker: Broker, context: Context, message: MetadataRequest) -> Answer:
    if broker.cluster is not None and (missing := _to_be_created(broker, context, message)):
        return _created(broker, broker.cluster, context, message, missing)
    return _answer(broker, context, message)


def _answer(broker: Broker, context: Context, message: MetadataRequest) -> MetadataResponse:
    topics = message.topics
    if topics is None or (context.api_version == 0 and not topics):
        answers = _all_topics(broker, context, message)
    else:
        answers = [_topic(broker, context, message, wanted) for wanted in topics]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes(broker, context.session.listener)
        ],
        cluster_id=broker.catalog.identity.cluster_id,
        controller_id=controller_id(broker),
        topics=answers,
    )
    if message.include_cluster_authorized_operations:
        allowed = authorized_operations(broker.authorizer, context.session, Resource.CLUSTER, CLUSTER_NAME)
        return response.replace(cluster_authorized_operations=allowed)
    return response


def _to_be_created(broker: Broker, context: Context, message: MetadataRequest) -> list[str]:
    """Topics that are missing and may be made because they are asked for: in a cluster that takes a while."""
    if not message.allow_auto_topic_creation or not broker.config.of(bool, "auto.create.topics.enable"):
        return []
    names = [wanted.name for wanted in message.topics or () if wanted.name and wanted.topic_id == ZERO_UUID]
    known = broker.catalog.topics.by_name
    allows, session = broker.authorizer.allows, context.session
    return [
        name
        for name in names
        if name not in known
        and allows(session, Operation.DESCRIBE, Resource.TOPIC, name)
        and (name in INTERNAL or _may_create(broker, context, name))
    ]


async def _created(
    broker: Broker, cluster: Cluster, context: Context, message: MetadataRequest, names: list[str]
) -> MetadataResponse:
    """The answer when the controller has made topics. Those that it has not, the client will ask for again."""
    refused: dict[str, int] = {}
    for name in names:
        try:
            await cluster.create_topic(name)
        except BrokerError as error:
            refused[name] = error.code
    answer = _answer(broker, context, message.replace(allow_auto_topic_creation=False))
    if not refused:
        return answer
    topics = [topic.replace(error_code=refused.get(topic.name or "", topic.error_code)) for topic in answer.topics]
    return answer.replace(topics=topics)


def _all_topics(broker: Broker, context: Context, message: MetadataRequest) -> list[MetadataResponseTopic]:
    """Everything the client may know of."""
    return [
        _described(broker, context, message, topic)
        for topic in broker.catalog.topics.by_name.values()
        if broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, topic.name)
    ]


def _topic(
    broker: Broker, context: Context, message: MetadataRequest, wanted: MetadataRequestTopic
) -> MetadataResponseTopic:
    try:
        return _described(broker, context, message, _find(broker, context, message, wanted))
    except BrokerError as error:
        name, topic_id = wanted.name, wanted.topic_id
        if name is None and context.api_version < 12:
            name = ""
        internal = name in INTERNAL
        answer = MetadataResponseTopic(error_code=error.code, name=name, topic_id=topic_id, is_internal=internal)
        if error.code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION):
            return _with_operations(broker, context, message, answer)
        return answer


def _find(broker: Broker, context: Context, message: MetadataRequest, wanted: MetadataRequestTopic) -> Topic:
    """The topic that is asked for, by name or by id; made if need be."""
    allows, session = broker.authorizer.allows, context.session
    if wanted.name is None or wanted.topic_id != ZERO_UUID:
        if context.api_version < 12:
            raise BrokerError("topic ids are understood from version 12 on", code=Code.INVALID_REQUEST)
        found = broker.catalog.topics.by_id.get(wanted.topic_id)
        if found is None or not allows(session, Operation.DESCRIBE, Resource.TOPIC, found.name):
            raise BrokerError("there is no topic with this id", code=Code.UNKNOWN_TOPIC_ID)
        return found
    name = wanted.name
    if not allows(session, Operation.DESCRIBE, Resource.TOPIC, name):
        raise BrokerError(f"no right to describe topic {name}", code=Code.TOPIC_AUTHORIZATION_FAILED)
    found = broker.catalog.topics.by_name.get(name)
    if found is not None:
        return found
    if not message.allow_auto_topic_creation or not broker.config.of(bool, "auto.create.topics.enable"):
        check_name(name)
        raise BrokerError(f"there is no topic {name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if name in INTERNAL:
        broker.internal.ensure(name)
        return broker.catalog.topics.by_name[name]
    if not _may_create(broker, context, name):
        raise BrokerError(f"no right to create topic {name}", code=Code.TOPIC_AUTHORIZATION_FAILED)
    return broker.topic_admin.auto_create(name)


def _may_create(broker: Broker, context: Context, name: str) -> bool:
    allows, session = broker.authorizer.allows, context.session
    return allows(session, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME) or allows(
        session, Operation.CREATE, Resource.TOPIC, name
    )


def _described(broker: Broker, context: Context, message: MetadataRequest, topic: Topic) -> MetadataResponseTopic:
    answer = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                error_code=Code.NONE if place.leader >= 0 else Code.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=place.leader,
                leader_epoch=place.leader_epoch,
                replica_nodes=place.replicas,
                isr_nodes=place.isr,
                offline_replicas=offline(broker, place.replicas),
            )
            for index, place in enumerate(topic.partitions)
        ],
    )
    return _with_operations(broker, context, message, answer)


def _with_operations(
    broker: Broker, context: Context, message: MetadataRequest, answer: MetadataResponseTopic
) -> MetadataResponseTopic:
    if not message.include_topic_authorized_operations:
        return answer
    allowed = authorized_operations(broker.authorizer, context.session, Resource.TOPIC, answer.name or "")
    return answer.replace(topic_authorized_operations=allowed)
