"""The coordinator of the group: where it is, committed offsets, and requests to it.

    find (any broker) → connection of its own, so that heartbeats do not wait behind a fetch → requests, in order

I/O thread only.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.client.addresses import Endpoint
from headrace.client.connection import Request, Response
from headrace.client.metadata import MetadataUpdater
from headrace.client.network import NetworkClient
from headrace.config.backoff import exponential_backoff
from headrace.config.clock import Clock
from headrace.consumer.settings import GroupSettings
from headrace.errors import (
    BrokerError,
    Code,
    CommitFailedError,
    ConnectionFailedError,
    HeadraceError,
    TimedOutError,
)
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from headrace.wire.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from headrace.wire.api.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.schema import Message, RequestMessage

COORDINATOR_NODE_BASE = 1 << 30
"""Added to the coordinator's node id: its connection is not that of fetches."""
GROUP_KEY = 0
COMMIT_VERSIONS = (2, 9)
FETCH_VERSIONS = (1, 9)
"""Later versions have topic ids instead of names."""
STALE_RETRIES_MAX = 4
"""Retries with a newer member epoch (KIP-848), which comes with a heartbeat. Then the partition has another owner."""
IDLE_MS = 60_000.0
CONNECT_WAIT_MS = 50.0
MOVED = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR, Code.REQUEST_TIMED_OUT})
RETRIED = frozenset(
    {
        *MOVED,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.STALE_MEMBER_EPOCH,
    }
)
REMOVED = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_MEMBER_EPOCH})

R = TypeVar("R", bound=Message)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class CoordinatorRequest(Generic[R]):
    """A request that waits for the coordinator. `on_result` gets the response, or the error of the connection."""

    api_key: int
    build: Callable[[int], RequestMessage[R]]
    versions: tuple[int, int]
    timeout_ms: float
    on_result: Callable[[R | HeadraceError], None]
    send_at_ms: float = 0.0
    deadline_ms: float = float("inf")


@dataclass(slots=True, frozen=True)
class _RetriedRequest(Generic[R, T]):
    """A request that is retried until its deadline. `read` returns the error code and the result of a response."""

    kind: type[RequestMessage[R]]
    build: Callable[[int], RequestMessage[R]]
    versions: tuple[int, int]
    read: Callable[[R], tuple[int, T]]
    error_of: Callable[[int], HeadraceError]
    deadline_ms: float
    final: frozenset[int] = frozenset()
    """Errors that end this request, although they are retried in others."""

    def is_retried(self, code: int, failures: int) -> bool:
        """Return whether to retry: the member of a fetch may join again, while a commit is for the old one."""
        if code in self.final:
            return False
        if self.kind is OffsetFetchRequest:
            return code in RETRIED or code in REMOVED
        return code in RETRIED and not (code == Code.STALE_MEMBER_EPOCH and failures >= STALE_RETRIES_MAX)


