"""Snapshots of a consumer's state, for reports to the live view.

    collect() → the member → assigned partitions, the greatest lag first → the buffer → totals

Collecting takes no lock and changes nothing: values of one snapshot may be a moment apart. Its size is bounded, however
many partitions there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from headrace.config import Log
from headrace.consumer.membership import NO_GENERATION, Membership
from headrace.consumer.metrics import ConsumerMetrics
from headrace.consumer.partitions import UNKNOWN_OFFSET, AssignedPartition, Assignment, FetchBuffer, PositionState
from headrace.consumer.settings import ConsumerSettings
from headrace.telemetry.models import (
    ConsumerSnapshot,
    ConsumerTotals,
    FetchBufferStatus,
    MemberStatus,
    PositionStatus,
)

POSITIONS_SHOWN_MAX = 100
_STATES = {
    PositionState.COMMITTED: "looking up the committed offset",
    PositionState.RESET: "looking up the offset to start at",
    PositionState.VALIDATE: "checking the position with a new leader",
    PositionState.FETCH: "fetching",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCollector:
    """Collects snapshots from the parts of one consumer. Any thread."""

    settings: ConsumerSettings
    metrics: ConsumerMetrics
    buffer: FetchBuffer
    membership: Membership | None
    assignment: Callable[[], Assignment]
    lag: Callable[[AssignedPartition], int | None]
    log: Log

    def collect(self) -> ConsumerSnapshot:
        partitions = self.assignment().partitions.values()
        statuses = [self._status(partition) for partition in partitions]
        lags = [status.lag for status in statuses if status.lag is not None]
        return ConsumerSnapshot(
            client_id=self.settings.client_id,
            member=self._member(),
            assigned=len(statuses),
            paused=sum(partition.paused for partition in partitions),
            lag=sum(lags) if lags else None,
            positions=tuple(
                heapq.nlargest(POSITIONS_SHOWN_MAX, statuses, key=lambda each: -1 if each.lag is None else each.lag)
            ),
            buffer=FetchBufferStatus(self.settings.fetch.max_bytes, self.buffer.size),
            poll_age_ms=self.metrics.poll_age_ms(),
            totals=ConsumerTotals(**self.metrics.report_totals()),
        )

    def _member(self) -> MemberStatus | None:
        membership = self.membership
        if membership is None:
            return None
        identity = membership.identity
        epoch = None if identity.generation_id == NO_GENERATION else identity.generation_id
        state = membership.state.name.lower()
        return MemberStatus(identity.group_id, membership.protocol, state, identity.member_id, epoch)

    def _status(self, partition: AssignedPartition) -> PositionStatus:
        position = None if partition.position == UNKNOWN_OFFSET else partition.position
        return PositionStatus(*partition.name, _state(partition), position, self.lag(partition))


def _state(partition: AssignedPartition) -> str:
    if partition.error is not None:
        return f"failed: {partition.error}"
    return "paused" if partition.paused else _STATES[partition.state]
