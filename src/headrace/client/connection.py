"""One connection: a non-blocking socket with its state, its outgoing bytes and its requests in flight.

    connect → (TLS handshake) → ApiVersions → (SASL) → ready
    send: gather list → `sendmsg`, what the kernel does not take stays in the queue → EVENT_WRITE
    receive: bytes → FrameDecoder → the oldest request in flight

The set-up is a generator that yields a message and is sent its answer: see `_set_up`. Everything here belongs to the
thread that polls.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.client import tls
from headrace.client.addresses import Address, Endpoint
from headrace.client.requests import InFlight, Request
from headrace.client.sasl import Mechanism
from headrace.errors import (
    AuthenticationError,
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
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message

RECEIVE_BYTES = 256 * 1024
RECEIVES_MAX = 8  # in one turn: other connections want theirs too
GATHER_MAX = 512  # buffers in one sendmsg; the system allows 1024
UNSUPPORTED_VERSION = 35
CORRELATION_ID_MAX = 0x7FFFFFFF


class State(Enum):
    CONNECTING = auto()
    HANDSHAKING = auto()
    NEGOTIATING = auto()
    READY = auto()
    CLOSED = auto()


@dataclass(slots=True)
class BrokerVersions:
    """What a broker said it can do."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    finalized_features: dict[str, int] = field(default_factory=dict)

    def choose(self, api_key: int, versions: tuple[int, int]) -> int:
        """The highest version both sides know."""
        low, high = self.ranges.get(api_key, (0, -1))
        version = min(high, versions[1])
        if version < max(low, versions[0]):
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
        self, node_id: int, endpoint: Endpoint, address: Address, settings: ConnectionSettings, now: float
    ) -> None:
        self.node_id = node_id
        self.endpoint = endpoint
        self.address = address
        self.settings = settings
        self.state = State.CONNECTING
        self.versions = BrokerVersions()
        self.in_flight: deque[InFlight] = deque()
        self.last_active_ms = self.created_ms = now
        self.throttled_until_ms = 0.0
        self.wants_write = True
        self._correlation_id = 0
        self._out: deque[tuple[Buffer, InFlight | None]] = deque()
        self._decoder = frames.FrameDecoder(settings.frame_bytes_max)
        self._steps: Generator[tuple[Message, int], Message, None] | None = None
        self._set_up_pending: tuple[int, int] | None = None  # API key and version of the set-up step under way
        self.socket: socket.socket = self._open()

    # -- set-up --------------------------------------------------------------------------------

    def _open(self) -> socket.socket:
        sock = socket.socket(self.address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.settings.send_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.send_buffer_bytes)
            if self.settings.receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.settings.receive_buffer_bytes)
            code = sock.connect_ex(self.address.sockaddr)
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                raise ConnectionFailedError(f"cannot connect to {self.endpoint}: {os.strerror(code)}")
        except BaseException:
            sock.close()
            raise
        return sock

    def _connected(self, now: float) -> None:
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise ConnectionFailedError(f"cannot connect to {self.endpoint} ({self.address}): {os.strerror(code)}")
        if self.settings.tls_context is None:
            self._negotiate(now)
            return
        self.socket = tls.wrap(self.socket, self.settings.tls_context, self.endpoint.host)
        self.state = State.HANDSHAKING
        self._shake_hands(now)

    def _shake_hands(self, now: float) -> None:
        assert isinstance(self.socket, ssl.SSLSocket)
        outcome = tls.handshake(self.socket)
        self.wants_write = outcome == "want_write"
        if outcome == "done":
            self._negotiate(now)

    def _negotiate(self, now: float) -> None:
        self.state = State.NEGOTIATING
        self.wants_write = False
        self._steps = self._set_up()
        self._next_step(None, now)

    def _set_up(self) -> Generator[tuple[Message, int], Message, None]:
        """ApiVersions first, then SASL: each `yield` sends a message in a version and gets the answer."""
        from headrace import __version__

        # A broker that knows no v3 answers in v0 that it does not, and which versions it has (KIP-511).
        about = ApiVersionsRequest(client_software_name="headrace", client_software_version=__version__)
        answer = yield about, 3
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code == UNSUPPORTED_VERSION:
            answer = yield ApiVersionsRequest(), 0
            assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code:
            raise ConnectionFailedError(
                f"{self.endpoint} refused to say its API versions: {error_name(answer.error_code)}"
            )
        self.versions = BrokerVersions(
            {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys},
            {feature.name: feature.max_version_level for feature in answer.finalized_features},
        )
        if self.settings.mechanism_factory is not None:
            yield from self._authenticate(self.settings.mechanism_factory(self.endpoint.host))

    def _authenticate(self, mechanism: Mechanism) -> Generator[tuple[Message, int], Message, None]:
        version = self.versions.choose(SaslHandshakeRequest.api_key, (1, 1))
        answer = yield SaslHandshakeRequest(mechanism=mechanism.name), version
        assert isinstance(answer, SaslHandshakeResponse)
        if answer.error_code:
            raise AuthenticationError(
                f"{self.endpoint} does not offer SASL mechanism {mechanism.name}, only {', '.join(answer.mechanisms)}"
            )
        version = self.versions.choose(SaslAuthenticateRequest.api_key, (0, 2))
        token: bytes | None = mechanism.first()
        while token is not None:
            answer = yield SaslAuthenticateRequest(auth_bytes=token), version
            assert isinstance(answer, SaslAuthenticateResponse)
            if answer.error_code:
                raise mechanism.failure(answer.error_message or error_name(answer.error_code))
            token = mechanism.step(answer.auth_bytes)

    def _next_step(self, answer: Message | None, now: float) -> None:
        assert self._steps is not None
        try:
            message, version = self._steps.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            self._steps = None
            self.state = State.READY
            return
        self._set_up_pending = (message.api_key, version)
        self._write(frames.encode_request(message, version, self._next_id(), self.settings.client_id), None)

    def _take_set_up_frame(self, frame: bytes, now: float) -> None:
        if self._set_up_pending is None:
            raise MalformedError("a response that nobody asked for", offset=0)
        api_key, version = self._set_up_pending
        try:
            _, answer = frames.decode_response(api_key, version, frame)
        except MalformedError:
            if api_key != ApiVersionsRequest.api_key or version == 0:
                raise
            # An old broker's "unknown version" comes in the form of v0.
            _, answer = frames.decode_response(api_key, 0, frame)
        self._set_up_pending = None
        self._next_step(answer, now)

    # -- requests ------------------------------------------------------------------------------

    def send(self, request: Request, now: float) -> InFlight:
        """Choose a version, encode and write as much as goes out now."""
        version = self.versions.choose(request.api_key, request.versions)
        correlation_id = self._next_id()
        parts = frames.encode_request(request.build(version), version, correlation_id, self.settings.client_id)
        entry = InFlight(request, correlation_id, version, now, sum(len(part) for part in parts))
        self.in_flight.append(entry)
        self.last_active_ms = now
        self._write(parts, entry)
        return entry

    def _next_id(self) -> int:
        self._correlation_id = self._correlation_id + 1 if self._correlation_id < CORRELATION_ID_MAX else 0
        return self._correlation_id

    def _write(self, parts: list[Buffer], entry: InFlight | None) -> None:
        self._out.extend((part, entry) for part in parts)
        self.flush()

    def flush(self) -> None:
        """Write what the kernel takes; `wants_write` says whether something is left."""
        out = self._out
        while out:
            try:
                sent = self._write_some()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
            except OSError as error:
                raise ConnectionFailedError(f"connection to {self.endpoint} broke while writing: {error}") from None
            while sent:
                part, entry = out[0]
                taken = min(sent, len(part))
                sent -= taken
                if entry is not None:
                    entry.bytes_left -= taken
                if taken == len(part):
                    out.popleft()
                else:
                    out[0] = (memoryview(part)[taken:], entry)
        self.wants_write = bool(out)

    def _write_some(self) -> int:
        if isinstance(self.socket, ssl.SSLSocket):
            return self.socket.send(self._out[0][0])
        if len(self._out) == 1:
            return self.socket.send(self._out[0][0])
        return self.socket.sendmsg([self._out[i][0] for i in range(min(len(self._out), GATHER_MAX))])

    # -- events --------------------------------------------------------------------------------

    def on_writable(self, now: float) -> None:
        if self.state is State.CONNECTING:
            self._connected(now)
        elif self.state is State.HANDSHAKING:
            self._shake_hands(now)
        else:
            self.flush()

    def on_readable(self, now: float) -> list[tuple[InFlight, bytes]]:
        """The answers that have arrived."""
        if self.state is State.HANDSHAKING:
            self._shake_hands(now)
            return []
        answers: list[tuple[InFlight, bytes]] = []
        for _ in range(RECEIVES_MAX):
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                raise ConnectionFailedError(f"connection to {self.endpoint} broke: {error}") from None
            if not data:
                raise ConnectionFailedError(self._closed_by_peer())
            self.last_active_ms = now
            for frame in self._decoder.feed(data):
                if self.state is State.READY:
                    answers.append((self._match(frame), frame))
                else:
                    self._take_set_up_frame(frame, now)
            if len(data) < RECEIVE_BYTES:
                break
        return answers

    def _closed_by_peer(self) -> str:
        if self.state is not State.READY:
            return (
                f"{self.endpoint} closed the connection before it was set up: is it a Kafka broker, and does "
                f"security.protocol match its listener?"
            )
        return f"{self.endpoint} closed the connection with {len(self.in_flight)} requests in flight"

    def _match(self, frame: bytes) -> InFlight:
        correlation_id = frames.decode_correlation_id(frame)
        while self.in_flight and not self.in_flight[0].request.expects_response:
            self.in_flight.popleft()
        if not self.in_flight or self.in_flight[0].correlation_id != correlation_id:
            expected = self.in_flight[0].correlation_id if self.in_flight else "none"
            raise MalformedError(f"expected an answer to request {expected}, got one to {correlation_id}", offset=0)
        return self.in_flight.popleft()

    def take_unanswered(self) -> list[InFlight]:
        """Requests that expect no response and are wholly written."""
        done = []
        while self.in_flight and not self.in_flight[0].request.expects_response and not self.in_flight[0].bytes_left:
            done.append(self.in_flight.popleft())
        return done

    def overdue(self, now: float) -> HeadraceError | None:
        """Why this connection has to go, if something takes too long."""
        if self.state is not State.READY:
            waited = now - self.created_ms
            if waited > self.settings.connect_timeout_ms:
                return ConnectionFailedError(
                    f"connection to {self.endpoint} not set up after {waited:.0f} ms, {self.state.name.lower()}: "
                    f"is it a Kafka broker, and does security.protocol match its listener?"
                )
            return None
        if self.in_flight and now - self.in_flight[0].sent_ms > self.in_flight[0].request.timeout_ms:
            oldest = self.in_flight[0]
            return ConnectionFailedError(
                f"{self.endpoint} did not answer {api_name(oldest.request.api_key)} for {now - oldest.sent_ms:.0f} ms"
            )
        return None

    def next_deadline_ms(self) -> float:
        """When `overdue` could next say something."""
        if self.state is not State.READY:
            return self.created_ms + self.settings.connect_timeout_ms
        if self.in_flight:
            return self.in_flight[0].sent_ms + self.in_flight[0].request.timeout_ms
        return float("inf")

    def close(self) -> list[InFlight]:
        """Close the socket; what was in flight is handed back."""
        self.state = State.CLOSED
        self.socket.close()
        lost = list(self.in_flight)
        self.in_flight.clear()
        self._out.clear()
        return lost