class GroupCoordinator:
    """Finds the coordinator and sends requests to it."""

    def __init__(
        self,
        client: NetworkClient,
        updater: MetadataUpdater,
        settings: GroupSettings,
        clock: Clock,
        *,
        api_timeout_ms: float,
        requires_stable: bool,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        """`requires_stable`: wait for transactions that commit offsets (read_committed)."""
        self._client = client
        self._updater = updater
        self._settings = settings
        self._clock = clock
        self._api_timeout_ms = api_timeout_ms
        self._requires_stable = requires_stable
        self._log = log
        self._node_id: int | None = None
        self._is_finding = False
        self._find_at_ms = 0.0
        self._failures = 0  # Since the coordinator has responded: it may be found, and not be reachable.
        self._random = random.Random()
        self._queue: deque[CoordinatorRequest[Any]] = deque()
        self.identity: Callable[[], GroupMetadata] = lambda: GroupMetadata(settings.group_id)
        """The member for which offsets are committed; after the group has removed it, still the last one."""
        self.is_member: Callable[[], bool] = lambda: False
        self.on_removed: Callable[[int], None] = lambda code: None
        """Called when a response shows that the group has removed the member, or knows a newer epoch of it."""
        self.on_error: Callable[[HeadraceError], None] = lambda error: None
        """Called with an error that does not go away, such as a missing permission."""

    # -- requests ------------------------------------------------------------------------------

    def submit(self, request: CoordinatorRequest[Any]) -> None:
        """Send a request as soon as the coordinator is known and connected."""
        self._queue.append(request)

    def is_known(self) -> bool:
        return self._node_id is not None

    def forget(self, reason: object) -> None:
        """Find the coordinator again, after a back-off."""
        if self._node_id is not None:
            self._log.info("coordinator lost: %s", reason)
            self._node_id = None
            self._back_off()

    def _back_off(self) -> None:
        self._failures += 1
        self._find_at_ms = self.retry_at_ms(self._failures)

    def run(self, now: float) -> float:
        """Send what is due; returns the time until the next check."""
        if not self._queue:
            return IDLE_MS
        self._expire(now)
        if self._node_id is None:
            return self._find(now)
        if not self._client.is_ready(self._node_id, now):
            if self._client.is_backing_off(self._node_id, now):
                self.forget(self._client.last_failure)
                return self._find(now)
            return max(1.0, min(self._client.delay_ms(self._node_id, now), self._next_deadline_ms() - now))
        wait_ms = IDLE_MS
        for _ in range(len(self._queue)):
            request = self._queue.popleft()
            if now < request.send_at_ms:
                self._queue.append(request)
                wait_ms = min(wait_ms, request.send_at_ms - now)
            else:
                self._send(self._node_id, request, now)
        return wait_ms

    def _next_deadline_ms(self) -> float:
        return min((request.deadline_ms for request in self._queue), default=float("inf"))

    def _expire(self, now: float) -> None:
        expired = [request for request in self._queue if now >= request.deadline_ms]
        for request in expired:
            self._queue.remove(request)
            reason = f": {self._client.last_failure}" if self._client.last_failure else ""
            request.on_result(TimedOutError(f"the coordinator of the group did not respond in time{reason}"))

    def fail_all(self, error: HeadraceError) -> None:
        queue, self._queue = self._queue, deque()
        for request in queue:
            request.on_result(error)

    def _send(self, node_id: int, request: CoordinatorRequest[Any], now: float) -> None:
        def on_response(response: Response[Any]) -> None:
            if response.message is not None:
                self._failures = 0
                request.on_result(response.message)
                return
            error = response.error or ConnectionFailedError("no response")
            if isinstance(error, ConnectionFailedError):
                self.forget(error)
            request.on_result(error)

        self._client.send(
            node_id, Request(request.api_key, request.build, on_response, request.versions, request.timeout_ms), now
        )

    def retry_at_ms(self, failures: int) -> float:
        """Return when to retry after failures in a row."""
        settings = self._settings
        wait = exponential_backoff(
            settings.retry_backoff_ms, settings.retry_backoff_max_ms, max(1, failures), self._random
        )
        return self._clock.monotonic_ms() + wait

    # -- finding -------------------------------------------------------------------------------

    def _find(self, now: float) -> float:
        if self._is_finding:
            return IDLE_MS
        if now < self._find_at_ms:
            return self._find_at_ms - now
        node_id = self._client.least_loaded_node(self._updater.node_ids, now)
        if node_id is None or not self._client.is_ready(node_id, now):
            return CONNECT_WAIT_MS

        def build(version: int) -> FindCoordinatorRequest:
            if version < 4:
                return FindCoordinatorRequest(key=self._settings.group_id, key_type=GROUP_KEY)
            return FindCoordinatorRequest(coordinator_keys=[self._settings.group_id], key_type=GROUP_KEY)

        self._is_finding = True
        versions = (FindCoordinatorRequest.versions.first, FindCoordinatorRequest.versions.last)
        request = Request(FindCoordinatorRequest.api_key, build, self._on_coordinator, versions, self._timeout_ms)
        self._client.send(node_id, request, now)
        return IDLE_MS

    @property
    def _timeout_ms(self) -> float:
        return self._settings.request_timeout_ms

    def _on_coordinator(self, response: Response[FindCoordinatorResponse]) -> None:
        self._is_finding = False
        message = response.message
        if message is None:
            code: int = Code.NETWORK_EXCEPTION
        else:
            row = message.coordinators[0] if message.coordinators else message
            code = row.error_code
            if code == Code.NONE:
                self._node_id = COORDINATOR_NODE_BASE + row.node_id
                self._client.set_node(self._node_id, Endpoint(row.host, row.port))
                self._log.debug("coordinator: node %d", row.node_id)
                return
        self._back_off()
        if code == Code.GROUP_AUTHORIZATION_FAILED or code == Code.INVALID_GROUP_ID:
            error = BrokerError(f"group {self._settings.group_id!r}", code=code)
            self.fail_all(error)
            self.on_error(error)

    # -- commits -------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        on_result: Callable[[HeadraceError | None], None],
        deadline_ms: float,
        *,
        waits_for_topics: bool = True,
    ) -> None:
        """Commit offsets, with retries until the deadline; of missing topics only if it `waits_for_topics`."""

        def build(version: int) -> OffsetCommitRequest:
            return _commit_request(self.identity(), offsets, version)

        def read(response: OffsetCommitResponse) -> tuple[int, None]:
            codes = {p.error_code for topic in response.topics for p in topic.partitions} - {Code.NONE}
            return next((code for code in codes if code not in RETRIED), min(codes, default=Code.NONE)), None

        final = frozenset() if waits_for_topics else frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION})
        retried = _RetriedRequest(
            OffsetCommitRequest, build, COMMIT_VERSIONS, read, self._commit_error, deadline_ms, final
        )
        self._send_retried(retried, on_result)

    def _send_retried(
        self, retried: _RetriedRequest[R, T], on_result: Callable[[T | HeadraceError], None], failures: int = 0
    ) -> None:
        """Send a request until it succeeds, fails for good, or its deadline has passed."""

        def on_response(response: R | HeadraceError) -> None:
            if isinstance(response, HeadraceError):
                error, is_retried = response, isinstance(response, ConnectionFailedError)
            else:
                code, value = retried.read(response)
                if code == Code.NONE:
                    on_result(value)
                    return
                if code in MOVED:
                    self.forget(BrokerError(code=code))
                elif code in REMOVED or code == Code.STALE_MEMBER_EPOCH:
                    self.on_removed(code)
                error, is_retried = retried.error_of(code), retried.is_retried(code, failures)
            if is_retried and self.retry_at_ms(failures + 1) < retried.deadline_ms:
                self._send_retried(retried, on_result, failures + 1)
            else:
                on_result(error)

        self.submit(
            CoordinatorRequest(
                retried.kind.api_key,
                retried.build,
                retried.versions,
                self._timeout_ms,
                on_response,
                self.retry_at_ms(failures) if failures else 0.0,
                retried.deadline_ms,
            )
        )

    def _commit_error(self, code: int) -> HeadraceError:
        fact = f"offsets of group {self._settings.group_id!r} were not committed ({BrokerError(code=code)})"
        if code in REMOVED:
            return CommitFailedError(
                f"{fact}: the group has removed this member, and its partitions may have another owner. Poll more "
                "often than max.poll.interval.ms, or lower max.poll.records"
            )
        if code == Code.STALE_MEMBER_EPOCH:
            return CommitFailedError(f"{fact}: the partitions may have had another owner. Poll, and read again")
        return BrokerError(f"commit of group {self._settings.group_id!r}", code=code)

    # -- committed offsets ---------------------------------------------------------------------

    def fetch_committed(
        self,
        partitions: Iterable[TopicPartition],
        on_result: Callable[[dict[TopicPartition, OffsetAndMetadata] | HeadraceError], None],
    ) -> None:
        """Fetch committed offsets; partitions without one are missing in the result."""
        names = list(partitions)

        def error_of(code: int) -> HeadraceError:
            return BrokerError(f"committed offsets of group {self._settings.group_id!r}", code=code)

        retried = _RetriedRequest(
            OffsetFetchRequest,
            lambda version: self._fetch_request(names, version),
            FETCH_VERSIONS,
            _read_committed,
            error_of,
            self._clock.monotonic_ms() + self._api_timeout_ms,
        )
        self._send_retried(retried, on_result)

    def _fetch_request(self, names: list[TopicPartition], version: int) -> OffsetFetchRequest:
        grouped: defaultdict[str, list[int]] = defaultdict(list)
        for topic, number in names:
            grouped[topic].append(number)
        requires_stable = self._requires_stable and version >= 7
        group_id = self._settings.group_id
        if version < 8:
            rows = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in grouped.items()]
            return OffsetFetchRequest(group_id=group_id, topics=rows, require_stable=requires_stable)
        topics = [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in grouped.items()]
        group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        identity = self.identity()
        if self._settings.is_consumer_protocol and self.is_member():
            group = group.replace(member_id=identity.member_id, member_epoch=identity.generation_id)
        return OffsetFetchRequest(groups=[group], require_stable=requires_stable)


def _commit_request(
    identity: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], version: int
) -> OffsetCommitRequest:
    grouped: defaultdict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, number), committed in offsets.items():
        grouped[topic].append(
            OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=identity.group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=rows) for topic, rows in grouped.items()],
    )
    if version >= 7:
        request = request.replace(group_instance_id=identity.group_instance_id)
    return request


def _read_committed(response: OffsetFetchResponse) -> tuple[int, dict[TopicPartition, OffsetAndMetadata]]:
    """Return the first error code and the committed offsets."""
    group = response.groups[0] if response.groups else response
    code = group.error_code
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in group.topics:
        for row in topic.partitions:
            code = code or row.error_code
            if row.committed_offset >= 0:
                offsets[TopicPartition(topic.name, row.partition_index)] = OffsetAndMetadata(
                    row.committed_offset, row.metadata or "", row.committed_leader_epoch
                )
    return code, offsets
