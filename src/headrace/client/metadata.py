"""Metadata of the cluster: brokers, topics and leaders, and when to update them.

    application threads: add_topic, request_update, wait_for_version, wait_for_update
    polling thread: MetadataUpdater.maybe_update → MetadataRequest → Metadata.update → wakes waiting threads

A snapshot (`Cluster`) is immutable and replaced as a whole, so readers need no lock.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from headrace.client.addresses import Endpoint
from headrace.client.concurrency import OneShotEvent, OwnedLock
from headrace.client.connection import Request, Response
from headrace.client.network import CONNECTING_MS_MAX, NetworkClient
from headrace.config.backoff import exponential_backoff
from headrace.config.clock import Clock
from headrace.errors import BrokerError, Code, HeadraceError, UnsupportedVersionError, error_name
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

NO_LEADER = -1
FATAL_TOPIC_ERRORS = (Code.INVALID_TOPIC_EXCEPTION, Code.TOPIC_AUTHORIZATION_FAILED)
METADATA_VERSIONS = (1, 13)
TOPIC_ID_VERSIONS = (12, 13)
"""Versions in which topics can be requested by their ids."""
UNREACHABLE_MS_MAX = 1000.0
"""How long no known broker may be reachable before bootstrap.servers are used: two or three attempts each."""
RETRY_MS = 100.0


class PartitionInfo(NamedTuple):
    partition: int
    leader: int  # Or NO_LEADER.
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(NamedTuple):
    name: str
    topic_id: bytes
    partitions: Sequence[PartitionInfo]  # By number.
    internal: bool


@dataclass(slots=True, frozen=True)
class Cluster:
    """A snapshot of the metadata."""

    brokers: Mapping[int, Endpoint] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)  # Topics with an error.
    controller_id: int = -1
    cluster_id: str | None = None

    def partition_count(self, topic: str) -> int | None:
        info = self.topics.get(topic)
        return len(info.partitions) if info else None

    def leader(self, topic: str, partition: int) -> int:
        info = self.topics.get(topic)
        if info is None or not 0 <= partition < len(info.partitions):
            return NO_LEADER
        return info.partitions[partition].leader

    def topic_id(self, topic: str) -> bytes | None:
        info = self.topics.get(topic)
        return info.topic_id if info and any(info.topic_id) else None

    def partitions_for(self, topic: str) -> Sequence[int]:
        return range(self.partition_count(topic) or 0)

    def available_partitions_for(self, topic: str) -> Sequence[int]:
        """Return the partitions that have a leader."""
        info = self.topics.get(topic)
        return [p.partition for p in info.partitions if p.leader != NO_LEADER] if info else ()


class _UpdateWaiter:
    """A thread that waits for an update. Guarded by the metadata's lock."""

    __slots__ = ("changed", "error")

    def __init__(self) -> None:
        self.changed = OneShotEvent()  # Replaced before each check.
        self.error: HeadraceError | None = None


