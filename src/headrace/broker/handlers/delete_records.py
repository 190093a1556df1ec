"""Key 21: forget what lies before an offset, here and on the other replicas that live."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Answer, Context
from headrace.broker.partition import Partition
from headrace.broker.security.access import require
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.delete_records import (
    DeleteRecordsPartition,
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
    topics = [
        (topic.name, [_deleted(broker, context, topic.name, row, message.timeout_ms) for row in topic.partitions])
        for topic in message.topics
    ]
    if any(one.waiting is not None for _, rows in topics for one in rows):
        return _answer_later(broker, topics)
    return _answer(broker, topics)


@dataclass(slots=True)
class _Deleted:
    """A partition, and what came of it."""

    index: int
    partition: Partition | None = None
    waiting: asyncio.Future[None] | None = None  # for replicas elsewhere
    error_code: int = Code.NONE


_Topics = list[tuple[str, list[_Deleted]]]


def _deleted(broker: Broker, context: Context, topic: str, row: DeleteRecordsPartition, timeout_ms: int) -> _Deleted:
    found = _Deleted(row.partition_index)
    try:
        require(broker.authorizer, context.session, Operation.DELETE, Resource.TOPIC, topic)
        partition, before = _found(broker, topic, row)
        broker.replicas.delete_records(partition, before)
        found.partition, found.waiting = partition, broker.replicas.deleted(partition, before, timeout_ms)
    except BrokerError as error:
        found.error_code = error.code
    return found


def _found(broker: Broker, topic: str, row: DeleteRecordsPartition) -> tuple[Partition, int]:
    """The partition, and the offset before which nothing is to be left."""
    if topic in INTERNAL:
        raise BrokerError(f"{topic} belongs to the broker", code=Code.INVALID_TOPIC_EXCEPTION)
    partition = broker.replicas.partition(topic, row.partition_index)
    log = partition.log
    if not log.config.delete:
        raise BrokerError(f"cleanup.policy of {topic} does not allow to delete", code=Code.POLICY_VIOLATION)
    before = log.high_watermark if row.offset == HIGH_WATERMARK else row.offset
    if not 0 <= before <= log.high_watermark:
        raise BrokerError(f"{before} is not between 0 and {log.high_watermark}", code=Code.OFFSET_OUT_OF_RANGE)
    return partition, before


async def _answer_later(broker: Broker, topics: _Topics) -> DeleteRecordsResponse:
    """Followers delete when they hear of it, which is soon; the answer says that they have."""
    for _, rows in topics:
        for one in rows:
            if one.waiting is not None:
                try:
                    await one.waiting
                except BrokerError as error:
                    one.error_code = error.code
    return _answer(broker, topics)


def _answer(broker: Broker, topics: _Topics) -> DeleteRecordsResponse:
    def low_watermark(partition: Partition | None) -> int:
        return _UNKNOWN if partition is None else broker.replicas.low_watermark(partition)

    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=one.index,
                        low_watermark=low_watermark(one.partition),
                        error_code=one.error_code,
                    )
                    for one in rows
                ],
            )
            for name, rows in topics
        ]
    )


def failure(context: Context, message: DeleteRecordsRequest, code: int) -> DeleteRecordsResponse:
    topics = []
    for topic in message.topics:
        rows = [
            DeleteRecordsPartitionResult(partition_index=row.partition_index, low_watermark=_UNKNOWN, error_code=code)
            for row in topic.partitions
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))
    return DeleteRecordsResponse(topics=topics)
