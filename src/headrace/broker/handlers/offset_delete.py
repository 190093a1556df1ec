"""Key 47: a group forgets offsets of topics that it does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


async def handle(broker: Broker, context: Context, message: OffsetDeleteRequest) -> OffsetDeleteResponse:
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.DELETE, Resource.GROUP, message.group_id):
        return OffsetDeleteResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    codes: dict[TopicPartition, int] = {}
    places: list[TopicPartition] = []
    for topic in message.topics:
        allowed = allows(session, Operation.READ, Resource.TOPIC, topic.name)
        found = broker.catalog.topics.by_name.get(topic.name)
        for row in topic.partitions:
            place = TopicPartition(topic.name, row.partition_index)
            if not allowed:
                codes[place] = Code.TOPIC_AUTHORIZATION_FAILED
            elif found is None or not 0 <= row.partition_index < len(found.partitions):
                codes[place] = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                places.append(place)
    try:
        codes |= await broker.groups.delete_offsets(message.group_id, places)
    except BrokerError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return _response(message, codes)


def _response(message: OffsetDeleteRequest, codes: Mapping[TopicPartition, int]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=row.partition_index,
                        error_code=codes[TopicPartition(topic.name, row.partition_index)],
                    )
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