class Metadata:
    """The current snapshot and the update_seq for a newer one. Shared between threads."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_age_ms: float = 300_000,
        max_idle_ms: float = 300_000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        on_update: Callable[[Cluster], None] | None = None,
        is_lazy: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        """`is_lazy`: no update is due before the first `request_update` or `add_topic`."""
        self.clock = clock
        self._is_lazy = is_lazy
        self._max_age_ms = max_age_ms
        self._max_idle_ms = max_idle_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._on_update = on_update
        self._random = rng or random.Random()
        self.cluster = Cluster()  # Replaced as a whole, by the polling thread.
        self.lock = OwnedLock()
        self._topics: dict[str, float] = {}  # Guarded by lock: topic → when it was last used.
        self._topic_ids: set[bytes] = set()  # Guarded by lock: topics whose names are in the next request.
        self._version = 0  # Guarded by lock: counts updates.
        self._update_seq = 0  # Guarded by lock: the number of the last requested update.
        self._completed_seq = 0  # Guarded by lock: the last one that a response completed.
        self._hurry = False  # Guarded by lock: update without waiting for the back-off, for example for a new topic.
        self._waiting: dict[_UpdateWaiter, None] = {}  # Guarded by lock: threads in _wait_until.
        self._fatal: HeadraceError | None = None  # Guarded by lock: of the last attempt.
        self._fatal_update_seq = 0  # Guarded by lock: later updates are not affected by _fatal.
        self._closed: HeadraceError | None = None  # Guarded by lock: fails all current and later waits.
        # Polling thread only.
        self._refreshed_ms = -1e18
        self._attempted_ms = -1e18
        self._retry_at_ms = -1e18
        self._requested_seq = 0  # the last one when the request in flight was sent
        self._failures = 0

    # -- any thread ----------------------------------------------------------------------------

    def add_topic(self, topic: str) -> bool:
        """Track a topic; True if it is new."""
        with self.lock:
            new = topic not in self._topics
            self._topics[topic] = self.clock.monotonic_ms()
            if new:
                self._update_seq += 1
                self._hurry = True
            return new

    def add_topic_ids(self, topic_ids: Iterable[bytes]) -> None:
        """Request topics by their ids, once: track their names when the snapshot has them."""
        with self.lock:
            self._topic_ids.update(topic_ids)
            self._update_seq += 1
            self._hurry = self._hurry or not self._failures

    def touch(self, topics: Iterable[str]) -> None:
        """Mark topics as in use, so that they are kept."""
        now = self.clock.monotonic_ms()
        with self.lock:
            for topic in topics:
                self._topics[topic] = now

    @property
    def version(self) -> int:
        """The number of the snapshot, for `wait_for_version`."""
        return self._version

    def request_update(self, *, is_urgent: bool = False) -> int:
        """Request a new snapshot; returns the update's number for `wait_for_update`.

        An urgent update skips the minimum interval between updates, but not the back-off after failures.
        """
        with self.lock:
            self._update_seq += 1
            self._hurry = self._hurry or (is_urgent and not self._failures)
            return self._update_seq

    def wait_for_version(self, version: int, timeout_ms: float) -> bool:
        """Wait until the snapshot is newer than `version`; False on timeout."""
        return self._wait_until(lambda: self._version > version, timeout_ms)

    def wait_for_update(self, update_seq: int, timeout_ms: float) -> bool:
        """Wait until the update that `request_update` numbered is complete; False on timeout."""

        def is_completed() -> bool:
            if self._fatal is not None and update_seq <= self._fatal_update_seq:
                raise self._fatal
            return self._completed_seq >= update_seq

        return self._wait_until(is_completed, timeout_ms)

    def _wait_until(self, condition: Callable[[], bool], timeout_ms: float) -> bool:
        deadline = time.monotonic() + timeout_ms / 1000
        waiter = _UpdateWaiter()
        try:
            while True:
                changed = OneShotEvent()
                with self.lock:
                    waiter.changed = changed
                    self._waiting[waiter] = None
                    if self._closed is not None:
                        raise self._closed
                    if waiter.error is not None:
                        raise waiter.error
                    if condition():
                        return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                changed.wait(left)
        finally:
            self._waiting.pop(waiter, None)

    def _notify(self) -> None:
        """Wake all waiting threads. The lock is held."""
        for waiter in list(self._waiting):
            waiter.changed.set()

    def close(self, error: HeadraceError) -> None:
        """Fail all current and later waits."""
        with self.lock:
            self._closed = error
            self._notify()

    def raise_topic_error(self, topic: str) -> None:
        """Raise the error of a topic if it is permanent."""
        code = self.cluster.errors.get(topic)
        if code in FATAL_TOPIC_ERRORS:
            raise BrokerError(f"topic {topic!r}", code=code)

    # -- polling thread ------------------------------------------------------------------------

    def time_to_update_ms(self, now: float) -> float:
        """Return the time until an update is due."""
        if self._is_lazy and not self._update_seq:
            return float("inf")
        wait = 0.0 if self._update_seq > self._completed_seq else self._refreshed_ms + self._max_age_ms - now
        return max(0.0, wait, 0.0 if self._hurry else self._retry_at_ms - now)

    def tracked_topics(self, now: float) -> list[str]:
        """Return the topics to request; drops topics that have not been used for long."""
        with self.lock:
            self._topics = {t: used for t, used in self._topics.items() if now - used <= self._max_idle_ms}
            return list(self._topics)

    def take_topic_ids(self) -> list[bytes]:
        """Return the topic ids to request instead of names: a request has one or the other. Names are due next."""
        with self.lock:
            topic_ids, self._topic_ids = sorted(self._topic_ids), set()
            if topic_ids:
                self._update_seq += 1
            return topic_ids

    def attempt(self, now: float) -> None:
        """Record that a request is sent. Updates requested from now on need another one."""
        self._attempted_ms = now
        with self.lock:
            self._requested_seq = self._update_seq
            self._hurry = False
        self._pause()

    def _pause(self) -> None:
        wait = exponential_backoff(
            self._retry_backoff_ms, self._retry_backoff_max_ms, max(1, self._failures), self._random
        )
        self._retry_at_ms = self._attempted_ms + wait

    def fail(self, error: HeadraceError | None = None, fatal: bool = False) -> None:
        """Record a failed attempt. A fatal error, such as wrong credentials, is raised in every waiting thread.

        `wait_for_update` raises it for updates requested before. It is not raised in threads that start waiting later,
        which make a new attempt: the connection may have recovered. (Java keeps the error for the next caller.)
        """
        self._failures += 1
        self._pause()
        if fatal:
            with self.lock:
                self._fatal, self._fatal_update_seq = error, self._update_seq
                for waiter in list(self._waiting):
                    waiter.error = error
                self._notify()

    def update(self, response: MetadataResponse, now: float) -> None:
        """Replace the snapshot. Leader epochs older than the known ones are ignored as stale (KIP-320)."""
        cluster = self._merge(response)
        with self.lock:
            new_topics = [t for t in self._topics if t not in cluster.topics and t not in cluster.errors]
            self.cluster = cluster
            retry = any(code not in FATAL_TOPIC_ERRORS for code in cluster.errors.values())
            leaderless = any(p.leader == NO_LEADER for t in cluster.topics.values() for p in t.partitions)
            self._fatal = None
            for waiter in list(self._waiting):
                waiter.error = None
            self._completed_seq = self._requested_seq
            if retry or leaderless or new_topics:
                self._update_seq += 1
                self._failures += 1
            else:
                self._failures = 0
            self._pause()
            self._refreshed_ms = now
            self._version += 1
            self._notify()
        if self._on_update is not None:
            self._on_update(cluster)

    def _merge(self, response: MetadataResponse) -> Cluster:
        topics: dict[str, TopicInfo] = {}
        errors: dict[str, int] = {}
        for topic in response.topics:
            if topic.name is None:
                continue
            if topic.error_code and topic.error_code != Code.LEADER_NOT_AVAILABLE:
                errors[topic.name] = topic.error_code
                continue
            known = self.cluster.topics.get(topic.name)
            partitions = sorted(
                (
                    PartitionInfo(
                        p.partition_index, p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes)
                    )
                    for p in topic.partitions
                ),
                key=lambda p: p.partition,
            )
            if known is not None and known.topic_id == topic.topic_id:
                for i, (old, new) in enumerate(zip(known.partitions, partitions, strict=False)):
                    if new.leader_epoch != -1 and old.leader_epoch > new.leader_epoch:
                        partitions[i] = old
            if [p.partition for p in partitions] == list(range(len(partitions))) and partitions:
                topics[topic.name] = TopicInfo(topic.name, topic.topic_id, tuple(partitions), topic.is_internal)
            else:
                errors[topic.name] = topic.error_code or Code.LEADER_NOT_AVAILABLE
        # A response may have some topics only: the other tracked ones are kept.
        for name, info in self.cluster.topics.items():
            if name not in topics and name not in errors and name in self._topics:
                topics[name] = info
        brokers = {b.node_id: Endpoint(b.host, b.port) for b in response.brokers}
        return Cluster(brokers, topics, errors, response.controller_id, response.cluster_id)

    def update_leader(self, topic: str, partition: int, leader: int, epoch: int) -> None:
        """Set a leader that came with an error (KIP-951), which is cheaper than an update."""
        info = self.cluster.topics.get(topic)
        if info is None or partition >= len(info.partitions) or leader not in self.cluster.brokers:
            return
        old = info.partitions[partition]
        if epoch <= old.leader_epoch:
            return
        partitions = list(info.partitions)
        partitions[partition] = PartitionInfo(partition, leader, epoch, old.replicas, old.isr)
        changed = TopicInfo(topic, info.topic_id, tuple(partitions), info.internal)
        self.cluster = replace(self.cluster, topics={**self.cluster.topics, topic: changed})

    def add_broker(self, node_id: int, endpoint: Endpoint) -> None:
        """Add a broker that joined after the last update."""
        self.cluster = replace(self.cluster, brokers={**self.cluster.brokers, node_id: endpoint})


class LeaderHint(Protocol):
    """The current leader, as errors of Produce and Fetch have it."""

    @property
    def leader_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class EndpointHint(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class MetadataUpdater:
    """Updates the metadata with a network client. Polling thread only."""

    def __init__(
        self,
        metadata: Metadata,
        client: NetworkClient,
        bootstrap: Sequence[Endpoint],
        *,
        request_timeout_ms: float,
        rebootstrap_trigger_ms: float | None,  # None: never (metadata.recovery.strategy=none)
        allow_auto_topic_creation: bool = True,
        all_topics: bool = False,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
    ) -> None:
        self.metadata = metadata
        self._client = client
        self._bootstrap = bootstrap
        self._request_timeout_ms = request_timeout_ms
        self._rebootstrap_trigger_ms = rebootstrap_trigger_ms
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._all_topics = all_topics
        self._log = log or logging.getLogger("headrace.client")
        self._in_flight = False
        self._unreachable_since_ms: float | None = None  # No node is reachable.
        self._failing_since_ms: float | None = None  # No response.
        self._node_ids: list[int] = []
        self._use_bootstrap()

    @property
    def node_ids(self) -> list[int]:
        """The known brokers: until the first response, those of bootstrap.servers, with negative ids."""
        return self._node_ids

    def track_all_topics(self, is_tracked: bool) -> None:
        """Request all topics of the cluster from now on, for a pattern; or again the tracked ones only."""
        self._all_topics = is_tracked

    def set_leader(self, topic: str, partition: int, leader: LeaderHint, endpoints: Iterable[EndpointHint]) -> None:
        """Set the leader, and its endpoint if unknown, that came with an error (KIP-951)."""
        if leader.leader_id < 0 or leader.leader_epoch < 0:
            return
        for hint in endpoints:
            if hint.node_id not in self.metadata.cluster.brokers:
                endpoint = Endpoint(hint.host, hint.port)
                self._client.set_node(hint.node_id, endpoint)
                self.metadata.add_broker(hint.node_id, endpoint)
                self._node_ids.append(hint.node_id)  # so that the next update can remove it
        self.metadata.update_leader(topic, partition, leader.leader_id, leader.leader_epoch)

    def _use_bootstrap(self) -> None:
        for node_id in self._node_ids:
            self._client.remove_node(node_id)
        self._node_ids = [-1 - i for i in range(len(self._bootstrap))]
        for node_id, endpoint in zip(self._node_ids, self._bootstrap, strict=True):
            self._client.set_node(node_id, endpoint)

    def maybe_update(self, now: float) -> float:
        """Send a request if one is due; returns the time until the next check."""
        if self._in_flight:
            return self._request_timeout_ms
        wait = self.metadata.time_to_update_ms(now)
        if wait > 0:
            return wait
        if self._failing_since_ms is None:
            self._failing_since_ms = now
        self._rebootstrap_if_lost(now)
        node_id = self._client.least_loaded_node(self._node_ids, now)
        if node_id is None:
            if self._unreachable_since_ms is None:
                self._unreachable_since_ms = now
            return max(1.0, min((self._client.delay_ms(n, now) for n in self._node_ids), default=RETRY_MS))
        if not self._client.is_ready(node_id, now):
            # Connecting, or too many requests in flight: an event will come, and a failed connection has its back-off.
            # A slow connection does not keep others from being tried.
            return max(1.0, min(self._client.delay_ms(node_id, now), CONNECTING_MS_MAX))
        self._unreachable_since_ms = None
        self._send(node_id, now)
        return self._request_timeout_ms

    def _rebootstrap_if_lost(self, now: float) -> None:
        """Use bootstrap.servers again if no known broker is reachable (KIP-899, KIP-1102)."""
        trigger = self._rebootstrap_trigger_ms
        if trigger is None or all(node_id < 0 for node_id in self._node_ids):
            return
        unreachable, failing = self._unreachable_since_ms, self._failing_since_ms
        if unreachable is not None and now - unreachable >= min(trigger, UNREACHABLE_MS_MAX):
            self._log.warning("no known broker is reachable: using bootstrap.servers again")
        elif failing is not None and now - failing >= trigger:
            self._log.warning("no metadata update for %.0f ms: using bootstrap.servers again", now - failing)
        else:
            return
        self._unreachable_since_ms, self._failing_since_ms = None, now
        self._use_bootstrap()

    def _send(self, node_id: int, now: float) -> None:
        self.metadata.attempt(now)
        topics = None if self._all_topics else self.metadata.tracked_topics(now)
        topic_ids = self.metadata.take_topic_ids()

        def build(version: int) -> MetadataRequest:
            if topic_ids:
                rows = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]
                return MetadataRequest(topics=rows, allow_auto_topic_creation=False)
            if topics is None:
                return MetadataRequest(topics=None)
            return MetadataRequest(
                topics=[MetadataRequestTopic(name=topic) for topic in topics],
                allow_auto_topic_creation=self._allow_auto_topic_creation,
            )

        self._in_flight = True
        versions = TOPIC_ID_VERSIONS if topic_ids else METADATA_VERSIONS
        self._client.send(
            node_id,
            Request(MetadataRequest.api_key, build, self._on_response, versions, self._request_timeout_ms),
            now,
        )

    def _on_response(self, response: Response[MetadataResponse]) -> None:
        self._in_flight = False
        message = response.message
        if message is None:
            self.metadata.fail(response.error, fatal=isinstance(response.error, UnsupportedVersionError))
            return
        if not message.brokers:
            self._log.warning("node %d returned no brokers: trying another node", response.node_id)
            self.metadata.fail()
            return
        if message.error_code:
            self._log.warning("node %d: %s", response.node_id, error_name(message.error_code))
            self.metadata.fail()
            if self._rebootstrap_trigger_ms is not None:
                self._use_bootstrap()
            return
        self._failing_since_ms = None
        self._set_brokers(message)
        self.metadata.update(message, self.metadata.clock.monotonic_ms())

    def _set_brokers(self, response: MetadataResponse) -> None:
        current = {b.node_id: Endpoint(b.host, b.port) for b in response.brokers}
        for node_id, endpoint in current.items():
            self._client.set_node(node_id, endpoint)
        # Bootstrap connections are kept until they are idle.
        for node_id in self._node_ids:
            if node_id >= 0 and node_id not in current:
                self._client.remove_node(node_id)
        self._node_ids = list(current)
