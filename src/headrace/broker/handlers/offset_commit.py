"""Key 8: a group stores how far it has read.

v0 without a generation · v1 a timestamp for each · v2–4 a time to keep them · v6 the leader's epoch · v7 static members
· v9 says that a group does not exist · v10 topics by their ids
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.groups.commits import Commit
from headrace.broker.groups.group import Claim
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

TOPIC_IDS_SINCE = 10


async def handle(broker: Broker, context: Context, message: OffsetCommitRequest) -> OffsetCommitResponse:
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, message.group_id):
        return failure(context, message, Code.GROUP_AUTHORIZATION_FAILED)
    if context.api_version >= TOPIC_IDS_SINCE:
        message = message.replace(topics=[_named(broker, topic) for topic in message.topics])
    refused: dict[TopicPartition, int] = {}
    commits: dict[TopicPartition, Commit] = {}
    for topic in message.topics:
        topic_code = _check_topic(broker, context, topic)
        found = broker.catalog.topics.by_name.get(topic.name)
        for row in topic.partitions:
            place = TopicPartition(topic.name or topic.topic_id.hex(), row.partition_index)
            if topic_code:
                refused[place] = topic_code
            elif found is None or not 0 <= row.partition_index < len(found.partitions):
                refused[place] = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                commits[place] = Commit(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata,
                    row.commit_timestamp,
                    found.id,
                )
    results: Mapping[TopicPartition, int] = {}
    if commits:
        claim = Claim(message.member_id, message.generation_id_or_member_epoch, message.group_instance_id)
        try:
            results = await broker.groups.commit(
                message.group_id, claim, commits, retention_ms=message.retention_time_ms, version=context.api_version
            )
        except BrokerError as error:
            results = dict.fromkeys(commits, error.code)
    return _response(message, {**results, **refused})


def failure(context: Context, message: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    """All of it failed the same way."""
    return _response(message, {}, code)


def _named(broker: Broker, topic: OffsetCommitRequestTopic) -> OffsetCommitRequestTopic:
    found = broker.catalog.topics.by_id.get(topic.topic_id)
    return topic if found is None else topic.replace(name=found.name)


def _check_topic(broker: Broker, context: Context, topic: OffsetCommitRequestTopic) -> Code:
    """What speaks against all partitions of a topic."""
    if not topic.name and context.api_version >= TOPIC_IDS_SINCE:
        return Code.UNKNOWN_TOPIC_ID
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.TOPIC, topic.name):
        return Code.TOPIC_AUTHORIZATION_FAILED
    return Code.NONE


def _response(
    message: OffsetCommitRequest, codes: Mapping[TopicPartition, int], code: int = Code.NONE
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic.name or topic.topic_id.hex(), row.partition_index), code
                        ),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
