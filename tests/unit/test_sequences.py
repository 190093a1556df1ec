"""Sequence numbers: order, wrap, gaps, doubt, new epochs."""

from __future__ import annotations

import pytest

from headrace.errors import BrokerError, TimedOutError
from headrace.producer.batch import ProducerBatch
from headrace.producer.sequences import NO_PRODUCER_ID_AND_EPOCH, PartitionSequences, SequenceTable, next_sequence
from headrace.types import ProducerIdAndEpoch

pytestmark = pytest.mark.both_kernels

LAST = 0x7FFFFFFF
PRODUCER = ProducerIdAndEpoch(9, 0)
BUMPED = ProducerIdAndEpoch(9, 1)
OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_RECORD, NOT_LEADER = 45, 59, 87, 6


def batch_of(count: int = 2, partition: int = 0) -> ProducerBatch:
    batch = ProducerBatch("t", partition, bytearray(4096), 0, 0.0)
    for _ in range(count):
        batch.append(0, None, b"v")
    batch.close()
    return batch


def assigned(table: SequenceTable, count: int, partition: int = 0) -> list[ProducerBatch]:
    batches = [batch_of(2, partition) for _ in range(count)]
    for batch in batches:
        table.assign(batch, PRODUCER)
        batch.seal(0, None)
    return batches


def bases(batches: list[ProducerBatch]) -> list[int]:
    return [batch.base_sequence for batch in batches]


@pytest.mark.parametrize(
    ("sequence", "count", "expected"), [(0, 1, 1), (LAST, 1, 0), (LAST - 1, 5, 3), (LAST - 4, 5, 0), (5, 0, 5)]
)
def test_numbers_wrap_to_zero(sequence, count, expected):
    assert next_sequence(sequence, count) == expected


def test_numbers_follow_each_other_across_the_wrap():
    sequences = PartitionSequences(PRODUCER)
    sequences.next, sequences.last_acked_sequence = LAST - 2, LAST - 3
    batches = [batch_of() for _ in range(4)]
    for batch in batches:
        sequences.assign(batch, False)
    assert bases(batches) == [LAST - 2, LAST, 1, 3]
    assert sequences.in_flight == batches
    for batch in batches:
        assert sequences.is_first(batch)
        sequences.acknowledge(batch)
    assert sequences.all_acknowledged
    assert sequences.last_acked_sequence == 4


def test_reenqueued_batches_are_in_order_across_the_wrap():
    sequences = PartitionSequences(PRODUCER)
    sequences.next, sequences.last_acked_sequence = LAST - 2, LAST - 3
    batches = [batch_of() for _ in range(4)]
    for batch in batches:
        sequences.assign(batch, False)
    sequences.remove_in_flight(batches[1])
    sequences.add_in_flight(batches[1])
    assert sequences.in_flight == batches


def test_a_batch_whose_successor_was_acknowledged_before_it_stays_first():
    """It was stored and its response lost; the next one was stored and acknowledged before it could be sent again."""
    sequences = PartitionSequences(PRODUCER)
    first, second, third = (batch_of() for _ in range(3))
    sequences.assign(first, False)
    sequences.assign(second, False)
    sequences.acknowledge(second)
    sequences.assign(third, False)
    assert sequences.in_flight == [first, third]
    sequences.acknowledge(first)
    assert sequences.last_acked_sequence == second.last_sequence


def test_an_acknowledgement_of_another_epoch_does_not_count_here():
    sequences = PartitionSequences(PRODUCER)
    batch = batch_of()
    sequences.assign(batch, False)
    sequences.remove_in_flight(batch)  # it expired
    sequences.start_over(BUMPED)
    sequences.acknowledge(batch)  # and was stored after all
    assert sequences.all_acknowledged
    assert sequences.next == 0


