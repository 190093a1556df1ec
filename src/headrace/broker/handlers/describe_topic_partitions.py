"""Key 75: topics and their partitions, page by page, in the order of names (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.authorized_operations import authorized_operations
from headrace.broker.catalog.topics import INTERNAL, Topic
from headrace.broker.context import Answer, Context
from headrace.broker.nodes import offline
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import Code
from headrace.wire.api.describe_topic_partitions import (
    CursorResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeTopicPartitionsRequest) -> Answer:
    start_topic, start_index = "", 0
    if message.cursor is not None:
        start_topic, start_index = message.cursor.topic_name, message.cursor.partition_index
    limit = broker.config.of(int, "max.request.partition.size.limit")
    room = max(1, min(message.response_partition_limit, limit))
    answers: list[DescribeTopicPartitionsResponseTopic] = []
    for name in _names(broker, context, message):
        if name < start_topic:
            continue
        first = start_index if name == start_topic else 0
        if not room:
            cursor = CursorResponse(topic_name=name, partition_index=first)
            return DescribeTopicPartitionsResponse(topics=answers, next_cursor=cursor)
        topic = broker.catalog.topics.by_name.get(name)
        answer = _described(broker, context, name, topic, first, room)
        answers.append(answer)
        room -= len(answer.partitions)
        if topic is not None and first + len(answer.partitions) < len(topic.partitions):
            cursor = CursorResponse(topic_name=name, partition_index=first + len(answer.partitions))
            return DescribeTopicPartitionsResponse(topics=answers, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=answers)


def _names(broker: Broker, context: Context, message: DescribeTopicPartitionsRequest) -> list[str]:
    """The topics that are asked for, sorted; all that the client may know of if it names none."""
    if message.topics:
        return sorted({topic.name for topic in message.topics})
    return sorted(name for name in broker.catalog.topics.by_name if _may_know(broker, context, name))


def _may_know(broker: Broker, context: Context, name: str) -> bool:
    return broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name)


def _described(
    broker: Broker, context: Context, name: str, topic: Topic | None, first: int, room: int
) -> DescribeTopicPartitionsResponseTopic:
    if not _may_know(broker, context, name):
        return DescribeTopicPartitionsResponseTopic(error_code=Code.TOPIC_AUTHORIZATION_FAILED, name=name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
            name=name,
            is_internal=name in INTERNAL,
            topic_authorized_operations=authorized_operations(broker.authorizer, context.session, Resource.TOPIC, name),
        )
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=Code.NONE if place.leader >= 0 else Code.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=place.leader,
                leader_epoch=place.leader_epoch,
                replica_nodes=place.replicas,
                isr_nodes=place.isr,
                # May be null, says the protocol; Java's admin client trips over that.
                eligible_leader_replicas=place.elr,
                last_known_elr=place.last_known_elr,
                offline_replicas=offline(broker, place.replicas),
            )
            for index, place in enumerate(topic.partitions[first : first + room], start=first)
        ],
        topic_authorized_operations=authorized_operations(broker.authorizer, context.session, Resource.TOPIC, name),
    )
