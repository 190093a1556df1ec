"""Key 21: forget what lies before an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

HIGH_WATERMARK = -1
_UNKNOWN = -1


def handle(broker: Broker, context: Context, message: DeleteRecordsRequest) -> Answer:
    topics = []
    for topic in message.topics:
        rows = [_deleted(broker, context, topic.name, row.partition_index, row.offset) for row in topic.partitions]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))
    return DeleteRecordsResponse(topics=topics)


def _deleted(broker: Broker, context: Context, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    try:
        require(broker.authorizer, context.session, Operation.DELETE, Resource.TOPIC, topic)
        start = _delete(broker, topic, index, offset)
    except BrokerError as error:
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=_UNKNOWN, error_code=error.code)
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=start)


def _delete(broker: Broker, topic: str, index: int, offset: int) -> int:
    if topic in INTERNAL:
        raise BrokerError(f"{topic} belongs to the broker", code=Code.INVALID_TOPIC_EXCEPTION)
    partition = broker.replicas.partition(topic, index)
    log = partition.log
    if not log.config.delete:
        raise BrokerError(f"cleanup.policy of {topic} does not allow to delete", code=Code.POLICY_VIOLATION)
    before = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= before <= log.high_watermark:
        raise BrokerError(f"{before} is not between 0 and {log.high_watermark}", code=Code.OFFSET_OUT_OF_RANGE)
    return broker.replicas.delete_records(partition, before)


def failure(context: Context, message: DeleteRecordsRequest, code: int) -> DeleteRecordsResponse:
    topics = []
    for topic in message.topics:
        rows = [
            DeleteRecordsPartitionResult(partition_index=row.partition_index, low_watermark=_UNKNOWN, error_code=code)
            for row in topic.partitions
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))
    return DeleteRecordsResponse(topics=topics)
