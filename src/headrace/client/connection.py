"""One connection: a non-blocking socket with its state, its outgoing bytes and its requests in flight.

    connect → (TLS handshake) → ApiVersions → (SASL) → ready ⇄ (SASL again, before the session ends: KIP-368)
    send: gather list → queue → `sendmsg`; what the kernel does not take stays in the queue → EVENT_WRITE
    receive: bytes → FrameReader → the oldest request in flight

The set-up is a generator that yields a message and is sent its answer: see `_set_up`. Everything here belongs to the
thread that polls.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import socket
import ssl
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.client import tls
from headrace.client.addresses import Address, Endpoint
from headrace.client.prompt_socket import PromptSocket
from headrace.client.requests import InFlight, Request
from headrace.errors import (
    AuthenticationError,
    Code,
    ConnectionFailedError,
    HeadraceError,
    MalformedError,
    UnsupportedVersionError,
    error_name,
)
from headrace.wire import frames
from headrace.wire.api import api_name
from headrace.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.wire.framing import CHUNK_BYTES, FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.sasl import Mechanism
from headrace.wire.schema import Message

RECEIVES_MAX = 16  # in one turn: other connections want theirs too
GATHER_MAX = 512  # buffers in one sendmsg; the system allows 1024
CORRELATION_ID_MAX = 0x7FFFFFFF
REAUTHENTICATE_FROM, REAUTHENTICATE_TO = 0.85, 0.95
"""The part of a session's life after which to authenticate again: by chance, so that clients do not come in step."""

NEVER_MS = float("inf")

_WRONG_LISTENER = "is it the port of a Kafka broker, and does security.protocol match its listener?"


