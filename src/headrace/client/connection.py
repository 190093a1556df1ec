"""A connection: a non-blocking socket with its state, outgoing bytes and requests in flight.

    connect → (TLS handshake) → ApiVersions → (SASL) → ready ⇄ (SASL again, before the session expires: KIP-368)
    send: gather list → queue → `sendmsg`; what the kernel does not accept stays in the queue → EVENT_WRITE
    receive: bytes → FrameReader → the oldest request in flight
    Request → NetworkClient.send → InFlight → Response → request.on_response

The set-up is a generator that yields a request and is sent the response: see `_set_up`. Polling thread only.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from headrace import __version__
from headrace.client import tls
from headrace.client.addresses import Address, Endpoint
from headrace.client.prompt_socket import PromptSocket
from headrace.errors import (
    AuthenticationError,
    Code,
    ConnectionFailedError,
    HeadraceError,
    MalformedError,
    TlsError,
    UnsupportedVersionError,
    error_name,
)
from headrace.wire import frames, sasl
from headrace.wire.api import api_name
from headrace.wire.api.metadata import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.api.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.wire.framing import CHUNK_BYTES, FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.sasl import Mechanism
from headrace.wire.schema import Message, RequestMessage

RECEIVES_MAX = 16  # Per event, so that other connections are served, too.
GATHER_MAX = 512  # Buffers in one sendmsg; the system allows 1024.
CORRELATION_ID_MAX = 0x7FFFFFFF
REAUTHENTICATE_FROM, REAUTHENTICATE_TO = 0.85, 0.95
"""The share of a session's lifetime after which to reauthenticate: random, so that clients do not synchronize."""

NEVER_MS = float("inf")

_WRONG_LISTENER = "is it the port of a Kafka broker, and does security.protocol match its listener?"
# The first bytes of an alert and of a handshake record of TLS 1.x. As the size of a frame they are beyond any limit.
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")

R = TypeVar("R", bound=Message)


class Doubt(Enum):
    """What may be the reason why the peer closed the connection before its first response."""

    TLS = auto()  # In the TLS handshake, or after a request without TLS.
    SASL = auto()  # After a request without authentication.


class State(Enum):
    CONNECTING = auto()
    HANDSHAKING = auto()
    NEGOTIATING = auto()
    READY = auto()
    REAUTHENTICATING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class Request(Generic[R]):
    """A request to a broker. `build` returns the message in the version that is chosen when it is sent."""

    api_key: int
    build: Callable[[int], RequestMessage[R]]
    on_response: Callable[[Response[R]], None]
    versions: tuple[int, int]  # Lowest and highest that the client supports.
    timeout_ms: float
    expects_response: bool = True

    @classmethod
    def of(
        cls,
        message: RequestMessage[R],
        on_response: Callable[[Response[R]], None],
        timeout_ms: float,
        versions: tuple[int, int] | None = None,
    ) -> Request[R]:
        """Return a request whose message does not depend on the version."""
        return cls(
            message.api_key,
            lambda version: message,
            on_response,
            versions or (message.versions.first, message.versions.last),
            timeout_ms,
        )


@dataclass(slots=True)
class Response(Generic[R]):
    """A response, or the error of a request."""

    request: Request[R]
    node_id: int
    version: int
    message: R | None = None  # None with acks=0, or with an error.
    error: HeadraceError | None = None
    latency_ms: float = 0.0

    @property
    def throttle_ms(self) -> int:
        return getattr(self.message, "throttle_time_ms", 0) or 0


@dataclass(slots=True)
class InFlight:
    """A request that was queued on a connection."""

    request: Request[Any]
    correlation_id: int
    version: int
    sent_ms: float
    size: int  # In bytes.
    written_at: int  # The connection's written bytes when this request is written completely.


