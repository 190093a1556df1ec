"""Key 36: a token of the mechanism that SaslHandshake chose, and the answer to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.sessions import gate_of
from headrace.errors import BrokerError, Code
from headrace.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


async def handle(broker: Broker, context: Context, message: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    gate = gate_of(context.session)
    if gate is None:
        return SaslAuthenticateResponse(
            error_code=Code.ILLEGAL_SASL_STATE, error_message="this listener asks nobody who it is"
        )
    try:
        answer, lifetime_ms = await gate.token(bytes(message.auth_bytes))
    except BrokerError as error:
        return SaslAuthenticateResponse(error_code=error.code, error_message=str(error.args[0]))
    return SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms)
