"""All connections of a broker: accepting them, keeping them within limits, and a clean stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.server.accepting import Acceptor, connections_max
from headrace.broker.server.connection import Connection
from headrace.broker.server.dispatch import Dispatcher
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.context import Session
    from headrace.broker.server.listener import Listener

log = logging.getLogger("headrace.broker")

CHUNK_BYTES = 256 * 1024
"""What one read takes at most; all connections share the buffer, for each is done with it before the next one reads."""
IDLE_SWEEPS = 10
"""Idle connections are looked for so many times in connections.max.idle.ms."""
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Answers that peers do not take may come to so much in all; then fetches get no more than ANSWER_BYTES_MIN each."""
ANSWER_BYTES_MIN = 64 * 1024
HELD_BYTES_MAX = 512 * 1024 * 1024
"""What unfinished requests of all connections may take; twice the largest request, if that is more."""
STOP_SECONDS_MAX = 5.0
"""How long a clean stop waits for requests in work, and then for their answers to be taken."""

Task = asyncio.Task[Any]


class Server:
    """Listens for one broker. Event loop only."""

    def __init__(self, broker: Broker, listeners: list[Listener]) -> None:
        config = broker.config
        self.listeners = listeners
        self.dispatch = Dispatcher(broker)
        self.authenticator = broker.authenticator
        self.chunk = memoryview(bytearray(CHUNK_BYTES))
        self.frame_bytes_max = config.of(int, "socket.request.max.bytes")
        self.queued_requests = 0  # that wait behind another one
        self.queued_bytes = 0
        self.held_bytes = 0  # by requests of which a part has come
        self.held_bytes_max = max(HELD_BYTES_MAX, 2 * self.frame_bytes_max)
        self.unsent_bytes = 0  # answers that their peers do not take
        self.connections: set[Connection] = set()
        self.loop = asyncio.get_running_loop()
        self._backlog = config.of(int, "socket.listen.backlog.size")
        self._queued_max = config.of(int, "queued.max.requests")
        self._queued_bytes_max = config.of(int, "queued.max.request.bytes")
        self._buffers = (config.of(int, "socket.send.buffer.bytes"), config.of(int, "socket.receive.buffer.bytes"))
        self._idle_seconds_max = config.of(int, "connections.max.idle.ms") / 1000
        self._connections_max = config.of(int, "max.connections")
        self._per_host_max = config.of(int, "max.connections.per.ip")
        self._per_host_overrides = _overrides(config.of(str, "max.connections.per.ip.overrides"))
        self._creations_a_second_max = config.of(int, "max.connection.creation.rate")
        # Since the start: what the live view shows.
        self.requests = self.failed_requests = self.received_bytes = self.sent_bytes = 0
        self._next_creation = 0.0  # when the next connection may be served, by the loop's clock
        self._per_host = Counter[str]()
        self._acceptors: list[Acceptor] = []
        self._descriptors_max = connections_max()
        self._tasks: dict[Task, bool] = {}  # answers that come later; whether they may be given up
        self._sweep: asyncio.TimerHandle | None = None
        self.disconnected_listener: Callable[[Session], None] | None = None  # told of connections that are gone

    @property
    def is_full(self) -> bool:
        """Whether so much waits already that nobody should send more."""
        return self.queued_requests > self._queued_max or 0 <= self._queued_bytes_max < self.queued_bytes

    @property
    def answer_bytes_max(self) -> int:
        """How much may be read for an answer: little if others let theirs lie, for we hold all of it in memory."""
        return max(UNSENT_BYTES_MAX - self.unsent_bytes, ANSWER_BYTES_MIN)

    def counters(self) -> dict[str, int]:
        """What went through since the start."""
        return {
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }

    async def start(self) -> None:
        """Listen everywhere; ports that were 0 are known afterwards."""
        for listener in self.listeners:
            sock = _bound(listener)
            # Connections inherit what is set here. asyncio would see to TCP_NODELAY for sockets of its own making only.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), self._buffers, strict=True):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
            listener.port = sock.getsockname()[1]
            protocol = partial(Connection, self, listener)
            acceptor = Acceptor(sock, protocol, listener.tls, self._backlog, self._has_no_descriptors)
            acceptor.start()
            self._acceptors.append(acceptor)
            log.info("listening on %s://%s:%d", listener.name, listener.host, listener.port)
        self._sweep_later()

    async def stop(self) -> None:
        """Accept and read no more, let what is in work end, say it, hang up."""
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

    # -- what connections tell -------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        host = connection.session.host
        self.connections.add(connection)
        self._per_host[host] += 1
        per_host_max = self._per_host_overrides.get(host, self._per_host_max)
        if len(self.connections) > self._connections_max:
            connection.close(f"there are {self._connections_max} connections already (max.connections)")
        elif self._per_host[host] > per_host_max:
            connection.close(f"{host} has {per_host_max} connections already (max.connections.per.ip)")
        else:
            now = self.loop.time()
            connection.mute((self._next_creation - now) * 1000)
            self._next_creation = max(self._next_creation, now) + 1 / max(self._creations_a_second_max, 1)

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        host = connection.session.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        if self.disconnected_listener is not None:
            self.disconnected_listener(connection.session)

    def drop_unfinished(self) -> None:
        """Close the connection whose unfinished request has not grown for longest: there are too many of them."""
        stalest = min((each for each in self.connections if each.held_bytes), key=lambda each: each.last_active)
        held_mb = self.held_bytes / 1e6
        stalest.close(f"it has sent a part of a request, and unfinished requests take {held_mb:.0f} MB")

    def track(self, task: Task, *, abandonable: bool) -> None:
        """Keep a task alive until it is done, whatever becomes of its connection."""
        self._tasks[task] = abandonable
        task.add_done_callback(self._tasks.pop)

    def abandon(self, task: Task) -> None:
        """The connection that waits for a task is gone."""
        if self._tasks.get(task):
            task.cancel()

    def _has_no_descriptors(self) -> bool:
        """Whether the rest of the file descriptors is for files."""
        beginning = sum(acceptor.beginning for acceptor in self._acceptors)
        return len(self.connections) + beginning >= self._descriptors_max

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


def _overrides(text: str) -> dict[str, int]:
    """`host:number,…` by the addresses of the hosts."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = item.rpartition(":")
        if not host or not number.isdecimal():
            raise ConfigError(f"max.connections.per.ip.overrides has {item!r}; each must be host:number")
        try:
            rows = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(f"max.connections.per.ip.overrides: cannot look up {host!r}: {error}") from error
        found |= {str(row[4][0]): int(number) for row in rows}
    return found


def _bound(listener: Listener) -> socket.socket:
    """A socket on the listener's address; on all of them, of both families, if it names none."""
    host = listener.host or None
    try:
        rows = socket.getaddrinfo(host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"listener {listener.name}: cannot look up {listener.host!r}: {error}") from error
    family, _, _, _, address = rows[0]
    if host is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", listener.port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((str(address[0]), listener.port), family=family)
