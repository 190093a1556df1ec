"""A client that asks and waits: what the admin client and the fetcher stand on.

    ask(message, to=any | the controller | a coordinator | a node) → response
    ask_leaders(partitions, …) → a value for each partition, from whoever leads it

No thread of its own: the network client is polled by whoever calls, one call at a time. A broken connection, a
coordinator that has moved or a leader that has changed are tried again until the time of the call is up; what a
broker says about the matter itself is the caller's to judge.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, Self, TypeVar

from headrace.client import tls
from headrace.client.addresses import USE_ALL_DNS_IPS, bootstrap_endpoints, parse
from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.connection import ConnectionSettings
from headrace.client.credentials import SaslSettings
from headrace.client.metadata import NO_LEADER, Cluster, Metadata, MetadataUpdater
from headrace.client.network import NetworkClient, NetworkSettings, backoff_ms
from headrace.client.requests import Request, Response
from headrace.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    Code,
    ConnectionFailedError,
    HeadraceError,
    TimedOutError,
)
from headrace.types import TopicPartition
from headrace.wire.api import api_name
from headrace.wire.api.find_coordinator import FindCoordinatorRequest
from headrace.wire.schema import Message

TURN_MS_MAX = 1000.0
UNKNOWN_TOPIC_MS_MAX = 2000.0
"""How long a topic may be unknown: brokers hear of a new one a little after it was made."""

# Somebody else is to be asked, or the same one a little later.
TRY_AGAIN = frozenset({5, 6, 9, 13, 14, 15, 16, 41, 51, 56, 72, 74, 75, 78})

T = TypeVar("T")


class Where(Enum):
    """Who can answer, if it is no particular node."""

    ANYONE = auto()
    CONTROLLER = auto()


class CoordinatorKind(Enum):
    GROUP = 0
    TRANSACTION = 1


class Coordinator(NamedTuple):
    """Who looks after a group or a transactional id."""

    kind: CoordinatorKind
    key: str


Target = int | Where | Coordinator


@dataclass(slots=True, frozen=True)
class ClientSettings:
    """How to reach the cluster, and how long to try."""

    bootstrap_servers: str | Sequence[str]
    client_id: str = "headrace"
    timeout_ms: float = 60_000  # for a call with all its attempts: Kafka's default.api.timeout.ms
    request_timeout_ms: float = 30_000
    retry_backoff_ms: float = 50
    retry_backoff_max_ms: float = 1000
    metadata_max_age_ms: float = 300_000
    receive_buffer_bytes: int = 64 * 1024
    client_dns_lookup: str = USE_ALL_DNS_IPS
    tls: tls.TlsSettings | None = None
    sasl: SaslSettings | None = field(default=None, repr=False)


@dataclass(slots=True)
class Pending:
    """A request that was sent."""

    node_id: int
    response: Response | None = None

    def take(self, response: Response) -> None:
        self.response = response

    def result(self) -> Any:
        """The message; what went wrong is raised."""
        assert self.response is not None
        if self.response.error is not None:
            raise self.response.error
        return self.response.message


class BlockingClient:
    """Requests that are waited for."""

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
        self.network.on_auth_failure = self._refused
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
        self._lock = threading.RLock()  # one call at a time
        self._coordinators: dict[Coordinator, int] = {}
        self._refusal: AuthenticationError | None = None
        self._chance = random.Random()
        self._closed = False

    # -- asking --------------------------------------------------------------------------------

    def ask(
        self,
        message: Message | Callable[[int], Message],
        to: Target = Where.ANYONE,
        *,
        versions: tuple[int, int] | None = None,
        codes: Callable[[Any], Iterable[int]] = lambda response: (),
        api_key: int | None = None,
        timeout_ms: float | None = None,
    ) -> Any:
        """The response to a message (or to what a function makes of the version).

        `codes` finds the error codes in a response: with one that says "not here" or "not yet" the question is put
        again. When the time is up the last response is returned as it is; without any, that is a TimedOutError.
        """
        key = message.api_key if isinstance(message, Message) else api_key
        assert key is not None
        deadline = self.deadline(timeout_ms)
        response: Any = None
        with self._lock:
            for attempt in self._attempts(api_name(key), deadline):
                try:
                    node_id = self._find(to, deadline)
                    pending = self.begin(node_id, message, versions, deadline, api_key=key)
                    self.finish([pending], deadline)
                    response = pending.result()
                except ConnectionFailedError as error:
                    attempt.failure = error
                else:
                    attempt.has_answer = True
                    if not TRY_AGAIN.intersection(codes(response)):
                        break
                if isinstance(to, Coordinator):
                    self._coordinators.pop(to, None)
                elif to is Where.CONTROLLER:
                    self.metadata.request_update()
        return response

    def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        build: Callable[[list[TopicPartition]], Message],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
        *,
        versions: tuple[int, int] | None = None,
        timeout_ms: float | None = None,
        partial: bool = False,
    ) -> dict[TopicPartition, T]:
        """What the leader of each partition answers; a BrokerError names the partition that has none to give.

        With `partial`, partitions that are offline, or whose leaders do not respond, are left out when the time is up.
        """
        left: dict[TopicPartition, int] = dict.fromkeys(partitions, Code.UNKNOWN_TOPIC_OR_PARTITION)
        found: dict[TopicPartition, T] = {}
        deadline = self.deadline(timeout_ms)
        unknown_deadline = min(deadline, self.clock.monotonic_ms() + UNKNOWN_TOPIC_MS_MAX)
        with self._lock, suppress(TimedOutError) if partial else nullcontext():
            for attempt in self._attempts("the leaders of partitions", deadline):
                cluster = self.cluster({tp.topic for tp in left}, deadline, fresh=attempt.number > 1)
                sent: list[Pending] = []
                for node_id, led in self._by_leader(cluster, left).items():
                    try:
                        sent.append(self.begin(node_id, build(led), versions, deadline))
                    except ConnectionFailedError as error:
                        attempt.failure = error
                self.finish(sent, deadline)
                for pending in sent:
                    try:
                        answers = list(read(pending.result()))
                    except ConnectionFailedError as error:
                        attempt.failure = error
                        continue
                    for tp, code, value in answers:
                        if code == 0:
                            found[tp] = value
                            left.pop(tp, None)
                        elif code in TRY_AGAIN or code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                            left[tp] = code
                            attempt.has_answer = True
                        else:
                            raise BrokerError(str(tp), code=code)
                if not left:
                    return found
                if self.clock.monotonic_ms() >= unknown_deadline:
                    self._raise_unknown(left)
        for tp, code in left.items() if not partial else ():
            raise BrokerError(f"{tp}: not after {self.settings.timeout_ms:.0f} ms", code=code)
        return found

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
                has = "there is no such topic" if count is None else f"the topic has {count} partitions"
                raise BrokerError(f"{tp}: {has}", code=code)

    # -- finding whom to ask -------------------------------------------------------------------

    def cluster(self, topics: Iterable[str], deadline: float, *, fresh: bool = False) -> Cluster:
        """What is known of the cluster and these topics; asked anew if one is not known, or if it is to be fresh."""
        topics = list(topics)
        known = self.metadata.cluster
        new = [topic for topic in topics if topic not in known.topics]
        if not fresh and known.brokers and not new:
            self.metadata.touch(topics)
            return known
        for topic in topics:
            self.metadata.add_topic(topic)
        with self._lock:
            wish = self.metadata.request_update(is_urgent=True)
            while not self.metadata.wait_for_wish(wish, 0):
                self.turn(deadline, "metadata")
        return self.metadata.cluster

    def _find(self, to: Target, deadline: float) -> int:
        if isinstance(to, int):
            return to
        if isinstance(to, Coordinator):
            return self._find_coordinator(to, deadline)
        if to is Where.CONTROLLER:
            controller_id = self.cluster((), deadline).controller_id
            if controller_id < 0:
                raise ConnectionFailedError("the cluster has no controller at the moment")
            return controller_id
        while True:
            now = self.clock.monotonic_ms()
            node_id = self.network.least_loaded_node(self.updater.node_ids, now)
            if node_id is not None and self.network.is_ready(node_id, now):
                return node_id
            self.turn(deadline, "a broker")

    def _find_coordinator(self, wanted: Coordinator, deadline: float) -> int:
        known = self._coordinators.get(wanted)
        if known is not None:
            return known
        kind, key = wanted

        def build(version: int) -> Message:
            if version < 4:
                return FindCoordinatorRequest(key=key, key_type=kind.value)
            return FindCoordinatorRequest(coordinator_keys=[key], key_type=kind.value)

        def answer(response: Any) -> Any:
            return response.coordinators[0] if response.coordinators else response

        low = 0 if kind is CoordinatorKind.GROUP else 1
        response = self.ask(
            build,
            versions=(low, 6),
            codes=lambda response: [answer(response).error_code],
            api_key=FindCoordinatorRequest.api_key,
            timeout_ms=deadline - self.clock.monotonic_ms(),
        )
        found = answer(response)
        if found.error_code:
            what = f"the coordinator of {kind.name.lower()} {key!r}"
            raise BrokerError(f"{what}: {found.error_message or 'not found'}", code=found.error_code)
        if found.node_id not in self.metadata.cluster.brokers:
            self.cluster((), deadline, fresh=True)
        self._coordinators[wanted] = int(found.node_id)
        return int(found.node_id)

    # -- sending and waiting -------------------------------------------------------------------

    def deadline(self, timeout_ms: float | None = None) -> float:
        return self.clock.monotonic_ms() + (self.settings.timeout_ms if timeout_ms is None else timeout_ms)

    def begin(
        self,
        node_id: int,
        message: Message | Callable[[int], Message],
        versions: tuple[int, int] | None,
        deadline: float,
        *,
        api_key: int | None = None,
    ) -> Pending:
        """Send to a node once it is connected; a node that cannot be reached is a ConnectionFailedError."""
        while not self.network.is_ready(node_id, now := self.clock.monotonic_ms()):
            if self.network.is_backing_off(node_id, now) or not self.network.knows_node(node_id):
                raise ConnectionFailedError(str(self.network.last_failure or f"node {node_id} cannot be reached"))
            self.turn(deadline, f"node {node_id}")
        pending = Pending(node_id)
        timeout_ms = self.settings.request_timeout_ms
        if isinstance(message, Message):
            request = Request.of(message, pending.take, timeout_ms, versions)
        else:
            assert api_key is not None
            assert versions is not None
            request = Request(api_key, message, pending.take, versions, timeout_ms)
        self.network.send(node_id, request, now)
        return pending

    def finish(self, pending: Sequence[Pending], deadline: float) -> None:
        """Wait until all are answered or lost."""
        while any(one.response is None for one in pending):
            self.turn(deadline, "an answer")

    def turn(self, deadline: float, what: str) -> None:
        """Poll once; raises if the time is up, or if the cluster will not have us."""
        now = self.clock.monotonic_ms()
        if now >= deadline:
            why = self.network.last_failure
            raise TimedOutError(f"timed out waiting for {what}" + (f"; {why}" if why else ""))
        self.poll(deadline - now)

    def poll(self, wait_ms: float) -> None:
        """Deal with what happens on the connections in the next `wait_ms`, or until something has."""
        self.check_open()
        now = self.clock.monotonic_ms()
        self.network.poll(min(self.updater.maybe_update(now), wait_ms, TURN_MS_MAX), now)
        if self._refusal is not None:
            error, self._refusal = self._refusal, None
            raise error

    def _attempts(self, what: str, deadline: float) -> Iterator[_Attempt]:
        """Attempts with pauses between them. When the time is up and there has been no answer at all, it raises."""
        attempt = _Attempt()
        settings = self.settings
        while True:
            yield attempt
            wait = backoff_ms(settings.retry_backoff_ms, settings.retry_backoff_max_ms, attempt.number, self._chance)
            resume = self.clock.monotonic_ms() + wait
            if resume >= deadline:
                if attempt.has_answer:
                    return
                raise TimedOutError(f"{what}: no answer in time; {attempt.failure}") from attempt.failure
            while (left := resume - self.clock.monotonic_ms()) > 0:
                self.poll(left)
            attempt.number += 1

    def _refused(self, error: AuthenticationError) -> None:
        self._refusal = error

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")

    def close(self) -> None:
        """Close the connections. Whatever is asked after that raises."""
        with self._lock:
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
    has_answer: bool = False
