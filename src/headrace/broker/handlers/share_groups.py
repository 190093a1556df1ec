"""Share groups (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe, and the APIs for offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import NO_LEADER, Topic
from headrace.broker.context import Context, HandlerResult
from headrace.broker.groups.share_offsets import NewOffset
from headrace.broker.groups.share_records import ShareGroupMember
from headrace.broker.handlers.groups import heartbeat_client
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.share.state import (
    UNINITIALIZED_COUNT,
    UNINITIALIZED_OFFSET,
    SharePartitionKey,
    ShareState,
)
from headrace.errors import BrokerError, Code, ConnectionFailedError
from headrace.types import TopicPartition
from headrace.wire.api.group_admin import Assignment, TopicPartitions
from headrace.wire.api.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.api.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribedShareGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareMember,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

UNKNOWN_LAG = -1
LIST_OFFSETS_VERSION = 6
LATEST = -1
DEBUGGING_CONSUMER = -2
"""The replica id with which a broker reads offsets that are not replicated yet."""
LIST_OFFSETS_MS_MAX = 5_000
_UNKNOWN_TOPIC = "This server does not host this topic-partition."

# -- ShareGroupHeartbeat -------------------------------------------------------------------------


async def handle_share_group_heartbeat(
    broker: Broker, context: Context, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Join a share group, keep a member alive, return its assignment, or leave (KIP-932)."""
    return await broker.groups.share_heartbeat(request, heartbeat_client(broker, context, request))


# -- ShareGroupDescribe --------------------------------------------------------------------------


def handle_share_group_describe(broker: Broker, context: Context, request: ShareGroupDescribeRequest) -> HandlerResult:
    """Return epochs, members and assignments of share groups."""
    return ShareGroupDescribeResponse(
        groups=[_describe(broker, context, request, group_id) for group_id in request.group_ids]
    )


def _describe(
    broker: Broker, context: Context, request: ShareGroupDescribeRequest, group_id: str
) -> DescribedShareGroup:
    session = context.session
    try:
        broker.authorizer.require(session, Operation.DESCRIBE, Resource.GROUP, group_id)
        group = broker.groups.describe_share_group(group_id)
        members = [_describe_member(broker, member) for member in group.members.values()]
        for topic in {name for member in members for name in member.subscribed_topic_names}:
            if not broker.authorizer.allows(session, Operation.DESCRIBE, Resource.TOPIC, topic):
                raise BrokerError(
                    "The group has described topic(s) that the client is not authorized to describe.",
                    code=Code.TOPIC_AUTHORIZATION_FAILED,
                )
    except BrokerError as error:
        return DescribedShareGroup(group_id=group_id, error_code=error.code, error_message=str(error.args[0]))
    described = DescribedShareGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=broker.groups.consumer_settings.share_assignor,
        members=members,
    )
    if not request.include_authorized_operations:
        return described
    operations = broker.authorizer.authorized_operations(session, Resource.GROUP, group_id)
    return described.replace(authorized_operations=operations)


def _describe_member(broker: Broker, member: ShareGroupMember) -> ShareMember:
    topics = broker.catalog.topics.by_id
    return ShareMember(
        member_id=member.id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(indexes))
                for topic_id, indexes in member.assigned.items()
                if topic_id in topics
            ]
        ),
    )


# -- DescribeShareGroupOffsets -------------------------------------------------------------------


