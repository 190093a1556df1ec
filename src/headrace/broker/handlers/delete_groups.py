"""Key 42: forget groups that have no members, and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


async def handle(broker: Broker, context: Context, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results = []
    for name in dict.fromkeys(message.groups_names):
        code = await _delete(broker, context, name)
        results.append(DeletableGroupResult(group_id=name, error_code=code))
    return DeleteGroupsResponse(results=results)


def failure(context: Context, message: DeleteGroupsRequest, code: int) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=code) for name in message.groups_names]
    )


async def _delete(broker: Broker, context: Context, group_id: str) -> int:
    if not broker.authorizer.allows(context.session, Operation.DELETE, Resource.GROUP, group_id):
        return Code.GROUP_AUTHORIZATION_FAILED
    try:
        await broker.groups.delete(group_id)
    except BrokerError as error:
        return error.code
    return Code.NONE
