"""Key 17: choose a SASL mechanism."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, array, int16, string


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: Sequence[str] = array(string)
