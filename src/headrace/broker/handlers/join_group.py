"""Key 11: enter a group, or come to its next rebalance. Answered when that is over.

v1 a time for rebalances · v4 new members are given an id first (KIP-394) · v5 static members · v7 the type of protocol
in the answer · v9 a leader that came back need not assign again (KIP-814)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.groups.joining import Client
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

NO_PROTOCOL_SINCE = 7
REBALANCE_TIMEOUT_SINCE = 1


def handle(broker: Broker, context: Context, message: JoinGroupRequest) -> Answer:
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, message.group_id):
        return failure(context, message, Code.GROUP_AUTHORIZATION_FAILED)
    if context.api_version < REBALANCE_TIMEOUT_SINCE:
        message = message.replace(rebalance_timeout_ms=message.session_timeout_ms)
    client = Client(context.client_id or "", f"/{context.session.host}", context.api_version)
    try:
        joining = broker.groups.join(message, client)
    except BrokerError as error:
        return failure(context, message, error.code)
    if joining.done():
        return _fitting(context, joining.result())
    return _answer(context, joining)


def failure(context: Context, message: JoinGroupRequest, code: int) -> JoinGroupResponse:
    return _fitting(context, JoinGroupResponse(error_code=code, member_id=message.member_id, protocol_name=None))


async def _answer(context: Context, joining: asyncio.Future[JoinGroupResponse]) -> JoinGroupResponse:
    return _fitting(context, await joining)


def _fitting(context: Context, response: JoinGroupResponse) -> JoinGroupResponse:
    if response.protocol_name is None and context.api_version < NO_PROTOCOL_SINCE:
        return response.replace(protocol_name="")
    return response
