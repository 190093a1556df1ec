"""A broker's connections to other brokers.

    ask ─► encode ─► socket … socket ─► FrameReader ─► decode ─► the future of the oldest question

A server answers one connection's requests in order, so what is asked is a queue, and a question that waits at the other
end (a long poll) holds up those behind it. Therefore each purpose has a connection of its own: `peers.to(3, "fetch")`.

All brokers of a cluster are of the same release: versions are not negotiated. Where the listener wants SASL, a new
connection begins with that (login.py), and is replaced before what was proved ends.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.catalog.brokers import Brokers
from headrace.broker.cluster.login import Login, log_in
from headrace.broker.tasks import start_task
from headrace.config.backoff import exponential_backoff
from headrace.errors import AuthenticationError, ClosedError, ConnectionFailedError, HeadraceError, MalformedError
from headrace.wire.api import api_name
from headrace.wire.frames import FRAME_BYTES_MAX, decode_response, encode_request
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.sasl import Mechanism
from headrace.wire.schema import Message

CONNECT_MS_MAX = 2_000
BACKOFF_MS = 50.0
BACKOFF_MS_MAX = 1_000.0
"""After a connection that failed the next one is tried later; each time twice as much later."""

RENEWED_AFTER = 0.8
"""The part of an authentication's time after which a connection is made anew, as soon as nothing is under way on it."""

Address = tuple[str, int]


class RefusedError(ConnectionFailedError):
    """The other broker does not let us in."""


class _Question(NamedTuple):
    """A request that is on its way, and who waits for its answer."""

    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Message]


