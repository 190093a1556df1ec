"""Key 23: where a leader epoch ended, so that a reader or a follower knows from where on it may have read too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: OffsetForLeaderEpochRequest) -> Answer:
    allows, session = broker.authorizer.allows, context.session
    results = []
    for topic in message.topics:
        allowed = allows(session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME) or allows(
            session, Operation.DESCRIBE, Resource.TOPIC, topic.topic
        )
        results.append(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_partition(broker, topic.topic, part, allowed) for part in topic.partitions],
            )
        )
    return OffsetForLeaderEpochResponse(topics=results)


def _partition(broker: Broker, topic: str, part: OffsetForLeaderPartition, allowed: bool) -> EpochEndOffset:
    try:
        if not allowed:
            raise BrokerError(code=Code.TOPIC_AUTHORIZATION_FAILED)
        partition = broker.replicas.partition(topic, part.partition)
        partition.check_epoch(part.current_leader_epoch)
        epoch, end_offset = partition.log.end_of_epoch(part.leader_epoch)
        return EpochEndOffset(partition=part.partition, leader_epoch=epoch, end_offset=end_offset)
    except BrokerError as error:
        return EpochEndOffset(partition=part.partition, error_code=error.code)
