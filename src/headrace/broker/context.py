"""What a handler knows about a request in addition to the message."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.wire.schema import Message

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True)
class Session:
    """A client connection, as handlers see it."""

    host: str  # the client's IP address
    listener: str  # name: PLAINTEXT, SSL, …
    principal: str = ANONYMOUS
    port: int = 0  # the client's
    software_name: str = ""  # from ApiVersions
    software_version: str = ""


class Context(NamedTuple):
    """The header of a request, and the session it came from."""

    session: Session
    api_key: int
    api_version: int
    client_id: str | None
    correlation_id: int


HandlerResult = Message | Awaitable[Message | None] | None
"""What a handler returns: a response, an awaitable of one, or None for no response (acks=0)."""
