"""Key 14: the leader hands out the work, everybody gets his part. Answered when the leader has, and the log has it.

v3 static members · v5 the protocol has to be named, so that a member which missed a change of it is found
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

PROTOCOL_SINCE = 5


def handle(broker: Broker, context: Context, message: SyncGroupRequest) -> Answer:
    if context.api_version >= PROTOCOL_SINCE and None in (message.protocol_type, message.protocol_name):
        return SyncGroupResponse(error_code=Code.INCONSISTENT_GROUP_PROTOCOL)
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, message.group_id):
        return SyncGroupResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    try:
        syncing = broker.groups.sync(message)
    except BrokerError as error:
        return SyncGroupResponse(error_code=error.code)
    return syncing.result() if syncing.done() else syncing
