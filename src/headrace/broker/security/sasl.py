"""SASL authentication of a connection.

    HANDSHAKE      SaslHandshake → AUTHENTICATE
    AUTHENTICATE   SaslAuthenticate, or bare tokens after SaslHandshake v0, one or more times → OPEN
    OPEN           any request; SaslHandshake re-authenticates (KIP-368) if the session has a lifetime
    FAILED         no request: the response is sent after a delay, then the connection is closed

The server consults it as follows, for a session whose `sasl` is not None:

    before reading a frame     reject it if larger than sasl.frame_bytes_max
    a frame is read            sasl.expects_token: the frame is a token → await sasl.bare_token(frame)
    a request is decoded       not sasl.admits(api_key): close the connection
    a response is sent         sasl.failed: close the connection
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from headrace.broker.clock import TimerClock
from headrace.broker.context import ANONYMOUS, Session
from headrace.broker.security.mechanisms import ServerMechanism
from headrace.errors import AuthenticationError, BrokerError, Code
from headrace.wire.api import ApiKey

log = logging.getLogger("headrace.broker")

REAUTHENTICATION_INTERVAL_MIN_MS = 1_000
"""A client may not re-authenticate more often: each exchange costs the broker CPU."""

NAME_CHARACTERS_MAX = 40
"""An unknown mechanism name is truncated to this length in responses and logs."""


class SaslState(Enum):
    """The state of an authentication."""

    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    OPEN = auto()
    FAILED = auto()


ADMITTED = {
    SaslState.HANDSHAKE: frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE}),
    SaslState.AUTHENTICATE: frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}),
    SaslState.FAILED: frozenset[int](),
}
"""The requests that are served before a client is authenticated. Out of turn they fail with ILLEGAL_SASL_STATE."""

MechanismFactory = Callable[[], ServerMechanism]


class SaslAuthentication:
    """The authentication of one connection."""

    def __init__(
        self,
        session: Session,
        mechanisms: Mapping[str, MechanismFactory],
        clock: TimerClock,
        *,
        reauthenticate_after_ms: Mapping[str, int],
        failure_delay_ms: int,
        frame_bytes_max: int,
    ) -> None:
        self._session = session
        self._mechanisms = mechanisms
        self._clock = clock
        self._reauthenticate_after_ms = reauthenticate_after_ms
        self._failure_delay_ms = failure_delay_ms
        self._frame_bytes_max = frame_bytes_max
        self._state = SaslState.HANDSHAKE
        self._name = ""  # of the mechanism
        self._mechanism: ServerMechanism | None = None
        self._expires_at_ms: float | None = None  # by the monotonic clock
        self._reauthenticated_ms: float | None = None
        self.expects_token = False  # the next frame is a bare token

    @property
    def failed(self) -> bool:
        """Whether to close the connection after the last response."""
        return self._state is SaslState.FAILED

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest frame to accept; None: no limit of its own."""
        return None if self._state is SaslState.OPEN else self._frame_bytes_max

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(self._mechanisms)

    def admits(self, api_key: int) -> bool:
        """Return whether to serve a request; otherwise close the connection."""
        if self._state is not SaslState.OPEN:
            return api_key in ADMITTED[self._state]
        if self._expires_at_ms is None or api_key == ApiKey.SASL_HANDSHAKE:
            return True
        return self._clock.monotonic_ms() <= self._expires_at_ms

    async def choose(self, name: str, *, bare_tokens: bool) -> None:
        """Handle SaslHandshake: select a mechanism."""
        if not self._may_handshake():
            raise await self._failure("unexpected SaslHandshake", Code.ILLEGAL_SASL_STATE)
        factory = self._mechanisms.get(name)
        if factory is None:
            name_shown = name[:NAME_CHARACTERS_MAX]
            message = (
                f"SASL mechanism {name_shown!r} is not enabled on this listener: use {', '.join(self._mechanisms)}"
            )
            raise await self._failure(message, Code.UNSUPPORTED_SASL_MECHANISM)
        # Re-authentication with another mechanism fails at the first token, as in Kafka.
        self._mechanism = factory() if self._name in ("", name) else None
        self._name = self._name or name
        self._state = SaslState.AUTHENTICATE
        self.expects_token = bare_tokens

    def _may_handshake(self) -> bool:
        if self._state is SaslState.HANDSHAKE:
            return True
        if self._state is not SaslState.OPEN or self._expires_at_ms is None:
            return False
        now, last = self._clock.monotonic_ms(), self._reauthenticated_ms
        if last is not None and now - last < REAUTHENTICATION_INTERVAL_MIN_MS:
            return False
        self._reauthenticated_ms = now
        return True

    async def token(self, token: bytes) -> tuple[bytes, int]:
        """Handle SaslAuthenticate: return the response and the session lifetime in ms (0: unlimited, or not done)."""
        if self._state is not SaslState.AUTHENTICATE:
            raise await self._failure("unexpected SaslAuthenticate", Code.ILLEGAL_SASL_STATE)
        if self._mechanism is None:
            raise await self._failure(f"re-authentication must use the same mechanism: {self._name}")
        try:
            response = await self._mechanism.step(token)
        except AuthenticationError as error:
            raise await self._failure(str(error)) from None
        if self._mechanism.user is None:
            return response, 0
        return response, await self._open(self._mechanism.user, self._mechanism.expires_ms)

    async def bare_token(self, frame: bytes) -> bytes:
        """Handle a frame that is a bare token (after SaslHandshake v0). A BrokerError closes the connection."""
        response, _ = await self.token(frame)
        self.expects_token = self._state is SaslState.AUTHENTICATE
        return response

    async def _open(self, user: str, credential_ends_ms: int | None) -> int:
        principal = f"User:{user}"
        if self._session.principal not in (ANONYMOUS, principal):
            raise await self._failure("re-authentication must use the same user")
        after_ms = self._reauthenticate_after_ms[self._name]
        limits = [after_ms] if after_ms > 0 else []
        if credential_ends_ms is not None:
            limits.append(max(credential_ends_ms - self._clock.time_ms(), 0))
        lifetime_ms = min(limits, default=0)
        self._expires_at_ms = self._clock.monotonic_ms() + lifetime_ms if limits else None
        self._session.principal = principal
        self._mechanism = None
        self._state = SaslState.OPEN
        return lifetime_ms

    async def _failure(self, message: str, code: Code = Code.SASL_AUTHENTICATION_FAILED) -> BrokerError:
        """Return the error to raise, after a delay that slows down guessing. An authenticated session stays open."""
        if self._state is SaslState.OPEN and code == Code.ILLEGAL_SASL_STATE:
            return BrokerError(f"{message}: the client is already authenticated", code=code)
        self._state = SaslState.FAILED
        self._mechanism = None
        log.info("authentication of %s on %s failed: %s", self._session.host, self._session.listener, message)
        waited = asyncio.get_running_loop().create_future()
        self._clock.call_later(self._failure_delay_ms, _wake, waited)
        await waited
        return BrokerError(message, code=code)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(slots=True)
class SaslSession(Session):
    """A session on a listener with SASL."""

    sasl: SaslAuthentication | None = None


def sasl_of(session: Session) -> SaslAuthentication | None:
    """Return the authentication of a session; None if its listener has no SASL."""
    return session.sasl if isinstance(session, SaslSession) else None
