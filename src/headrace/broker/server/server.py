"""All connections of a broker: accepting, limits, idle timeouts and shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.ports import bind
from headrace.broker.server.acceptor import Acceptor, connections_max
from headrace.broker.server.connection import ServerConnection
from headrace.broker.server.dispatch import Dispatcher
from headrace.broker.server.limits import ConnectionLimits

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.context import Session
    from headrace.broker.server.listener import Listener

log = logging.getLogger("headrace.broker")

CHUNK_BYTES = 256 * 1024
"""The size of a read. All connections share the buffer: each has processed it before the next one reads."""
IDLE_SWEEPS = 10
"""How often idle connections are looked for during connections.max.idle.ms."""
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""When unsent responses of all connections exceed this, fetches get only RESPONSE_BYTES_MIN each."""
RESPONSE_BYTES_MIN = 64 * 1024
HELD_BYTES_MAX = 512 * 1024 * 1024
"""The memory for incomplete requests of all connections; twice the largest request if that is more."""
STOP_SECONDS_MAX = 5.0
"""How long shutdown waits for running requests, and then for peers to read the responses."""

Task = asyncio.Task[Any]


class Server:
    """The network server of a broker. Event loop only."""

    def __init__(self, broker: Broker, listeners: list[Listener]) -> None:
        config = broker.config
        self.listeners = listeners
        self.dispatch = Dispatcher(broker)
        self.authenticator = broker.authenticator
        self.chunk = memoryview(bytearray(CHUNK_BYTES))
        self.frame_bytes_max = config.of(int, "socket.request.max.bytes")
        self.queued_requests = 0  # behind the one being served
        self.queued_bytes = 0
        self.held_bytes = 0  # by incomplete requests
        self.held_bytes_max = max(HELD_BYTES_MAX, 2 * self.frame_bytes_max)
        self.unsent_bytes = 0  # responses that peers have not read
        self.connections: set[ServerConnection] = set()
        self.loop = asyncio.get_running_loop()
        self._backlog = config.of(int, "socket.listen.backlog.size")
        self._queued_max = config.of(int, "queued.max.requests")
        self._queued_bytes_max = config.of(int, "queued.max.request.bytes")
        self._buffers = (config.of(int, "socket.send.buffer.bytes"), config.of(int, "socket.receive.buffer.bytes"))
        self._idle_seconds_max = config.of(int, "connections.max.idle.ms") / 1000
        self.limits = ConnectionLimits.of(broker.configurations.current())  # replaced when they are changed
        self.requests = self.received_bytes = self.sent_bytes = 0  # since the start
        self._statistics = broker.statistics
        self._next_creation = 0.0  # when the next connection may be served, in loop time
        self._per_host = Counter[str]()
        self._acceptors: list[Acceptor] = []
        self._descriptors_max = connections_max()
        self._tasks: dict[Task, bool] = {}  # delayed responses → whether they may be cancelled
        self._sweep: asyncio.TimerHandle | None = None
        self.disconnected_listeners: list[Callable[[Session], None]] = []
        """Called with the sessions of closed connections."""

    @property
    def is_full(self) -> bool:
        """Whether queued.max.requests or queued.max.request.bytes is exceeded."""
        return self.queued_requests > self._queued_max or 0 <= self._queued_bytes_max < self.queued_bytes

    @property
    def response_bytes_max(self) -> int:
        """The largest fetch response: small while much is unsent, because unsent responses are held in memory."""
        return max(UNSENT_BYTES_MAX - self.unsent_bytes, RESPONSE_BYTES_MIN)

    def counters(self) -> dict[str, int]:
        """Return the counters since the start."""
        return {
            "requests": self.requests,
            "failed_requests": self._statistics.failed_requests,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }

    async def start(self) -> None:
        """Bind all listeners; ports that were 0 are known afterwards."""
        for listener in self.listeners:
            sock = bind(listener.host, listener.port, listener.name)
            # Connections inherit these options. asyncio sets TCP_NODELAY only for sockets that it creates.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), self._buffers, strict=True):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
            listener.port = sock.getsockname()[1]
            protocol = partial(ServerConnection, self, listener)
            acceptor = Acceptor(sock, protocol, listener.tls, self._backlog, self._has_no_descriptors)
            acceptor.start()
            self._acceptors.append(acceptor)
            log.info("listening on %s://%s:%d", listener.name, listener.host, listener.port)
        self._sweep_later()

    async def stop(self) -> None:
        """Stop accepting and reading, finish running requests, send the responses and close."""
        if self._sweep is not None:
            self._sweep.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in self.connections:
            connection.stop_reading()
        for task, abandonable in self._tasks.items():
            if abandonable:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS_MAX)
        for task in self._tasks:
            task.cancel()
        for connection in self.connections:
            connection.close("")
        deadline = self.loop.time() + STOP_SECONDS_MAX
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    # -- called by connections -------------------------------------------------------------------

    def connected(self, connection: ServerConnection) -> None:
        host = connection.session.host
        self.connections.add(connection)
        self._per_host[host] += 1
        limits, per_host_max = self.limits, self.limits.per_host_max(host)
        if len(self.connections) > limits.connections_max:
            connection.close(f"max.connections={limits.connections_max} reached")
        elif self._per_host[host] > per_host_max:
            connection.close(f"max.connections.per.ip={per_host_max} reached for {host}")
        else:
            now = self.loop.time()
            connection.mute((self._next_creation - now) * 1000)
            self._next_creation = max(self._next_creation, now) + 1 / max(limits.creations_per_second_max, 1)

    def disconnected(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        host = connection.session.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        for listener in self.disconnected_listeners:
            listener(connection.session)

    def close_stalest_incomplete(self) -> None:
        """Close the connection with the incomplete request that has not grown for longest, to free memory."""
        stalest = min((each for each in self.connections if each.held_bytes), key=lambda each: each.last_active)
        held_mb = self.held_bytes / 1e6
        stalest.close(f"its request is incomplete, and incomplete requests take {held_mb:.0f} MB")

    def track(self, task: Task, *, abandonable: bool) -> None:
        """Hold a task until it is done, independent of its connection."""
        self._tasks[task] = abandonable
        task.add_done_callback(self._tasks.pop)

    def abandon(self, task: Task) -> None:
        """Cancel an abandonable task whose connection is closed."""
        if self._tasks.get(task):
            task.cancel()

    def _has_no_descriptors(self) -> bool:
        """Return whether connections have used up their share of the file descriptors."""
        handshaking = sum(acceptor.handshaking for acceptor in self._acceptors)
        return len(self.connections) + handshaking >= self._descriptors_max

    # -- idle connections ------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        if self._idle_seconds_max >= 0:
            self._sweep = self.loop.call_later(max(self._idle_seconds_max / IDLE_SWEEPS, 0.01), self._close_idle)

    def _close_idle(self) -> None:
        since = self.loop.time() - self._idle_seconds_max
        for connection in [*self.connections]:
            if connection.last_active < since and not connection.is_waiting:
                connection.close("")
        self._sweep_later()
