"""Key 25: the offsets of a group join a transaction. v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.transactions.answers import code_of
from headrace.errors import BrokerError, Code
from headrace.wire.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

FENCED_SINCE = 2


async def handle(broker: Broker, context: Context, message: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, message.transactional_id):
        return AddOffsetsToTxnResponse(error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows(session, Operation.READ, Resource.GROUP, message.group_id):
        return AddOffsetsToTxnResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    try:
        await broker.transactions.add_offsets(
            message.transactional_id, message.producer_id, message.producer_epoch, message.group_id
        )
    except BrokerError as error:
        return AddOffsetsToTxnResponse(error_code=code_of(error, context.api_version, fenced_since=FENCED_SINCE))
    return AddOffsetsToTxnResponse()
