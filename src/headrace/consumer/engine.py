"""The engine below `Consumer` and `AsyncConsumer`: one consumer's parts, and its I/O thread.

    application thread: assignment, steps of rebalances, positions ── commands ──► I/O thread
    I/O thread: group membership, positions, fetches ── FetchBuffer, steps, errors ──► application thread, in `poll`

The application thread waits in `wait_until` only. One iteration of the I/O thread: commands, then `run_once`:

    coordinator → metadata → positions → lookups → fetches → poll (response handlers)
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from headrace.client.metadata import FATAL_TOPIC_ERRORS, Cluster
from headrace.client.offsets import Isolation
from headrace.config import Config
from headrace.config.clock import Clock
from headrace.consumer import interceptors
from headrace.consumer.arguments import partition_of, partitions_of
from headrace.consumer.fetching import PartitionFetcher
from headrace.consumer.group import ConsumerGroup
from headrace.consumer.io_engine import IDLE_MS, IoEngine
from headrace.consumer.metrics import ConsumerMetrics, ConsumerObserver, PartitionGauges, ReadData
from headrace.consumer.offset_lookups import OffsetLookups
from headrace.consumer.partitions import AssignedPartition, Assignment, FetchBuffer, PositionState
from headrace.consumer.positions import PositionKeeper
from headrace.consumer.results import Outcome
from headrace.errors import (
    BrokerError,
    ConnectionFailedError,
    HeadraceError,
    IllegalStateError,
    TimedOutError,
    WakeupError,
)
from headrace.telemetry import reporters
from headrace.telemetry.listeners import SnapshotSource
from headrace.types import OffsetAndMetadata, TopicPartition

T = TypeVar("T")


class ConsumerEngine(IoEngine):
    """One consumer's connections, partitions and I/O thread."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.is_polling = False  # Set by the application thread, read by the I/O thread.
        self.assignment = Assignment()  # Replaced by the application thread, read by any.
        self._checked_cluster: Cluster | None = None  # I/O thread only.
        # Queues between the two threads.
        self.steps: deque[Callable[[], object]] = deque()
        """Steps of rebalances, which the application thread runs in `poll`."""
        self._failed: deque[AssignedPartition] = deque()
        self._committed: deque[Mapping[TopicPartition, OffsetAndMetadata]] = deque()  # For the interceptors.
        super().__init__(config, clock)

    def _observer(self, resources: contextlib.ExitStack) -> ConsumerObserver:
        self.interceptors = interceptors.Interceptors(
            [self.plugins.load("interceptor.classes", each, interceptors.KIND) for each in self.settings.interceptors],
            self.log,
        )
        self.metrics = self._make_metrics()
        resources.callback(self.metrics.close)
        authenticates = self.settings.sasl is not None or self.settings.tls is not None
        return ConsumerObserver(self.metrics, authenticates=authenticates)

    def _build(self) -> None:
        self.buffer = FetchBuffer()
        self.lookups = self._make_lookups()
        group = self.settings.group
        self.group = None if group is None else ConsumerGroup(self, group)
        self.positions = self._make_positions()
        self.fetcher = self._make_fetcher()

    def start(self) -> None:
        """Start the I/O thread, after all plug-ins are configured."""
        self.config.warn_of_unused(self.log)
        self.thread.start()
        self.metrics.announce(self._snapshot_source)

    # -- composition ---------------------------------------------------------------------------

    def _make_metrics(self) -> ConsumerMetrics:
        settings, config = self.settings, self.config
        metrics = ConsumerMetrics(
            settings.client_id,
            PartitionGauges(*(self._gauge(read) for read in (self.lag, self.lead, _preferred_replica))),
            clock=self.clock,
            samples=config.of(int, "metrics.num.samples"),
            sample_window_ms=config.of(int, "metrics.sample.window.ms"),
            reporters=[
                self.plugins.load("metric.reporters", given, reporters.KIND) for given in settings.metric_reporters
            ],
            log=self.log,
        )
        metrics.gauge("assigned-partitions", lambda: len(self.assignment.partitions))
        metrics.gauge("interceptor-error-total", lambda: self.interceptors.errors)
        return metrics

    def _gauge(self, read: Callable[[AssignedPartition], int | None]) -> Callable[[TopicPartition], int | None]:
        def of(name: TopicPartition) -> int | None:
            partition = self.assignment.partitions.get(name)
            return None if partition is None else read(partition)

        return of

    def _snapshot_source(self) -> SnapshotSource:
        # Imported here: the models of reports cost 14 ms, and few consumers report.
        from headrace.consumer.snapshot import SnapshotCollector

        return SnapshotCollector(
            settings=self.settings,
            metrics=self.metrics,
            buffer=self.buffer,
            membership=None if self.group is None else self.group.membership,
            assignment=lambda: self.assignment,
            lag=self.lag,
            log=self.log,
        )

    def _make_lookups(self) -> OffsetLookups:
        settings = self.settings
        return OffsetLookups(
            self.network,
            self.updater,
            self.clock,
            settings.fetch.isolation,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
        )

    def _make_positions(self) -> PositionKeeper:
        return PositionKeeper(
            self.metadata,
            self.lookups,
            None if self.group is None else self.group.coordinator,
            self.settings,
            self.clock,
            assignment=lambda: self.assignment,
            on_ready=self._on_ready,
            on_error=self._on_partition_error,
            on_truncation=self._on_truncation,
            log=self.log,
        )

    def _make_fetcher(self) -> PartitionFetcher:
        return PartitionFetcher(
            self.network,
            self.updater,
            self.buffer,
            self.settings.fetch,
            self.clock,
            assignment=lambda: self.assignment,
            on_data=self.notify,
            on_error=self._on_partition_error,
            on_reset=self.positions.wake,
            log=self.log,
            observer=self.metrics,
        )

    # -- I/O thread ----------------------------------------------------------------------------

    def run_once(self) -> None:
        now = self.clock.monotonic_ms()
        self.positions.run()
        wait_ms = IDLE_MS if self.group is None else self.group.run(now)
        if self.metadata.time_to_update_ms(now) <= 0:
            self.metadata.touch(self._topics())
        wait_ms = min(wait_ms, self.updater.maybe_update(now))
        self._check_topics()
        wait_ms = min(wait_ms, self.lookups.run(now))
        wait_ms = min(wait_ms, self.fetcher.run(now))
        self.network.poll(0.0 if self.positions.is_due else wait_ms, now)

    def _end_sessions(self) -> None:
        """Close the fetch sessions; a broker that does not get the request drops them later."""
        try:
            now = self.clock.monotonic_ms()
            self.fetcher.close_sessions(now)
            self.network.poll(0.0, now)
        except Exception:
            self.log.exception("fetch sessions could not be closed")

    def _topics(self) -> set[str]:
        """Return the topics whose metadata is needed."""
        topics = {tp.topic for tp in self.assignment.partitions} | self.lookups.topics()
        return topics if self.group is None else topics | self.group.needed_topics()

    def _check_topics(self) -> None:
        """Raise in `poll` that a subscribed topic cannot be read, once for each metadata response that says so."""
        cluster = self.metadata.cluster
        if cluster is self._checked_cluster:
            return
        self._checked_cluster = cluster
        names = () if self.group is None or self.group.topics is None else self.group.topics.names
        for topic in sorted(names):
            if (code := cluster.errors.get(topic)) in FATAL_TOPIC_ERRORS:
                self.raise_in_poll(BrokerError(f"topic {topic!r}", code=code))

    def _shut_down(self, error: HeadraceError) -> None:
        self.lookups.fail_all(error)
        if self.group is not None:
            self.group.coordinator.fail_all(error)
        super()._shut_down(error)

    def _on_ready(self) -> None:
        self.fetcher.wake()
        self.notify()

    def _on_partition_error(self, partition: AssignedPartition, error: HeadraceError) -> None:
        partition.error = error
        self._failed.append(partition)
        self.notify()

    def _on_truncation(self, partition: AssignedPartition, offset: int) -> None:
        def move() -> None:
            if self.assignment.is_current(partition):
                if offset < 0:
                    self.replace([AssignedPartition(partition.name, PositionState.RESET, paused=partition.paused)])
                elif offset < partition.position:
                    self.restart(partition, offset)
                else:
                    self.restart(partition, partition.position)

        self.add_step(move)

    def add_step(self, step: Callable[[], object]) -> None:
        """Run a function on the application thread, in `poll`."""
        self.steps.append(step)
        self.notify()

    def offsets_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Let the interceptors know of committed offsets, on the application thread."""
        if self.interceptors:
            self._committed.append(offsets)

    # -- application thread --------------------------------------------------------------------

    def outcome(self) -> Outcome[T]:
        """Return a result that the I/O thread will set."""
        return Outcome(self.notify)

    def wait(self, outcome: Outcome[T], timeout_ms: float, what: str) -> T:
        """Wait for a result of the I/O thread."""
        try:
            return self._wait(outcome, timeout_ms, what)
        finally:
            self._intercept_commits()

    def _wait(self, outcome: Outcome[T], timeout_ms: float, what: str) -> T:
        if not self.wait_until(lambda: outcome.is_done, timeout_ms):
            reason = f": {self.network.last_failure}" if self.network.last_failure else ""
            raise TimedOutError(f"{what} timed out after {timeout_ms / 1000:g} s{reason}")
        return outcome.result()

    def wait_until(self, condition: Callable[[], bool], timeout_ms: float) -> bool:
        """Wait until a condition that the I/O thread changes; False on timeout. Raises WakeupError after `wakeup`."""
        if super().wait_until(condition, timeout_ms):
            return True
        if self.take_wakeup():
            raise WakeupError("wakeup() was called")
        return False

    def clear_wakeup(self) -> None:
        """Forget a `wakeup` that has interrupted nothing."""
        self._woken = False

    def poll(self, take: Callable[[], T | None], timeout_ms: float) -> T | None:
        """Return what `take` returns, once that is something; None on timeout. Runs steps of rebalances meanwhile."""
        self.check_usable()
        if self.is_polling:
            raise IllegalStateError("poll() was called by a listener, which poll() has called: return from it first")
        try:
            self.is_polling = True
            self.metrics.poll_started()
            if self.group is not None:
                self.group.on_poll()
            deadline = time.monotonic() + timeout_ms / 1000
            while True:
                self.run_steps()
                self._raise_error()
                taken = take()
                if taken:
                    return taken
                left_ms = (deadline - time.monotonic()) * 1000
                if not self.wait_until(self._has_work, max(0.0, left_ms)):
                    return None
        finally:
            self.last_poll_ms = self.clock.monotonic_ms()
            self.is_polling = False
            self.metrics.poll_ended()

    def _has_work(self) -> bool:
        return bool(self.buffer or self.steps or self.errors or self._failed)

    def run_steps(self) -> None:
        """Run the steps of rebalances that wait."""
        self._intercept_commits()
        while self.steps:
            self.steps.popleft()()

    def _intercept_commits(self) -> None:
        while self._committed:
            self.interceptors.on_commit(self._committed.popleft())

    def _raise_error(self) -> None:
        if self.errors:
            raise self.errors.popleft()
        while self._failed:
            partition = self._failed.popleft()
            error = partition.error
            if self.assignment.is_current(partition) and error is not None:
                partition.error = None
                self.call(self._retry_failed)
                raise error

    def _retry_failed(self) -> None:
        self.positions.wake()
        self.fetcher.wake()

    # -- partitions ----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[AssignedPartition]) -> None:
        """Replace the assigned partitions."""
        self.assignment = Assignment({p.name: p for p in partitions}, self.assignment.version + 1)
        self.metrics.assigned(self.assignment.partitions)
        self.network.wakeup()

    def replace(self, partitions: Iterable[AssignedPartition]) -> None:
        """Replace some partitions, for example after a seek."""
        named = {partition.name: partition for partition in partitions}
        self.assignment = Assignment({**self.assignment.partitions, **named}, self.assignment.version + 1)
        self.network.wakeup()

    def restart(self, partition: AssignedPartition, offset: int) -> None:
        """Fetch again from an offset."""
        moved = AssignedPartition(partition.name, PositionState.FETCH, paused=partition.paused)
        moved.start_at(offset)
        moved.position_epoch = partition.position_epoch
        self.replace([moved])

    def data_taken(self) -> None:
        """Fetch more: the application has taken data."""
        self.fetcher.data_taken()
        self.network.wakeup()

    def pauses_changed(self) -> None:
        """Check all partitions: some were paused or resumed."""
        self.fetcher.wake()
        self.network.wakeup()

    def partition(self, name: TopicPartition) -> AssignedPartition:
        """Return an assigned partition."""
        partition = self.assignment.partitions.get(partition_of(name))
        if partition is None:
            raise IllegalStateError(f"{partition_of(name)} is not assigned to this consumer: call assign() first")
        return partition

    def partitions(self, names: Iterable[TopicPartition] | None) -> Mapping[TopicPartition, AssignedPartition]:
        """Return the named partitions, by default all."""
        if names is None:
            return self.assignment.partitions
        return {name: self.partition(name) for name in partitions_of(names)}

    def lag(self, partition: AssignedPartition) -> int | None:
        """Return how many offsets a position is behind the end, as of the last fetch; None if that is unknown."""
        marks = partition.watermarks
        end = marks.last_stable if self.settings.fetch.isolation is Isolation.READ_COMMITTED else marks.high
        return None if end < 0 or partition.position < 0 else max(0, end - partition.position)

    def lead(self, partition: AssignedPartition) -> int | None:
        """Return how many offsets a position is after the start, as of the last fetch; None if that is unknown."""
        start = partition.watermarks.log_start
        return None if start < 0 or partition.position < 0 else max(0, partition.position - start)

    def data_read(self, parts: Sequence[ReadData]) -> None:
        """Record data that were read completely."""
        self.metrics.data_read(parts)

    def wait_for_topic(self, topic: str, timeout_ms: float) -> None:
        """Wait until the metadata has a topic."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self.metadata.cluster.partition_count(topic) is None:
            self.check_usable()
            version = self.metadata.version
            self.metadata.add_topic(topic)
            self.metadata.request_update()
            self.network.wakeup()
            self.metadata.raise_topic_error(topic)
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0 or not self.metadata.wait_for_version(version, left_ms):
                code = self.metadata.cluster.errors.get(topic)
                text = f"topic {topic!r} is not in the metadata after {timeout_ms / 1000:g} s"
                raise TimedOutError(text) if code is None else BrokerError(text, code=code)

    # -- close ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Leave the group and stop the I/O thread, without waiting or committing. Any thread."""
        self._closed = True

        def end() -> None:
            self._running = False

        group = self.group
        self.call(end if group is None else lambda: group.membership.leave("the consumer is gone", end))

    def _leave_group(self, timeout_ms: float) -> None:
        if self.group is None:
            return
        try:
            self.group.close(timeout_ms)
        except (TimedOutError, BrokerError, ConnectionFailedError) as error:
            self.log.warning("closing without a response of the coordinator: %s", error)


def _preferred_replica(partition: AssignedPartition) -> int | None:
    return partition.preferred_replica
