"""A clock that is turned by hand, and a network client whose brokers answer by script.

    client = FakeClient(clock)
    client.script(PRODUCE, error(6), ok, DISCONNECT)    the first three answers, in this order
    client.always(INIT_PRODUCER_ID, InitProducerIdResponse(…))   whenever the script of that key is empty
    client.script(PRODUCE, After(500, ok))               later

A reply is a message, a function from the request as it was `Sent` to one, or one of DISCONNECT, SILENCE and After. What
has no reply at all stays in flight until it times out. Requests and answers take the way over bytes, so that a message
which its version cannot express is found here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.client.addresses import Endpoint
from headrace.client.connection import Request, Response
from headrace.errors import ConnectionFailedError, HeadraceError, UnsupportedVersionError
from headrace.wire import frames
from headrace.wire.api import request_class
from headrace.wire.schema import Message

START_MS = 1_000_000.0
CLIENT_ID = "fake"


class FakeClock:
    """Milliseconds that pass only when told."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def monotonic_ms(self) -> float:
        return self.now_ms

    def time_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now_ms - START_MS)

    def advance(self, ms: float) -> None:
        assert ms >= 0
        self.now_ms += ms


class _Sign:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


DISCONNECT = _Sign("DISCONNECT")
"""The connection breaks: nothing on it is answered."""
SILENCE = _Sign("SILENCE")
"""No answer, until the request times out."""


class After(NamedTuple):
    """A reply that takes its time."""

    delay_ms: float
    reply: Any


@dataclass
class Sent:
    """A request as the broker saw it."""

    node_id: int
    version: int
    message: Any
    request: Request
    sent_ms: float
    reply: Any = None
    due_ms: float = 0.0
    is_over: bool = False

    @property
    def api_key(self) -> int:
        return self.request.api_key


Reply = Message | Callable[[Sent], "Message | _Sign"] | _Sign | After


@dataclass
class FakeNode:
    endpoint: Endpoint
    in_flight: list[Sent] = field(default_factory=list)
    is_connected: bool = True
    retry_at_ms: float = 0.0
    throttled_until_ms: float = 0.0
    is_down: bool = False