def test_those_behind_a_failed_batch_move_up():
    table = SequenceTable(transactional=True)
    first, second, third = assigned(table, 3)
    table.settle_failed(second, BrokerError("", code=INVALID_RECORD), PRODUCER, adjust=True)
    assert bases([first, third]) == [0, 2]
    assert (first.sequence_was_reset, third.sequence_was_reset) == (False, True)
    fresh = batch_of()
    table.assign(fresh, PRODUCER)
    assert fresh.base_sequence == 4


def test_those_behind_a_failed_batch_move_up_across_the_wrap():
    table = SequenceTable(transactional=True)
    batches = [batch_of(3) for _ in range(3)]
    sequences = table.of(batches[0], PRODUCER)
    sequences.next, sequences.last_acked_sequence = LAST - 1, LAST - 2
    for batch in batches:
        table.assign(batch, PRODUCER)
    assert bases(batches) == [LAST - 1, 1, 4]
    table.settle_failed(batches[0], BrokerError("", code=INVALID_RECORD), PRODUCER, adjust=True)
    assert bases(batches[1:]) == [LAST - 1, 1]
    assert sequences.next == 4


def test_a_batch_whose_numbers_are_not_of_this_count_closes_no_gap():
    table = SequenceTable(transactional=True)
    first, second = assigned(table, 2)
    table.settle_failed(first, BrokerError("", code=UNKNOWN_PRODUCER), PRODUCER, adjust=True)  # the count starts again
    table.settle_failed(second, BrokerError("", code=INVALID_RECORD), PRODUCER, adjust=True)
    fresh = batch_of()
    table.assign(fresh, PRODUCER)
    assert fresh.base_sequence == 0


def test_an_idempotent_producer_wants_a_new_epoch_for_a_gap():
    table = SequenceTable()
    first, second, _ = assigned(table, 3)
    other = assigned(table, 1, partition=1)[0]
    table.settle_failed(first, BrokerError("", code=INVALID_RECORD), PRODUCER, adjust=True)
    assert table.wants_new_epoch
    assert table.start_over(BUMPED) == 1
    assert table.start_over(BUMPED) == 0  # once is enough
    assert (second.base_sequence, second.producer_epoch, second.sequence_was_reset) == (0, 1, True)
    # The other partition continues with its epoch until nothing is in flight there.
    assert (other.base_sequence, other.producer_epoch) == (0, 0)
    fresh = batch_of(partition=1)
    assert not table.may_drain(fresh, BUMPED)
    table.acknowledge(other, PRODUCER, -1)
    assert table.may_drain(fresh, BUMPED)
    table.assign(fresh, BUMPED)
    assert (fresh.base_sequence, fresh.producer_epoch) == (0, 1)


def test_no_gap_is_closed_when_it_is_not_known_whether_the_batch_was_stored():
    table = SequenceTable()
    first, second = assigned(table, 2)
    table.settle_failed(first, TimedOutError("expired"), PRODUCER, adjust=False)
    assert not table.wants_new_epoch
    assert second.base_sequence == 2


def test_a_retry_waits_for_those_before_it():
    table = SequenceTable()
    first, second = assigned(table, 2)
    assert table.may_drain(first, PRODUCER)
    assert not table.may_drain(second, PRODUCER)
    table.acknowledge(first, PRODUCER, -1)
    assert table.may_drain(second, PRODUCER)


# -- doubt ---------------------------------------------------------------------------------------


def expire(table: SequenceTable, batch: ProducerBatch) -> None:
    table.mark_unresolved(batch)
    table.settle_failed(batch, TimedOutError("expired"), PRODUCER, adjust=False)


def test_an_unresolved_batch_holds_back_new_batches():
    table = SequenceTable()
    first, second = assigned(table, 2)
    expire(table, first)
    fresh = batch_of()
    assert not table.may_drain(fresh, PRODUCER)
    assert table.take_gaps() == []
    assert not table.may_drain(fresh, PRODUCER)
    table.acknowledge(second, PRODUCER, -1)  # so the first was stored, too
    assert table.take_gaps() == []
    assert table.may_drain(fresh, PRODUCER)


