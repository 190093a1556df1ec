"""Key 13: members leave. v3 several at once, static ones by their instance id · v5 they may say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

SEVERAL_SINCE = 3


def handle(broker: Broker, context: Context, message: LeaveGroupRequest) -> Answer:
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, message.group_id):
        return LeaveGroupResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    several = context.api_version >= SEVERAL_SINCE
    members = message.members if several else (MemberIdentity(member_id=message.member_id),)
    try:
        results = broker.groups.leave(message.group_id, members)
    except BrokerError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not several:
        return LeaveGroupResponse(error_code=results[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code)
            for member, code in zip(members, results, strict=True)
        ]
    )
