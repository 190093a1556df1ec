"""Fetching in the background: one request to each broker, for all partitions that can be fetched from it.

    assigned partitions → by leader or preferred replica → FetchSession → Fetch → FetchBuffer → application thread

A broker gets the next request as soon as it has responded, so that it works while the application decodes, but not
while the application has left RESPONSES_AHEAD of its responses, or one if two do not fit. A request has all partitions:
one without those whose data wait would leave them out for its whole fetch.max.wait.ms.

Usually a response only moves the offsets of the partitions that it has records of. Then the next request is made from
the plan of its node, without a look at the other partitions, however many there are. Everything else (another
assignment, other leaders, errors, pauses) lets all partitions be checked, and the plans be made again. I/O thread only.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.client.blocking import TRY_AGAIN
from headrace.client.connection import Request, Response
from headrace.client.fetch_data import Watermarks, located
from headrace.client.metadata import NO_LEADER, Cluster, MetadataUpdater, TopicInfo
from headrace.client.network import NetworkClient
from headrace.client.offsets import Isolation
from headrace.config.clock import Clock
from headrace.consumer.fetch_session import SESSION_ERRORS, FetchedFrom, FetchSession
from headrace.consumer.metrics import FetchTotals
from headrace.consumer.partitions import (
    AssignedPartition,
    Assignment,
    FetchBuffer,
    Fetched,
    PositionState,
    end_of_data,
    visible,
)
from headrace.errors import BrokerError, Code, HeadraceError, RecordTooLargeError, WireError
from headrace.types import TopicPartition
from headrace.wire.api.fetch import FetchRequest, FetchResponse, PartitionData
from headrace.wire.api.leaders import NodeEndpoint
from headrace.wire.fields import ZERO_UUID

TOPIC_MAY_COME = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID})
MISSING_MS_MAX = 30_000.0
"""How long a partition may be missing, for example because its topic was deleted, before `poll` raises the error."""
RESPONSES_AHEAD = 2
"""Responses of a node that the application has not taken: with these, the node gets no request."""
DRAIN_WAIT_MS = 100.0
"""Until an offset out of range is looked at again while the application still has records before it."""


@dataclass(slots=True, frozen=True)
class FetchSettings:
    """Limits of a fetch."""

    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    partition_bytes_max: int
    isolation: Isolation
    rack: str
    request_timeout_ms: float
    retry_backoff_ms: float
    preferred_replica_ms: float
    """How long a preferred replica is used before fetching from the leader again."""


class FetchObserver(Protocol):
    """Called for the metrics."""

    def fetched(self, node_id: int, latency_ms: float, throttle_ms: float) -> None: ...


class _Received(NamedTuple):
    """Where and when a response was received."""

    node_id: int
    endpoints: Sequence[NodeEndpoint]
    now: float


@dataclass(slots=True)
class _NodePlan:
    """The partitions that are fetched from a node, with the offsets of the next request."""

    requested: dict[TopicPartition, AssignedPartition] = field(default_factory=dict)
    rows: dict[TopicPartition, FetchedFrom] = field(default_factory=dict)
    topics: dict[bytes, str] = field(default_factory=dict)  # By id.
    moved: dict[TopicPartition, FetchedFrom] = field(default_factory=dict)  # Rows that the last request did not have.
    is_sent: bool = False  # The last request was made from this plan.

    def add(self, partition: AssignedPartition, topic: TopicInfo) -> None:
        name = partition.name
        leader_epoch = topic.partitions[name.partition].leader_epoch
        self.requested[name] = partition
        self.rows[name] = FetchedFrom(topic.topic_id, partition.fetch_offset, leader_epoch)
        if topic.topic_id != ZERO_UUID:
            self.topics[topic.topic_id] = topic.name

    def move(self, partition: AssignedPartition) -> None:
        """Note that data of a partition have arrived."""
        name = partition.name
        if self.requested.get(name) is partition:
            self.moved[name] = self.rows[name] = self.rows[name]._replace(offset=partition.fetch_offset)


class PartitionFetcher:
    """Sends fetches and passes their data on."""

    def __init__(
        self,
        client: NetworkClient,
        updater: MetadataUpdater,
        buffer: FetchBuffer,
        settings: FetchSettings,
        clock: Clock,
        *,
        assignment: Callable[[], Assignment],
        on_data: Callable[[], None],
        on_error: Callable[[AssignedPartition, HeadraceError], None],
        on_reset: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
        observer: FetchObserver | None = None,
    ) -> None:
        self._client = client
        self._updater = updater
        self._buffer = buffer
        self._settings = settings
        self._clock = clock
        self._assignment = assignment
        self._on_data = on_data
        self._on_error = on_error
        self._on_reset = on_reset
        self._log = log
        self._observer = observer
        self._sessions: dict[int, FetchSession] = {}  # By node.
        self._in_flight: dict[int, int] = {}  # Node → the bytes that it may return.
        # Node → its responses that the application may not have taken.
        self._ahead: defaultdict[int, deque[list[Fetched]]] = defaultdict(deque)
        self._next_check_ms = 0.0
        self._is_due = False  # Set by any thread, cleared before a check.
        self._is_open = False  # A node may get its next request. As the field before.
        self._plans: dict[int, _NodePlan] = {}  # By node. They hold until something else than offsets changes.
        self._cluster: Cluster | None = None  # At the last check, as the next.
        self._version = -1

    def wake(self) -> None:
        """Check all partitions in the next iteration: something has changed. Any thread."""
        self._is_due = True

    def close_sessions(self, now: float) -> None:
        """Let brokers drop their fetch sessions, without waiting for responses."""
        for node_id, session in self._sessions.items():
            request = session.final_request()
            if request is not None and node_id not in self._in_flight and self._client.is_ready(node_id, now):
                timeout_ms = self._settings.request_timeout_ms
                self._client.send(node_id, Request.of(request, _ignore, timeout_ms, session.versions), now)

    def data_taken(self) -> None:
        """Send the next requests: the application has taken data. Any thread."""
        self._is_open = True

    def run(self, now: float) -> float:
        """Send the requests that are due; returns the time until the next check."""
        cluster, assignment = self._updater.metadata.cluster, self._assignment()
        is_changed = cluster is not self._cluster or assignment.version != self._version
        is_open, self._is_open = self._is_open, False
        if self._is_due or is_changed or now >= self._next_check_ms:
            self._is_due = False
            self._cluster, self._version = cluster, assignment.version
            self._next_check_ms = now + min(self._plan(cluster, assignment, now), self._send(now))
        elif is_open:
            self._next_check_ms = min(self._next_check_ms, now + self._send(now))
        return max(0.0, self._next_check_ms - now)

    # -- requests ------------------------------------------------------------------------------

    def _plan(self, cluster: Cluster, assignment: Assignment, now: float) -> float:
        """Check all partitions; returns the time until one of them is to be checked again."""
        wait_ms = math.inf
        plans: dict[int, _NodePlan] = {}
        for partition in assignment.partitions.values():
            node_id = self._node(partition, cluster, now)
            if not self._is_fetchable(partition):
                continue
            if now < partition.retry_at_ms:
                wait_ms = min(wait_ms, partition.retry_at_ms - now)
            elif node_id == NO_LEADER:
                self._failed(partition, Code.UNKNOWN_TOPIC_OR_PARTITION, now)
                wait_ms = min(wait_ms, self._settings.retry_backoff_ms)
            else:
                plan = plans.get(node_id)
                if plan is None:
                    plan = plans[node_id] = _NodePlan()
                plan.add(partition, cluster.topics[partition.name.topic])
                if partition.preferred_replica is not None:
                    wait_ms = min(wait_ms, partition.preferred_until_ms - now)
        self._plans = plans
        return wait_ms

    def _send(self, now: float) -> float:
        """Send to the nodes that can get a request; returns the time until the next try."""
        wait_ms = math.inf
        for node_id, plan in self._plans.items():
            if node_id in self._in_flight:
                continue
            room = self._room()
            if room <= 0 or self._is_ahead(node_id, plan):
                continue  # the application thread calls `data_taken`
            if self._client.is_ready(node_id, now):
                self._send_to(node_id, plan, room, now)
            else:
                if self._client.is_backing_off(node_id, now):
                    self._updater.metadata.request_update()  # the leaders may have changed
                    for partition in plan.requested.values():
                        partition.preferred_replica = None
                self._is_due = True  # checked again after the next event of a connection
                wait_ms = min(wait_ms, max(1.0, self._client.delay_ms(node_id, now)))
        return wait_ms

    def _is_ahead(self, node_id: int, plan: _NodePlan) -> bool:
        """Return whether the application has to take data of a node first."""
        # Two full responses of many partitions do not fit: the second one would be requested bit by bit.
        bytes_max = 2 * len(plan.rows) * self._settings.partition_bytes_max
        responses_max = RESPONSES_AHEAD if bytes_max <= self._settings.max_bytes else 1
        responses, assignment = self._ahead[node_id], self._assignment()
        while responses and not any(
            not fetched.is_taken and not fetched.partition.paused and assignment.is_current(fetched.partition)
            for fetched in responses[0]
        ):
            responses.popleft()
        return len(responses) >= responses_max

    @staticmethod
    def _is_fetchable(partition: AssignedPartition) -> bool:
        return partition.state is PositionState.FETCH and not partition.paused and partition.error is None

    def _node(self, partition: AssignedPartition, cluster: Cluster, now: float) -> int:
        preferred = partition.preferred_replica
        if preferred is not None:
            if now < partition.preferred_until_ms and preferred in cluster.brokers:
                return preferred
            partition.preferred_replica = None
        return cluster.leader(*partition.name)

    def _room(self) -> int:
        """Return how many bytes may be fetched now."""
        return self._settings.max_bytes - self._buffer.size - sum(self._in_flight.values())

    def _send_to(self, node_id: int, plan: _NodePlan, room: int, now: float) -> None:
        settings = self._settings
        session = self._sessions.get(node_id)
        if session is None:
            session = self._sessions[node_id] = FetchSession(settings.partition_bytes_max)
        bytes_max = min(room, len(plan.rows) * settings.partition_bytes_max)
        base = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=bytes_max,
            isolation_level=int(settings.isolation),
            rack_id=settings.rack,
        )
        if plan.is_sent:
            request = session.next_request(plan.rows, plan.moved, base)
        else:
            request = session.request(plan.rows, base)
        plan.is_sent, plan.moved = True, {}

        def on_response(response: Response[FetchResponse]) -> None:
            self._on_response(response, session, plan)

        self._in_flight[node_id] = bytes_max
        low = 4 if settings.isolation is Isolation.READ_COMMITTED else 0
        versions = (max(low, session.versions[0]), session.versions[1])
        timeout_ms = settings.request_timeout_ms + settings.max_wait_ms
        self._client.send(node_id, Request.of(request, on_response, timeout_ms, versions), now)

    # -- responses -----------------------------------------------------------------------------

    def _on_response(self, response: Response[FetchResponse], session: FetchSession, plan: _NodePlan) -> None:
        self._in_flight.pop(response.node_id, None)
        self.data_taken()  # for this node, and for others that may have got too little room
        now, message, requested = self._clock.monotonic_ms(), response.message, plan.requested
        if message is None:
            self.wake()
            session.reset()
            self._updater.metadata.request_update()
            for partition in requested.values():
                partition.preferred_replica = None
            return
        if message.error_code:
            self.wake()
            self._session_failed(session, requested, message.error_code, now)
            return
        session.succeeded(message.session_id)
        received = _Received(response.node_id, message.node_endpoints, now)
        arrived: list[Fetched] = []
        assignment = self._assignment()
        for topic in message.responses:
            name = topic.topic or plan.topics.get(topic.topic_id, "")
            for data in topic.partitions:
                known = requested.get(TopicPartition(name, data.partition_index))
                if known is None:
                    self._log.warning(
                        "node %d returned partition %d of topic %r (id %s), which was not requested: ignored",
                        response.node_id,
                        data.partition_index,
                        name,
                        topic.topic_id.hex(),
                    )
                elif assignment.is_current(known):  # else it was moved by a seek, or revoked
                    fetched = self._on_partition(known, data, received)
                    if fetched is not None:
                        arrived.append(fetched)
        if self._observer is not None:
            self._observer.fetched(response.node_id, response.latency_ms, response.throttle_ms)
        if arrived:
            totals = FetchTotals(len(arrived))
            current = self._plans.get(response.node_id)
            for fetched in arrived:
                fetched.totals = totals
                self._buffer.put(fetched)
                if current is not None:
                    current.move(fetched.partition)
            self._ahead[response.node_id].append(arrived)
            self._on_data()

    def _session_failed(
        self, session: FetchSession, requested: dict[TopicPartition, AssignedPartition], code: int, now: float
    ) -> None:
        session.failed(code)
        if code in SESSION_ERRORS:
            self._log.debug("fetch session: error code %d; starting a new one", code)
            if code not in (Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH):
                self._updater.metadata.request_update()
            return
        for partition in requested.values():
            self._failed(partition, code, now)

    def _on_partition(self, partition: AssignedPartition, data: PartitionData, received: _Received) -> Fetched | None:
        """Return the data of a partition, or handle its error."""
        code, now = data.error_code, received.now
        if code:
            self.wake()
            if code == Code.OFFSET_OUT_OF_RANGE:
                self._out_of_range(partition, received.node_id, now)
            else:
                partition.preferred_replica = None
                self._updater.set_leader(*partition.name, data.current_leader, received.endpoints)
                self._failed(partition, code, now)
            return None
        partition.failing_since_ms = None
        partition.watermarks = Watermarks(data.log_start_offset, data.last_stable_offset, data.high_watermark)
        if data.preferred_read_replica >= 0:
            self.wake()
            partition.preferred_replica = data.preferred_read_replica
            partition.preferred_until_ms = now + self._settings.preferred_replica_ms
        records = data.records
        if not records:
            return None
        assert isinstance(records, bytes | bytearray | memoryview)
        committed_only = self._settings.isolation is Isolation.READ_COMMITTED
        aborted = (data.aborted_transactions or ()) if committed_only else None
        try:
            next_offset, epoch = end_of_data(records)
        except WireError as error:
            self.wake()
            self._on_error(partition, located(error, partition.name, partition.fetch_offset))
            return None
        if next_offset < 0:
            self.wake()
            self._on_error(
                partition,
                RecordTooLargeError(
                    f"{partition.name} at offset {partition.fetch_offset}: the next batch is larger than "
                    f"max.partition.fetch.bytes ({self._settings.partition_bytes_max}), which this broker does not "
                    "exceed: raise it"
                ),
            )
            return None
        fetched = visible(records, partition, aborted)
        partition.fetch_offset = max(partition.fetch_offset, next_offset)
        partition.epoch = epoch if epoch >= 0 else partition.epoch
        return fetched

    def _out_of_range(self, partition: AssignedPartition, node_id: int, now: float) -> None:
        if partition.preferred_replica is not None and node_id != self._updater.metadata.cluster.leader(
            *partition.name
        ):
            partition.preferred_replica = None  # a follower may lag behind, so the leader decides
        elif partition.position != partition.fetch_offset:
            partition.retry_at_ms = now + DRAIN_WAIT_MS  # the application has records before the offset
        else:
            self._log.info("%s has no offset %d: resetting it", partition.name, partition.fetch_offset)
            partition.reset_time = None
            partition.state = PositionState.RESET
            partition.watermarks = Watermarks()
            self._on_reset()

    def _failed(self, partition: AssignedPartition, code: int, now: float) -> None:
        """Retry later with the current leader, or raise the error in `poll`."""
        partition.retry_at_ms = now + self._settings.retry_backoff_ms
        if code in TOPIC_MAY_COME:
            if partition.failing_since_ms is None:
                partition.failing_since_ms = now
            elif now - partition.failing_since_ms >= MISSING_MS_MAX:
                partition.failing_since_ms = None
                text = f"{partition.name} has been missing for {MISSING_MS_MAX / 1000:g} s: was its topic deleted?"
                self._on_error(partition, BrokerError(text, code=code))
        elif code not in TRY_AGAIN and code != Code.UNKNOWN_SERVER_ERROR:
            self._on_error(partition, BrokerError(f"fetch of {partition.name}", code=code))
            return
        self._updater.metadata.request_update()


def _ignore(response: Response[FetchResponse]) -> None:
    """Ignore the response to the end of a session."""
