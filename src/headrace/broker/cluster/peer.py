"""Connections to other brokers.

    request ─► encode ─► socket … socket ─► FrameReader ─► decode ─► the future of the oldest pending request

A server handles the requests of a connection in order, so a request that waits there (a long poll) delays those behind
it. Each purpose therefore has a separate connection: `peers.to(3, "fetch")`.

All brokers of a cluster have the same release, so versions are not negotiated. If the listener uses SASL, a new
connection authenticates first, and is replaced before its authentication expires.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from headrace.broker.broker_options import for_listener
from headrace.broker.catalog.cluster import Brokers
from headrace.broker.tasks import start_task
from headrace.config import Config, Secret, jaas_options
from headrace.config.backoff import exponential_backoff
from headrace.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    ConnectionFailedError,
    HeadraceError,
    MalformedError,
)
from headrace.wire import sasl
from headrace.wire.api import api_name
from headrace.wire.frames import FRAME_BYTES_MAX, decode_response, encode_request
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.sasl import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, Mechanism, PlainMechanism, ScramMechanism
from headrace.wire.schema import Message, RequestMessage

CONNECT_MS_MAX = 2_000
BACKOFF_MS = 50.0
BACKOFF_MS_MAX = 1_000.0
"""The exponential back-off after failed connection attempts."""
RENEWED_AFTER = 0.8
"""The part of an authentication's lifetime after which an idle connection is replaced."""

_MECHANISM_OPTION = "sasl.mechanism.inter.broker.protocol"
_MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)

R = TypeVar("R", bound=Message)
Address = tuple[str, int]
Login = Callable[[str], Mechanism]
"""Creates the authentication of a connection; its argument is the address, for error messages."""


class RefusedError(ConnectionFailedError):
    """The other broker rejected the authentication."""


class _PendingRequest(NamedTuple):
    """A request in flight and the future of its response."""

    correlation_id: int
    api_key: int
    version: int
    response: asyncio.Future[Any]