class FakeClient:
    """The part of NetworkClient that Sender and MetadataUpdater use."""

    def __init__(self, clock: FakeClock, *, max_in_flight: int = 5) -> None:
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._scripts: defaultdict[int, deque[Reply]] = defaultdict(deque)
        self._defaults: dict[int, Reply] = {}
        self._local: list[Response] = []
        self.nodes: dict[int, FakeNode] = {}
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self.sent: list[Sent] = []
        self.polls: list[float] = []
        self.wakeups = 0
        self.is_closed = False
        self.passes_time = False
        """True: a poll in which nothing happens takes the time it was given."""
        self.is_enough: Callable[[], object] = lambda: False
        """What the test waits for: once it is so, time stands still."""

    # -- the script ----------------------------------------------------------------------------

    def script(self, api_key: int, *replies: Reply) -> None:
        self._scripts[api_key].extend(replies)

    def always(self, api_key: int, reply: Reply) -> None:
        self._defaults[api_key] = reply

    def script_is_empty(self) -> bool:
        return not any(self._scripts.values())

    def of(self, api_key: int) -> list[Sent]:
        """All requests of a kind so far."""
        return [sent for sent in self.sent if sent.api_key == api_key]

    def take(self, api_key: int) -> list[Sent]:
        """All requests of a kind so far, which are forgotten."""
        taken = self.of(api_key)
        self.sent = [sent for sent in self.sent if sent.api_key != api_key]
        return taken

    def disconnect(self, node_id: int, backoff_ms: float = 0.0) -> None:
        """The connection to a node breaks now; its handlers are told in the next poll."""
        node = self.nodes[node_id]
        lost, node.in_flight = node.in_flight, []
        node.is_connected = False
        node.retry_at_ms = self._clock.now_ms + backoff_ms
        for sent in lost:
            error = ConnectionFailedError(f"connection to node {node_id} broke")
            self._local.append(Response(sent.request, node_id, sent.version, error=error))

    def throttle(self, node_id: int, ms: float) -> None:
        self.nodes[node_id].throttled_until_ms = self._clock.now_ms + ms

    # -- what NetworkClient has ----------------------------------------------------------------

    def set_node(self, node_id: int, endpoint: Endpoint) -> None:
        if node_id not in self.nodes:
            self.nodes[node_id] = FakeNode(endpoint)

    def remove_node(self, node_id: int) -> None:
        if node_id in self.nodes:
            self.disconnect(node_id)
            del self.nodes[node_id]

    def is_ready(self, node_id: int, now: float) -> bool:
        node = self.nodes.get(node_id)
        if node is None or node.is_down:
            return False
        if not node.is_connected and now >= node.retry_at_ms:
            node.is_connected = True
        return node.is_connected and len(node.in_flight) < self._max_in_flight and now >= node.throttled_until_ms

    def is_connected(self, node_id: int) -> bool:
        return node_id in self.nodes and self.nodes[node_id].is_connected and not self.nodes[node_id].is_down

    def delay_ms(self, node_id: int, now: float) -> float:
        node = self.nodes[node_id]
        return max(0.0, node.throttled_until_ms - now, node.retry_at_ms - now) or 60_000.0

    def is_backing_off(self, node_id: int, now: float) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and not node.is_connected and now < node.retry_at_ms

    def finalized_features(self) -> dict[str, int]:
        return self.features

    def total_in_flight(self) -> int:
        return sum(len(node.in_flight) for node in self.nodes.values())

    def least_loaded_node(self, node_ids: Sequence[int], now: float) -> int | None:
        free = [n for n in node_ids if self.is_ready(n, now)]
        return min(free, key=lambda n: len(self.nodes[n].in_flight)) if free else None

    def send(self, node_id: int, request: Request, now: float) -> None:
        assert self.is_ready(node_id, now), f"node {node_id} is not ready"
        try:
            version = self._choose(request)
        except HeadraceError as error:
            self._local.append(Response(request, node_id, -1, error=error))
            return
        message = request.build(version)
        parts = frames.encode_request(message, version, 1, CLIENT_ID)
        frame = b"".join(bytes(part) for part in parts)[4:]
        decoded = frames.decode_request_body(*_header_of(frame))
        sent = Sent(node_id, version, decoded, request, now)
        self.sent.append(sent)
        if not request.expects_response:
            self._local.append(Response(request, node_id, version))
            return
        script = self._scripts[request.api_key]
        reply: Any = script.popleft() if script else self._defaults.get(request.api_key, SILENCE)
        sent.due_ms = now
        if isinstance(reply, After):
            sent.due_ms, reply = now + reply.delay_ms, reply.reply
        sent.reply = reply
        self.nodes[node_id].in_flight.append(sent)

    def _choose(self, request: Request) -> int:
        known = request_class(request.api_key).versions
        low, high = self.versions.get(request.api_key, (known.first, known.last))
        version = min(high, request.versions[1])
        if version < max(low, request.versions[0]):
            raise UnsupportedVersionError(f"key {request.api_key}: {request.versions}, the broker has {low} to {high}")
        return version

    def wakeup(self) -> None:
        self.wakeups += 1

    def poll(self, timeout_ms: float, now: float) -> None:
        assert not self.is_closed
        self.polls.append(timeout_ms)
        if self.passes_time and not self._something_is_due() and not self.is_enough():
            later = [*self._next_events(), self._clock.now_ms + max(0.0, timeout_ms)]
            self._clock.advance(max(0.0, min(later) - self._clock.now_ms))
        for node_id in list(self.nodes):
            self._deliver_due(node_id)
        local, self._local = self._local, []
        for response in local:
            response.request.on_response(response)

    def _something_is_due(self) -> bool:
        return bool(self._local) or any(moment <= self._clock.now_ms for moment in self._next_events())

    def _next_events(self) -> list[float]:
        """When the oldest request of each node is answered, or times out."""
        moments = []
        for node in self.nodes.values():
            if node.in_flight:
                first = node.in_flight[0]
                moments.append(first.sent_ms + first.request.timeout_ms if first.reply is SILENCE else first.due_ms)
        return moments

    def _deliver_due(self, node_id: int) -> None:
        """Answers come in the order of their requests."""
        while True:
            node = self.nodes.get(node_id)
            if node is None or not node.in_flight:
                return
            sent, now = node.in_flight[0], self._clock.now_ms
            if sent.reply is SILENCE:
                if now >= sent.sent_ms + sent.request.timeout_ms:
                    self.disconnect(node_id)
                return
            if now < sent.due_ms:
                return
            reply = sent.reply(sent) if callable(sent.reply) else sent.reply
            if reply is DISCONNECT:
                self.disconnect(node_id)
                return
            node.in_flight.pop(0)
            sent.is_over = True
            response = Response(sent.request, node_id, sent.version, message=_over_bytes(sent, reply))
            response.request.on_response(response)

    def close(self) -> None:
        for node_id in self.nodes:
            self.disconnect(node_id)
        local, self._local = self._local, []
        for response in local:
            response.request.on_response(response)
        self.is_closed = True


def _header_of(frame: bytes) -> tuple[frames.RequestHeader, bytes, int]:
    header, start = frames.decode_request_header(frame)
    return header, frame, start


def _over_bytes(sent: Sent, reply: Message) -> Message:
    parts = frames.encode_response(reply, sent.version, 1)
    _, message = frames.decode_response(sent.api_key, sent.version, b"".join(bytes(part) for part in parts)[4:])
    return message
