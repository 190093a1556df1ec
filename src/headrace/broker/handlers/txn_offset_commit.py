"""Key 28: offsets that become visible when a producer's transaction is committed.

v2 the leader's epoch · v3 who the consumer is, so that a member of an old generation is fenced (KIP-447) · v5 adds the
group to the transaction by itself; before, AddOffsetsToTxn has to have done that
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
from headrace.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

LOADING_SINCE = 2
"""Older clients take COORDINATOR_LOAD_IN_PROGRESS for the end of the world (KAFKA-7296)."""


async def handle(broker: Broker, context: Context, message: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, message.transactional_id):
        return failure(context, message, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows(session, Operation.READ, Resource.GROUP, message.group_id):
        return failure(context, message, Code.GROUP_AUTHORIZATION_FAILED)
    refused, commits = _sort(broker, context, message)
    results: Mapping[TopicPartition, int] = {}
    if commits:
        claim = Claim(message.member_id, message.generation_id, message.group_instance_id)
        try:
            results = await broker.groups.commit_in_transaction(
                message.transactional_id,
                message.group_id,
                claim,
                message.producer_id,
                message.producer_epoch,
                commits,
                version=context.api_version,
            )
        except BrokerError as error:
            results = dict.fromkeys(commits, _fitting(context, error.code))
    return _response(message, {**results, **refused})


def failure(context: Context, message: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    """All of it failed the same way."""
    return _response(message, {}, _fitting(context, code))


def _sort(
    broker: Broker, context: Context, message: TxnOffsetCommitRequest
) -> tuple[dict[TopicPartition, Code], dict[TopicPartition, Commit]]:
    """What cannot be committed and why, and what can."""
    refused: dict[TopicPartition, Code] = {}
    commits: dict[TopicPartition, Commit] = {}
    for topic in message.topics:
        allowed = broker.authorizer.allows(context.session, Operation.READ, Resource.TOPIC, topic.name)
        found = broker.catalog.topics.by_name.get(topic.name)
        for row in topic.partitions:
            place = TopicPartition(topic.name, row.partition_index)
            if not allowed:
                refused[place] = Code.TOPIC_AUTHORIZATION_FAILED
            elif found is None or not 0 <= row.partition_index < len(found.partitions):
                refused[place] = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                commits[place] = Commit(
                    row.committed_offset, row.committed_leader_epoch, row.committed_metadata, topic_id=found.id
                )
    return refused, commits


def _fitting(context: Context, code: int) -> int:
    if code == Code.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < LOADING_SINCE:
        return Code.COORDINATOR_NOT_AVAILABLE
    return code


def _response(
    message: TxnOffsetCommitRequest, codes: Mapping[TopicPartition, int], code: int = Code.NONE
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=codes.get(TopicPartition(topic.name, row.partition_index), code),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
