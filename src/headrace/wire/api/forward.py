"""Key 30001, our own: a client's request that only the controller can answer, handed on by the broker that got it."""

from __future__ import annotations

from headrace.wire.schema import Message, bytes_, int16, int32, int64, string


class ForwardRequest(Message, api_key=30_001, versions="0-0", flexible="0+"):
    broker_id: int = int32()
    request_key: int = int16()
    request_version: int = int16()
    principal: str = string()
    host: str = string()
    listener: str = string()
    client_id: str | None = string(nullable="0+", default=None)
    body: bytes = bytes_(secret=True)


class ForwardResponse(Message, api_key=30_001, versions="0-0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    generation: int = int64()  # of the catalog, and its next number when the answer was made
    next_number: int = int64()
    body: bytes = bytes_(secret=True)
