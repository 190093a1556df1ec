"""Key 22: a producer id and epoch; with a transactional id, the next epoch of that id, which fences the one before.

v3 a producer that goes on after an error says who it was (KIP-360) · v4 PRODUCER_FENCED instead of
INVALID_PRODUCER_EPOCH · v5 TRANSACTION_ABORTABLE is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.transactions.answers import code_of
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch
from headrace.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

FENCED_SINCE = 4


async def handle(broker: Broker, context: Context, message: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        _authorize(broker, context, message.transactional_id)
        producer = await broker.transactions.init_producer_id(
            message.transactional_id, message.transaction_timeout_ms, _expected(message)
        )
    except BrokerError as error:
        code = code_of(error, context.api_version, fenced_since=FENCED_SINCE)
        return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _authorize(broker: Broker, context: Context, transactional_id: str | None) -> None:
    authorizer, session = broker.authorizer, context.session
    if transactional_id is not None:
        if not authorizer.allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            raise BrokerError(code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not authorizer.allows_idempotent_write(session):
        raise BrokerError(code=Code.CLUSTER_AUTHORIZATION_FAILED)


def _expected(message: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    given = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
    if given == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
        return None
    if NO_PRODUCER_ID in given:
        raise BrokerError("producer id and epoch go together", code=Code.INVALID_REQUEST)
    return given
