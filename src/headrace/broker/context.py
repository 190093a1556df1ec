"""What a handler is told beside the message."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.wire.schema import Message

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True)
class Session:
    """A connection, as far as handlers care."""

    host: str  # of the peer, as an address
    listener: str  # its name: PLAINTEXT, SSL, …
    principal: str = ANONYMOUS
    client_software: str = ""  # name and version, from ApiVersions 3+


class Context(NamedTuple):
    """The request that a message came in."""

    session: Session
    api_key: int
    api_version: int
    client_id: str | None
    correlation_id: int


Answer = Message | Awaitable[Message | None] | None
"""What a handler returns. None: say nothing (acks=0). An awaitable: later; the connection waits."""
