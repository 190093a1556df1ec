"""A blocking client, below the admin client and the fetcher.

    request(message, to=any node | controller | coordinator | node id) → response
    request_leaders(partitions, …) → a value for each partition, from its leader

It has no thread: the caller's thread polls the network client, one call at a time. Requests are retried until the
timeout of the call if the connection fails, or the coordinator or leader has moved. Other errors in a response are
returned.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, NamedTuple, Self, TypedDict, TypeVar

from headrace.client import tls
from headrace.client.addresses import USE_ALL_DNS_IPS, bootstrap_endpoints, parse
from headrace.client.connection import ConnectionSettings, Request, Response
from headrace.client.credentials import SaslSettings
from headrace.client.metadata import NO_LEADER, Cluster, Metadata, MetadataUpdater
from headrace.client.network import NetworkClient, NetworkSettings
from headrace.client.tls import TlsSettings
from headrace.config.backoff import exponential_backoff
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    Code,
    ConnectionFailedError,
    HeadraceError,
    TimedOutError,
    UnsupportedVersionError,
)
from headrace.types import TopicPartition
from headrace.wire.api import api_name
from headrace.wire.api.metadata import Coordinator as FoundCoordinator
from headrace.wire.api.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.schema import Message, RequestMessage

POLL_MS_MAX = 1000.0
UNKNOWN_TOPIC_MS_MAX = 2000.0
"""How long a topic may be unknown: brokers learn of a new topic with a delay."""
LOOKED_UP_MAX = 500
"""Coordinators that one request looks up."""
COORDINATORS_MAX = 100_000
"""Coordinators that a client remembers. Beyond that, it forgets all of them."""

# Errors after which another broker, or the same one later, can succeed.
TRY_AGAIN = frozenset(
    {
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_CONTROLLER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.LISTENER_NOT_FOUND,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
    }
)

T = TypeVar("T")
R = TypeVar("R", bound=Message)


class Role(Enum):
    """A target that is not a specific node."""

    ANY_BROKER = auto()
    CONTROLLER = auto()


class CoordinatorKind(Enum):
    GROUP = 0
    TRANSACTION = 1


class Coordinator(NamedTuple):
    """The coordinator of a group or a transactional id."""

    kind: CoordinatorKind
    key: str


Target = int | Role | Coordinator


class ClientOptions(TypedDict, total=False):
    """The fields of `ClientSettings` that have a default, as keyword arguments."""

    client_id: str
    timeout_ms: float
    request_timeout_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    metadata_max_age_ms: float
    receive_buffer_bytes: int
    client_dns_lookup: str
    tls: TlsSettings | None
    sasl: SaslSettings | None
    first_connection_ms: float | None


@dataclass(slots=True, frozen=True)
class ClientSettings:
    """The settings of a blocking client."""

    bootstrap_servers: str | Sequence[str]
    client_id: str = "headrace"
    timeout_ms: float = 60_000  # For a call with all its attempts, as Kafka's default.api.timeout.ms.
    request_timeout_ms: float = 30_000
    retry_backoff_ms: float = 50
    retry_backoff_max_ms: float = 1000
    metadata_max_age_ms: float = 300_000
    receive_buffer_bytes: int = 64 * 1024
    client_dns_lookup: str = USE_ALL_DNS_IPS
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = field(default=None, repr=False)
    first_connection_ms: float | None = None
    """How long connections may fail before the first succeeds; None: until the timeout of the call."""


@dataclass(slots=True)
class Pending(Generic[R]):
    """A sent request and its response."""

    node_id: int
    response: Response[R] | None = None

    def take(self, response: Response[R]) -> None:
        self.response = response

    def result(self) -> R:
        """Return the message, or raise the error."""
        assert self.response is not None
        if self.response.error is not None:
            raise self.response.error
        assert self.response.message is not None
        return self.response.message


class BlockingClient:
    """Sends requests and waits for their responses."""

    def __init__(self, settings: ClientSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.clock = clock
        self.network = NetworkClient(
            ConnectionSettings(
                client_id=settings.client_id,
                request_timeout_ms=settings.request_timeout_ms,
                receive_buffer_bytes=settings.receive_buffer_bytes,
                tls_context=None if settings.tls is None else tls.context(settings.tls),
                mechanism_factory=None if settings.sasl is None else settings.sasl.mechanism,
            ),
            NetworkSettings(),
            clock,
        )
        self.network.on_auth_failure = self._on_auth_failure
        self.metadata = Metadata(
            clock,
            max_age_ms=settings.metadata_max_age_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
        )
        endpoints, _ = bootstrap_endpoints(parse(settings.bootstrap_servers), settings.client_dns_lookup)
        self.updater = MetadataUpdater(
            self.metadata,
            self.network,
            endpoints,
            request_timeout_ms=settings.request_timeout_ms,
            rebootstrap_trigger_ms=settings.metadata_max_age_ms,
            allow_auto_topic_creation=False,
        )
        self.lock = threading.RLock()
        """Held during a call with all its attempts: only one thread at a time uses the network client."""
        self._coordinators: dict[Coordinator, int] = {}
        self._authentication_error: AuthenticationError | None = None
        self._random = random.Random()
        self._closed = False

    # -- requests ------------------------------------------------------------------------------

    def request(
        self,
        message: RequestMessage[R] | Callable[[int], RequestMessage[R]],
        to: Target = Role.ANY_BROKER,
        *,
        versions: tuple[int, int] | None = None,
        codes: Callable[[R], Iterable[int]] = lambda response: (),
        api_key: int | None = None,
        timeout_ms: float | None = None,
    ) -> R:
        """Return the response to a message, or to the message that a function returns for a version.

        `codes` returns the error codes of a response: with one of TRY_AGAIN, the request is retried. At the timeout,
        the last response is returned; if there was none, TimedOutError is raised.
        """
        key = message.api_key if isinstance(message, Message) else api_key
        assert key is not None
        deadline = self.deadline(timeout_ms)
        response: R | None = None
        with self.lock:
            self.check_open()
            for attempt in self._attempts(api_name(key), deadline):
                try:
                    node_id = self._find(to, deadline)
                    pending = self.begin(node_id, message, versions, deadline, api_key=key)
                    self.finish([pending], deadline)
                    response = pending.result()
                except ConnectionFailedError as error:
                    attempt.failure = error
                else:
                    attempt.has_response = True
                    again = TRY_AGAIN.intersection(codes(response))
                    if not again:
                        break
                    if again == {Code.CONCURRENT_TRANSACTIONS}:
                        continue  # from the right coordinator
                if isinstance(to, Coordinator):
                    self._coordinators.pop(to, None)
                elif to is Role.CONTROLLER:
                    self.metadata.request_update()
        assert response is not None  # without a response, _attempts has raised
        return response

    def request_leaders(
        self,
        partitions: Iterable[TopicPartition],
        build: Callable[[list[TopicPartition]], RequestMessage[R]],
        read: Callable[[R], Iterable[tuple[TopicPartition, int, T]]],
        *,
        versions: tuple[int, int] | None = None,
        timeout_ms: float | None = None,
        partial: bool = False,
    ) -> dict[TopicPartition, T]:
        """Return a value for each partition from its leader; raises a BrokerError that names a partition without one.

        With `partial`, partitions that are offline, or whose leaders do not respond until the timeout, are left out.
        """
        left: dict[TopicPartition, int] = dict.fromkeys(partitions, Code.UNKNOWN_TOPIC_OR_PARTITION)
        values: dict[TopicPartition, T] = {}
        deadline = self.deadline(timeout_ms)
        unknown_deadline = min(deadline, self.clock.monotonic_ms() + UNKNOWN_TOPIC_MS_MAX)
        with self.lock, suppress(TimedOutError) if partial else nullcontext():
            for attempt in self._attempts("the leaders of partitions", deadline):
                cluster = self.cluster({tp.topic for tp in left}, deadline, fresh=attempt.number > 1)
                sent: list[Pending[R]] = []
                for node_id, led in self._by_leader(cluster, left).items():
                    try:
                        sent.append(self.begin(node_id, build(led), versions, deadline))
                    except ConnectionFailedError as error:
                        attempt.failure = error
                self.finish(sent, deadline)
                for pending in sent:
                    try:
                        rows = list(read(pending.result()))
                    except ConnectionFailedError as error:
                        attempt.failure = error
                        continue
                    for tp, code, value in rows:
                        if code == Code.NONE:
                            values[tp] = value
                            left.pop(tp, None)
                        elif code in TRY_AGAIN or code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                            left[tp] = code
                            attempt.has_response = True
                        else:
                            raise BrokerError(str(tp), code=code)
                if not left:
                    return values
                if self.clock.monotonic_ms() >= unknown_deadline:
                    self._raise_unknown(left)
        for tp, code in left.items() if not partial else ():
            raise BrokerError(f"{tp}: timed out after {self.settings.timeout_ms:.0f} ms", code=code)
        return values

    def _by_leader(self, cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for tp in partitions:
            self.metadata.raise_topic_error(tp.topic)
            leader = cluster.leader(*tp)
            if leader != NO_LEADER:
                led[leader].append(tp)
        return led

    def _raise_unknown(self, left: dict[TopicPartition, int]) -> None:
        for tp, code in left.items():
            count = self.metadata.cluster.partition_count(tp.topic)
            if code == Code.UNKNOWN_TOPIC_OR_PARTITION and (count is None or tp.partition >= count):
                fact = "the topic does not exist" if count is None else f"the topic has {count} partitions"
                raise BrokerError(f"{tp}: {fact}", code=code)

    # -- finding nodes -------------------------------------------------------------------------

    def cluster(self, topics: Iterable[str], deadline: float, *, fresh: bool = False) -> Cluster:
        """Return the metadata with these topics; updates it if a topic is missing, or with `fresh`."""
        topics = list(topics)
        known = self.metadata.cluster
        new = [topic for topic in topics if topic not in known.topics]
        if not fresh and known.brokers and not new:
            self.metadata.touch(topics)
            return known
        for topic in topics:
            self.metadata.add_topic(topic)
        with self.lock:
            update_seq = self.metadata.request_update(is_urgent=True)
            while not self.metadata.wait_for_update(update_seq, 0):
                self.poll_until(deadline, "metadata")
        return self.metadata.cluster

    def _find(self, to: Target, deadline: float) -> int:
        if isinstance(to, int):
            return to
        if isinstance(to, Coordinator):
            return self._find_coordinator(to, deadline)
        if to is Role.CONTROLLER:
            controller_id = self.cluster((), deadline).controller_id
            if controller_id < 0:
                raise ConnectionFailedError("the cluster has no controller")
            return controller_id
        while True:
            now = self.clock.monotonic_ms()
            node_id = self.network.least_loaded_node(self.updater.node_ids, now)
            if node_id is not None and self.network.is_ready(node_id, now):
                return node_id
            self.poll_until(deadline, "a connection to a broker")

    def _find_coordinator(self, coordinator: Coordinator, deadline: float) -> int:
        known = self._coordinators.get(coordinator)
        if known is not None:
            return known
        kind, key = coordinator

        def build(version: int) -> FindCoordinatorRequest:
            if version < 4:
                return FindCoordinatorRequest(key=key, key_type=kind.value)
            return FindCoordinatorRequest(coordinator_keys=[key], key_type=kind.value)

        def node_of(response: FindCoordinatorResponse) -> FindCoordinatorResponse | FoundCoordinator:
            return response.coordinators[0] if response.coordinators else response

        low = 0 if kind is CoordinatorKind.GROUP else 1
        response = self.request(
            build,
            versions=(low, 6),
            codes=lambda response: [node_of(response).error_code],
            api_key=FindCoordinatorRequest.api_key,
            timeout_ms=deadline - self.clock.monotonic_ms(),
        )
        node = node_of(response)
        if node.error_code:
            what = f"the coordinator of {kind.name.lower()} {key!r}"
            raise BrokerError(f"{what}: {node.error_message or 'not found'}", code=node.error_code)
        if node.node_id not in self.metadata.cluster.brokers:
            self.cluster((), deadline, fresh=True)
        self._coordinators[coordinator] = node.node_id
        return node.node_id

    def find_coordinators(self, kind: CoordinatorKind, keys: Sequence[str]) -> dict[str, int]:
        """Return the coordinators of keys; look up many of them with one request, those that are not known yet.

        Keys without a coordinator at this time are left out; all unknown ones, if brokers are too old (before 3.0).
        """
        with self.lock, suppress(UnsupportedVersionError):
            unknown = [key for key in keys if Coordinator(kind, key) not in self._coordinators]
            if len(self._coordinators) + len(unknown) > COORDINATORS_MAX:
                self._coordinators.clear()
                unknown = list(keys)
            for start in range(0, len(unknown), LOOKED_UP_MAX):
                part = unknown[start : start + LOOKED_UP_MAX]
                response = self.request(
                    FindCoordinatorRequest(key_type=kind.value, coordinator_keys=part), versions=(4, 6)
                )
                node_ids = {entry.key: entry.node_id for entry in response.coordinators if not entry.error_code}
                if not self.metadata.cluster.brokers.keys() >= set(node_ids.values()):
                    self.cluster((), self.deadline(), fresh=True)
                self._coordinators |= {Coordinator(kind, key): node_id for key, node_id in node_ids.items()}
        known = ((key, self._coordinators.get(Coordinator(kind, key))) for key in keys)
        return {key: node_id for key, node_id in known if node_id is not None}

    def forget_coordinators(self, kind: CoordinatorKind, keys: Iterable[str]) -> None:
        """Look these up again when they are needed: they have moved, or do not respond."""
        with self.lock:
            for key in keys:
                self._coordinators.pop(Coordinator(kind, key), None)

    # -- sending and waiting -------------------------------------------------------------------

    def deadline(self, timeout_ms: float | None = None) -> float:
        return self.clock.monotonic_ms() + (self.settings.timeout_ms if timeout_ms is None else timeout_ms)

    def begin(
        self,
        node_id: int,
        message: RequestMessage[R] | Callable[[int], RequestMessage[R]],
        versions: tuple[int, int] | None,
        deadline: float,
        *,
        api_key: int | None = None,
    ) -> Pending[R]:
        """Send to a node, after connecting to it; raises ConnectionFailedError if it is unreachable."""
        while not self.network.is_ready(node_id, now := self.clock.monotonic_ms()):
            if self.network.is_backing_off(node_id, now) or not self.network.knows_node(node_id):
                raise ConnectionFailedError(str(self.network.last_failure or f"node {node_id} is unreachable"))
            self.poll_until(deadline, f"a connection to node {node_id}")
        pending: Pending[R] = Pending(node_id)
        timeout_ms = self.settings.request_timeout_ms
        if isinstance(message, Message):
            request = Request.of(message, pending.take, timeout_ms, versions)
        else:
            assert api_key is not None
            assert versions is not None
            request = Request(api_key, message, pending.take, versions, timeout_ms)
        self.network.send(node_id, request, now)
        return pending

    def finish(self, pending: Sequence[Pending[R]], deadline: float) -> None:
        """Wait until all requests have a response or have failed."""
        while any(request.response is None for request in pending):
            self.poll_until(deadline, "a response")

    def poll_until(self, deadline: float, what: str, wait_ms: float = POLL_MS_MAX) -> None:
        """Poll once, up to `wait_ms`; raises at the deadline, or if authentication failed."""
        now = self.clock.monotonic_ms()
        network, limit = self.network, self.settings.first_connection_ms
        if limit is not None and network.failing_since_ms is not None and not network.has_connected:
            failing_ms = now - network.failing_since_ms
            if failing_ms >= limit:
                raise TimedOutError(f"no connection to a broker for {failing_ms / 1000:.1f} s; {network.last_failure}")
            deadline = min(deadline, network.failing_since_ms + limit)
        if now >= deadline:
            reason = network.last_failure
            raise TimedOutError(f"timed out waiting for {what}" + (f"; {reason}" if reason else ""))
        self.poll(min(deadline - now, wait_ms))

    def poll(self, wait_ms: float) -> None:
        """Process events on the connections; waits up to `wait_ms` for the first."""
        self.check_open()
        now = self.clock.monotonic_ms()
        self.network.poll(min(self.updater.maybe_update(now), wait_ms, POLL_MS_MAX), now)
        if self._authentication_error is not None:
            error, self._authentication_error = self._authentication_error, None
            raise error

    def _attempts(self, what: str, deadline: float) -> Iterator[_Attempt]:
        """Yield attempts with back-off between them; raises at the deadline if there was no response at all."""
        attempt = _Attempt()
        while True:
            yield attempt
            wait_ms = self.backoff_ms(attempt.number)
            if self.clock.monotonic_ms() + wait_ms >= deadline:
                if attempt.has_response:
                    return
                raise TimedOutError(f"timed out waiting for {what}; {attempt.failure}") from attempt.failure
            self.pause(wait_ms)
            attempt.number += 1

    def backoff_ms(self, failures: int) -> float:
        """Return how long to wait before another attempt, after this many in a row have failed."""
        settings = self.settings
        return exponential_backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, failures, self._random)

    def pause(self, wait_ms: float) -> None:
        """Wait this long, and process events on the connections meanwhile."""
        resume = self.clock.monotonic_ms() + wait_ms
        with self.lock:
            while (left := resume - self.clock.monotonic_ms()) > 0:
                self.poll(left)

    def _on_auth_failure(self, error: AuthenticationError) -> None:
        self._authentication_error = error

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")

    def close(self) -> None:
        """Close the connections. Later calls raise ClosedError."""
        with self.lock:
            if not self._closed:
                self._closed = True
                self.network.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@dataclass(slots=True)
class _Attempt:
    number: int = 1
    failure: HeadraceError | None = None
    has_response: bool = False
