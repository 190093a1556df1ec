"""DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context, HandlerResult
from headrace.broker.groups.group import Group, GroupMember, GroupState
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
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
        return dead.replace(error_code=Code.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} not found.")
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
    """Describe a member; subscription and assignment are consistent only in a stable group."""
    stable = group.state is GroupState.STABLE
    return DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=member.assignment if stable else b"",
    )


# -- ListGroups ----------------------------------------------------------------------------------


GROUP_TYPE = "classic"


def handle_list_groups(broker: Broker, context: Context, request: ListGroupsRequest) -> HandlerResult:
    """Return the groups of this coordinator. v4+ filter by state · v5+ filter by type (all are "classic")."""
    allows, session = broker.authorizer.allows, context.session
    states = {state.strip().lower() for state in request.states_filter}
    types = {type_.strip().lower() for type_ in request.types_filter}
    if types and GROUP_TYPE not in types:
        return ListGroupsResponse()
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
                group_type=GROUP_TYPE,
            )
            for group in groups
            if (not states or group.state.value.lower() in states)
            and (sees_all or allows(session, Operation.DESCRIBE, Resource.GROUP, group.id))
        ]
    )


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
