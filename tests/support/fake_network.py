"""Brokers at the other end of fake sockets, for the real `NetworkClient`: no thread, no system time.

    cluster = FakeCluster(clock)
    NetworkClient(ConnectionSettings("c", open_socket=cluster.open_socket), …, clock, selector=cluster.selector)
    cluster.script(PRODUCE, refusal, response, DISCONNECT)   the next three replies, in this order
    cluster.script(PRODUCE, After(500, response))            a delayed reply
    cluster.always(INIT_PRODUCER_ID, response)               the reply while the script of that key is empty

A reply is a message, a function from the request (`Sent`) to a message, DISCONNECT, SILENCE, or After. Without a reply,
a request stays in flight until it times out. Like a real broker, a connection serves its requests one by one, in order.
Time passes in `FakeSelector.select` only. Broker n listens on port FIRST_PORT + n of 127.0.0.1, which needs no DNS.
"""

from __future__ import annotations

import errno
import itertools
import math
import selectors
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.client.addresses import Endpoint
from headrace.wire import frames
from headrace.wire.api import APIS, request_class
from headrace.wire.api.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from headrace.wire.api.produce import ProduceRequest
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message

START_MS = 1_000_000.0
HOST = "127.0.0.1"
FIRST_PORT = 9092
FIRST_FILENO = 1_000_000  # Above any real file descriptor.


class FakeClock:
    """A clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def monotonic_ms(self) -> float:
        return self.now_ms

    def time_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now_ms - START_MS)

    def advance(self, ms: float) -> None:
        assert ms >= 0
        self.now_ms += ms


class Sign:
    """A reply that is not a message."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


DISCONNECT = Sign("DISCONNECT")
"""The broker closes the connection: all requests on it fail."""
SILENCE = Sign("SILENCE")
"""The broker does not respond, so the request times out."""


class After(NamedTuple):
    """A delayed reply."""

    delay_ms: float
    reply: Any


@dataclass(eq=False)
class Sent:
    """A request as the broker received it."""

    node_id: int
    api_key: int
    version: int
    message: Any
    correlation_id: int
    reply: Any
    due_ms: float


Reply = Message | Callable[[Sent], Message | Sign] | Sign | After


def endpoint(node_id: int) -> Endpoint:
    return Endpoint(HOST, FIRST_PORT + node_id)


