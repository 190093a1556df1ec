"""SASL authentication."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, bytes_, int16, int64, string
from headrace.wire.schema import Message, RequestMessage

# Key 17: select a SASL mechanism.


class SaslHandshakeRequest(RequestMessage["SaslHandshakeResponse"], api_key=17, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: Sequence[str] = array(string)


# Key 36: exchange tokens of the SASL mechanism.


class SaslAuthenticateRequest(RequestMessage["SaslAuthenticateResponse"], api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = bytes_(secret=True)


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = bytes_(secret=True)
    session_lifetime_ms: int = int64("1+", ignorable=True)