def test_a_gap_is_returned_once():
    table = SequenceTable()
    (only,) = assigned(table, 1)
    expire(table, only)
    assert table.take_gaps() == [("t", 0)]
    assert table.take_gaps() == []


def test_a_late_acknowledgement_resolves_the_doubt():
    table = SequenceTable()
    (only,) = assigned(table, 1)
    expire(table, only)
    table.acknowledge(only, PRODUCER, -1)
    assert table.take_gaps() == []


# -- which errors can be got over ----------------------------------------------------------------


def test_other_errors_are_as_the_table_of_codes_says():
    table = SequenceTable()
    (only,) = assigned(table, 1)
    assert table.can_retry(only, NOT_LEADER, True, -1, PRODUCER)
    assert not table.can_retry(only, INVALID_RECORD, False, -1, PRODUCER)


@pytest.mark.parametrize("transactional", [False, True])
def test_out_of_order_behind_another_is_only_out_of_turn(transactional):
    table = SequenceTable(transactional=transactional)
    _, second = assigned(table, 2)
    assert table.can_retry(second, OUT_OF_ORDER, False, -1, PRODUCER)
    assert not table.wants_new_epoch


@pytest.mark.parametrize("transactional", [False, True])
def test_out_of_order_after_new_numbers_is_only_out_of_turn(transactional):
    table = SequenceTable(transactional=transactional)
    (only,) = assigned(table, 1)
    only.sequence_was_reset = True
    assert table.can_retry(only, OUT_OF_ORDER, False, -1, PRODUCER)
    assert not table.wants_new_epoch
    only.set_producer_state(9, 0, 0, transactional)
    only.seal(0, None)  # it goes out with its new numbers: from here on they count
    assert table.can_retry(only, OUT_OF_ORDER, False, -1, PRODUCER) is not transactional


def test_out_of_order_as_the_first_is_a_gap():
    table = SequenceTable()
    first, _ = assigned(table, 2)
    assert table.can_retry(first, OUT_OF_ORDER, False, -1, PRODUCER)
    assert table.wants_new_epoch
    table = SequenceTable(transactional=True)
    first, _ = assigned(table, 2)
    assert not table.can_retry(first, OUT_OF_ORDER, False, -1, PRODUCER)


def test_out_of_order_after_doubt_is_a_gap_only_for_the_very_next():
    table = SequenceTable()
    first, second, third = assigned(table, 3)
    expire(table, first)
    assert table.can_retry(third, OUT_OF_ORDER, False, -1, PRODUCER)
    assert not table.wants_new_epoch
    assert table.can_retry(second, OUT_OF_ORDER, False, -1, PRODUCER)
    assert table.wants_new_epoch


def test_an_unknown_producer_is_tried_again_while_the_partition_moves():
    table = SequenceTable(transactional=True)
    (only,) = assigned(table, 1)
    assert table.can_retry(only, UNKNOWN_PRODUCER, False, -1, PRODUCER)
    assert (only.base_sequence, only.sequence_was_reset) == (0, False)


def test_an_unknown_producer_starts_over_if_all_it_wrote_was_deleted():
    table = SequenceTable(transactional=True)
    first, second = assigned(table, 2)
    table.acknowledge(first, PRODUCER, 10)
    assert not table.can_retry(second, UNKNOWN_PRODUCER, False, 5, PRODUCER)  # what it wrote is still there
    assert table.can_retry(second, UNKNOWN_PRODUCER, False, 12, PRODUCER)
    assert (second.base_sequence, second.producer_epoch, second.sequence_was_reset) == (0, 0, True)


def test_an_idempotent_producer_that_is_unknown_gets_a_new_epoch():
    table = SequenceTable()
    (only,) = assigned(table, 1)
    assert table.can_retry(only, UNKNOWN_PRODUCER, False, 0, PRODUCER)
    assert table.wants_new_epoch


def test_nobody_has_no_id():
    assert not NO_PRODUCER_ID_AND_EPOCH.is_valid
    assert PRODUCER.is_valid