class FakeCluster:
    """Brokers that reply by script. Every broker exists, unless it is stopped."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.selector = FakeSelector(self)
        self.sent: list[Sent] = []
        """All requests, without the ApiVersions of new connections."""
        self.versions: dict[int, tuple[int, int]] = {}
        """Versions by API key; by default, all that headrace knows. New connections learn of a change."""
        self._features: Mapping[str, int] = {}
        self._features_epoch = 0
        self._scripts: defaultdict[int, deque[Reply]] = defaultdict(deque)
        self._defaults: dict[int, Reply] = {}
        self._stopped: set[int] = set()
        self._filenos = itertools.count(FIRST_FILENO)
        self._sockets: dict[int, FakeSocket] = {}  # Connected sockets by file number.

    # -- the script ----------------------------------------------------------------------------

    def script(self, api_key: int, *replies: Reply) -> None:
        """Add replies, each for one request."""
        self._scripts[api_key].extend(replies)

    def always(self, api_key: int, reply: Reply) -> None:
        """Set the reply for requests after the script."""
        self._defaults[api_key] = reply

    def clear_scripts(self) -> None:
        self._scripts.clear()

    def script_is_empty(self) -> bool:
        return not any(self._scripts.values())

    def of(self, api_key: int) -> list[Sent]:
        """Return the requests with an API key."""
        return [sent for sent in self.sent if sent.api_key == api_key]

    def take(self, api_key: int) -> list[Sent]:
        """Return the requests with an API key, and forget them."""
        taken = self.of(api_key)
        self.sent = [sent for sent in self.sent if sent.api_key != api_key]
        return taken

    def in_flight(self, node_id: int) -> list[Sent]:
        """Return the requests that a broker has not replied to."""
        return [sent for sock in self._connected_to(node_id) for sent in sock.pending]

    # -- brokers -------------------------------------------------------------------------------

    def set_features(self, features: Mapping[str, int]) -> None:
        """Change the finalized features. New connections learn of it."""
        self._features = features
        self._features_epoch += 1

    def disconnect(self, node_id: int) -> None:
        """Close all connections to a broker; the client notices in its next poll."""
        for sock in self._connected_to(node_id):
            sock.break_off()

    def disconnect_all(self) -> None:
        for sock in self._sockets.values():
            sock.break_off()

    def stop(self, node_id: int) -> None:
        """Stop a broker: its connections are closed, and new ones refused."""
        self._stopped.add(node_id)
        self.disconnect(node_id)

    def start(self, node_id: int) -> None:
        self._stopped.discard(node_id)

    def _connected_to(self, node_id: int) -> list[FakeSocket]:
        return [sock for sock in self._sockets.values() if sock.node_id == node_id]

    # -- sockets -------------------------------------------------------------------------------

    def open_socket(self, family: int, kind: int) -> Any:
        """Return a new socket; for `ConnectionSettings.open_socket`."""
        return FakeSocket(self, next(self._filenos))

    def connect(self, sock: FakeSocket) -> int:
        """Connect a socket; returns the error number, or 0."""
        if sock.node_id in self._stopped:
            return errno.ECONNREFUSED
        self._sockets[sock.fileno()] = sock
        return 0

    def remove(self, sock: FakeSocket) -> None:
        self._sockets.pop(sock.fileno(), None)

    def receive(self, sock: FakeSocket, frame: Buffer) -> None:
        """Decode a request and queue it, with its reply."""
        header, start = frames.decode_request_header(frame)
        message = frames.decode_request_body(header, frame, start)
        if isinstance(message, ApiVersionsRequest):
            sock.respond(self._api_versions(), header.api_version, header.correlation_id)
            return
        reply: Any = None
        due_ms = self.clock.now_ms
        expects_response = not (isinstance(message, ProduceRequest) and message.acks == 0)
        if expects_response:
            script = self._scripts[header.api_key]
            reply = script.popleft() if script else self._defaults.get(header.api_key, SILENCE)
            if isinstance(reply, After):
                due_ms, reply = due_ms + reply.delay_ms, reply.reply
        sent = Sent(sock.node_id, header.api_key, header.api_version, message, header.correlation_id, reply, due_ms)
        self.sent.append(sent)
        if expects_response:
            sock.pending.append(sent)

    def _api_versions(self) -> ApiVersionsResponse:
        known = {key: request_class(key).versions for key in APIS}
        ranges = {key: (versions.first, versions.last) for key, versions in known.items()} | self.versions
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()
            ],
            finalized_features_epoch=self._features_epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in self._features.items()
            ],
        )

    def reply_due(self) -> None:
        """Send the replies that are due."""
        for sock in list(self._sockets.values()):
            while sock.pending and sock.pending[0].reply is not SILENCE and sock.pending[0].due_ms <= self.clock.now_ms:
                sent = sock.pending[0]
                reply = sent.reply(sent) if callable(sent.reply) else sent.reply
                if reply is DISCONNECT:
                    sock.break_off()
                else:
                    sock.pending.popleft()
                    sock.respond(reply, sent.version, sent.correlation_id)

    def next_due_ms(self) -> float:
        """Return when the next reply is due."""
        heads = [sock.pending[0] for sock in self._sockets.values() if sock.pending]
        return min((sent.due_ms for sent in heads if sent.reply is not SILENCE), default=math.inf)

    def ready_events(self, fileno: int) -> int:
        sock = self._sockets.get(fileno)
        if sock is None:  # refused
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        return selectors.EVENT_WRITE | (selectors.EVENT_READ if sock.is_readable else 0)


class FakeSocket:
    """The methods of a non-blocking socket that `Connection` uses, connected to a broker of a `FakeCluster`."""

    def __init__(self, cluster: FakeCluster, fileno: int) -> None:
        self.node_id = -1
        self.pending: deque[Sent] = deque()
        self._cluster = cluster
        self._fileno = fileno
        self._connect_error = 0
        self._requests = FrameReader(frames.FRAME_BYTES_MAX)
        self._incoming = bytearray()
        self._is_broken = False

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, *arguments: int) -> None:
        """Accept and ignore any option."""

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self._connect_error

    def fileno(self) -> int:
        return self._fileno

    def connect_ex(self, address: tuple[str, int]) -> int:
        host, port = address
        assert host == HOST
        self.node_id = port - FIRST_PORT
        self._connect_error = self._cluster.connect(self)
        return errno.EINPROGRESS

    def send(self, part: Buffer) -> int:
        return self.sendmsg([part])

    def sendmsg(self, parts: Iterable[Buffer]) -> int:
        data = b"".join(bytes(part) for part in parts)
        if not self._is_broken:  # a socket also accepts bytes that its peer will not read
            received: list[Buffer] = []
            self._requests.feed(data, received)
            for frame in received:
                self._cluster.receive(self, bytes(frame))
        return len(data)

    def recv_into(self, room: memoryview) -> int:
        if self._incoming:
            count = min(len(room), len(self._incoming))
            room[:count] = self._incoming[:count]
            del self._incoming[:count]
            return count
        if self._is_broken:
            return 0
        raise BlockingIOError

    def close(self) -> None:
        self._cluster.remove(self)

    # -- the broker's end ----------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        return bool(self._incoming) or self._is_broken

    def respond(self, message: Message, version: int, correlation_id: int) -> None:
        for part in frames.encode_response(message, version, correlation_id):
            self._incoming += part

    def break_off(self) -> None:
        """Close the connection; responses that were sent before can still be read."""
        self._is_broken = True
        self.pending.clear()


class FakeSelector(selectors.BaseSelector):
    """A selector for fake sockets, and for the real one that wakes the client up."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._fake: dict[int, selectors.SelectorKey] = {}
        self._real = selectors.PollSelector()
        self.polls: list[float] = []
        """The timeout of each `select`, in milliseconds."""
        self.passes_time = False
        """True: if nothing is ready, time passes until the next reply is due, or the timeout is over."""
        self.is_enough: Callable[[], object] = lambda: False
        """The condition that the test waits for: once it is true, no time passes."""
        self.is_closed = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if not isinstance(fileobj, int):
            return self._real.register(fileobj, events, data)
        key = self._fake[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._fake.pop(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert not self.is_closed
        assert timeout is not None
        timeout_ms = math.ceil(timeout * 1e9) / 1e6  # Rounded up, or a deadline would never be reached.
        self.polls.append(timeout_ms)
        ready = self._ready()
        if not ready and self.passes_time and not self.is_enough():
            clock = self._cluster.clock
            clock.advance(min(timeout_ms, max(0.0, self._cluster.next_due_ms() - clock.now_ms)))
            ready = self._ready()
        return ready

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        self._cluster.reply_due()
        ready = list(self._real.select(0))
        for key in self._fake.values():
            events = key.events & self._cluster.ready_events(key.fd)
            if events:
                ready.append((key, events))
        return ready

    def close(self) -> None:
        self.is_closed = True
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {**self._fake, **self._real.get_map()}
