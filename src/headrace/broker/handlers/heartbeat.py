"""Key 12: a member says that it lives, and hears whether it has to join again. v3 static members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.groups.group import Claim
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: HeartbeatRequest) -> Answer:
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, message.group_id):
        return HeartbeatResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    claim = Claim(message.member_id, message.generation_id, message.group_instance_id)
    try:
        return HeartbeatResponse(error_code=broker.groups.heartbeat(message.group_id, claim))
    except BrokerError as error:
        return HeartbeatResponse(error_code=error.code)
