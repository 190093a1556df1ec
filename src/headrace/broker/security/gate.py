"""Who is on the other side of a connection with SASL, and until when that counts.

    HANDSHAKE      SaslHandshake (17) → AUTHENTICATE
    AUTHENTICATE   SaslAuthenticate (36), or bare tokens after SaslHandshake 0, once or more → OPEN
    OPEN           everything; SaslHandshake begins again (KIP-368), if the session has an end
    FAILED         nothing: the answer goes out, after a while, then the connection is closed

What the server does with it, for a session whose `gate` is not None:

    before a frame is read     no more than gate.frame_bytes_max of it
    a frame comes              gate.raw: the whole frame is a token → answer = await gate.bare_token(frame)
    a request comes            not gate.admits(api_key): close
    an answer has gone out     gate.failed: close
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto

from headrace.broker.clock import Clock
from headrace.broker.context import ANONYMOUS, Session
from headrace.broker.security.mechanisms import Mechanism
from headrace.errors import AuthenticationError, BrokerError, Code

log = logging.getLogger("headrace.broker")

REAUTHENTICATION_INTERVAL_MIN_MS = 1_000
"""A client may not begin again more often than this: each time costs the broker something."""

NAME_CHARACTERS_MAX = 40
"""As much of a mechanism that nobody knows as goes into answers and the log."""

_HANDSHAKE, _VERSIONS, _AUTHENTICATE = 17, 18, 36


class State(Enum):
    """Of an authentication."""

    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    OPEN = auto()
    FAILED = auto()


ADMITTED = {
    State.HANDSHAKE: frozenset({_HANDSHAKE, _VERSIONS, _AUTHENTICATE}),
    State.AUTHENTICATE: frozenset({_HANDSHAKE, _AUTHENTICATE}),
    State.FAILED: frozenset[int](),
}
"""What may be asked before a client is known. What is out of turn among them is answered with ILLEGAL_SASL_STATE."""

Factory = Callable[[], Mechanism]


class Gate:
    """The authentication of one connection."""

    def __init__(
        self,
        session: Session,
        mechanisms: Mapping[str, Factory],
        clock: Clock,
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
        self._state = State.HANDSHAKE
        self._name = ""  # of the mechanism
        self._mechanism: Mechanism | None = None
        self._expires_at_ms: float | None = None  # by the monotonic clock
        self._began_again_ms: float | None = None
        self.raw = False  # the next frame is a bare token

    @property
    def failed(self) -> bool:
        """The connection is to be closed, when the last answer is out."""
        return self._state is State.FAILED

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest frame to take; None: what the broker takes of everybody."""
        return None if self._state is State.OPEN else self._frame_bytes_max

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(self._mechanisms)

    def admits(self, api_key: int) -> bool:
        """Whether a request is to be answered. If not, the connection is to be closed."""
        if self._state is not State.OPEN:
            return api_key in ADMITTED[self._state]
        if self._expires_at_ms is None or api_key == _HANDSHAKE:
            return True
        return self._clock.monotonic_ms() <= self._expires_at_ms

    async def choose(self, name: str, *, bare_tokens: bool) -> None:
        """SaslHandshake: begin with a mechanism."""
        if not self._may_begin():
            raise await self._failure("SaslHandshake is out of turn", Code.ILLEGAL_SASL_STATE)
        factory = self._mechanisms.get(name)
        if factory is None:
            shown = name[:NAME_CHARACTERS_MAX]
            message = f"SASL {shown!r} is not enabled on this listener; there is {', '.join(self._mechanisms)}"
            raise await self._failure(message, Code.UNSUPPORTED_SASL_MECHANISM)
        # Another mechanism than before is refused with the first token, as Kafka does.
        self._mechanism = factory() if self._name in ("", name) else None
        self._name = self._name or name
        self._state = State.AUTHENTICATE
        self.raw = bare_tokens

    def _may_begin(self) -> bool:
        if self._state is State.HANDSHAKE:
            return True
        if self._state is not State.OPEN or self._expires_at_ms is None:
            return False
        now, last = self._clock.monotonic_ms(), self._began_again_ms
        if last is not None and now - last < REAUTHENTICATION_INTERVAL_MIN_MS:
            return False
        self._began_again_ms = now
        return True

    async def token(self, token: bytes) -> tuple[bytes, int]:
        """SaslAuthenticate: the answer, and for how many milliseconds the session is good (0: no end, or not yet)."""
        if self._state is not State.AUTHENTICATE:
            raise await self._failure("SaslAuthenticate is out of turn", Code.ILLEGAL_SASL_STATE)
        if self._mechanism is None:
            raise await self._failure(f"a client that began with SASL {self._name} has to stay with it")
        try:
            answer = await self._mechanism.step(token)
        except AuthenticationError as error:
            raise await self._failure(str(error)) from None
        if self._mechanism.user is None:
            return answer, 0
        return answer, await self._opened(self._mechanism.user, self._mechanism.expires_ms)

    async def bare_token(self, frame: bytes) -> bytes:
        """A frame that is nothing but a token (SaslHandshake 0). A refusal has no words: BrokerError, then close."""
        answer, _ = await self.token(frame)
        self.raw = self._state is State.AUTHENTICATE
        return answer

    async def _opened(self, user: str, credential_ends_ms: int | None) -> int:
        principal = f"User:{user}"
        if self._session.principal not in (ANONYMOUS, principal):
            raise await self._failure("who authenticates again has to be the same user")
        after_ms = self._reauthenticate_after_ms[self._name]
        limits = [after_ms] if after_ms > 0 else []
        if credential_ends_ms is not None:
            limits.append(max(credential_ends_ms - self._clock.time_ms(), 0))
        lifetime_ms = min(limits, default=0)
        self._expires_at_ms = self._clock.monotonic_ms() + lifetime_ms if limits else None
        self._session.principal = principal
        self._mechanism = None
        self._state = State.OPEN
        return lifetime_ms

    async def _failure(self, message: str, code: Code = Code.SASL_AUTHENTICATION_FAILED) -> BrokerError:
        """The error to raise, after the wait that makes guessing slow. An open session out of turn stays open."""
        if self._state is State.OPEN and code == Code.ILLEGAL_SASL_STATE:
            return BrokerError(f"{message}: the client is authenticated", code=code)
        self._state = State.FAILED
        self._mechanism = None
        log.info("authentication of %s on %s failed: %s", self._session.host, self._session.listener, message)
        waited = asyncio.get_running_loop().create_future()
        self._clock.call_later(self._failure_delay_ms, _wake, waited)
        await waited
        return BrokerError(message, code=code)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
