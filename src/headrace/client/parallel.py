"""Many independent requests at once, over several connections to each broker.

    request_each([node and message, …]) → lanes of each node → as many requests in flight as they accept → [Pending, …]

A broker serves the requests of a connection one after the other, so a window on one connection hides the network only.
With several connections, *lanes*, the broker works on several requests at once. The first lane is the connection that
the client has anyway. The others are opened while it is in use, only for long queues, and closed when they are idle.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.client.blocking import BlockingClient, Pending
from headrace.client.connection import Request, Response
from headrace.errors import ConnectionFailedError
from headrace.wire.schema import Message, RequestMessage

LANES_MAX = 4
"""Connections to a broker. More did not help on a machine with two cores."""
LANE_REQUESTS_MIN = 16
"""Requests for each lane: fewer are sent before another connection is open."""
NODE_IDS = 1 << 32
"""Node ids are 32-bit numbers: the id of a lane is the node's plus a multiple of this."""

R = TypeVar("R", bound=Message)


class NodeRequest(NamedTuple, Generic[R]):
    """A message to a node, in a version of this range."""

    node_id: int
    message: RequestMessage[R]
    versions: tuple[int, int]


def request_each(client: BlockingClient, requests: Sequence[NodeRequest[R]]) -> list[Pending[R]]:
    """Send every request once, in any order; return their results in the order given.

    The result of a request whose connection failed is the error; if all connections of a node back off, that is the
    result of all requests that are left for it. Pause before you send them again. TimedOutError is raised if no
    response at all comes within the client's timeout.
    """
    call: _Call[R] = _Call(client)
    results = [call.add(request) for request in requests]
    with client.lock:
        call.run()
    return results


class _Call(Generic[R]):
    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._network = client.network
        self._queues: defaultdict[int, deque[Request[R]]] = defaultdict(deque)
        self._responses_pending = 0

    def add(self, request: NodeRequest[R]) -> Pending[R]:
        pending: Pending[R] = Pending(request.node_id)

        def take(response: Response[R]) -> None:
            pending.take(response)
            self._responses_pending -= 1

        timeout_ms = self._client.settings.request_timeout_ms
        self._queues[request.node_id].append(Request.of(request.message, take, timeout_ms, request.versions))
        self._responses_pending += 1
        return pending

    def run(self) -> None:
        client = self._client
        lanes = {node_id: self._lanes(node_id, len(queue)) for node_id, queue in self._queues.items()}
        responses_pending, deadline = self._responses_pending, client.deadline()
        while self._responses_pending:
            if self._responses_pending < responses_pending:
                responses_pending, deadline = self._responses_pending, client.deadline()
            now = client.clock.monotonic_ms()
            wait_ms = deadline - now
            for node_id, queue in self._queues.items():
                if queue:
                    self._send(lanes[node_id], queue, now)
                if queue:  # throttled, or backing off after a failure
                    wait_ms = min(wait_ms, *(self._network.delay_ms(lane, now) for lane in lanes[node_id]))
            if self._responses_pending:
                client.poll_until(deadline, "a response", wait_ms)

    def _lanes(self, node_id: int, request_count: int) -> list[int]:
        endpoint = self._client.metadata.cluster.brokers.get(node_id)
        if endpoint is None:
            return [node_id]
        lanes = [node_id + NODE_IDS * n for n in range(min(LANES_MAX, 1 + request_count // LANE_REQUESTS_MIN))]
        for lane in lanes[1:]:
            self._network.set_node(lane, endpoint)
        return lanes

    def _send(self, lanes: list[int], queue: deque[Request[R]], now: float) -> None:
        network = self._network
        for lane in lanes:
            while queue and network.is_ready(lane, now):
                network.send(lane, queue.popleft(), now)
        if queue and all(network.is_backing_off(lane, now) for lane in lanes):
            reason = network.last_failure or f"node {lanes[0]} is unreachable"
            error = ConnectionFailedError(str(reason))
            while queue:
                request = queue.popleft()
                request.on_response(Response(request, lanes[0], -1, error=error))
