"""The engine below `ShareConsumer`: membership, fetches and acknowledgements on an I/O thread.

    application thread: subscription, acknowledgements ── commands ──► I/O thread
    I/O thread: heartbeats, share sessions with the leaders ── fetched data, errors ──► application thread, in `poll`

Records are fetched while `poll` waits for them, and not ahead of it: their locks run from the fetch on. One iteration
of the I/O thread, `run_once`, after commands:  heartbeat → metadata → sessions → poll (response handlers)
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.client.connection import Request, Response
from headrace.client.metadata import NO_LEADER
from headrace.config import Config
from headrace.config.clock import Clock
from headrace.consumer.coordinator import MOVED, CoordinatorRequest, GroupCoordinator
from headrace.consumer.io_engine import IDLE_MS, IoEngine
from headrace.consumer.share_session import (
    AcknowledgeType,
    OnAcknowledged,
    ShareSession,
    TopicIdPartition,
)
from headrace.errors import BrokerError, Code, ConfigError, HeadraceError, UnsupportedVersionError
from headrace.types import TopicPartition
from headrace.wire.api.share_fetch import (
    AcquiredRecords,
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from headrace.wire.api.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from headrace.wire.primitives import Buffer

HEARTBEAT_VERSIONS = (1, 1)
FETCH_VERSIONS = (1, 2)
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
REJOIN = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND})
UNSUPPORTED = (
    "the brokers do not support share groups (KIP-932): they need Apache Kafka 4.2 or newer, with share.version 1 "
    "(`kafka-features.sh upgrade --feature share.version=1`), or a headrace broker"
)
RETRIED = frozenset({*MOVED, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNKNOWN_SERVER_ERROR})


class FetchedRecords(NamedTuple):
    """Data of a partition, and which of its records are acquired."""

    node_id: int
    key: TopicIdPartition
    name: TopicPartition
    data: Buffer
    acquired: tuple[AcquiredRecords, ...]


class ShareEngine(IoEngine):
    """A share consumer's connections, membership and sessions."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.fetched: deque[FetchedRecords] = deque()  # A queue between the two threads.
        self.is_waiting = False  # Set by the application thread, read by the I/O thread.
        # I/O thread.
        self._member_id = str(uuid.uuid4())
        self._epoch = JOIN_EPOCH
        self._topics: frozenset[str] = frozenset()
        self.group_error: HeadraceError | None = None  # I/O thread; read by the application thread.
        self._sends_topics = True
        self._heartbeat_at_ms = 0.0
        self._heartbeats_failed = 0
        self._is_beating = False
        self._assigned: frozenset[TopicIdPartition] = frozenset()
        self._sessions: dict[int, ShareSession] = {}
        super().__init__(config, clock)

    def _build(self) -> None:
        group = self.settings.group
        if group is None:
            raise ConfigError("group.id is not set: a share consumer needs it")
        self.group_id = group.group_id
        self._coordinator = GroupCoordinator(
            self.network,
            self.updater,
            group,
            self.clock,
            api_timeout_ms=self.settings.api_timeout_ms,
            requires_stable=False,
            log=self.log,
        )
        self._coordinator.on_error = self.raise_in_poll

    # -- I/O thread ------------------------------------------------------------------------------

    def _shut_down(self, error: HeadraceError) -> None:
        self._coordinator.fail_all(error)
        for session in self._sessions.values():
            self._report(session, session.take(), error)
        super()._shut_down(error)

    def run_once(self) -> None:
        now = self.clock.monotonic_ms()
        wait_ms = min(self._heartbeat(now), self._coordinator.run(now))
        if self.metadata.time_to_update_ms(now) <= 0:
            self.metadata.touch(self._topics)
        wait_ms = min(wait_ms, self.updater.maybe_update(now))
        wait_ms = min(wait_ms, self._run_sessions(now))
        self.network.poll(wait_ms, now)

    # -- membership ------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group with these topics, or change them. I/O thread."""
        self._topics, self.group_error = frozenset(topics), None
        for topic in self._topics:
            self.metadata.add_topic(topic)
        self.metadata.request_update()
        self._sends_topics = True
        self._heartbeat_at_ms = 0.0

    def _heartbeat(self, now: float) -> float:
        """Send a heartbeat if it is due; returns the time until the next one."""
        if not self._topics or self._is_beating:
            return IDLE_MS
        if now - self.last_poll_ms > self.settings.max_poll_interval_ms:
            return IDLE_MS  # the broker removes a member that does not poll; it joins again in `poll`
        if now < self._heartbeat_at_ms:
            return self._heartbeat_at_ms - now
        self._is_beating = True
        has_topics = self._sends_topics or self._epoch == JOIN_EPOCH
        self._sends_topics = False
        message = ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self._member_id,
            member_epoch=self._epoch,
            rack_id=self.settings.fetch.rack or None,
            subscribed_topic_names=sorted(self._topics) if has_topics else None,
        )
        self._submit_heartbeat(message, self._on_heartbeat)
        return 0.0

    def _submit_heartbeat(
        self,
        message: ShareGroupHeartbeatRequest,
        on_result: Callable[[ShareGroupHeartbeatResponse | HeadraceError], None],
        *,
        deadline_ms: float = math.inf,
    ) -> None:
        self._coordinator.submit(
            CoordinatorRequest(
                ShareGroupHeartbeatRequest.api_key,
                lambda version: message,
                HEARTBEAT_VERSIONS,
                self.settings.request_timeout_ms,
                on_result,
                deadline_ms=deadline_ms,
            )
        )

    def _on_heartbeat(self, response: ShareGroupHeartbeatResponse | HeadraceError) -> None:
        self._is_beating = False
        if isinstance(response, UnsupportedVersionError):
            self._fail(UnsupportedVersionError(f"{UNSUPPORTED} ({response})"))
        elif isinstance(response, HeadraceError):
            self._retry_heartbeat()
        elif response.error_code:
            self._on_heartbeat_error(response.error_code, response.error_message)
        else:
            self._heartbeats_failed = 0
            self._epoch = response.member_epoch
            self._heartbeat_at_ms = self.clock.monotonic_ms() + response.heartbeat_interval_ms
            if response.assignment is not None:
                self._assigned = frozenset(
                    (row.topic_id, index) for row in response.assignment.topic_partitions for index in row.partitions
                )
                self.metadata.request_update()

    def _on_heartbeat_error(self, code: int, message: str | None) -> None:
        if code == Code.GROUP_ID_NOT_FOUND and self._epoch == JOIN_EPOCH:
            # Joining creates a group, so there is one of another kind.
            fact = (message or "it is not a share group").rstrip(".")
            self._fail(BrokerError(f"group {self.group_id!r}; {fact}; use another group.id", code=code))
        elif code in REJOIN:
            self.log.info("the group has removed this member (%s): joining again", BrokerError(code=code))
            self._epoch, self._assigned = JOIN_EPOCH, frozenset()
            self._retry_heartbeat()
        elif code in RETRIED:
            self._coordinator.forget(BrokerError(code=code))
            self._retry_heartbeat()
        elif code == Code.UNSUPPORTED_VERSION:
            self._fail(UnsupportedVersionError(UNSUPPORTED))
        else:
            self._fail(BrokerError(message or f"share group {self.group_id!r}", code=code))

    def _fail(self, error: HeadraceError) -> None:
        """Stop, with an error that each `poll` raises until the next `subscribe`."""
        self._topics = frozenset()
        self.group_error = error
        self.notify()

    def _retry_heartbeat(self) -> None:
        self._heartbeats_failed += 1
        self._sends_topics = True  # the broker may not have seen them
        self._heartbeat_at_ms = self._coordinator.retry_at_ms(self._heartbeats_failed)

    # -- sessions --------------------------------------------------------------------------------

    def _run_sessions(self, now: float) -> float:
        """Send fetches and acknowledgements that are due; returns the time until the next check."""
        by_node = self._partitions_by_leader()
        wait_ms = IDLE_MS
        for node_id in {*by_node, *self._sessions}:
            session = self._sessions.setdefault(node_id, ShareSession(node_id))
            partitions = by_node.get(node_id, {})
            is_fetching = bool(partitions) and self.is_waiting and not self.fetched
            # Without partitions, no fetch would take the acknowledgements along.
            must_acknowledge = session.must_flush or (not partitions and session.has_acknowledgements)
            if session.is_busy or not (is_fetching or must_acknowledge):
                continue
            if now < session.retry_at_ms:
                wait_ms = min(wait_ms, session.retry_at_ms - now)
            elif not session.is_open and session.has_acknowledgements:
                error = BrokerError("the session of these records has ended", code=Code.SHARE_SESSION_NOT_FOUND)
                self._report(session, session.take(), error)
            elif not self.network.is_ready(node_id, now):
                if self.network.is_backing_off(node_id, now):
                    self.metadata.request_update()
                wait_ms = min(wait_ms, max(1.0, self.network.delay_ms(node_id, now)))
            elif is_fetching:
                self._fetch(session, partitions, now)
            else:
                self._acknowledge(session, now)
        return wait_ms

    def _partitions_by_leader(self) -> dict[int, dict[TopicIdPartition, TopicPartition]]:
        by_node: dict[int, dict[TopicIdPartition, TopicPartition]] = {}
        cluster = self.metadata.cluster
        names = {info.topic_id: name for name, info in cluster.topics.items()}
        for key in self._assigned:
            name = names.get(key[0])
            node_id = NO_LEADER if name is None else cluster.leader(name, key[1])
            if name is not None and node_id != NO_LEADER:
                by_node.setdefault(node_id, {})[key] = TopicPartition(name, key[1])
            else:
                self.metadata.request_update()
        return by_node

    def _fetch(self, session: ShareSession, partitions: Mapping[TopicIdPartition, TopicPartition], now: float) -> None:
        settings = self.settings
        base = ShareFetchRequest(
            group_id=self.group_id,
            member_id=self._member_id,
            max_wait_ms=settings.fetch.max_wait_ms,
            min_bytes=settings.fetch.min_bytes,
            max_bytes=settings.fetch.max_bytes,
            max_records=settings.max_poll_records,
            batch_size=settings.max_poll_records,
            share_acquire_mode=int(self.config["share.acquire.mode"] == "record_limit"),
        )
        taken = session.take()
        message = session.fetch(base, partitions, taken[0])

        def on_response(response: Response[ShareFetchResponse]) -> None:
            body = response.message
            error = self._on_response(session, response.error, None if body is None else body.error_code)
            if body is None or error is not None:
                self._report(session, taken, error)
                return
            results: dict[TopicIdPartition, HeadraceError | None] = {}
            for topic in body.responses:
                for part in topic.partitions:
                    key = (topic.topic_id, part.partition_index)
                    if part.acknowledge_error_code:
                        text = part.acknowledge_error_message or ""
                        results[key] = BrokerError(text, code=part.acknowledge_error_code)
                    if key in partitions:
                        self._on_partition(session, key, partitions[key], part)
            self._report(session, taken, None, results)
            self.notify()

        session.is_busy = True
        timeout_ms = settings.request_timeout_ms + settings.fetch.max_wait_ms
        self.network.send(session.node_id, Request.of(message, on_response, timeout_ms, FETCH_VERSIONS), now)

    def _on_partition(
        self, session: ShareSession, key: TopicIdPartition, name: TopicPartition, part: ShareFetchPartitionData
    ) -> None:
        if part.error_code:
            session.retry_at_ms = self.clock.monotonic_ms() + self.settings.retry_backoff_ms
            self.metadata.request_update()
            error = BrokerError(part.error_message or f"fetch of {name}", code=part.error_code)
            if part.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
                self.errors.append(error)
            else:
                self.log.info("fetch of %s: %s", name, error)
        elif part.acquired_records:
            data = part.records
            assert isinstance(data, bytes | bytearray | memoryview)
            self.fetched.append(FetchedRecords(session.node_id, key, name, data, tuple(part.acquired_records)))

    def _acknowledge(self, session: ShareSession, now: float, *, is_last: bool = False) -> None:
        taken = session.take()
        if not taken[0] and not is_last:
            self._report(session, taken, None)
            return
        message = session.acknowledge(self.group_id, self._member_id, taken[0], is_last=is_last)

        def on_response(response: Response[ShareAcknowledgeResponse]) -> None:
            body = response.message
            error = self._on_response(session, response.error, None if body is None else body.error_code)
            results: dict[TopicIdPartition, HeadraceError | None] = {}
            for topic in () if body is None else body.responses:
                for part in topic.partitions:
                    if part.error_code:
                        failure = BrokerError(part.error_message or "", code=part.error_code)
                        results[topic.topic_id, part.partition_index] = failure
            if is_last:
                session.reset()
            self._report(session, taken, error, results)

        session.is_busy = True
        request = Request.of(message, on_response, self.settings.request_timeout_ms, FETCH_VERSIONS)
        self.network.send(session.node_id, request, now)

    def _on_response(
        self, session: ShareSession, failure: HeadraceError | None, code: int | None
    ) -> HeadraceError | None:
        """Continue the session, or start a new one after an error, which is returned."""
        session.is_busy = False
        error = failure if code is None else (BrokerError("share session", code=code) if code else None)
        if error is None:
            session.succeeded()
            return None
        session.reset()
        session.retry_at_ms = self.clock.monotonic_ms() + self.settings.retry_backoff_ms
        self.metadata.request_update()
        if code == Code.GROUP_AUTHORIZATION_FAILED:
            self.raise_in_poll(error)
        return error

    def _report(
        self,
        session: ShareSession,
        taken: tuple[Mapping[TopicIdPartition, Mapping[int, int]], list[OnAcknowledged]],
        error: HeadraceError | None,
        results: Mapping[TopicIdPartition, HeadraceError | None] | None = None,
    ) -> None:
        """Report the results of acknowledgements to those who wait for them."""
        acknowledged, waiters = taken
        names = {info.topic_id: name for name, info in self.metadata.cluster.topics.items()}
        outcome = {
            TopicPartition(names.get(key[0], key[0].hex()), key[1]): error or (results or {}).get(key)
            for key in acknowledged
        }
        for name, failure in outcome.items():
            if failure is not None:
                self.log.info("acknowledgements of %s failed, its records come again: %s", name, failure)
        for waiter in waiters:
            waiter(outcome)
        self.notify()

    # -- commands of the application thread --------------------------------------------------------

    def acknowledge(self, node_id: int, key: TopicIdPartition, types: Mapping[int, AcknowledgeType | int]) -> None:
        """Add acknowledgements, which go with the next fetch or commit. I/O thread."""
        self._sessions.setdefault(node_id, ShareSession(node_id)).add(key, types)

    def flush(self, on_done: Callable[[dict[TopicPartition, HeadraceError | None]], None]) -> None:
        """Send all acknowledgements, and call `on_done` with their result and that of those in flight. I/O thread."""
        results: dict[TopicPartition, HeadraceError | None] = {}
        waiting: list[list[OnAcknowledged]] = []
        for session in self._sessions.values():
            if session.is_busy and session.sent[0]:
                waiting.append(session.sent[1])
            if session.has_acknowledgements:
                session.must_flush = True
                waiting.append(session.waiters)
        left = len(waiting)

        def on_session(outcome: Mapping[TopicPartition, HeadraceError | None]) -> None:
            nonlocal left
            for name, error in outcome.items():
                results[name] = results.get(name) or error
            left -= 1
            if not left:
                on_done(results)

        for waiters in waiting:
            waiters.append(on_session)
        if not waiting:
            on_done(results)

    def end(self, on_done: Callable[[], None]) -> None:
        """End all sessions, then leave the group, and call `on_done`. I/O thread."""
        now = self.clock.monotonic_ms()
        self.is_waiting = False
        left = 1

        def one_less(_: object = None) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._leave(on_done)

        for session in self._sessions.values():
            if session.is_open and not session.is_busy and self.network.is_ready(session.node_id, now):
                left += 1
                session.waiters.append(one_less)
                self._acknowledge(session, now, is_last=True)
        one_less()

    def _leave(self, on_done: Callable[[], None]) -> None:
        if self._epoch == JOIN_EPOCH:
            on_done()
            return
        self._topics = frozenset()
        message = ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self._member_id, member_epoch=LEAVE_EPOCH
        )
        deadline_ms = self.clock.monotonic_ms() + self.settings.request_timeout_ms
        self._submit_heartbeat(message, lambda _: on_done(), deadline_ms=deadline_ms)

    def stop(self) -> None:
        """End the sessions, leave the group and stop the I/O thread, without waiting. Any thread."""
        self._closed = True

        def end() -> None:
            self._running = False

        self.call(lambda: self.end(end))

    def _leave_group(self, timeout_ms: float) -> None:
        done: list[bool] = []

        def on_done() -> None:
            done.append(True)
            self.notify()

        self.call(lambda: self.end(on_done))
        with contextlib.suppress(HeadraceError):
            self.wait_until(lambda: bool(done), timeout_ms)
