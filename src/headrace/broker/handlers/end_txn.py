"""Key 26: commit or abort. Answered when the decision is in the log; the markers follow.

v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH · v5 transactions of version 2: every end gives the producer
another epoch, or another id when the epochs are used up, and the answer says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.transactions.answers import code_of
from headrace.broker.transactions.transaction import VERSION_1, VERSION_2
from headrace.errors import BrokerError, Code
from headrace.wire.api.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

FENCED_SINCE = 2
VERSION_2_SINCE = 5


async def handle(broker: Broker, context: Context, message: EndTxnRequest) -> EndTxnResponse:
    name = message.transactional_id
    if not broker.authorizer.allows(context.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, name):
        return EndTxnResponse(error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    version = VERSION_2 if context.api_version >= VERSION_2_SINCE else VERSION_1
    try:
        producer = await broker.transactions.end_transaction(
            name, message.producer_id, message.producer_epoch, message.committed, version
        )
    except BrokerError as error:
        return EndTxnResponse(error_code=code_of(error, context.api_version, fenced_since=FENCED_SINCE))
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
