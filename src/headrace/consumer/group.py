"""A consumer's part in its group: subscription, commits, and the hand-over between membership and application.

application thread: subscribe, commit, committed, leave ── commands ──► coordinator, membership (I/O thread)
I/O thread: revoke, apply ── steps ──► Rebalancer (application thread, in `poll`)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from headrace.client.metadata import MetadataUpdater
from headrace.client.network import NetworkClient
from headrace.client.offsets import Isolation
from headrace.client.plugins import PrefixedLogger
from headrace.config.clock import Clock
from headrace.consumer.classic_membership import ClassicMembership
from headrace.consumer.consumer_membership import ConsumerMembership
from headrace.consumer.coordinator import GroupCoordinator
from headrace.consumer.membership import MemberParts, Membership, MemberState, Step, Topics
from headrace.consumer.metrics import ConsumerMetrics
from headrace.consumer.partitions import UNKNOWN_OFFSET, AssignedPartition, Assignment
from headrace.consumer.rebalances import RebalanceListener, Rebalancer
from headrace.consumer.results import Outcome
from headrace.consumer.settings import ConsumerSettings, GroupSettings
from headrace.errors import HeadraceError
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition

LAST_COMMIT_MS_MAX = 5000.0
"""How long a rebalance waits for the automatic commit."""

T = TypeVar("T")
OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], HeadraceError | None], object]
"""Called in `poll` with the offsets, and the error or None."""


class Engine(Protocol):
    """The engine, as far as groups need it."""

    log: PrefixedLogger
    clock: Clock
    settings: ConsumerSettings
    network: NetworkClient
    updater: MetadataUpdater
    is_polling: bool
    last_poll_ms: float
    metrics: ConsumerMetrics

    @property
    def assignment(self) -> Assignment: ...
    def assign(self, partitions: Iterable[AssignedPartition]) -> None: ...
    def call(self, command: Callable[[], None]) -> None: ...
    def add_step(self, step: Callable[[], object]) -> None: ...
    def raise_in_poll(self, error: HeadraceError) -> None: ...
    def offsets_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...
    def outcome(self) -> Outcome[T]: ...
    def wait(self, outcome: Outcome[T], timeout_ms: float, what: str) -> T: ...


class ConsumerGroup:
    """The group of a consumer. Methods are for the application thread, except those marked "I/O thread"."""

    def __init__(self, engine: Engine, settings: GroupSettings) -> None:
        self._engine = engine
        self._settings = settings
        self.coordinator = GroupCoordinator(
            engine.network,
            engine.updater,
            settings,
            engine.clock,
            api_timeout_ms=engine.settings.api_timeout_ms,
            requires_stable=engine.settings.fetch.isolation is Isolation.READ_COMMITTED,
            log=engine.log,
        )
        kind = ConsumerMembership if settings.is_consumer_protocol else ClassicMembership
        self.membership: Membership = kind(
            MemberParts(self.coordinator, engine.updater, settings, engine.clock, self, engine.log)
        )
        self.rebalancer = Rebalancer(engine, self._commit_before_rebalance, engine.log)
        self.topics: Topics | None = None
        """What the consumer subscribes to; None: nothing."""
        self._commit_at_ms = 0.0

    @property
    def identity(self) -> GroupMetadata:
        return self.membership.identity

    # -- I/O thread ----------------------------------------------------------------------------

    def run(self, now: float) -> float:
        """Run the membership and send its requests; returns the time until the next check. I/O thread."""
        return min(self.membership.run(now), self.coordinator.run(now))

    def needed_topics(self) -> frozenset[str]:
        """Return the topics whose metadata is needed. I/O thread."""
        return self.membership.topics()

    def revoke(self, step: Step, on_done: Callable[[], None], *, lost: bool, keeps: bool) -> None:
        """Let the application give up partitions, in `poll`. I/O thread."""

        def run() -> None:
            if not step():
                return
            try:
                if lost or not keeps:
                    self.rebalancer.revoke_all(lost=lost)
                elif self.topics is not None:
                    subscribed = self.topics.resolve(self._engine.updater.metadata.cluster)
                    current = self._engine.assignment.partitions
                    self.rebalancer.revoke(name for name in current if name.topic not in subscribed)
            finally:
                self._engine.call(on_done)

        self._engine.add_step(run)

    def apply(
        self,
        step: Step,
        assigned: Sequence[TopicPartition],
        on_done: Callable[[bool], None],
        recreated: Collection[TopicPartition] = (),
    ) -> None:
        """Let the application take partitions, in `poll`. I/O thread."""

        def run() -> None:
            if not step():
                return
            before = set(self._engine.assignment.partitions)
            try:
                self.rebalancer.revoke(recreated, lost=True)
                self.rebalancer.apply(assigned)
            finally:
                has_revoked = bool(before - set(assigned))
                self._engine.call(lambda: on_done(has_revoked))

        self._engine.add_step(run)

    def owned(self) -> list[TopicPartition]:
        """Return the assigned partitions. Any thread."""
        return list(self._engine.assignment.partitions)

    def raise_in_poll(self, error: HeadraceError) -> None:
        self._engine.raise_in_poll(error)

    def is_overdue(self, now: float) -> bool:
        """Return whether the last poll is longer ago than max.poll.interval.ms. I/O thread."""
        return now >= self.poll_deadline_ms()

    def poll_deadline_ms(self) -> float:
        """Return when the application must have polled. I/O thread."""
        if self._engine.is_polling:
            return float("inf")
        return self._engine.last_poll_ms + self._settings.max_poll_interval_ms

    # -- subscription --------------------------------------------------------------------------

    def matching(self, names: frozenset[str], pattern: str | None, matches_internal: bool) -> Topics:
        """Return a subscription. A pattern is matched by the broker, or with the classic protocol by this consumer."""
        if pattern is None:
            return Topics(names)
        if self._settings.is_consumer_protocol:
            return Topics(regex=pattern)
        try:
            return Topics(pattern=re.compile(pattern), matches_internal=matches_internal)
        except re.error as error:
            raise ValueError(f"invalid pattern: expected a regular expression, got {pattern!r}: {error}") from error

    def subscribe(self, topics: Topics, listener: RebalanceListener | None) -> None:
        """Join the group with these topics."""
        self.topics = topics
        self.rebalancer.listener = listener or RebalanceListener()
        self._engine.last_poll_ms = self._engine.clock.monotonic_ms()  # max.poll.interval.ms counts from here
        self._engine.call(lambda: self.membership.subscribe(topics))

    def unsubscribe(self, timeout_ms: float, reason: str) -> None:
        """Commit, give up all partitions, and leave the group."""
        if self.topics is None:
            return
        self.topics = None
        try:
            self.rebalancer.revoke_all(lost=False)
        finally:
            done: Outcome[None] = self._engine.outcome()
            self._engine.call(lambda: self.membership.leave(reason, lambda: done.succeed(None)))
            self._engine.wait(done, timeout_ms, "leaving the group")

    # -- commits -------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of all partitions where they are known."""
        return {
            name: OffsetAndMetadata(partition.position, "", partition.position_epoch)
            for name, partition in self._engine.assignment.partitions.items()
            if partition.position != UNKNOWN_OFFSET
        }

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_ms: float,
        *,
        waits_for_topics: bool = True,
    ) -> None:
        """Commit offsets and wait for the result."""
        if not offsets:
            return
        done: Outcome[None] = self._engine.outcome()

        def on_result(error: HeadraceError | None) -> None:
            if error is None:
                done.succeed(None)
            else:
                done.fail(error)

        self._submit(offsets, on_result, timeout_ms, waits_for_topics=waits_for_topics)
        self._engine.wait(done, timeout_ms, "OffsetCommit")

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], on_commit: OnCommit | None) -> None:
        """Commit offsets in the background. Without a callback, a failure is logged."""

        def on_result(error: HeadraceError | None) -> None:
            if on_commit is not None:
                self._engine.add_step(lambda: on_commit(offsets, error))
            elif error is not None:
                self._engine.log.warning("offsets were not committed: %s", error)

        if offsets:
            self._submit(offsets, on_result, self._engine.settings.api_timeout_ms)

    def _submit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        on_result: Callable[[HeadraceError | None], None],
        timeout_ms: float,
        *,
        waits_for_topics: bool = True,
    ) -> None:
        deadline_ms = self._engine.clock.monotonic_ms() + timeout_ms

        def settled(error: HeadraceError | None) -> None:
            if error is None:
                self._engine.offsets_committed(offsets)
            on_result(error)

        self._engine.call(
            lambda: self.coordinator.commit(offsets, settled, deadline_ms, waits_for_topics=waits_for_topics)
        )

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; partitions without one are missing."""
        names = [TopicPartition(*name) for name in partitions]
        done: Outcome[dict[TopicPartition, OffsetAndMetadata]] = self._engine.outcome()

        def on_result(result: dict[TopicPartition, OffsetAndMetadata] | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                done.fail(result)
            else:
                done.succeed(result)

        self._engine.call(lambda: self.coordinator.fetch_committed(names, on_result))
        return self._engine.wait(done, timeout_ms, "OffsetFetch")

    def on_poll(self) -> None:
        """Commit automatically if it is due: all records that were returned before count as processed."""
        if self.membership.state is MemberState.PARTED:
            self._engine.network.wakeup()
        interval_ms = self._engine.settings.auto_commit_interval_ms
        if interval_ms is None:
            return
        now = self._engine.clock.monotonic_ms()
        if now >= self._commit_at_ms:
            is_first, self._commit_at_ms = not self._commit_at_ms, now + interval_ms
            if not is_first:
                self.commit_async(self.positions(), None)

    def _commit_before_rebalance(self) -> None:
        """Commit automatically before partitions move, for a bounded time. A topic may have been deleted."""
        if self._engine.settings.auto_commit_interval_ms is None:
            return
        try:
            timeout_ms = min(LAST_COMMIT_MS_MAX, self._engine.settings.api_timeout_ms)
            self.commit(self.positions(), timeout_ms, waits_for_topics=False)
        except HeadraceError as error:
            self._engine.log.warning("offsets were not committed before the rebalance: %s", error)

    # -- close ---------------------------------------------------------------------------------

    def close(self, timeout_ms: float) -> None:
        """Commit and leave, within the timeout."""
        deadline = time.monotonic() + timeout_ms / 1000
        if self.topics is None:
            self._commit_before_rebalance()
            return
        self.unsubscribe(max(0.0, (deadline - time.monotonic()) * 1000), "the consumer is being closed")