class Peer:
    """A connection to another broker that connects on demand and reconnects. Event loop only."""

    def __init__(
        self,
        address_of: Callable[[], Address],
        *,
        client_id: str,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """`address_of` is called before each connection attempt; `request` raises its errors."""
        self._address_of = address_of
        self._client_id = client_id
        self._tls = tls
        self._login = login
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._failures = 0
        self._retry_at = 0.0  # on the event loop's clock
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def request(self, message: RequestMessage[R], version: int, timeout_ms: float) -> R:
        """Return the response. Raises ConnectionFailedError if there is none in time, ClosedError after `close`.

        A timeout closes the connection and fails its other requests too, because responses come in order. The request
        may have been executed.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._open_connection()
                return await connection.request(message, version, self._client_id)
        except TimeoutError:
            self.disconnect(f"no response to {api_name(message.api_key)} within {timeout_ms:g} ms")
            raise ConnectionFailedError(
                f"timed out after {timeout_ms:g} ms waiting for the response of the broker at {self._shown_address()} "
                f"to {api_name(message.api_key)}"
            ) from None

    async def connect(self) -> None:
        """Connect unless connected. Raises as `request` does."""
        await self._open_connection()

    def disconnect(self, reason: str) -> None:
        """Close the connection; the next request reconnects."""
        if self._connection is not None:
            self._connection.abort(reason)
            self._connection = None

    async def close(self) -> None:
        """Close the connection for good and fail all pending requests."""
        self._closed = True
        self.disconnect("it was closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])

    async def _open_connection(self) -> _Connection:
        if self._closed:
            raise ClosedError("this connection to another broker is closed")
        if self._connection is not None and self._connection.is_open:
            if not self._connection.is_expiring:
                return self._connection
            self.disconnect("its authentication is about to expire")
        if self._connecting is None:  # one attempt for all requests that wait for it
            self._connecting = start_task(self._connect(), "connection to a broker", outcomes=(HeadraceError,))
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    def _connected(self, task: asyncio.Task[_Connection]) -> None:
        self._connecting = None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._retry_at - loop.time())
        host, port = self._address_of()
        try:
            async with asyncio.timeout(CONNECT_MS_MAX / 1000):
                _, connection = await loop.create_connection(_Connection, host, port, ssl=self._tls)
                if self._login is not None:
                    await self._authenticate(connection, self._login(f"{host}:{port}"))
        except AuthenticationError as error:
            self._back_off()
            raise RefusedError(str(error)) from error
        except (OSError, TimeoutError, ConnectionFailedError) as error:  # TLS errors are OSErrors
            self._back_off()
            raise ConnectionFailedError(f"cannot connect to the broker at {self._shown_address()}: {error}") from error
        if self._closed:
            connection.abort("it was closed")
            raise ClosedError("this connection to another broker is closed")
        self._failures = 0
        self._connection = connection
        return connection

    async def _authenticate(self, connection: _Connection, mechanism: Mechanism) -> None:
        async def request(message: RequestMessage[Any], version: int) -> Message:
            return await connection.request(message, version, self._client_id)

        try:
            lifetime_ms = await authenticate(request, mechanism)
        except BaseException:
            connection.abort("it is not authenticated")
            raise
        if lifetime_ms:
            connection.renew_at = asyncio.get_running_loop().time() + lifetime_ms * RENEWED_AFTER / 1000

    def _back_off(self) -> None:
        self._failures += 1
        backoff_ms = exponential_backoff(BACKOFF_MS, BACKOFF_MS_MAX, self._failures)
        self._retry_at = asyncio.get_running_loop().time() + backoff_ms / 1000

    def _shown_address(self) -> str:
        try:
            host, port = self._address_of()
        except ConnectionFailedError:
            return "an unknown address"
        return f"{host}:{port}"


class _Connection(asyncio.BufferedProtocol):
    """An open connection and its pending requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._frames: list[Buffer] = []
        self._pending: deque[_PendingRequest] = deque()
        self._correlation_id = 0
        self._end_reason = ""
        self.renew_at: float | None = None  # on the event loop's clock

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_expiring(self) -> bool:
        """Whether the authentication expires soon and no request is pending."""
        return self.renew_at is not None and not self._pending and asyncio.get_running_loop().time() >= self.renew_at

    async def request(self, message: RequestMessage[R], version: int, client_id: str) -> R:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionFailedError("the connection to another broker is broken")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        loop = asyncio.get_running_loop()
        pending = _PendingRequest(self._correlation_id, message.api_key, version, loop.create_future())
        self._transport.writelines(encode_request(message, version, self._correlation_id, client_id))
        self._pending.append(pending)
        response: R = await pending.response
        return response

    def abort(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        if self._transport is not None:
            self._transport.abort()
        self._fail_all()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._end_reason = self._end_reason or str(error or "the other broker closed it")
        self._fail_all()

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, count: int) -> None:
        frames = self._frames
        try:
            self._reader.received(count, frames)
            for frame in frames:
                self._complete(frame)
        except MalformedError as error:
            self.abort(str(error))
        frames.clear()

    def _complete(self, frame: Buffer) -> None:
        if not self._pending:
            raise MalformedError("a response arrived without a request", offset=0)
        pending = self._pending[0]
        correlation_id, message = decode_response(pending.api_key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise MalformedError(f"expected correlation id {pending.correlation_id}, got {correlation_id}", offset=0)
        self._pending.popleft()
        if not pending.response.done():  # otherwise the caller has timed out
            pending.response.set_result(message)

    def _fail_all(self) -> None:
        while self._pending:
            pending = self._pending.popleft()
            if not pending.response.done():
                pending.response.set_exception(
                    ConnectionFailedError(
                        f"the connection to another broker broke before the response to {api_name(pending.api_key)}: "
                        f"{self._end_reason}"
                    )
                )


class Peers:
    """Connections to the brokers of the cluster by node id and purpose, with addresses from the catalog."""

    def __init__(
        self,
        brokers: Brokers,
        listener: str,
        *,
        client_id: str,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """`listener` is the name of the inter-broker listener."""
        self._brokers = brokers
        self._listener = listener
        self._client_id = client_id
        self._tls = tls
        self._login = login
        self._by_key: dict[tuple[int, str], Peer] = {}

    def to(self, node_id: int, purpose: str) -> Peer:
        """Return the connection to a broker for a purpose, always the same one."""
        key = (node_id, purpose)
        peer = self._by_key.get(key)
        if peer is None:
            client_id = f"{self._client_id}-{purpose}"
            peer = self._by_key[key] = Peer(
                lambda: self._address(node_id), client_id=client_id, tls=self._tls, login=self._login
            )
        return peer

    async def close(self) -> None:
        """Close all connections."""
        for peer in self._by_key.values():
            await peer.close()

    def _address(self, node_id: int) -> Address:
        broker = self._brokers.by_id.get(node_id)
        if broker is None or self._listener not in broker.listeners:
            raise ConnectionFailedError(f"broker {node_id} has no address for listener {self._listener}")
        return broker.listeners[self._listener]


# -- SASL ----------------------------------------------------------------------------------------


def create_login(config: Config, listener: str) -> Login:
    """Return the authentication for the inter-broker listener, with the user in its sasl.jaas.config.

    The user needs CLUSTER_ACTION. Raises ConfigError if options are missing or invalid.
    """
    name = config.of(str, _MECHANISM_OPTION)
    if name not in _MECHANISMS:
        raise ConfigError(f"{_MECHANISM_OPTION} is {name!r}; it may be {', '.join(_MECHANISMS)}")
    jaas = for_listener(config, listener, "sasl.jaas.config", name)
    options = jaas_options(jaas.reveal()) if isinstance(jaas, Secret) else {}
    username, password = options.get("username"), options.get("password")
    if not username or not password:
        option = f"listener.name.{listener.lower()}.{name.lower()}.sasl.jaas.config"
        raise ConfigError(
            f"the inter-broker listener {listener} uses SASL {name}, but {option} has no user: add "
            f'username="…" password="…" after its login module, or set inter.broker.listener.name or '
            f"{_MECHANISM_OPTION} to another listener or mechanism"
        )

    def login(host: str) -> Mechanism:
        if name == PLAIN:
            return PlainMechanism(host, username, password)
        return ScramMechanism(host, name, username, password)

    return login


async def authenticate(request: Callable[[RequestMessage[Any], int], Awaitable[Message]], mechanism: Mechanism) -> int:
    """Authenticate a new connection; return the lifetime of the authentication in ms, 0 if it is unlimited."""
    exchange = sasl.authenticate(mechanism)
    message, version = next(exchange)
    while True:
        response = await request(message, version)
        try:
            message, version = exchange.send(response)
        except StopIteration as completed:
            lifetime_ms: int = completed.value
            return lifetime_ms
