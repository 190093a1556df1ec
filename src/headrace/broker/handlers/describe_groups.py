"""Key 15: state and members of groups. v3 what the client may do to them · v6 says that a group does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.authorized_operations import authorized_operations
from headrace.broker.context import Answer, Context
from headrace.broker.groups.group import Group, Member, State
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

NOT_FOUND_SINCE = 6


def handle(broker: Broker, context: Context, message: DescribeGroupsRequest) -> Answer:
    return DescribeGroupsResponse(groups=[_describe(broker, context, message, name) for name in message.groups])


def failure(context: Context, message: DescribeGroupsRequest, code: int) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id=name, error_code=code) for name in message.groups])


def _describe(broker: Broker, context: Context, message: DescribeGroupsRequest, group_id: str) -> DescribedGroup:
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.GROUP, group_id):
        return DescribedGroup(group_id=group_id, error_code=Code.GROUP_AUTHORIZATION_FAILED)
    try:
        group = broker.groups.describe(group_id)
    except BrokerError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if group is None:
        dead = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
        if context.api_version < NOT_FOUND_SINCE:
            return _with_operations(broker, context, message, dead)
        return dead.replace(error_code=Code.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} not found.")
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if group.state is State.STABLE else "",
        members=[_member(group, member) for member in group.members.values()],
    )
    return _with_operations(broker, context, message, described)


def _with_operations(
    broker: Broker, context: Context, message: DescribeGroupsRequest, described: DescribedGroup
) -> DescribedGroup:
    if not message.include_authorized_operations:
        return described
    allowed = authorized_operations(broker.authorizer, context.session, Resource.GROUP, described.group_id)
    return described.replace(authorized_operations=allowed)


def _member(group: Group, member: Member) -> DescribedGroupMember:
    """Subscription and assignment belong together only while the group is stable."""
    stable = group.state is State.STABLE
    return DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=member.assignment if stable else b"",
    )