async def handle_describe_share_group_offsets(
    broker: Broker, context: Context, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Return the start offsets of share groups; all of a group if it has no topics. v1+ the lag."""
    return DescribeShareGroupOffsetsResponse(
        groups=[await _describe_offsets(broker, context, group) for group in request.groups]
    )


async def _describe_offsets(
    broker: Broker, context: Context, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    session, group_id = context.session, group.group_id
    try:
        broker.authorizer.require(session, Operation.DESCRIBE, Resource.GROUP, group_id)
        offsets = broker.groups.share_offsets(group_id)
        if group.topics is None:
            requested = [(topic.name, sorted(topic.partitions)) for topic in offsets.initialized(group_id).values()]
            requested = [
                (name, indexes)
                for name, indexes in requested
                if broker.authorizer.allows(session, Operation.DESCRIBE, Resource.TOPIC, name)
            ]
        else:
            requested = [(row.topic_name, list(row.partitions)) for row in group.topics]
        topics = [
            await _describe_topic(broker, context, group_id, name, indexes=indexes) for name, indexes in requested
        ]
    except BrokerError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=error.code, error_message=str(error.args[0])
        )
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=topics)


async def _describe_topic(
    broker: Broker, context: Context, group_id: str, name: str, *, indexes: Iterable[int]
) -> DescribeShareGroupOffsetsResponseTopic:
    topic = broker.catalog.topics.by_name.get(name)
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name):
        rows = [
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=UNINITIALIZED_OFFSET,
                error_code=Code.TOPIC_AUTHORIZATION_FAILED,
                error_message="Topic authorization failed.",
            )
            for index in indexes
        ]
        return DescribeShareGroupOffsetsResponseTopic(topic_name=name, partitions=rows)
    if topic is None:  # absence of data, not an error, as in Apache Kafka
        rows = [
            DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=UNINITIALIZED_OFFSET)
            for index in indexes
        ]
        return DescribeShareGroupOffsetsResponseTopic(topic_name=name, partitions=rows)
    keys = [SharePartitionKey(group_id, topic.id, index) for index in indexes]
    states = await broker.groups.share_offsets(group_id).describe(keys)
    partitions = [await _describe_partition(broker, topic, key, state) for key, state in states.items()]
    return DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic.id, partitions=partitions)


async def _describe_partition(
    broker: Broker, topic: Topic, key: SharePartitionKey, state: ShareState
) -> DescribeShareGroupOffsetsResponsePartition:
    lag = UNKNOWN_LAG
    if state.start_offset != UNINITIALIZED_OFFSET and state.complete_count != UNINITIALIZED_COUNT:
        try:
            end = await _end_offset(broker, topic, key.partition)
        except (BrokerError, ConnectionFailedError) as error:
            code = error.code if isinstance(error, BrokerError) else Code.NETWORK_EXCEPTION
            return DescribeShareGroupOffsetsResponsePartition(
                partition_index=key.partition, error_code=code, error_message=str(error)
            )
        lag = end - state.start_offset - state.complete_count
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=key.partition, start_offset=state.start_offset, leader_epoch=state.leader_epoch, lag=lag
    )


async def _end_offset(broker: Broker, topic: Topic, index: int) -> int:
    """Return the end offset of a partition, which another broker may lead."""
    leader = topic.partitions[index].leader
    if leader in (NO_LEADER, broker.node_id) or broker.cluster is None:
        return broker.replicas.partition(topic.name, index).log.high_watermark
    row = ListOffsetsTopic(name=topic.name, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST)])
    request = ListOffsetsRequest(replica_id=DEBUGGING_CONSUMER, topics=[row])
    peer = broker.cluster.peers.to(leader, "offsets")
    response = await peer.request(request, LIST_OFFSETS_VERSION, LIST_OFFSETS_MS_MAX)
    result = response.topics[0].partitions[0]
    if result.error_code:
        raise BrokerError(f"failed to read the end of {TopicPartition(topic.name, index)}", code=result.error_code)
    return result.offset


# -- AlterShareGroupOffsets ----------------------------------------------------------------------


async def handle_alter_share_group_offsets(
    broker: Broker, context: Context, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Set the start offsets of a share group without members."""
    broker.authorizer.require(context.session, Operation.READ, Resource.GROUP, request.group_id)
    rows = [_checked_topic(broker, context, topic) for topic in request.topics]
    offsets = [
        NewOffset(row.topic_id, topic.topic_name, part.partition_index, part.start_offset)
        for topic, row in zip(request.topics, rows, strict=True)
        for part, result in zip(topic.partitions, row.partitions, strict=True)
        if not result.error_code
    ]
    await broker.groups.share_offsets(request.group_id).alter(request.group_id, offsets)
    return AlterShareGroupOffsetsResponse(responses=rows)


def _checked_topic(
    broker: Broker, context: Context, topic: AlterShareGroupOffsetsRequestTopic
) -> AlterShareGroupOffsetsResponseTopic:
    """Return the response for a topic: an error for each partition that cannot be altered."""
    known = broker.catalog.topics.by_name.get(topic.topic_name)
    count = 0 if known is None else len(known.partitions)
    code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_TOPIC
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.TOPIC, topic.topic_name):
        count, code, message = 0, Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."
    partitions = [
        AlterShareGroupOffsetsResponsePartition(partition_index=part.partition_index)
        if 0 <= part.partition_index < count
        else AlterShareGroupOffsetsResponsePartition(
            partition_index=part.partition_index, error_code=code, error_message=message
        )
        for part in topic.partitions
    ]
    response = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions)
    return response if known is None else response.replace(topic_id=known.id)


# -- DeleteShareGroupOffsets ---------------------------------------------------------------------


async def handle_delete_share_group_offsets(
    broker: Broker, context: Context, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Delete the offsets of topics of a share group without members."""
    group_id = request.group_id
    broker.authorizer.require(context.session, Operation.DELETE, Resource.GROUP, group_id)
    offsets = broker.groups.share_offsets(group_id)
    initialized = offsets.group(group_id).states.initialized
    rows = [_deletable_topic(broker, context, topic.topic_name, initialized) for topic in request.topics]
    await offsets.delete(group_id, [row.topic_id for row in rows if not row.error_code])
    return DeleteShareGroupOffsetsResponse(responses=rows)


def _deletable_topic(
    broker: Broker, context: Context, name: str, initialized: Iterable[bytes]
) -> DeleteShareGroupOffsetsResponseTopic:
    response = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.TOPIC, name):
        return response.replace(error_code=Code.TOPIC_AUTHORIZATION_FAILED, error_message="Topic authorization failed.")
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None:
        return response.replace(error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message=_UNKNOWN_TOPIC)
    if topic.id not in initialized:
        return response.replace(
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message="There is no offset information to delete."
        )
    return response.replace(topic_id=topic.id)
