"""DescribeGroups, ConsumerGroupDescribe, ListGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.broker.context import Context, HandlerResult
from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_member import ConsumerMember
from headrace.broker.groups.group import Group, GroupMember, GroupState
from headrace.broker.groups.shard import AnyGroup
from headrace.broker.groups.share_group import ShareGroup
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.group_admin import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    Member,
    TopicPartitions,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- DescribeGroups ------------------------------------------------------------------------------


NOT_FOUND_MIN_VERSION = 6


def handle_describe_groups(broker: Broker, context: Context, request: DescribeGroupsRequest) -> HandlerResult:
    """Return the state and members of groups. v3+ authorized operations · v6+ GROUP_ID_NOT_FOUND for unknown groups."""
    return DescribeGroupsResponse(groups=[_describe_group(broker, context, request, name) for name in request.groups])


def _describe_group(broker: Broker, context: Context, request: DescribeGroupsRequest, group_id: str) -> DescribedGroup:
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.GROUP, group_id):
        return DescribedGroup(group_id=group_id, error_code=Code.GROUP_AUTHORIZATION_FAILED)
    try:
        group = broker.groups.describe(group_id)
    except BrokerError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if group is None:
        dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if context.api_version < NOT_FOUND_MIN_VERSION:
            return _with_authorized_operations(broker, context, request, dead)
        fact = "is not a classic group" if broker.groups.is_modern_group(group_id) else "not found"
        return dead.replace(error_code=Code.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {fact}.")
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if group.state is GroupState.STABLE else "",
        members=[_describe_member(group, member) for member in group.members.values()],
    )
    return _with_authorized_operations(broker, context, request, described)


def _with_authorized_operations(
    broker: Broker, context: Context, request: DescribeGroupsRequest, described: DescribedGroup
) -> DescribedGroup:
    if not request.include_authorized_operations:
        return described
    operations = broker.authorizer.authorized_operations(context.session, Resource.GROUP, described.group_id)
    return described.replace(authorized_operations=operations)


def _describe_member(group: Group, member: GroupMember) -> DescribedGroupMember:
    """Describe a member; its subscription is known only in a stable group."""
    stable = group.state is GroupState.STABLE
    return DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=member.assignment,
    )


# -- ConsumerGroupDescribe -----------------------------------------------------------------------


CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def handle_consumer_group_describe(
    broker: Broker, context: Context, request: ConsumerGroupDescribeRequest
) -> HandlerResult:
    """Return epochs, members and assignments of consumer groups (KIP-848). v1+ the protocol of each member."""
    broker.groups.consumer_settings.check_enabled()
    groups = [_describe_consumer_group(broker, context, request, group_id) for group_id in request.group_ids]
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe_consumer_group(
    broker: Broker, context: Context, request: ConsumerGroupDescribeRequest, group_id: str
) -> DescribedConsumerGroup:
    session = context.session
    try:
        broker.authorizer.require(session, Operation.DESCRIBE, Resource.GROUP, group_id)
        group = broker.groups.describe_consumer_group(group_id)
        members = [_describe_consumer(broker, group, member) for member in group.members.values()]
        for topic in _described_topics(members):
            if not broker.authorizer.allows(session, Operation.DESCRIBE, Resource.TOPIC, topic):
                raise BrokerError(
                    "The group has described topic(s) that the client is not authorized to describe.",
                    code=Code.TOPIC_AUTHORIZATION_FAILED,
                )
    except BrokerError as error:
        return DescribedConsumerGroup(
            group_id=group_id, error_code=error.code, error_message=str(error.args[0]), group_state=""
        )
    described = DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(group.members.values(), broker.groups.consumer_settings.assignors[0]),
        members=members,
    )
    if not request.include_authorized_operations:
        return described
    operations = broker.authorizer.authorized_operations(session, Resource.GROUP, group_id)
    return described.replace(authorized_operations=operations)


def _describe_consumer(broker: Broker, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(broker, _owned(member)),
        target_assignment=_assignment(broker, group.targets.get(member.id, {})),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _owned(member: ConsumerMember) -> dict[bytes, set[int]]:
    """Return the partitions of a member, with those that it has yet to revoke."""
    return {
        topic_id: {*member.assigned.get(topic_id, ()), *member.revoking.get(topic_id, ())}
        for topic_id in {**member.assigned, **member.revoking}
    }


def _assignment(broker: Broker, partitions: Mapping[bytes, Iterable[int]]) -> Assignment:
    topics = broker.catalog.topics.by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if topic_id in topics
        ]
    )


def _described_topics(members: Iterable[Member]) -> set[str]:
    return {
        row.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for row in assignment.topic_partitions
    } | {name for member in members for name in member.subscribed_topic_names}


# -- ListGroups ----------------------------------------------------------------------------------


CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"
SHARE_TYPE = "share"


def handle_list_groups(broker: Broker, context: Context, request: ListGroupsRequest) -> HandlerResult:
    """Return the groups of this coordinator. v4+ filter by state · v5+ filter by type."""
    allows, session = broker.authorizer.allows, context.session
    states = {state.strip().lower() for state in request.states_filter}
    types = {type_.strip().lower() for type_ in request.types_filter}
    try:
        groups = broker.groups.list()
    except BrokerError as error:
        return ListGroupsResponse(error_code=error.code)
    sees_all = allows(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_group_type(group),
            )
            for group in groups
            if (not states or group.state.value.lower() in states)
            and (not types or _group_type(group) in types)
            and (sees_all or allows(session, Operation.DESCRIBE, Resource.GROUP, group.id))
        ]
    )


def _group_type(group: AnyGroup) -> str:
    if isinstance(group, ShareGroup):
        return SHARE_TYPE
    return CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE


# -- DeleteGroups --------------------------------------------------------------------------------


async def handle_delete_groups(broker: Broker, context: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members, and their offsets."""
    results = []
    for name in dict.fromkeys(request.groups_names):
        code = await _delete_group(broker, context, name)
        results.append(DeletableGroupResult(group_id=name, error_code=code))
    return DeleteGroupsResponse(results=results)


async def _delete_group(broker: Broker, context: Context, group_id: str) -> int:
    if not broker.authorizer.allows(context.session, Operation.DELETE, Resource.GROUP, group_id):
        return Code.GROUP_AUTHORIZATION_FAILED
    try:
        await broker.groups.delete(group_id)
    except BrokerError as error:
        return error.code
    return Code.NONE
