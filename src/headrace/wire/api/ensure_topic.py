"""Key 30002, our own: have the controller make a topic that somebody asked for, or one of the internal ones."""

from __future__ import annotations

from headrace.wire.schema import Message, int16, int32, int64, string


class EnsureTopicRequest(Message, api_key=30_002, versions="0-0", flexible="0+"):
    broker_id: int = int32()
    name: str = string()


class EnsureTopicResponse(Message, api_key=30_002, versions="0-0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    generation: int = int64()  # of the catalog, and its next number when the topic was there
    next_number: int = int64()
