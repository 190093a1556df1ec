"""The simulated network: TCP connections between hosts, with delays, partitions and resets.

    Network.connect   a client's socket → after a round trip: established, refused, or nothing while partitioned
    Socket.send       bytes → in order, after a random delay → the peer's `incoming` → the peer's watchers
    Network.cut       holds everything between two hosts, as TCP does: `heal` delivers it

Bytes of one connection stay in order; those of different connections overtake each other. A connection whose process
was killed is reset, as the kernel of its host does; after a power cut nobody tells the peer until the host is back.
"""

from __future__ import annotations

import errno
import itertools
import math
import selectors
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.wire.primitives import Buffer
from tests.simulation.world import Process, Thread, World

FIRST_FILENO = 1_000_000  # above any real file descriptor
DELAY_SECONDS = (0.000_1, 0.001)
SLOW_DELAY_SECONDS = (0.001, 0.2)
SLOW_CHANCE = 0.01
Address = tuple[str, int]


class Network:
    """All hosts, listeners and connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sockets: dict[int, Socket] = {}  # by file number
        self.listeners: dict[Address, Socket] = {}
        self.messages = 0
        self.by_way: Counter[tuple[str, str]] = Counter()  # the number of messages, by hosts
        self._cut: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._filenos = itertools.count(FIRST_FILENO)
        self._ports = itertools.count(40_000)

    def open(self) -> Socket:
        """Return a new socket of the running process."""
        assert self.world.process is not None
        return Socket(self, self.world.process, next(self._filenos))

    def listen(self, host: str, port: int) -> Socket:
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        sock = self.open()
        sock.name = (host, port)
        self.sockets[sock.fileno()] = self.listeners[host, port] = sock
        return sock

    def delay(self) -> float:
        rng = self.world.rng
        return rng.uniform(*(SLOW_DELAY_SECONDS if rng.random() < SLOW_CHANCE else DELAY_SECONDS))

    # -- faults ----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Hold everything from one host to another one, until it is healed."""
        self._cut.add((source, target))

    def heal(self) -> None:
        """Deliver what was held, in order, and before anything that is under way."""
        self._cut.clear()
        held, self._held = self._held, {}
        for calls in held.values():
            for call in calls:
                call()

    def pass_on(self, source: str, target: str, when: float, call: Callable[[], None]) -> None:
        """Execute `call` at the target, unless the way there is cut at that time: then when it is healed."""

        def arrive() -> None:
            way = (source, target)
            if way in self._cut:
                self._held.setdefault(way, []).append(call)
            else:
                call()

        self.world.at(when, arrive)

    # -- connections -----------------------------------------------------------------------------

    def connect(self, client: Socket, address: Address) -> None:
        client.name = (client.process.host, next(self._ports))
        client.peer_name = address
        self.sockets[client.fileno()] = client
        there, back = (client.process.host, address[0]), (address[0], client.process.host)

        def at_server() -> None:
            listener = self.listeners.get(address)
            when = self.world.now + self.delay()
            if listener is None:
                self.pass_on(*back, when, lambda: client.fail(errno.ECONNREFUSED))
            elif not client.is_closed:
                server = Socket(self, listener.process, next(self._filenos))
                server.name, server.peer_name = address, client.name
                self.sockets[server.fileno()] = server
                server.peer, client.peer = client, server
                server.is_connected = True
                listener.backlog.append(server)
                listener.changed()
                self.pass_on(*back, when, client.establish)

        self.pass_on(*there, self.world.now + self.delay(), at_server)

    def process_ended(self, process: Process, *, silently: bool = False) -> list[Socket]:
        """Close all sockets of a killed process; return those whose peers do not know it yet."""
        own = [sock for sock in self.sockets.values() if sock.process is process]
        for sock in own:
            sock.drop()
            if not silently:
                sock.reset_peer()
        return own


