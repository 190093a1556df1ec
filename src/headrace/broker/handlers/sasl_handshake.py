"""Key 17: a client chooses how to prove who it is. After version 0 it goes on with bare tokens (security/gate.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.sessions import gate_of
from headrace.errors import BrokerError, Code
from headrace.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


async def handle(broker: Broker, context: Context, message: SaslHandshakeRequest) -> SaslHandshakeResponse:
    gate = gate_of(context.session)
    if gate is None:
        return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)
    try:
        await gate.choose(message.mechanism, bare_tokens=context.api_version == 0)
    except BrokerError as error:
        known = () if error.code == Code.ILLEGAL_SASL_STATE else gate.mechanisms
        return SaslHandshakeResponse(error_code=error.code, mechanisms=known)
    return SaslHandshakeResponse(mechanisms=gate.mechanisms)
