"""The selector loop: connections by node, requests and responses.

    is_ready(node) → connect if necessary → send(node, request) → poll → request.on_response(Response)

One thread owns the client; other threads may call `wakeup` only. Response handlers run inside `poll`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.client.addresses import Address, Endpoint, resolve
from headrace.client.connection import NEVER_MS, Connection, ConnectionSettings, InFlight, Request, Response, State
from headrace.client.protocol_probe import ProtocolProbe
from headrace.config.backoff import JITTER, exponential_backoff
from headrace.config.clock import Clock
from headrace.errors import (
    AuthenticationError,
    ConnectionFailedError,
    HeadraceError,
    WireError,
)
from headrace.wire import frames
from headrace.wire.api import ApiKey
from headrace.wire.primitives import Buffer

POLL_MS_MAX = 60_000.0
CONNECTING_MS_MAX = 1000.0
"""How long to wait for a connection before another node is tried."""
PROBES_MAX = 3
"""Probes of a node for failed connections in a row."""
SAME_FAILURE_MS = 60_000.0
"""How long the same failure of a node is not logged again, while there is no connection to it."""

# By API key: from this version on the client does the throttling (KIP-219); before, the broker delayed its response.
# APIs that are not listed are newer.
THROTTLED_BY_CLIENT: dict[int, int] = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DELETE_GROUPS: 1,
}

_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(slots=True, frozen=True)
class NetworkSettings:
    """Limits of requests in flight, and the back-off between connection attempts."""

    max_in_flight: int = 5
    reconnect_backoff_ms: float = 50
    reconnect_backoff_max_ms: float = 1000
    connections_max_idle_ms: float = 9 * 60_000  # Negative: unlimited.


class NetworkObserver(Protocol):
    """Called for the metrics."""

    def connection_opened(self, node_id: int) -> None: ...
    def connection_closed(self, node_id: int) -> None: ...
    def connection_failed(self, node_id: int, error: HeadraceError) -> None: ...
    def request_sent(self, node_id: int, api_key: int, size: int) -> None: ...
    def response_received(self, node_id: int, api_key: int, size: int, latency_ms: float) -> None: ...
    def polled(self, waited_ms: float, worked_ms: float) -> None: ...


@dataclass(slots=True)
class _NodeState:
    """The state of a node that outlives its connections."""

    endpoint: Endpoint
    addresses: list[Address]
    next_address: int = 0
    failures: int = 0
    retry_at_ms: float = 0.0
    probes: int = 0  # Since the last connection, as the next.
    logged_at_ms: dict[str, float] = field(default_factory=dict)  # By failure.


class NetworkClient:
    """Sends requests to nodes, over at most one connection each."""

    def __init__(
        self,
        connection_settings: ConnectionSettings,
        settings: NetworkSettings,
        clock: Clock,
        observer: NetworkObserver | None = None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
        *,
        selector: selectors.BaseSelector | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._connection_settings = connection_settings
        self._settings = settings
        self._idle_ms = settings.connections_max_idle_ms if settings.connections_max_idle_ms >= 0 else NEVER_MS
        self._clock = clock
        self._observer = observer
        self._log = log or logging.getLogger("headrace.client")
        self._random = rng or random.Random()
        self._selector = selector or selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        self._nodes: dict[int, _NodeState] = {}
        self._local: list[Response[Any]] = []  # Failures before anything was sent.
        self._features: tuple[int, dict[str, int]] = (-1, {})  # Epoch and levels of finalized features.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._wake_pending = False
        self._has_response = False  # Of any node, ever.
        self.on_auth_failure: Callable[[AuthenticationError], None] | None = None
        self.on_failure: Callable[[int], None] | None = None  # Called with the node id when a connection fails.
        self.last_failure: HeadraceError | None = None
        """Why the last connection failed; None after a successful one. For error messages."""
        self.has_connected = False
        """Whether any connection was ever established."""
        self.failing_since_ms: float | None = None
        """When the first of the connections failed that failed since the last successful one; None: none did."""

    # -- nodes ---------------------------------------------------------------------------------

    def set_node(self, node_id: int, endpoint: Endpoint) -> None:
        """Set the endpoint of a node. If it has changed, the connection is closed and its requests fail."""
        known = self._nodes.get(node_id)
        if known is not None and known.endpoint == endpoint:
            return
        self._nodes[node_id] = _NodeState(endpoint, [])
        if known is not None and node_id in self._connections:
            moved = ConnectionFailedError(f"node {node_id} moved from {known.endpoint} to {endpoint}")
            self._drop(self._connections[node_id], moved)

    def remove_node(self, node_id: int) -> None:
        """Remove a node that has left the cluster."""
        self._nodes.pop(node_id, None)
        if node_id in self._connections:
            self._drop(self._connections[node_id], ConnectionFailedError(f"node {node_id} has left the cluster"))

    def knows_node(self, node_id: int) -> bool:
        return node_id in self._nodes

    def is_ready(self, node_id: int, now: float) -> bool:
        """Return whether a request can be sent now; if there is no connection, open one."""
        connection = self._connections.get(node_id)
        if connection is None:
            self._connect(node_id, now)
            return False
        return (
            connection.state is State.READY
            and len(connection.in_flight) < self._settings.max_in_flight
            and now >= connection.throttled_until_ms
            and now < connection.reauthenticate_at_ms
        )

    def is_connected(self, node_id: int) -> bool:
        connection = self._connections.get(node_id)
        return connection is not None and connection.state is State.READY

    def delay_ms(self, node_id: int, now: float) -> float:
        """Return the time until `is_ready` can change, if no event on the connection comes first."""
        connection = self._connections.get(node_id)
        if connection is not None:
            return max(0.0, connection.throttled_until_ms - now) or POLL_MS_MAX
        state = self._nodes.get(node_id)
        return max(0.0, state.retry_at_ms - now) if state is not None else POLL_MS_MAX

    def is_backing_off(self, node_id: int, now: float) -> bool:
        """Return whether the node waits for its reconnect back-off, or has left the cluster."""
        state = self._nodes.get(node_id)
        return node_id not in self._connections and (state is None or now < state.retry_at_ms)

    def in_flight_count(self, node_id: int) -> int:
        connection = self._connections.get(node_id)
        return len(connection.in_flight) if connection else 0

    def total_in_flight(self) -> int:
        return sum(len(connection.in_flight) for connection in list(self._connections.values()))

    def connection_count(self) -> int:
        return len(self._connections)

    def finalized_features(self) -> dict[str, int]:
        """Return the latest finalized features of any broker, also while none is connected."""
        return self._features[1]

    def least_loaded_node(self, node_ids: list[int], now: float) -> int | None:
        """Return the connected node with the fewest requests in flight, otherwise one to connect to."""
        connections = [(n, self._connections[n]) for n in node_ids if n in self._connections]
        free = [n for n, _ in connections if self.is_ready(n, now)]
        if free:
            return min(free, key=self.in_flight_count)
        idle = [n for n in node_ids if n not in self._connections and not self.is_backing_off(n, now)]
        connecting = [(n, c) for n, c in connections if c.state is not State.READY]
        for node_id, connection in connecting:
            if not idle or now - connection.set_up_since_ms < CONNECTING_MS_MAX:
                return node_id
        if idle:
            return self._random.choice(idle)
        return connections[0][0] if connections else None

    def _connect(self, node_id: int, now: float) -> None:
        state = self._nodes.get(node_id)
        if state is None or now < state.retry_at_ms:
            return
        settings = self._connection_settings
        try:
            if state.next_address >= len(state.addresses):
                state.addresses, state.next_address = resolve(state.endpoint), 0
            address = state.addresses[state.next_address]
            state.next_address += 1
            timeout_ms = min(settings.connect_timeout_ms * 2**state.failures, settings.connect_timeout_max_ms)
            timeout_ms *= self._random.uniform(1 - JITTER, 1 + JITTER)
            connection = Connection(node_id, state.endpoint, address, settings, now, connect_timeout_ms=timeout_ms)
        except (HeadraceError, OSError) as error:
            self._failed(node_id, _as_headrace_error(error), now)
            return
        self._add(connection)

    def _add(self, connection: Connection) -> None:
        self._connections[connection.node_id] = connection
        connection.watched_events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(connection.fileno, connection.watched_events, connection)

    # -- requests ------------------------------------------------------------------------------

    def send(self, node_id: int, request: Request[Any], now: float) -> None:
        """Send to a node that `is_ready`. A request that the broker does not support fails in the next `poll`."""
        connection = self._connections[node_id]
        try:
            entry = connection.send(request, now)
        except HeadraceError as error:
            # Nothing was written: the connection stays usable.
            self._local.append(Response(request, node_id, -1, error=error))
            return
        try:
            connection.flush()
        except HeadraceError as error:
            self._lose(connection, error, now)
            return
        if self._observer is not None:
            self._observer.request_sent(node_id, request.api_key, entry.size)
        if not request.expects_response:
            self._complete_written(connection)
        self._watch(connection)

    def _complete_written(self, connection: Connection) -> None:
        written: list[tuple[Connection, InFlight, Buffer | None]] = []
        connection.take_written(written)
        self._local.extend(Response(entry.request, connection.node_id, entry.version) for _, entry, _ in written)

    def wakeup(self) -> None:
        """Make `poll` return soon. Any thread."""
        if not self._wake_pending:
            # No call in between: a signal handler that raised there would leave the flag set for ever.
            self._wake_pending = True
            try:
                self._wake_sender.send(b"\0")
            except OSError:  # the pipe is full, which wakes the loop, too
                return

    def poll(self, timeout_ms: float, now: float) -> None:
        """Wait for events up to `timeout_ms`, process them, and call the handlers of responses and failed requests."""
        deadline = now + POLL_MS_MAX
        for connection in self._connections.values():
            deadline = min(deadline, connection.next_deadline_ms(self._idle_ms))
        timeout_ms = 0.0 if self._local else max(0.0, min(timeout_ms, deadline - now))
        started = self._clock.monotonic_ms()
        events = self._selector.select(timeout_ms / 1000.0)
        now = self._clock.monotonic_ms()
        completed: list[tuple[Connection, InFlight, Buffer | None]] = []
        for key, mask in events:
            if key.data is None:
                self._drain_wakeups()
            elif key.data.state is not State.CLOSED:
                self._handle(key.data, mask, now, completed)
        if now >= deadline:
            self._check_deadlines(now)
        # Responses first, then the requests that failed after them.
        for connection, entry, frame in completed:
            self._complete(connection, entry, frame, now)
        if self._local:
            local, self._local = self._local, []
            for response in local:
                self._deliver(response)
        if self._observer is not None:
            self._observer.polled(now - started, self._clock.monotonic_ms() - now)

    def _drain_wakeups(self) -> None:
        # First the pipe, then the flag: the other way round, a wakeup in between would leave the flag set for ever,
        # with nothing in the pipe. A wakeup in between is not lost now: the caller of `poll` checks its work next.
        with contextlib.suppress(BlockingIOError):
            self._wake_receiver.recv(4096)
        self._wake_pending = False

    def _handle(
        self,
        connection: Connection,
        mask: int,
        now: float,
        completed: list[tuple[Connection, InFlight, Buffer | None]],
    ) -> None:
        before = connection.state
        try:
            # Read first: a peer that closes the connection may have responded before.
            if mask & selectors.EVENT_READ and before is not State.CONNECTING:
                connection.on_readable(now, completed)
            if mask & selectors.EVENT_WRITE:
                connection.on_writable(now)
            connection.take_written(completed)
            if connection.state is State.READY:
                if before is not State.READY and before is not State.REAUTHENTICATING:
                    self._established(connection)
                if now >= connection.reauthenticate_at_ms and not connection.in_flight:
                    connection.reauthenticate(now)
        except HeadraceError as error:
            self._lose(connection, error, now)
            return
        self._watch(connection)

    def _established(self, connection: Connection) -> None:
        state = self._nodes[connection.node_id]
        if state.failures:
            self._log.info("connected to node %d at %s", connection.node_id, connection.endpoint)
        state.failures, state.retry_at_ms = 0, 0.0
        state.probes = 0
        state.logged_at_ms.clear()
        self.last_failure = self.failing_since_ms = None
        self.has_connected = True
        if connection.versions.features_epoch >= self._features[0]:
            self._features = (connection.versions.features_epoch, connection.versions.finalized_features)
        self._log.debug("connected to node %d at %s", connection.node_id, connection.endpoint)
        if self._observer is not None:
            self._observer.connection_opened(connection.node_id)

    def _watch(self, connection: Connection) -> None:
        events = selectors.EVENT_READ | selectors.EVENT_WRITE if connection.wants_write else selectors.EVENT_READ
        if connection.watched_events != events:
            connection.watched_events = events
            self._selector.modify(connection.fileno, events, connection)

    def _complete(self, connection: Connection, entry: InFlight, frame: Buffer | None, now: float) -> None:
        request = entry.request
        response = Response(request, connection.node_id, entry.version, latency_ms=now - entry.sent_ms)
        if frame is None:
            self._deliver(response)
            return
        try:
            _, response.message = frames.decode_response(request.api_key, entry.version, frame)
        except WireError as error:
            # Whether the broker executed the request is unknown: for the handler, the response was lost.
            response.error = ConnectionFailedError(f"{connection.endpoint} sent an undecodable response: {error}")
            self._deliver(response)
            self._lose(connection, error, now)
            return
        self._has_response = True
        throttle_ms = response.throttle_ms
        if throttle_ms > 0 and entry.version >= THROTTLED_BY_CLIENT.get(request.api_key, 0):
            # KIP-219: the broker responds at once, and the client pauses.
            connection.throttled_until_ms = max(connection.throttled_until_ms, now + throttle_ms)
        if self._observer is not None:
            self._observer.response_received(connection.node_id, request.api_key, len(frame), response.latency_ms)
        self._deliver(response)

    def _deliver(self, response: Response[Any]) -> None:
        """Call a response handler; an exception affects neither other handlers nor the loop."""
        try:
            response.request.on_response(response)
        except BaseException:
            self._log.exception("response handler failed; continuing")

    # -- closing connections -------------------------------------------------------------------

    def _check_deadlines(self, now: float) -> None:
        for connection in list(self._connections.values()):
            error = connection.overdue(now)
            if error is not None:
                self._lose(connection, error, now)
            elif connection.state is State.READY and not connection.in_flight:
                if now - connection.last_active_ms >= self._idle_ms:
                    self._drop(connection, ConnectionFailedError("idle"))
                elif now >= connection.reauthenticate_at_ms:
                    self._reauthenticate(connection, now)

    def _reauthenticate(self, connection: Connection, now: float) -> None:
        try:
            connection.reauthenticate(now)
        except HeadraceError as error:
            self._lose(connection, error, now)
        else:
            self._watch(connection)

    def _lose(self, connection: Connection, error: HeadraceError, now: float) -> None:
        if connection.state is State.CLOSED:
            return
        was_ready = connection.state in (State.READY, State.REAUTHENTICATING)
        self._drop(connection, error)
        if isinstance(connection, ProtocolProbe):
            error = connection.cause(error)
        elif self._probe(connection, error, now):
            return  # the probe will fail, with the cause
        self._failed(connection.node_id, error, now, established=was_ready)

    def _probe(self, failed: Connection, error: HeadraceError, now: float) -> bool:
        """Connect again if the protocol may have been the wrong one; the probe reports the failure then.

        Once a broker has responded to a request, the protocol is known to be the right one.
        """
        state = self._nodes.get(failed.node_id)
        if failed.doubt is None or self._has_response or state is None or state.probes >= PROBES_MAX:
            return False
        state.probes += 1
        try:
            self._add(ProtocolProbe(failed, error, now))
        except (HeadraceError, OSError):
            return False
        return True

    def _drop(self, connection: Connection, error: HeadraceError) -> None:
        """Close a connection and fail its requests."""
        del self._connections[connection.node_id]
        self._selector.unregister(connection.fileno)
        was_ready = connection.state in (State.READY, State.REAUTHENTICATING)
        failure = error if isinstance(error, ConnectionFailedError) else ConnectionFailedError(str(error))
        for entry in connection.close():
            self._local.append(Response(entry.request, connection.node_id, entry.version, error=failure))
        if was_ready and self._observer is not None:
            self._observer.connection_closed(connection.node_id)

    def _failed(self, node_id: int, error: HeadraceError, now: float, established: bool = False) -> None:
        self.last_failure = error
        if self.failing_since_ms is None:
            self.failing_since_ms = now
        state = self._nodes.get(node_id)
        if state is None:
            return
        state.failures += 1
        if established:
            state.addresses = []  # resolve the name again: the address may have changed
        settings = self._settings
        wait = exponential_backoff(
            settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, state.failures, self._random
        )
        # Other addresses of the host are tried without a back-off.
        state.retry_at_ms = now + (0.0 if state.next_address < len(state.addresses) else wait)
        self._log_failure(node_id, state, error, now)
        if isinstance(error, AuthenticationError) and self.on_auth_failure is not None:
            self.on_auth_failure(error)
        if self._observer is not None:
            self._observer.connection_failed(node_id, error)
        if self.on_failure is not None:
            self.on_failure(node_id)

    def _log_failure(self, node_id: int, state: _NodeState, error: HeadraceError, now: float) -> None:
        """Log a failure once, not for each attempt; again if it still fails after a while."""
        failure = _DIGITS.sub("", str(error))  # without times and counts
        is_repeated = now - state.logged_at_ms.get(failure, -SAME_FAILURE_MS) < SAME_FAILURE_MS
        if not is_repeated:
            state.logged_at_ms[failure] = now
        level = logging.DEBUG if is_repeated else logging.WARNING
        self._log.log(level, "node %d at %s: %s", node_id, state.endpoint, error)

    def close(self) -> None:
        """Close every connection and fail requests in flight."""
        for connection in list(self._connections.values()):
            self._drop(connection, ConnectionFailedError("the client was closed"))
        local, self._local = self._local, []
        for response in local:
            self._deliver(response)
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()


def _as_headrace_error(error: Exception) -> HeadraceError:
    return error if isinstance(error, HeadraceError) else ConnectionFailedError(str(error))