class Socket:
    """A non-blocking socket: the methods that clients, the acceptor and `SocketSender` use."""

    def __init__(self, network: Network, process: Process, fileno: int) -> None:
        self.process = process
        self.name: Address = (process.host, 0)
        self.peer_name: Address = ("", 0)
        self.peer: Socket | None = None
        self.backlog: deque[Socket] = deque()
        self.incoming = bytearray()
        self.is_connected = False
        self.is_closed = False
        self.is_ended = False  # the peer sends nothing more
        self.error = 0
        self.watchers: dict[object, Callable[[], None]] = {}
        self._network = network
        self._fileno = fileno
        self._arrival = 0.0  # of the last bytes sent

    # -- the interface of a socket ---------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self.is_closed else self._fileno

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def listen(self, backlog: int) -> None:
        """Accept connections: the socket was made by `Network.listen`."""

    def setsockopt(self, *arguments: int) -> None:
        """Accept and ignore any option."""

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.error

    def getsockname(self) -> Address:
        return self.name

    def connect_ex(self, address: Address) -> int:
        self._network.connect(self, address)
        return errno.EINPROGRESS

    def accept(self) -> tuple[Socket, Address]:
        self.process.check_alive()
        if not self.backlog:
            raise BlockingIOError
        accepted = self.backlog.popleft()
        return accepted, accepted.peer_name

    def send(self, part: Buffer) -> int:
        return self.sendmsg([part])

    def sendmsg(self, parts: Iterable[Buffer]) -> int:
        self.process.check_alive()
        if self.error:
            raise OSError(self.error, "the connection is broken")
        data = b"".join(parts)
        peer, network = self.peer, self._network
        assert peer is not None
        network.messages += 1
        network.by_way[self.process.host, peer.process.host] += 1
        self._arrival = max(network.world.now + network.delay(), self._arrival + 1e-6)
        network.pass_on(self.process.host, peer.process.host, self._arrival, lambda: peer.receive(data))
        return len(data)

    def recv_into(self, room: memoryview) -> int:
        self.process.check_alive()
        if self.incoming:
            count = min(len(room), len(self.incoming))
            room[:count] = self.incoming[:count]
            del self.incoming[:count]
            return count
        if self.error:
            raise OSError(self.error, "the connection is broken")
        if self.is_ended:
            return 0
        raise BlockingIOError

    def close(self) -> None:
        if not self.is_closed and self.process.is_alive:
            self.drop()
            self.end_peer()

    # -- the network's side ----------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        return bool(self.incoming or self.backlog or self.is_ended or self.error)

    @property
    def is_writable(self) -> bool:
        return self.is_connected or bool(self.error)

    def receive(self, data: bytes) -> None:
        if self.is_closed:
            self.reset_peer()
            return
        self._network.world.record(self.name, self.peer_name, data)
        self.incoming += data
        self.changed()

    def establish(self) -> None:
        if not self.is_closed:
            self.is_connected = True
            self.changed()

    def end(self) -> None:
        self.is_ended = True
        self.changed()

    def fail(self, error: int) -> None:
        if not self.is_closed:
            self.error = error
            self.changed()

    def changed(self) -> None:
        for notify in list(self.watchers.values()):
            notify()

    def drop(self) -> None:
        """Forget the socket, as the kernel does when its process ends."""
        self.is_closed = True
        self.watchers.clear()
        self._network.sockets.pop(self._fileno, None)
        if self._network.listeners.get(self.name) is self:
            del self._network.listeners[self.name]
            for waiting in self.backlog:
                waiting.reset_peer()

    def end_peer(self) -> None:
        self._tell_peer(Socket.end)

    def reset_peer(self) -> None:
        self._tell_peer(lambda peer: peer.fail(errno.ECONNRESET))

    def _tell_peer(self, event: Callable[[Socket], None]) -> None:
        peer, network = self.peer, self._network
        if peer is None or peer.is_closed:
            return
        self._arrival = max(network.world.now + network.delay(), self._arrival + 1e-6)
        network.pass_on(self.process.host, peer.process.host, self._arrival, lambda: event(peer))


class WakeSocket:
    """One end of a `socketpair` with which a thread of a client wakes another one."""

    def __init__(self) -> None:
        self.other: WakeSocket | None = None
        self.pending = 0
        self.watchers: dict[object, Callable[[], None]] = {}

    @staticmethod
    def pair() -> tuple[WakeSocket, WakeSocket]:
        first, second = WakeSocket(), WakeSocket()
        first.other, second.other = second, first
        return first, second

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, data: bytes) -> int:
        assert self.other is not None
        self.other.pending += len(data)
        for notify in list(self.other.watchers.values()):
            notify()
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self.pending:
            raise BlockingIOError
        count, self.pending = self.pending, 0
        return b"\0" * count

    def close(self) -> None:
        self.watchers.clear()

    @property
    def is_readable(self) -> bool:
        return self.pending > 0

    is_writable = True


class Selector(selectors.BaseSelector):
    """A selector for simulated sockets, used by blocking clients."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: dict[Any, tuple[selectors.SelectorKey, Any]] = {}
        self._waiting: Thread | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        sock = self._network.sockets[fileobj] if isinstance(fileobj, int) else fileobj
        number = fileobj if isinstance(fileobj, int) else 0
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[fileobj] = (key, sock)
        sock.watchers[self] = self._notify
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key, sock = self._keys.pop(fileobj)
        sock.watchers.pop(self, None)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._ready()
        if not ready and (timeout is None or timeout > 0):
            self._waiting = Thread.current()
            try:
                # Rounded up, as poll(2) does: otherwise a deadline may never be reached.
                self._waiting.wait(None if timeout is None else math.ceil(timeout * 1e6) / 1e6 + 1e-6)
            finally:
                self._waiting = None
            ready = self._ready()
        return ready

    def close(self) -> None:
        for _, sock in self._keys.values():
            sock.watchers.pop(self, None)
        self._keys.clear()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {fileobj: key for fileobj, (key, _) in self._keys.items()}

    def _notify(self) -> None:
        if self._waiting is not None:
            self._waiting.wake()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = []
        for key, sock in self._keys.values():
            events = selectors.EVENT_READ * sock.is_readable | selectors.EVENT_WRITE * sock.is_writable
            if events & key.events:
                ready.append((key, events & key.events))
        return ready
