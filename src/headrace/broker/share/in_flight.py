"""The records of a share partition that are in flight, as runs of offsets with the same state. No clock, no log.

    state          event                                            state after it
    (none)         acquired for a member                            ACQUIRED, delivery count 1
    AVAILABLE      acquired for a member                            ACQUIRED, delivery count + 1
    ACQUIRED       accepted                                         ACKNOWLEDGED
    ACQUIRED       released, its lock or the session has ended      AVAILABLE, or ARCHIVED at the delivery limit
    ACQUIRED       rejected, a gap, its transaction was aborted     ARCHIVED
    ACQUIRED       renewed                                          ACQUIRED, with a new lock
    AVAILABLE      not in the log any more                          ARCHIVED

        start offset (SPSO)                    end offset (SPEO + 1)
    ──────┼──────────────── runs in flight ─────┼────── not acquired yet ──▶

The start offset moves past ACKNOWLEDGED and ARCHIVED runs, whose records are then forgotten. A transition that has to
be persisted is `pending` meanwhile: nothing else happens to the run. After a restart there may be gaps between runs:
records that were acquired and not acknowledged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.share.state import StateUpdate
from headrace.errors import BrokerError, Code
from headrace.wire.api.share_fetch import AcquiredRecords
from headrace.wire.api.share_state import StateBatch

NO_MEMBER = ""
THROTTLED_DELIVERIES_MIN = 2
"""From half of the delivery limit on, but not before this, fewer records are delivered together: a record that cannot
be processed should not take others with it."""


class RecordState(IntEnum):
    """The state of a record, with the numbers of the persisted state."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class AcknowledgeType(IntEnum):
    """What a member says about a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


AFTER: dict[AcknowledgeType, RecordState] = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}
"""The state of an acquired record after an acknowledgement."""


class OffsetRange(NamedTuple):
    """Consecutive offsets, both ends included."""

    first: int
    last: int


class Transition:
    """Identifies a transition that is being persisted. Its runs may be split meanwhile."""

    __slots__ = ()


class AcquireLimits(NamedTuple):
    """The limits of an acquisition."""

    records_max: int
    batch_size: int
    is_strict: bool  # never more than `records_max`; otherwise up to the end of the record batch
    in_flight_max: int
    delivery_count_max: int


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive records with the same state."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    origin: OffsetRange  # its record batch, or what was acquired together at first
    member_id: str = NO_MEMBER
    lock_ends_ms: float = 0.0
    pending: RecordState | None = None  # the state after a transition that is being persisted
    transition: Transition | None = None  # which one

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.pending is None

    def batch(self) -> StateBatch:
        """Return the persisted form, after the pending transition."""
        state = self.state if self.pending is None else self.pending
        return StateBatch(
            first_offset=self.first, last_offset=self.last, delivery_state=state, delivery_count=self.delivery_count
        )

    def acquired(self) -> AcquiredRecords:
        return AcquiredRecords(first_offset=self.first, last_offset=self.last, delivery_count=self.delivery_count)


class InFlightRecords:
    """The runs of a share partition, in the order of their offsets. They do not overlap."""

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        self.start_offset = start_offset
        self.runs = [
            Run(
                batch.first_offset,
                batch.last_offset,
                RecordState(batch.delivery_state),
                batch.delivery_count,
                OffsetRange(batch.first_offset, batch.last_offset),
            )
            for batch in batches
            if batch.first_offset >= start_offset
        ]
        self.end_offset = self.runs[-1].last + 1 if self.runs else start_offset
        self._may_have_available = True
        self.advance_start()

    # -- queries ---------------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        return self.end_offset - self.start_offset

    @property
    def complete_count(self) -> int:
        """The number of records from the start offset on that are, or will be, acknowledged or archived."""
        return sum(
            run.last - max(run.first, self.start_offset) + 1
            for run in self.runs
            if (run.state if run.pending is None else run.pending).is_terminal and run.last >= self.start_offset
        )

    def next_fetch_offset(self) -> int:
        """Return the first offset that can be acquired."""
        if not self._may_have_available:
            return self.end_offset
        position = self.start_offset
        for run in self.runs:
            if run.first > position:
                return position  # a gap
            if run.is_available:
                return max(run.first, self.start_offset)
            position = run.last + 1
        self._may_have_available = False
        return self.end_offset

    def can_acquire(self, in_flight_max: int) -> bool:
        """Return whether a fetch may acquire records."""
        return self.next_fetch_offset() < self.end_offset or self.in_flight_count < in_flight_max

    def locks_due(self, now_ms: float) -> list[Run]:
        """Return the acquired runs whose locks have ended."""
        return [
            run
            for run in self.runs
            if run.state is RecordState.ACQUIRED and run.pending is None and run.lock_ends_ms <= now_ms
        ]

    def next_lock_end_ms(self) -> float | None:
        """Return when the next lock ends; None if nothing is acquired."""
        times = [run.lock_ends_ms for run in self.runs if run.state is RecordState.ACQUIRED and run.pending is None]
        return min(times, default=None)

    def acquired_by(self, member_id: str) -> list[Run]:
        """Return the runs that a member has acquired and not acknowledged."""
        return [
            run
            for run in self.runs
            if run.state is RecordState.ACQUIRED and run.member_id == member_id and run.pending is None
        ]

    def update(self, state_epoch: int, leader_epoch: int, transition: Transition) -> StateUpdate:
        """Return what to persist for a transition."""
        batches = [run.batch() for run in self.runs if run.transition is transition]
        return StateUpdate(state_epoch, leader_epoch, self.start_offset, self.complete_count, batches)

    # -- acquisition -----------------------------------------------------------------------------

    def acquire(
        self,
        fetch_offset: int,
        batches: Sequence[OffsetRange],
        limits: AcquireLimits,
        member_id: str,
        lock_ends_ms: float,
    ) -> list[Run]:
        """Acquire records of fetched batches, which start at or before `fetch_offset` unless records are missing."""
        if not batches or batches[-1].last < self.start_offset:
            return []
        self.archive_missing(fetch_offset, batches[0].first)
        last, capacity = batches[-1].last, limits.in_flight_max - self.in_flight_count
        if capacity <= 0:
            if fetch_offset >= self.end_offset:
                return []
            last, capacity = min(last, self.end_offset - 1), self.end_offset - fetch_offset
        acquisition = _Acquisition(self, batches, limits, min(capacity, limits.records_max))
        runs = acquisition.run(max(batches[0].first, self.start_offset), last)
        for run in runs:
            run.state, run.member_id, run.lock_ends_ms = RecordState.ACQUIRED, member_id, lock_ends_ms
            run.delivery_count += 1
        return runs

    def archive_missing(self, fetch_offset: int, first_offset: int) -> None:
        """Archive what can be acquired from `fetch_offset` up to the first record that is still in the log."""
        end = min(first_offset, self.end_offset)
        if fetch_offset >= end:
            return
        for run in self.between(fetch_offset, end - 1):
            if run.is_available:
                run.state = RecordState.ARCHIVED
        for gap in list(self._gaps(fetch_offset, end - 1)):
            self.insert(Run(gap.first, gap.last, RecordState.ARCHIVED, 0, gap))
        self.advance_start()

    def archive(self, first: int, last: int) -> None:
        """Archive acquired records that are not to be delivered."""
        for run in self.between(first, last):
            if run.state is RecordState.ACQUIRED and run.pending is None:
                run.state, run.member_id = RecordState.ARCHIVED, NO_MEMBER
        self.advance_start()

    def _gaps(self, first: int, last: int) -> Iterator[OffsetRange]:
        position = max(first, self.start_offset)
        for run in self.runs:
            if run.last < position:
                continue
            if run.first > last:
                break
            if run.first > position:
                yield OffsetRange(position, run.first - 1)
            position = run.last + 1
        if position <= last:
            yield OffsetRange(position, last)

    def gap_end(self, offset: int) -> int:
        """Return the last offset of the gap that starts at an offset, or the highest possible one after all runs."""
        index = bisect_right(self.runs, offset, key=lambda run: run.first)
        return self.runs[index].first - 1 if index < len(self.runs) else 2**63 - 1

    def run_at(self, offset: int) -> Run | None:
        """Return the run that contains an offset."""
        index = bisect_right(self.runs, offset, key=lambda run: run.first) - 1
        return self.runs[index] if index >= 0 and self.runs[index].last >= offset else None

    def insert(self, run: Run) -> Run:
        """Add a run into a gap or after the last one."""
        self.runs.insert(bisect_right(self.runs, run.first, key=lambda other: other.first), run)
        self.end_offset = max(self.end_offset, run.last + 1)
        return run

    def split(self, offset: int) -> None:
        """Make sure that no run contains both an offset and the one before it."""
        run = self.run_at(offset)
        if run is not None and run.first < offset:
            rest = replace(run, first=offset)
            run.last = offset - 1
            self.runs.insert(self.runs.index(run) + 1, rest)

    def between(self, first: int, last: int) -> list[Run]:
        """Return the runs from `first` to `last`, split at both ends."""
        self.split(first)
        self.split(last + 1)
        begin = bisect_right(self.runs, first - 1, key=lambda run: run.last)
        end = bisect_right(self.runs, last, key=lambda run: run.first)
        return self.runs[begin:end]

    # -- transitions -----------------------------------------------------------------------------

    def acknowledged_runs(self, member_id: str, acknowledged: OffsetRange) -> list[Run]:
        """Return the runs that a member acknowledges, without those before the start offset.

        Raise INVALID_RECORD_STATE if a record is not acquired by the member, or INVALID_REQUEST if it is unknown.
        """
        first = max(acknowledged.first, self.start_offset)
        if acknowledged.last < self.start_offset:
            return []
        if not self.runs or first < self.runs[0].first:
            raise _invalid_state("Batch record not found. The request batch offsets are not found in the cache.")
        if acknowledged.last >= self.end_offset:
            part = "first" if first >= self.end_offset else "last"
            raise BrokerError(
                f"Batch record not found. The {part} offset in request is past acquired records.",
                code=Code.INVALID_REQUEST,
            )
        if next(self._gaps(first, acknowledged.last), None) is not None:
            raise _invalid_state("The batch cannot be acknowledged. The batch is not in the acquired state.")
        runs = self.between(first, acknowledged.last)
        for run in runs:
            if run.state is not RecordState.ACQUIRED:
                raise _invalid_state("The batch cannot be acknowledged. The batch is not in the acquired state.")
            if run.pending is not None:
                raise _invalid_state(
                    "The record state is invalid. The acknowledgement of delivery could not be completed."
                )
            if run.member_id != member_id:
                raise _invalid_state("Member is not the owner of batch record")
        return runs

    def begin(self, transition: Transition, runs: Iterable[Run], state: RecordState, delivery_count_max: int) -> None:
        """Begin a transition of acquired runs. What is at the delivery limit is archived instead of available."""
        for run in runs:
            is_lost = run.last < self.start_offset or run.delivery_count >= delivery_count_max
            run.pending = RecordState.ARCHIVED if state is RecordState.AVAILABLE and is_lost else state
            run.transition = transition

    def complete(self, transition: Transition) -> None:
        """Complete a transition, and move the start offset."""
        for run in self.runs:
            if run.transition is transition and run.pending is not None:
                run.state, run.pending, run.transition, run.member_id = run.pending, None, None, NO_MEMBER
        self._may_have_available = True
        self._join()
        self.advance_start()

    def cancel(self, transition: Transition) -> None:
        """Cancel a transition: its runs are acquired, as before."""
        for run in self.runs:
            if run.transition is transition:
                run.pending = run.transition = None

    def advance_start(self) -> bool:
        """Move the start offset past everything that is complete; return whether it has moved."""
        before, count = self.start_offset, 0
        for run in self.runs:
            if run.first > self.start_offset or run.pending is not None or not run.state.is_terminal:
                break
            self.start_offset = max(self.start_offset, run.last + 1)
            count += 1
        del self.runs[:count]
        return self.start_offset > before

    def move_start(self, log_start_offset: int) -> None:
        """Follow the start of the log. Acquired records before it stay until they are acknowledged or time out."""
        if log_start_offset <= self.start_offset:
            return
        for run in self.between(self.start_offset, log_start_offset - 1):
            if run.is_available:
                run.state = RecordState.ARCHIVED
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self.runs = [run for run in self.runs if run.last >= log_start_offset or not run.state.is_terminal]
        self._may_have_available = True
        self.advance_start()

    def _join(self) -> None:
        """Join parts of what was acquired together, if their state is the same again."""
        joined: list[Run] = []
        for run in self.runs:
            last = joined[-1] if joined else None
            if (
                last is not None
                and last.last + 1 == run.first
                and run.state is not RecordState.ACQUIRED
                and (last.state, last.delivery_count, last.origin, last.pending)
                == (run.state, run.delivery_count, run.origin, run.pending)
            ):
                last.last = run.last
            else:
                joined.append(run)
        self.runs = joined


class _Acquisition:
    """Selects the runs of one fetch."""

    def __init__(
        self, records: InFlightRecords, batches: Sequence[OffsetRange], limits: AcquireLimits, records_max: int
    ) -> None:
        self._records = records
        self._batches = batches
        self._limits = limits
        self._left = records_max
        self._runs: list[Run] = []
        self._throttled_from = max(THROTTLED_DELIVERIES_MIN, -(-limits.delivery_count_max // 2))

    def run(self, first: int, last: int) -> list[Run]:
        """Return the runs from `first` to `last` that the fetch acquires, with the delivery count before it."""
        position = first
        while position <= last and self._left > 0:
            run = self._records.run_at(position)
            if run is None:
                position = self._take_new(position, min(last, self._records.gap_end(position)))
            else:
                if run.is_available and not self._take_available(run, max(position, run.first), min(last, run.last)):
                    break
                run = self._records.run_at(position)
                assert run is not None
                position = run.last + 1
        return self._runs

    def _take_new(self, first: int, last: int) -> int:
        """Take records that were never delivered, in parts of about the batch size; return the next offset."""
        if last - first + 1 > self._left:
            last = min(
                last, first + self._left - 1 if self._limits.is_strict else self._batch_end(first + self._left - 1)
            )
        self._left -= last - first + 1
        begin = first
        if not self._limits.is_strict and last - first + 1 > self._limits.batch_size:
            for batch in self._batches:
                if first < batch.first <= last and batch.first - begin >= self._limits.batch_size:
                    self._add_new(begin, batch.first - 1)
                    begin = batch.first
        self._add_new(begin, last)
        return last + 1

    def _add_new(self, first: int, last: int) -> None:
        batch = next((each for each in self._batches if each.first <= first and last <= each.last), None)
        run = Run(first, last, RecordState.AVAILABLE, 0, batch or OffsetRange(first, last))
        self._runs.append(self._records.insert(run))

    def _batch_end(self, offset: int) -> int:
        """Return the last offset of the record batch with an offset."""
        return next((batch.last for batch in self._batches if batch.first <= offset <= batch.last), offset)

    def _take_available(self, run: Run, first: int, last: int) -> bool:
        """Take records that were delivered before; return False if this must be the end of the fetch."""
        is_last_delivery = run.delivery_count == self._limits.delivery_count_max - 1 and self._throttles_last
        is_throttled = run.delivery_count >= self._throttled_from or is_last_delivery
        if is_throttled and self._runs:
            return False  # alone, in the next fetch
        count = last - first + 1
        if self._limits.is_strict:
            count = min(count, self._left)
        if is_throttled:
            size = run.origin.last - run.origin.first + 1
            halved = size >> max(run.delivery_count - self._throttled_from + 1, 0)
            count = min(count, 1 if is_last_delivery else max(1, halved))
        taken = self._records.between(first, first + count - 1)
        self._runs += taken
        self._left -= count
        return not is_throttled

    @property
    def _throttles_last(self) -> bool:
        return self._limits.delivery_count_max > THROTTLED_DELIVERIES_MIN


def _invalid_state(fact: str) -> BrokerError:
    return BrokerError(fact, code=Code.INVALID_RECORD_STATE)
