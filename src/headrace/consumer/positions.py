"""The first offset of each assigned partition, and its validation when the leader changes (KIP-320).

    COMMITTED → committed offset → VALIDATE or FETCH
              → none → RESET → ListOffsets → FETCH
    FETCH → new leader epoch → VALIDATE → OffsetForLeaderEpoch → FETCH, or truncated → on_truncation

I/O thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.client.metadata import Cluster, Metadata
from headrace.client.offsets import LATEST, PartitionOffset
from headrace.config.clock import Clock
from headrace.consumer.offset_lookups import EpochLookup, OffsetLookup, OffsetLookups
from headrace.consumer.partitions import UNKNOWN_OFFSET, AssignedPartition, Assignment, PositionState
from headrace.consumer.settings import ConsumerSettings
from headrace.errors import (
    BrokerError,
    Code,
    HeadraceError,
    LogTruncationError,
    NoOffsetError,
    TimedOutError,
    UnsupportedVersionError,
)
from headrace.types import OffsetAndMetadata, TopicPartition

IDLE_MS = 60_000.0


class CommittedOffsets(Protocol):
    """The coordinator, as far as positions need it."""

    def fetch_committed(
        self,
        partitions: Iterable[TopicPartition],
        on_result: Callable[[dict[TopicPartition, OffsetAndMetadata] | HeadraceError], None],
    ) -> None: ...


class PositionKeeper:
    """Moves partitions to the state FETCH."""

    def __init__(
        self,
        metadata: Metadata,
        lookups: OffsetLookups,
        committed: CommittedOffsets | None,
        settings: ConsumerSettings,
        clock: Clock,
        *,
        assignment: Callable[[], Assignment],
        on_ready: Callable[[], None],
        on_error: Callable[[AssignedPartition, HeadraceError], None],
        on_truncation: Callable[[AssignedPartition, int], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._metadata = metadata
        self._lookups = lookups
        self._committed = committed
        self._settings = settings
        self._clock = clock
        self._assignment = assignment
        self._on_ready = on_ready
        self._on_error = on_error
        self._on_truncation = on_truncation
        self._log = log
        self._cluster: Cluster | None = None
        self._version = -1
        self._is_due = False

    def wake(self) -> None:
        """Check all partitions in the next iteration."""
        self._is_due = True

    @property
    def is_due(self) -> bool:
        return self._is_due

    def run(self) -> None:
        """Start what the partitions need."""
        assignment, cluster = self._assignment(), self._metadata.cluster
        if assignment.version == self._version and cluster is self._cluster and not self._is_due:
            return
        if assignment.version != self._version:
            for topic in {tp.topic for tp in assignment.partitions}:
                self._metadata.add_topic(topic)
        self._version, self._cluster, self._is_due = assignment.version, cluster, False
        uncommitted: list[AssignedPartition] = []
        for partition in assignment.partitions.values():
            if partition.state is PositionState.FETCH:
                self._check_epoch(partition, cluster)
            if partition.is_pending or partition.state is PositionState.FETCH or partition.error is not None:
                continue
            if partition.state is PositionState.COMMITTED:
                uncommitted.append(partition)
            elif partition.state is PositionState.RESET:
                self._reset(partition)
            else:
                self._validate(partition)
        if uncommitted:
            self._fetch_committed(uncommitted)

    # -- committed offsets ---------------------------------------------------------------------

    def _fetch_committed(self, partitions: list[AssignedPartition]) -> None:
        if self._committed is None:
            for partition in partitions:
                partition.state = PositionState.RESET
                self._reset(partition)
            return
        for partition in partitions:
            partition.is_pending = True

        def on_result(result: dict[TopicPartition, OffsetAndMetadata] | HeadraceError) -> None:
            self.wake()
            for partition in partitions:
                partition.is_pending = False
                if isinstance(result, HeadraceError):
                    self._failed(partition, result)
                elif partition.name in result:
                    partition.start_at(result[partition.name].offset, result[partition.name].leader_epoch)
                else:
                    partition.state = PositionState.RESET
            self._on_ready()

        self._committed.fetch_committed([partition.name for partition in partitions], on_result)

    # -- reset ---------------------------------------------------------------------------------

    def _reset(self, partition: AssignedPartition) -> None:
        time = partition.reset_time
        if time is None:
            settings = self._settings
            age_ms = settings.reset_age_ms
            time = settings.reset_time if age_ms is None else max(0, self._clock.time_ms() - age_ms)
        if time is None:
            self._on_error(partition, _no_reset(partition))
            return
        self._lookup(partition, time)

    def _lookup(self, partition: AssignedPartition, time: int) -> None:
        partition.is_pending = True

        def on_offset(result: PartitionOffset | HeadraceError) -> None:
            partition.is_pending = False
            if isinstance(result, HeadraceError):
                self._failed(partition, result)
            elif result.offset < 0:  # no record at that time or later
                self._lookup(partition, LATEST)
            else:
                partition.start_at(result.offset)
                self._on_ready()

        deadline_ms = self._clock.monotonic_ms() + self._settings.api_timeout_ms
        self._lookups.add(OffsetLookup(partition.name, time, on_offset, deadline_ms))

    # -- validation ----------------------------------------------------------------------------

    def _check_epoch(self, partition: AssignedPartition, cluster: Cluster) -> None:
        """Validate the position if the partition has a new leader epoch."""
        current = _leader_epoch(cluster, partition.name)
        if current <= partition.validated_epoch:
            return
        if partition.validated_epoch >= 0 and partition.epoch >= 0:
            partition.state = PositionState.VALIDATE
        else:
            partition.validated_epoch = current

    def _validate(self, partition: AssignedPartition) -> None:
        leader_epoch = _leader_epoch(self._metadata.cluster, partition.name)
        if leader_epoch < 0:
            if cluster_knows(self._metadata.cluster, partition.name):  # an old broker without epochs
                self._validated(partition, leader_epoch)
            return
        partition.is_pending = True
        offset, epoch = partition.fetch_offset, partition.epoch

        def on_offset(result: PartitionOffset | HeadraceError) -> None:
            partition.is_pending = False
            if isinstance(result, UnsupportedVersionError) or (
                isinstance(result, BrokerError) and result.code == Code.TOPIC_AUTHORIZATION_FAILED
            ):
                self._validated(partition, leader_epoch)  # as Java: it needs Describe, which reading does not
            elif isinstance(result, HeadraceError):
                self._failed(partition, result)
            elif result.offset < 0 or result.offset < offset:
                self._truncated(partition, result, leader_epoch)
            else:
                self._validated(partition, leader_epoch)

        deadline_ms = self._clock.monotonic_ms() + self._settings.api_timeout_ms
        self._lookups.add(EpochLookup(partition.name, epoch, on_offset, deadline_ms))

    def _failed(self, partition: AssignedPartition, error: HeadraceError) -> None:
        """Raise an error in `poll`. While the cluster cannot be reached, retry instead: polls return nothing then."""
        if isinstance(error, TimedOutError):
            self._log.warning("the position of %s is not known yet: %s; retrying", partition.name, error)
            self.wake()
        else:
            self._on_error(partition, error)

    def _validated(self, partition: AssignedPartition, leader_epoch: int) -> None:
        partition.validated_epoch = leader_epoch
        partition.state = PositionState.FETCH
        self._on_ready()

    def _truncated(self, partition: AssignedPartition, end: PartitionOffset, leader_epoch: int) -> None:
        name, offset = partition.name, partition.fetch_offset
        fact = f"the log of {name} was truncated: epoch {partition.epoch} ends at {end.offset}, read up to {offset}"
        self._log.warning("%s", fact)
        can_reset = self._settings.reset_time is not None or self._settings.reset_age_ms is not None
        self._validated(partition, leader_epoch)
        if not can_reset:
            text = f"{fact}; seek to an offset, or set auto.offset.reset"
            self._on_error(partition, LogTruncationError(text))
        else:
            self._on_truncation(partition, end.offset)


def cluster_knows(cluster: Cluster, name: TopicPartition) -> bool:
    """Return whether the metadata has the partition."""
    return name.partition < (cluster.partition_count(name.topic) or 0)


def _leader_epoch(cluster: Cluster, name: TopicPartition) -> int:
    return cluster.topics[name.topic].partitions[name.partition].leader_epoch if cluster_knows(cluster, name) else -1


def _no_reset(partition: AssignedPartition) -> HeadraceError:
    if partition.fetch_offset == UNKNOWN_OFFSET:
        return NoOffsetError(
            f"{partition.name} has no committed offset, and auto.offset.reset is none: seek to an offset, or set it"
        )
    return BrokerError(
        f"{partition.name} has no offset {partition.fetch_offset}, and auto.offset.reset is none: seek to another",
        code=Code.OFFSET_OUT_OF_RANGE,
    )
