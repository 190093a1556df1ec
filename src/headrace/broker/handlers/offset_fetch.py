"""Key 9: how far groups have read.

v2 all partitions at once, and an error for the group · v5 the leader's epoch · v7 offsets that an open transaction may
change can be waited for (KIP-447) · v8 several groups · v10 topics by their ids
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.groups.commits import NOTHING_COMMITTED, Fetched
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

GROUP_ERROR_SINCE = 2
SEVERAL_SINCE = 8
TOPIC_IDS_SINCE = 10


def handle(broker: Broker, context: Context, message: OffsetFetchRequest) -> Answer:
    groups = [_fetch(broker, context, group, message.require_stable) for group in _groups(context, message)]
    return OffsetFetchResponse(groups=groups) if context.api_version >= SEVERAL_SINCE else _single(groups[0])


def failure(context: Context, message: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    groups = [_failed(context, group, code) for group in _groups(context, message)]
    return OffsetFetchResponse(groups=groups) if context.api_version >= SEVERAL_SINCE else _single(groups[0])


def _groups(context: Context, message: OffsetFetchRequest) -> list[OffsetFetchRequestGroup]:
    """An old request is one for a single group."""
    if context.api_version >= SEVERAL_SINCE:
        return list(message.groups)
    topics = None
    if message.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in message.topics
        ]
    return [OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)]


def _fetch(
    broker: Broker, context: Context, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.GROUP, group.group_id):
        return _failed(context, group, Code.GROUP_AUTHORIZATION_FAILED)
    try:
        if group.topics is None:
            return _fetch_all(broker, context, group.group_id, require_stable)
        by_id = context.api_version >= TOPIC_IDS_SINCE
        topics = [_fetch_topic(broker, context, group.group_id, row, by_id, require_stable) for row in group.topics]
    except BrokerError as error:
        return _failed(context, group, error.code)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _fetch_topic(
    broker: Broker,
    context: Context,
    group_id: str,
    topic: OffsetFetchRequestTopics,
    by_id: bool,
    require_stable: bool,
) -> OffsetFetchResponseTopics:
    name = topic.name
    found = broker.catalog.topics.by_id.get(topic.topic_id) if by_id else broker.catalog.topics.by_name.get(name)
    if by_id:
        if found is None:
            return _failed_topic(topic, Code.UNKNOWN_TOPIC_ID)
        name = found.name
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name):
        return _failed_topic(topic, Code.TOPIC_AUTHORIZATION_FAILED)
    topic_id = ZERO_UUID if found is None else found.id
    places = [(TopicPartition(name, index), topic_id) for index in topic.partition_indexes]
    fetched = broker.groups.fetch(group_id, places, require_stable)
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=topic.topic_id,
        partitions=[_partition(index, fetched[TopicPartition(name, index)]) for index in topic.partition_indexes],
    )


def _fetch_all(broker: Broker, context: Context, group_id: str, require_stable: bool) -> OffsetFetchResponseGroup:
    """Everything that the client may know of; by ids, topics that are gone cannot be named."""
    by_topic: dict[str, dict[TopicPartition, Fetched]] = {}
    for place, fetched in broker.groups.fetch_all(group_id, require_stable).items():
        by_topic.setdefault(place[0], {})[place] = fetched
    topics = []
    for name, places in by_topic.items():
        found = broker.catalog.topics.by_name.get(name)
        if found is None and context.api_version >= TOPIC_IDS_SINCE:
            continue
        if broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name):
            rows = [_partition(index, fetched) for (_, index), fetched in places.items()]
            topic_id = ZERO_UUID if found is None else found.id
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=rows))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _partition(index: int, fetched: Fetched) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=fetched.offset,
        committed_leader_epoch=fetched.leader_epoch,
        metadata=fetched.metadata,
        error_code=fetched.error,
    )


def _failed_topic(topic: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    nothing = NOTHING_COMMITTED._replace(error=Code(code))
    rows = [_partition(index, nothing) for index in topic.partition_indexes]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def _failed(context: Context, group: OffsetFetchRequestGroup, code: int) -> OffsetFetchResponseGroup:
    """An error of the whole group; the oldest version has no place for it but the partitions."""
    topics = []
    if context.api_version < GROUP_ERROR_SINCE:
        topics = [_failed_topic(topic, code) for topic in group.topics or ()]
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code, topics=topics)


def _single(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The answer for one group, as it was before there could be several."""
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
