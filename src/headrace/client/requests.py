"""A request on its way, and what comes of it.

Request(build…) → NetworkClient.send → InFlight on a connection → Response → request.on_response
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.wire.schema import Message


@dataclass(slots=True)
class Request:
    """What to ask, in which versions, and who wants to know.

    `build` makes the message once the version is known; a plain message will do where all versions say the same.
    """

    api_key: int
    build: Callable[[int], Message]
    on_response: Callable[[Response], None]
    versions: tuple[int, int]  # what we can handle; the broker's range narrows it
    timeout_ms: float
    expects_response: bool = True

    @classmethod
    def of(
        cls,
        message: Message,
        on_response: Callable[[Response], None],
        timeout_ms: float,
        versions: tuple[int, int] | None = None,
    ) -> Request:
        """A request whose message does not depend on the version."""
        return cls(
            message.api_key,
            lambda version: message,
            on_response,
            versions or (message.versions.first, message.versions.last),
            timeout_ms,
        )


@dataclass(slots=True)
class Response:
    """The answer, or the reason why there is none."""

    request: Request
    node_id: int
    version: int
    message: Any = None  # None: no answer was expected, or there is an error
    error: HeadraceError | None = None
    latency_ms: float = 0.0

    @property
    def throttle_ms(self) -> int:
        return getattr(self.message, "throttle_time_ms", 0) or 0


@dataclass(slots=True)
class InFlight:
    """A request that was handed to a connection."""

    request: Request
    correlation_id: int
    version: int
    sent_ms: float
    size: int  # in bytes
    written_at: int  # how many bytes the connection will have written when all of this one is
