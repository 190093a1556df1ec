"""Key 30001, our own: answer a client's request that came to another broker, as if it had come here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.cluster.forwarding import FORWARDED
from headrace.broker.context import Answer, Context, Session
from headrace.broker.fault_answers import error_answer
from headrace.broker.handlers import supported
from headrace.errors import BrokerError, Code
from headrace.wire.api import request_class
from headrace.wire.api.forward import ForwardRequest, ForwardResponse
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: ForwardRequest) -> Answer:
    controller_for(broker, context)
    spoken = supported(message.request_key)
    if (
        message.request_key not in FORWARDED
        or spoken is None
        or message.request_version not in range(spoken.first, spoken.last + 1)
    ):
        raise BrokerError(f"requests of key {message.request_key} are not handed on", code=Code.INVALID_REQUEST)
    return _answered(broker, context, message)


async def _answered(broker: Broker, context: Context, message: ForwardRequest) -> ForwardResponse:
    session = Session(message.host, message.listener, message.principal)
    inner = Context(session, message.request_key, message.request_version, message.client_id, context.correlation_id)
    request = request_class(message.request_key).decode(message.request_version, message.body)
    response = await _handled(broker, inner, request)
    recent = broker.catalog.recent
    return ForwardResponse(
        generation=recent.generation,
        next_number=recent.next_number,
        body=response.encode(message.request_version),
    )


async def _handled(broker: Broker, context: Context, request: Message) -> Message:
    try:
        answer = broker.handler(context.api_key)(broker, context, request)
        response = await answer if inspect.isawaitable(answer) else answer
    except BrokerError as error:
        return await error_answer(context, request, error.code, _never, str(error.args[0]))
    assert response is not None, "what is handed on has an answer"
    return response


async def _never() -> Message | None:
    raise AssertionError("only Metadata asks for more, and that is not handed on")
