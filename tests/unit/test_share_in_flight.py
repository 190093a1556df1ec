"""The records in flight of a share partition: acquisition, transitions, the start offset, and a model of all of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.share.in_flight import (
    AFTER,
    AcknowledgeType,
    AcquireLimits,
    InFlightRecords,
    OffsetRange,
    RecordState,
    Transition,
)
from headrace.errors import BrokerError, Code
from headrace.wire.api.share_state import StateBatch

LIMIT = 3
STRICT = AcquireLimits(5, 5, is_strict=True, in_flight_max=50, delivery_count_max=LIMIT)
WIDE = AcquireLimits(500, 500, is_strict=False, in_flight_max=2_000, delivery_count_max=5)


def ranges(*ends: int) -> list[OffsetRange]:
    """Return record batches from 0 on that end at these offsets."""
    firsts = [0, *(end + 1 for end in ends[:-1])]
    return [OffsetRange(first, last) for first, last in zip(firsts, ends, strict=True)]


def acquired(runs):
    return [(run.first, run.last, run.delivery_count) for run in runs]


def finish(records: InFlightRecords, runs, kind: AcknowledgeType, limit: int = 5) -> None:
    transition = Transition()
    records.begin(transition, runs, AFTER[kind], limit)
    records.complete(transition)


def batch(first: int, last: int, state: RecordState, count: int) -> StateBatch:
    return StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)


def test_a_fetch_acquires_whole_record_batches():
    records = InFlightRecords(0)
    runs = records.acquire(0, ranges(9, 19, 29), WIDE._replace(records_max=12), "a", 0)
    assert acquired(runs) == [(0, 19, 1)]
    assert (records.next_fetch_offset(), records.end_offset) == (20, 20)


def test_acquired_records_are_split_at_the_batch_size():
    records = InFlightRecords(0)
    runs = records.acquire(0, ranges(9, 19, 29), WIDE._replace(batch_size=10), "a", 0)
    assert acquired(runs) == [(0, 9, 1), (10, 19, 1), (20, 29, 1)]


def test_the_start_offset_moves_past_completed_records_only():
    records = InFlightRecords(0)
    records.acquire(0, ranges(9), WIDE, "a", 0)
    finish(records, records.acknowledged_runs("a", OffsetRange(5, 9)), AcknowledgeType.ACCEPT)
    assert (records.start_offset, records.complete_count) == (0, 5)
    finish(records, records.acknowledged_runs("a", OffsetRange(0, 4)), AcknowledgeType.REJECT)
    assert (records.start_offset, records.runs, records.complete_count) == (10, [], 0)


def test_released_parts_of_a_batch_are_acquired_again_as_one_run():
    records = InFlightRecords(0)
    records.acquire(0, ranges(9), WIDE, "a", 0)
    for offset in range(10):
        finish(records, records.acknowledged_runs("a", OffsetRange(offset, offset)), AcknowledgeType.RELEASE)
    assert records.next_fetch_offset() == 0
    assert acquired(records.acquire(0, ranges(9), WIDE, "b", 0)) == [(0, 9, 2)]


def test_a_record_at_the_limit_is_archived_instead_of_released():
    records = InFlightRecords(0)
    for count in range(1, LIMIT + 1):
        (run,) = records.acquire(0, ranges(0), STRICT, "a", 0)
        assert run.delivery_count == count
        finish(records, [run], AcknowledgeType.RELEASE, LIMIT)
    assert (records.start_offset, records.runs) == (1, [])


def test_records_of_many_deliveries_come_in_smaller_parts():
    records = InFlightRecords(0, [batch(0, 99, RecordState.AVAILABLE, 3)])
    assert acquired(records.acquire(0, ranges(99), WIDE, "a", 0)) == [(0, 49, 4)]
    records = InFlightRecords(0, [batch(0, 99, RecordState.AVAILABLE, 4)])
    assert acquired(records.acquire(0, ranges(99), WIDE, "a", 0)) == [(0, 0, 5)]


def test_gaps_after_a_restart_are_delivered():
    records = InFlightRecords(0, [batch(5, 9, RecordState.ACKNOWLEDGED, 1), batch(15, 19, RecordState.AVAILABLE, 2)])
    assert records.next_fetch_offset() == 0
    runs = records.acquire(0, ranges(19, 29), WIDE, "a", 0)
    assert acquired(runs) == [(0, 4, 1), (10, 14, 1), (15, 19, 3), (20, 29, 1)]


def test_records_that_are_not_in_the_log_any_more_are_archived():
    records = InFlightRecords(0)
    records.acquire(0, ranges(9), WIDE, "a", 0)
    finish(records, records.acknowledged_runs("a", OffsetRange(0, 9)), AcknowledgeType.RELEASE)
    runs = records.acquire(0, [OffsetRange(7, 9)], WIDE, "a", 0)
    assert (acquired(runs), records.start_offset) == ([(7, 9, 2)], 7)


def test_no_more_than_the_limit_is_in_flight():
    records = InFlightRecords(0)
    limits = WIDE._replace(in_flight_max=10)
    records.acquire(0, ranges(9), limits, "a", 0)
    assert not records.can_acquire(10)
    assert records.acquire(10, [OffsetRange(10, 19)], limits, "a", 0) == []
    finish(records, records.acknowledged_runs("a", OffsetRange(4, 4)), AcknowledgeType.RELEASE)
    assert records.can_acquire(10)
    assert acquired(records.acquire(4, [OffsetRange(0, 19)], limits, "b", 0)) == [(4, 4, 2)]


def test_the_start_of_the_log_moves_the_start_offset():
    records = InFlightRecords(0)
    records.acquire(0, ranges(9), WIDE, "a", 0)
    finish(records, records.acknowledged_runs("a", OffsetRange(0, 5)), AcknowledgeType.RELEASE)
    records.move_start(8)
    assert (records.start_offset, records.next_fetch_offset()) == (8, 10)
    assert records.acknowledged_runs("a", OffsetRange(6, 7)) == []
    assert len(records.acknowledged_runs("a", OffsetRange(6, 9))) == 1


@pytest.mark.parametrize(
    ("member", "offsets", "code"),
    [
        ("b", OffsetRange(0, 9), Code.INVALID_RECORD_STATE),
        ("a", OffsetRange(5, 12), Code.INVALID_REQUEST),
        ("a", OffsetRange(20, 21), Code.INVALID_REQUEST),
    ],
)
def test_other_records_cannot_be_acknowledged(member, offsets, code):
    records = InFlightRecords(0)
    records.acquire(0, ranges(9), WIDE, "a", 0)
    with pytest.raises(BrokerError) as failure:
        records.acknowledged_runs(member, offsets)
    assert failure.value.code == code


def test_a_pending_transition_is_completed_although_its_run_was_split():
    records = InFlightRecords(0)
    runs = records.acquire(0, ranges(9), WIDE, "a", 0)
    transition = Transition()
    records.begin(transition, runs, RecordState.ACKNOWLEDGED, 5)
    with pytest.raises(BrokerError):
        records.acknowledged_runs("a", OffsetRange(3, 4))
    records.complete(transition)
    assert records.start_offset == 10


actions = st.lists(
    st.tuples(st.sampled_from(["acquire", "accept", "release", "reject", "cancel", "reload"]), st.integers(0, 29)),
    max_size=60,
)


@settings(deadline=None)
@given(actions)
def test_every_record_is_delivered_until_it_is_complete(steps):
    """A model with one state for each record: what is available or in a gap can always be acquired."""
    records, end = InFlightRecords(0), 30
    model = dict.fromkeys(range(end), (RecordState.AVAILABLE, 0))
    for action, number in steps:
        if action == "acquire":
            offset = records.next_fetch_offset()
            free = [key for key, (state, _) in model.items() if state is RecordState.AVAILABLE]
            assert (offset == min(free)) if free else (offset == end)
            for run in records.acquire(offset, [OffsetRange(0, end - 1)] if free else [], STRICT, "a", 0):
                for key in range(run.first, run.last + 1):
                    state, count = model[key]
                    assert (state, count + 1) == (RecordState.AVAILABLE, run.delivery_count)
                    model[key] = RecordState.ACQUIRED, count + 1
        elif action == "reload":
            kept = [run.batch() for run in records.runs if run.state is not RecordState.ACQUIRED]
            records = InFlightRecords(records.start_offset, kept)
            for key, (state, _) in model.items():
                if state is RecordState.ACQUIRED:
                    model[key] = RecordState.AVAILABLE, 0  # the count of a lost lock is lost, too
        elif model[number][0] is RecordState.ACQUIRED:
            runs = records.acknowledged_runs("a", OffsetRange(number, number))
            transition = Transition()
            kind = AcknowledgeType[action.upper()] if action != "cancel" else AcknowledgeType.ACCEPT
            records.begin(transition, runs, AFTER[kind], LIMIT)
            if action == "cancel":
                records.cancel(transition)
                continue
            records.complete(transition)
            count = model[number][1]
            state = AFTER[kind]
            if state is RecordState.AVAILABLE and count >= LIMIT:
                state = RecordState.ARCHIVED
            model[number] = state, count
        complete = [state.is_terminal for state, _ in model.values()]
        assert records.start_offset == (complete.index(False) if False in complete else end)
        assert all(left.last < right.first for left, right in zip(records.runs, records.runs[1:], strict=False))