@dataclass(slots=True)
class BrokerVersions:
    """The API versions and features of a broker."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    finalized_features: dict[str, int] = field(default_factory=dict)
    features_epoch: int = -1

    def choose(self, api_key: int, versions: tuple[int, int]) -> int:
        """Return the highest version that both sides support."""
        low, high = self.ranges.get(api_key, (0, -1))
        version = min(high, versions[1])
        if version < low or version < versions[0]:
            offered = f"{low} to {high}" if high >= 0 else "none"
            raise UnsupportedVersionError(
                f"{api_name(api_key)} needs a version of {versions[0]} to {versions[1]}; the broker supports {offered}"
            )
        return version


@dataclass(slots=True, frozen=True)
class ConnectionSettings:
    """The settings of connections."""

    client_id: str
    request_timeout_ms: float = 30_000
    connect_timeout_ms: float = 10_000
    connect_timeout_max_ms: float = 30_000
    send_buffer_bytes: int = 128 * 1024
    receive_buffer_bytes: int = 32 * 1024
    tls_context: ssl.SSLContext | None = None
    mechanism_factory: Mechanism.Factory | None = None
    frame_bytes_max: int = frames.FRAME_BYTES_MAX
    open_socket: Callable[[int, int], socket.socket] = PromptSocket  # Family and type → a socket.
    allocate: Callable[[int], memoryview] | None = None  # The memory of large responses; None: a bytearray.


class Connection:
    """A connection to one address of one broker."""

    def __init__(
        self,
        node_id: int,
        endpoint: Endpoint,
        address: Address,
        settings: ConnectionSettings,
        now: float,
        *,
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
        self.watched_events = 0  # Registered with the selector. Set by the network client.
        self._connect_timeout_ms = settings.connect_timeout_ms if connect_timeout_ms is None else connect_timeout_ms
        self.set_up_since_ms = now
        self.doubt: Doubt | None = None  # Set if the peer closes the connection before its first response.
        self._has_response = False
        self._correlation_id = 0
        self._out: deque[Buffer] = deque()
        self._queued_bytes = 0  # Since the connection was opened, as the next.
        self._written_bytes = 0
        self._reader = FrameReader(settings.frame_bytes_max, allocate=settings.allocate)
        self._frames: list[Buffer] = []
        self._steps: Generator[tuple[Message, int], Message, None] | None = None
        self._step_pending: tuple[int, int, int] | None = None  # API key, version, correlation id.
        self._tls: ssl.SSLSocket | None = None
        self.socket = self._open()
        self.fileno = self.socket.fileno()

    # -- set-up --------------------------------------------------------------------------------

    def _open(self) -> socket.socket:
        sock = self.settings.open_socket(self.address.family, socket.SOCK_STREAM)
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
        return f"cannot connect to {self._label}: {os.strerror(code)}{hint}"

    @property
    def _label(self) -> str:
        """The endpoint, and its address if that differs."""
        endpoint, address = str(self.endpoint), str(self.address)
        return endpoint if endpoint == address else f"{endpoint} ({address})"

    def sasl_required(self, mechanisms: Iterable[str]) -> AuthenticationError:
        """Return the error for a listener that uses SASL although the client does not."""
        current = "PLAINTEXT" if self.settings.tls_context is None else "SSL"
        return AuthenticationError(
            f"{self.endpoint} uses SASL ({', '.join(mechanisms)}), but security.protocol is {current}: set "
            f"security.protocol=SASL_{current} and sasl.mechanism, or use the port of a listener without SASL"
        )

    def wrong_protocol(self, *, uses_tls: bool) -> TlsError:
        """Return the error for a listener that uses TLS although the client does not, or vice versa."""
        fact = "uses TLS" if uses_tls else "does not use TLS"
        prefix = "" if self.settings.mechanism_factory is None else "SASL_"
        current, other = ("PLAINTEXT", "SSL") if uses_tls else ("SSL", "PLAINTEXT")
        return TlsError(
            f"{self.endpoint} {fact}, but security.protocol is {prefix}{current}: set security.protocol="
            f"{prefix}{other}, or use the port of a listener {'without' if uses_tls else 'with'} TLS"
        )

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
            raise ConnectionFailedError(f"connection to {self.endpoint} failed: {error}") from None
        self.state = State.HANDSHAKING
        self._shake_hands(now)

    def _shake_hands(self, now: float) -> None:
        assert self._tls is not None
        try:
            outcome = tls.handshake(self._tls)
        except ConnectionError as error:
            self.doubt = Doubt.TLS
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
        """ApiVersions first, then SASL: each `yield` sends a request in a version and returns the response."""

        identification = ApiVersionsRequest(client_software_name="headrace", client_software_version=__version__)
        response = yield identification, 3
        assert isinstance(response, ApiVersionsResponse)
        if response.error_code == Code.UNSUPPORTED_VERSION:
            response = yield ApiVersionsRequest(), 0
            assert isinstance(response, ApiVersionsResponse)
        if response.error_code:
            raise ConnectionFailedError(f"ApiVersions failed on {self.endpoint}: {error_name(response.error_code)}")
        self.versions = BrokerVersions(
            {api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            {feature.name: feature.max_version_level for feature in response.finalized_features},
            response.finalized_features_epoch,
        )
        if self.settings.mechanism_factory is not None:
            yield from self._authenticate(self.settings.mechanism_factory(str(self.endpoint)), now)

    def _authenticate(self, mechanism: Mechanism, now: float) -> Generator[tuple[Message, int], Message, None]:
        try:
            self.versions.choose(SaslHandshakeRequest.api_key, (sasl.HANDSHAKE_VERSION, sasl.HANDSHAKE_VERSION))
            version = self.versions.choose(SaslAuthenticateRequest.api_key, sasl.AUTHENTICATE_VERSIONS)
        except UnsupportedVersionError as error:
            raise mechanism.failure(f"the broker does not support the SASL protocol ({error})") from None
        lifetime_ms = yield from sasl.authenticate(mechanism, version)
        # Counted from before the exchange, to be on the safe side.
        share = random.uniform(REAUTHENTICATE_FROM, REAUTHENTICATE_TO)
        self.reauthenticate_at_ms = now + lifetime_ms * share if lifetime_ms > 0 else NEVER_MS

    def reauthenticate(self, now: float) -> None:
        """Authenticate again on the same connection, with nothing in flight (KIP-368)."""
        assert self.settings.mechanism_factory is not None
        assert not self.in_flight
        self.state = State.REAUTHENTICATING
        self.set_up_since_ms = now
        self.reauthenticate_at_ms = NEVER_MS
        self._steps = self._authenticate(self.settings.mechanism_factory(str(self.endpoint)), now)
        self._next_step(None)

    def _next_step(self, response: Message | None) -> None:
        assert self._steps is not None
        try:
            message, version = self._steps.send(response)  # type: ignore[arg-type]
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
            raise MalformedError(f"{self.endpoint} sent an unexpected message: {_WRONG_LISTENER}", offset=0)
        api_key, version, expected = self._step_pending
        self._check_id(frame, expected)
        # A broker that does not support the version responds in version 0 (KIP-511).
        if api_key == ApiVersionsRequest.api_key and int.from_bytes(frame[4:6], "big") == Code.UNSUPPORTED_VERSION:
            version = 0
        _, response = frames.decode_response(api_key, version, frame)
        self._step_pending = None
        self._next_step(response)

    # -- requests ------------------------------------------------------------------------------

    def send(self, request: Request[Any], now: float) -> InFlight:
        """Choose a version, encode and queue a request, for `flush`. If it raises, the connection is unchanged."""
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
        """Write what the kernel accepts; `wants_write` is True if something is left."""
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
                        break  # the kernel's buffer is full
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionFailedError(f"connection to {self.endpoint} failed while writing: {error}") from None
        self.wants_write = bool(out)

    # -- events --------------------------------------------------------------------------------

    def on_writable(self, now: float) -> None:
        if self.state is State.CONNECTING:
            self._connected(now)
        elif self.state is State.HANDSHAKING:
            self._shake_hands(now)
        else:
            self.flush()

    def on_readable(self, now: float, completed: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        """Append the received responses, also those before an error."""
        if self.state is State.HANDSHAKING:
            self._shake_hands(now)
            return
        for _ in range(RECEIVES_MAX):
            try:
                more = self._receive()
            finally:
                if self._frames:
                    self._take_frames(now, completed)
            if not more:
                break

    def _take_frames(self, now: float, completed: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        received, self._frames = self._frames, []
        for frame in received:
            if self.state is State.READY:
                self._match(frame, completed)
                self.last_active_ms = now
            else:
                self._take_set_up_frame(frame)

    def _receive(self) -> bool:
        """Read once into `_frames`; returns True if there may be more."""
        try:
            if self._tls is not None:
                data = tls.receive(self._tls, CHUNK_BYTES)
                if data is None:
                    return False
                if not data:
                    self._note_closed()
                    raise ConnectionFailedError(self._closed_by_peer())
                self._reader.feed(data, self._frames)
                return True
            room = self._reader.room()
            count = self.socket.recv_into(room)
        except BlockingIOError:
            return False
        except OSError as error:
            hint = f": {_WRONG_LISTENER}" if self.state is State.NEGOTIATING else ""
            self._note_closed()
            raise ConnectionFailedError(f"connection to {self.endpoint} failed: {error}{hint}") from None
        if not count:
            self._note_closed()
            raise ConnectionFailedError(self._closed_by_peer())
        if self.state is State.NEGOTIATING and not self._reader.pending_bytes and bytes(room[:2]) in _TLS_RECORDS:
            raise self.wrong_protocol(uses_tls=True)
        self._reader.received(count, self._frames)
        return count == len(room)

    def _note_closed(self) -> None:
        if self._reader.pending_bytes:
            return
        if self.state is State.NEGOTIATING and self._correlation_id == 1 and self._tls is None:
            self.doubt = Doubt.TLS
        elif self._is_first_request_pending():
            self.doubt = Doubt.SASL

    def _is_first_request_pending(self) -> bool:
        is_first = bool(self.in_flight) and not self._has_response
        return self.state is State.READY and is_first and self.settings.mechanism_factory is None

    def _closed_by_peer(self) -> str:
        if self.state is State.NEGOTIATING:
            return f"{self.endpoint} closed the connection before it was set up: {_WRONG_LISTENER}"
        if self._is_first_request_pending():
            return (
                f"{self.endpoint} closed the connection after the first request: if its listener uses SASL, set "
                f"security.protocol and sasl.mechanism"
            )
        return f"{self.endpoint} closed the connection with {len(self.in_flight)} requests in flight"

    def _match(self, frame: Buffer, completed: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        in_flight = self.in_flight
        while in_flight and not in_flight[0].request.expects_response:
            completed.append((self, in_flight.popleft(), None))
        if not in_flight:
            raise MalformedError(f"{self.endpoint} sent an unexpected response", offset=0)
        self._check_id(frame, in_flight[0].correlation_id)
        self._has_response = True
        completed.append((self, in_flight.popleft(), frame))

    def _check_id(self, frame: Buffer, expected: int) -> None:
        correlation_id = frames.decode_correlation_id(frame)
        if correlation_id != expected:
            raise MalformedError(
                f"{self.endpoint} responded to request {correlation_id}, expected {expected}: closing the connection",
                offset=0,
            )

    def take_written(self, completed: list[tuple[Connection, InFlight, Buffer | None]]) -> None:
        """Append the requests without a response that are completely written."""
        in_flight = self.in_flight
        while (
            in_flight and not in_flight[0].request.expects_response and in_flight[0].written_at <= self._written_bytes
        ):
            completed.append((self, in_flight.popleft(), None))

    # -- time ----------------------------------------------------------------------------------

    def overdue(self, now: float) -> HeadraceError | None:
        """Return the error if the set-up or a response takes too long."""
        if self.state is not State.READY:
            waited = now - self.set_up_since_ms
            if waited >= self._connect_timeout_ms:
                return ConnectionFailedError(
                    f"connection to {self._label} timed out after {waited:.0f} ms while "
                    f"{self.state.name.lower()}: {_WRONG_LISTENER}"
                )
        elif self.in_flight and now - self.in_flight[0].sent_ms >= self.in_flight[0].request.timeout_ms:
            oldest = self.in_flight[0]
            return ConnectionFailedError(
                f"{self.endpoint} did not respond to {api_name(oldest.request.api_key)} for "
                f"{now - oldest.sent_ms:.0f} ms"
            )
        return None

    def next_deadline_ms(self, idle_ms: float = NEVER_MS) -> float:
        """Return when to check this connection if no event comes; `idle_ms`: how long it may be idle."""
        if self.state is not State.READY:
            return self.set_up_since_ms + self._connect_timeout_ms
        if self.in_flight:
            return self.in_flight[0].sent_ms + self.in_flight[0].request.timeout_ms
        return min(self.last_active_ms + idle_ms, self.reauthenticate_at_ms)

    def close(self) -> list[InFlight]:
        """Close the socket; returns the requests in flight."""
        self.state = State.CLOSED
        self.socket.close()
        in_flight = list(self.in_flight)
        self.in_flight.clear()
        self._out.clear()
        return in_flight