class State(Enum):
    CONNECTING = auto()
    HANDSHAKING = auto()
    NEGOTIATING = auto()
    READY = auto()
    REAUTHENTICATING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class BrokerVersions:
    """What a broker said it can do."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    finalized_features: dict[str, int] = field(default_factory=dict)
    features_epoch: int = -1

    def choose(self, api_key: int, versions: tuple[int, int]) -> int:
        """The highest version both sides know."""
        low, high = self.ranges.get(api_key, (0, -1))
        version = min(high, versions[1])
        if version < low or version < versions[0]:
            offered = f"{low} to {high}" if high >= 0 else "none"
            raise UnsupportedVersionError(
                f"{api_name(api_key)}: needs a version of {versions[0]} to {versions[1]}, the broker speaks {offered}"
            )
        return version


@dataclass(slots=True, frozen=True)
class ConnectionSettings:
    """How connections are made."""

    client_id: str
    request_timeout_ms: float = 30_000
    connect_timeout_ms: float = 10_000
    connect_timeout_max_ms: float = 30_000
    send_buffer_bytes: int = 128 * 1024
    receive_buffer_bytes: int = 32 * 1024
    tls_context: ssl.SSLContext | None = None
    mechanism_factory: Mechanism.Factory | None = None
    frame_bytes_max: int = frames.FRAME_BYTES_MAX


class Connection:
    """A connection to one address of one broker."""

    def __init__(
        self,
        node_id: int,
        endpoint: Endpoint,
        address: Address,
        settings: ConnectionSettings,
        now: float,
        connect_timeout_ms: float | None = None,
    ) -> None:
        self.node_id = node_id
        self.endpoint = endpoint
        self.address = address
        self.settings = settings
        self.state = State.CONNECTING
        self.versions = BrokerVersions()
        self.in_flight: deque[InFlight] = deque()
        self.last_active_ms = now
        self.throttled_until_ms = 0.0
        self.reauthenticate_at_ms = NEVER_MS
        self.wants_write = True
        self.watched_events = 0  # what the selector was told; the network client's
        self._connect_timeout_ms = settings.connect_timeout_ms if connect_timeout_ms is None else connect_timeout_ms
        self.set_up_since_ms = now
        self._answered = False
        self._correlation_id = 0
        self._out: deque[Buffer] = deque()
        self._queued_bytes = 0  # since the connection was made, as is the next
        self._written_bytes = 0
        self._reader = FrameReader(settings.frame_bytes_max)
        self._frames: list[Buffer] = []
        self._steps: Generator[tuple[Message, int], Message, None] | None = None
        self._step_pending: tuple[int, int, int] | None = None  # API key, version, correlation id
        self._tls: ssl.SSLSocket | None = None
        self.socket = self._open()
        self.fileno = self.socket.fileno()

    # -- set-up --------------------------------------------------------------------------------

    def _open(self) -> socket.socket:
        sock = PromptSocket(self.address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.settings.send_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.send_buffer_bytes)
            if self.settings.receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.settings.receive_buffer_bytes)
            code = sock.connect_ex(self.address.sockaddr)
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                raise ConnectionFailedError(self._not_connected(code))
        except BaseException:
            sock.close()
            raise
        return sock

    def _not_connected(self, code: int) -> str:
        hint = "; is a broker running there?" if code == errno.ECONNREFUSED else ""
        return f"cannot connect to {self.endpoint} ({self.address}): {os.strerror(code)}{hint}"

    def _connected(self, now: float) -> None:
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise ConnectionFailedError(self._not_connected(code))
        if self.settings.tls_context is None:
            self._negotiate(now)
            return
        try:
            self.socket = self._tls = tls.wrap(self.socket, self.settings.tls_context, self.endpoint.host)
        except OSError as error:
            raise ConnectionFailedError(f"connection to {self.endpoint} broke: {error}") from None
        self.state = State.HANDSHAKING
        self._shake_hands(now)

    def _shake_hands(self, now: float) -> None:
        assert self._tls is not None
        try:
            outcome = tls.handshake(self._tls)
        except ConnectionError as error:
            raise ConnectionFailedError(str(error)) from None
        self.wants_write = outcome == "want_write"
        if outcome == "done":
            self._negotiate(now)

    def _negotiate(self, now: float) -> None:
        self.state = State.NEGOTIATING
        self.wants_write = False
        self._steps = self._set_up(now)
        self._next_step(None)

    def _set_up(self, now: float) -> Generator[tuple[Message, int], Message, None]:
        """ApiVersions first, then SASL: each `yield` sends a message in a version and gets the answer."""
        from headrace import __version__

        about = ApiVersionsRequest(client_software_name="headrace", client_software_version=__version__)
        answer = yield about, 3
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code == Code.UNSUPPORTED_VERSION:
            answer = yield ApiVersionsRequest(), 0
            assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code:
            raise ConnectionFailedError(
                f"{self.endpoint} refused to say its API versions: {error_name(answer.error_code)}"
            )
        self.versions = BrokerVersions(
            {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys},
            {feature.name: feature.max_version_level for feature in answer.finalized_features},
            answer.finalized_features_epoch,
        )
        if self.settings.mechanism_factory is not None:
            yield from self._authenticate(self.settings.mechanism_factory(self.endpoint.host), now)

    def _authenticate(self, mechanism: Mechanism, now: float) -> Generator[tuple[Message, int], Message, None]:
        try:
            handshake_version = self.versions.choose(SaslHandshakeRequest.api_key, (1, 1))
            version = self.versions.choose(SaslAuthenticateRequest.api_key, (0, 2))
        except UnsupportedVersionError as error:
            raise mechanism.failure(f"it has no SASL of our kind ({error})") from None
        answer = yield SaslHandshakeRequest(mechanism=mechanism.name), handshake_version
        assert isinstance(answer, SaslHandshakeResponse)
        if answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
            raise mechanism.not_offered(answer.mechanisms)
        if answer.error_code:
            raise AuthenticationError(
                f"{self.endpoint} wants no SASL on this port ({error_name(answer.error_code)}): set security.protocol "
                f"to PLAINTEXT or SSL, or use the port of a SASL listener"
            )
        token: bytes | None = mechanism.first()
        lifetime_ms = 0
        while token is not None:
            answer = yield SaslAuthenticateRequest(auth_bytes=token), version
            assert isinstance(answer, SaslAuthenticateResponse)
            if answer.error_code:
                raise mechanism.failure(answer.error_message or error_name(answer.error_code))
            lifetime_ms = answer.session_lifetime_ms
            token = mechanism.step(answer.auth_bytes)
        # The broker has counted since it answered: from before the exchange is on the safe side.
        part = random.uniform(REAUTHENTICATE_FROM, REAUTHENTICATE_TO)
        self.reauthenticate_at_ms = now + lifetime_ms * part if lifetime_ms > 0 else NEVER_MS

    def reauthenticate(self, now: float) -> None:
        """Prove once more who we are, on the same connection, with nothing in flight (KIP-368)."""
        assert self.settings.mechanism_factory is not None
        assert not self.in_flight
        self.state = State.REAUTHENTICATING
        self.set_up_since_ms = now
        self.reauthenticate_at_ms = NEVER_MS
        self._steps = self._authenticate(self.settings.mechanism_factory(self.endpoint.host), now)
        self._next_step(None)

    def _next_step(self, answer: Message | None) -> None:
        assert self._steps is not None
        try:
            message, version = self._steps.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            self._steps = None
            self.state = State.READY
            return
        correlation_id = self._next_id()
        self._step_pending = (message.api_key, version, correlation_id)
        self._queue(frames.encode_request(message, version, correlation_id, self.settings.client_id))
        self.flush()

    def _take_set_up_frame(self, frame: Buffer) -> None:
        if self._step_pending is None:
            raise MalformedError(f"{self.endpoint} sent something that nobody asked for: {_WRONG_LISTENER}", offset=0)
        api_key, version, expected = self._step_pending
        self._check_id(frame, expected)
        # A broker that does not know our version says so in version 0, whatever we asked in (KIP-511).
        if api_key == ApiVersionsRequest.api_key and int.from_bytes(frame[4:6], "big") == Code.UNSUPPORTED_VERSION:
            version = 0
        _, answer = frames.decode_response(api_key, version, frame)
        self._step_pending = None
        self._next_step(answer)

    # -- requests ------------------------------------------------------------------------------

    def send(self, request: Request, now: float) -> InFlight:
        """Choose a version, encode, and queue: `flush` is next. What fails here has not touched the connection."""
        version = self.versions.choose(request.api_key, request.versions)
        correlation_id = self._next_id()
        parts = frames.encode_request(request.build(version), version, correlation_id, self.settings.client_id)
        size = self._queue(parts)
        entry = InFlight(request, correlation_id, version, now, size, self._queued_bytes)
        self.in_flight.append(entry)
        self.last_active_ms = now
        return entry

    def _next_id(self) -> int:
        self._correlation_id = self._correlation_id + 1 if self._correlation_id < CORRELATION_ID_MAX else 0
        return self._correlation_id

    def _queue(self, parts: list[Buffer]) -> int:
        size = sum(map(len, parts))
        self._queued_bytes += size
        self._out.extend(parts)
        return size

    def flush(self) -> None:
        """Write what the kernel takes; `wants_write` says whether something is left."""
        out, sock = self._out, self.socket
        try:
            while out:
                if self._tls is not None:
                    sent = tls.send(self._tls, out)
                    if not sent:
                        break
                elif len(out) == 1:
                    sent = sock.send(out[0])
                else:
                    sent = sock.sendmsg(out if len(out) <= GATHER_MAX else list(itertools.islice(out, GATHER_MAX)))
                self._written_bytes += sent
                while out and sent >= (size := len(out[0])):
                    sent -= size
                    out.popleft()
                if sent:
                    out[0] = memoryview(out[0])[sent:]
                    if self._tls is None:
                        break  # the kernel took what it had room for
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionFailedError(f"connection to {self.endpoint} broke while writing: {error}") from None
        self.wants_write = bool(out)

    # -- events --------------------------------------------------------------------------------

    def on_writable(self, now: float) -> None:
        if self.state is State.CONNECTING:
            self._connected(now)
        elif self.state is State.HANDSHAKING:
            self._shake_hands(now)
        else:
            self.flush()

    def on_readable(self, now: float, answered: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        """Append the answers that have arrived; those before an error count as well."""
        if self.state is State.HANDSHAKING:
            self._shake_hands(now)
            return
        for _ in range(RECEIVES_MAX):
            try:
                more = self._receive()
            finally:
                if self._frames:
                    self._take_frames(now, answered)
            if not more:
                break

    def _take_frames(self, now: float, answered: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        received, self._frames = self._frames, []
        for frame in received:
            if self.state is State.READY:
                self._match(frame, answered)
                self.last_active_ms = now
            else:
                self._take_set_up_frame(frame)

    def _receive(self) -> bool:
        """Read once into `_frames`; True if there may be more."""
        try:
            if self._tls is not None:
                data = tls.receive(self._tls, CHUNK_BYTES)
                if data is None:
                    return False
                if not data:
                    raise ConnectionFailedError(self._closed_by_peer())
                self._reader.feed(data, self._frames)
                return True
            room = self._reader.room()
            count = self.socket.recv_into(room)
        except BlockingIOError:
            return False
        except OSError as error:
            hint = f": {_WRONG_LISTENER}" if self.state is State.NEGOTIATING else ""
            raise ConnectionFailedError(f"connection to {self.endpoint} broke: {error}{hint}") from None
        if not count:
            raise ConnectionFailedError(self._closed_by_peer())
        self._reader.received(count, self._frames)
        return count == len(room)

    def _closed_by_peer(self) -> str:
        if self.state is State.NEGOTIATING:
            return f"{self.endpoint} closed the connection before it was set up: {_WRONG_LISTENER}"
        if self.in_flight and not self._answered and self.settings.mechanism_factory is None:
            return (
                f"{self.endpoint} closed the connection at the first request: if its listener wants SASL, set "
                f"security.protocol and sasl.mechanism"
            )
        return f"{self.endpoint} closed the connection with {len(self.in_flight)} requests in flight"

    def _match(self, frame: Buffer, answered: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        in_flight = self.in_flight
        while in_flight and not in_flight[0].request.expects_response:
            answered.append((self, in_flight.popleft(), None))
        if not in_flight:
            raise MalformedError(f"{self.endpoint} sent an answer that nobody waits for", offset=0)
        self._check_id(frame, in_flight[0].correlation_id)
        self._answered = True
        answered.append((self, in_flight.popleft(), frame))

    def _check_id(self, frame: Buffer, expected: int) -> None:
        correlation_id = frames.decode_correlation_id(frame)
        if correlation_id != expected:
            raise MalformedError(
                f"{self.endpoint} answered request {correlation_id}, and {expected} was due: closing, for what follows "
                f"cannot be trusted",
                offset=0,
            )

    def take_unanswered(self, answered: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        """Requests that expect no response are over when they are written."""
        in_flight = self.in_flight
        while (
            in_flight and not in_flight[0].request.expects_response and in_flight[0].written_at <= self._written_bytes
        ):
            answered.append((self, in_flight.popleft(), None))

    # -- time ----------------------------------------------------------------------------------

    def overdue(self, now: float) -> HeadraceError | None:
        """Why this connection has to go, if something takes too long."""
        if self.state is not State.READY:
            waited = now - self.set_up_since_ms
            if waited >= self._connect_timeout_ms:
                return ConnectionFailedError(
                    f"connection to {self.endpoint} ({self.address}) not set up after {waited:.0f} ms, "
                    f"{self.state.name.lower()}: {_WRONG_LISTENER}"
                )
        elif self.in_flight and now - self.in_flight[0].sent_ms >= self.in_flight[0].request.timeout_ms:
            oldest = self.in_flight[0]
            return ConnectionFailedError(
                f"{self.endpoint} did not answer {api_name(oldest.request.api_key)} for {now - oldest.sent_ms:.0f} ms"
            )
        return None

    def next_deadline_ms(self, idle_ms: float = NEVER_MS) -> float:
        """When to look at this connection though nothing happens on it; `idle_ms`: how long it may do nothing."""
        if self.state is not State.READY:
            return self.set_up_since_ms + self._connect_timeout_ms
        if self.in_flight:
            return self.in_flight[0].sent_ms + self.in_flight[0].request.timeout_ms
        return min(self.last_active_ms + idle_ms, self.reauthenticate_at_ms)

    def close(self) -> list[InFlight]:
        """Close the socket; what was in flight is handed back."""
        self.state = State.CLOSED
        self.socket.close()
        lost = list(self.in_flight)
        self.in_flight.clear()
        self._out.clear()
        return lost