class Peer:
    """One connection to another broker, made when first needed and again after it broke. Event loop only."""

    def __init__(
        self,
        address_of: Callable[[], Address],
        *,
        client_id: str,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """`address_of` is asked before each attempt to connect; what it raises is what `ask` raises."""
        self._address_of = address_of
        self._client_id = client_id
        self._tls = tls
        self._login = login
        self._line: _Line | None = None
        self._connecting: asyncio.Task[_Line] | None = None
        self._failures = 0
        self._retry_at = 0.0  # by the loop's clock
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._line is not None and self._line.is_open

    async def ask(self, message: Message, version: int, timeout_ms: float) -> Message:
        """The answer. Raises ConnectionFailedError if there is none in time, ClosedError after `close`.

        A question that is not answered in time ends the connection, with all others that are on their way: answers
        come in order. What was asked may still have been done.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                line = await self._open_line()
                return await line.ask(message, version, self._client_id)
        except TimeoutError:
            self.disconnect(f"no answer to {api_name(message.api_key)} within {timeout_ms:g} ms")
            raise ConnectionFailedError(
                f"the broker at {self._shown_address()} did not answer {api_name(message.api_key)} "
                f"within {timeout_ms:g} ms"
            ) from None

    async def connect(self) -> None:
        """Connect if that has not been done. Raises as `ask` does."""
        await self._open_line()

    def disconnect(self, why: str) -> None:
        """Hang up; the next question connects again."""
        if self._line is not None:
            self._line.hang_up(why)
            self._line = None

    async def close(self) -> None:
        """Hang up for good. Nobody waits any more afterwards."""
        self._closed = True
        self.disconnect("we have closed it")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])

    async def _open_line(self) -> _Line:
        if self._closed:
            raise ClosedError("this connection to another broker is closed")
        if self._line is not None and self._line.is_open:
            if not self._line.is_to_be_renewed:
                return self._line
            self.disconnect("its authentication is about to end")
        if self._connecting is None:  # one attempt serves all who ask meanwhile
            self._connecting = start_task(self._connect(), "connection to a broker", outcomes=(HeadraceError,))
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    def _connected(self, task: asyncio.Task[_Line]) -> None:
        self._connecting = None

    async def _connect(self) -> _Line:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._retry_at - loop.time())
        host, port = self._address_of()
        try:
            async with asyncio.timeout(CONNECT_MS_MAX / 1000):
                _, line = await loop.create_connection(_Line, host, port, ssl=self._tls)
                if self._login is not None:
                    await self._authenticate(line, self._login(f"{host}:{port}"))
        except AuthenticationError as error:
            self._wait_longer()
            raise RefusedError(str(error)) from error
        except (OSError, TimeoutError, ConnectionFailedError) as error:  # TLS errors are OSErrors
            self._wait_longer()
            raise ConnectionFailedError(f"cannot connect to the broker at {self._shown_address()}: {error}") from error
        if self._closed:
            line.hang_up("we have closed it")
            raise ClosedError("this connection to another broker is closed")
        self._failures = 0
        self._line = line
        return line

    async def _authenticate(self, line: _Line, mechanism: Mechanism) -> None:
        try:
            lifetime_ms = await log_in(lambda message, version: line.ask(message, version, self._client_id), mechanism)
        except BaseException:
            line.hang_up("it is not authenticated")
            raise
        if lifetime_ms:
            line.renew_at = asyncio.get_running_loop().time() + lifetime_ms * RENEWED_AFTER / 1000

    def _wait_longer(self) -> None:
        """Each attempt that fails lets the next one wait."""
        self._failures += 1
        backoff_ms = exponential_backoff(BACKOFF_MS, BACKOFF_MS_MAX, self._failures)
        self._retry_at = asyncio.get_running_loop().time() + backoff_ms / 1000

    def _shown_address(self) -> str:
        try:
            host, port = self._address_of()
        except ConnectionFailedError:
            return "an unknown address"
        return f"{host}:{port}"


class _Line(asyncio.BufferedProtocol):
    """A connection that is open, and the questions on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._frames: list[Buffer] = []
        self._questions: deque[_Question] = deque()
        self._asked = 0
        self._ended = ""
        self.renew_at: float | None = None  # by the loop's clock

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_to_be_renewed(self) -> bool:
        """Whether its authentication ends soon, and nobody waits for an answer."""
        return self.renew_at is not None and not self._questions and asyncio.get_running_loop().time() >= self.renew_at

    async def ask(self, message: Message, version: int, client_id: str) -> Message:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionFailedError("the connection to another broker has just broken")
        self._asked = (self._asked + 1) & 0x7FFFFFFF
        question = _Question(self._asked, message.api_key, version, asyncio.get_running_loop().create_future())
        self._transport.writelines(encode_request(message, version, self._asked, client_id))
        self._questions.append(question)
        return await question.answer

    def hang_up(self, why: str) -> None:
        self._ended = self._ended or why
        if self._transport is not None:
            self._transport.abort()
        self._fail_all()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = self._ended or str(error or "it hung up")
        self._fail_all()

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, count: int) -> None:
        frames = self._frames
        try:
            self._reader.received(count, frames)
            for frame in frames:
                self._answered(frame)
        except MalformedError as error:
            self.hang_up(str(error))
        frames.clear()

    def _answered(self, frame: Buffer) -> None:
        if not self._questions:
            raise MalformedError("an answer came that nobody has asked for", offset=0)
        question = self._questions[0]
        correlation_id, message = decode_response(question.api_key, question.version, frame)
        if correlation_id != question.correlation_id:
            raise MalformedError(f"expected answer {question.correlation_id}, got {correlation_id}", offset=0)
        self._questions.popleft()
        if not question.answer.done():  # else who asked has given up
            question.answer.set_result(message)

    def _fail_all(self) -> None:
        while self._questions:
            question = self._questions.popleft()
            if not question.answer.done():
                question.answer.set_exception(
                    ConnectionFailedError(
                        f"the connection to another broker broke before {api_name(question.api_key)} was answered: "
                        f"{self._ended}"
                    )
                )


class Peers:
    """The other brokers of the cluster, by node id and purpose; their addresses are those of the catalog."""

    def __init__(
        self,
        brokers: Brokers,
        listener: str,
        *,
        client_id: str,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """`listener` is the name of the one that brokers use among themselves."""
        self._brokers = brokers
        self._listener = listener
        self._client_id = client_id
        self._tls = tls
        self._login = login
        self._by_key: dict[tuple[int, str], Peer] = {}

    def to(self, node_id: int, purpose: str) -> Peer:
        """The connection to a broker for a purpose: the same one each time."""
        key = (node_id, purpose)
        found = self._by_key.get(key)
        if found is None:
            client_id = f"{self._client_id}-{purpose}"
            found = self._by_key[key] = Peer(
                lambda: self._address(node_id), client_id=client_id, tls=self._tls, login=self._login
            )
        return found

    async def close(self) -> None:
        """Hang up everywhere."""
        for peer in self._by_key.values():
            await peer.close()

    def _address(self, node_id: int) -> Address:
        found = self._brokers.by_id.get(node_id)
        if found is None or self._listener not in found.listeners:
            raise ConnectionFailedError(f"broker {node_id} has no address for listener {self._listener}")
        return found.listeners[self._listener]
