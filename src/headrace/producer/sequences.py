"""Sequence numbers: what makes a retry harmless.

Each batch of a producer id carries the number of its first record. The broker takes batches of a partition in that
order only and knows the last five again. So per partition there is a next number, the batches in flight in their order,
and the last number that was acknowledged. Numbers wrap from 2^31−1 to 0.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from headrace.producer.batch import ProducerBatch
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

SEQUENCE_MASK = 0x7FFFFFFF
TopicPartition = tuple[str, int]


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


NO_PRODUCER_ID_AND_EPOCH = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def next_sequence(sequence: int, count: int) -> int:
    """`count` further on, around the end."""
    return (sequence + count) & SEQUENCE_MASK


class PartitionSequences:
    """The order of one partition. I/O thread only."""

    __slots__ = ("in_flight", "last_acked_offset", "last_acked_sequence", "next", "producer")

    def __init__(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.next = 0
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset = -1
        self.in_flight: list[ProducerBatch] = []  # by sequence; an epoch starts at 0, so no wrap within it matters here

    def add_in_flight(self, batch: ProducerBatch) -> None:
        insort(self.in_flight, batch, key=self._order)

    def _order(self, batch: ProducerBatch) -> int:
        # Distance from the oldest number still out: right across the wrap as well.
        start = next_sequence(self.last_acked_sequence, 1) if self.last_acked_sequence != NO_SEQUENCE else 0
        return (batch.base_sequence - start) & SEQUENCE_MASK

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        self.in_flight = [other for other in self.in_flight if other is not batch]

    @property
    def first_in_flight_sequence(self) -> int:
        return self.in_flight[0].base_sequence if self.in_flight else NO_SEQUENCE

    def acknowledge(self, batch: ProducerBatch) -> None:
        """A batch was stored."""
        last = batch.last_sequence
        if (
            self.last_acked_sequence == NO_SEQUENCE
            or (last - self.last_acked_sequence) & SEQUENCE_MASK < SEQUENCE_MASK // 2
        ):
            self.last_acked_sequence = last
        if batch.base_offset >= 0:
            self.last_acked_offset = max(self.last_acked_offset, batch.base_offset + batch.record_count - 1)
        self.remove_in_flight(batch)

    def is_next(self, sequence: int) -> bool:
        """True if the broker expects just this number now."""
        expected = 0 if self.last_acked_sequence == NO_SEQUENCE else next_sequence(self.last_acked_sequence, 1)
        return sequence == expected

    def close_gap(self, failed: ProducerBatch) -> None:
        """A batch failed for good without being stored: those behind it move up into its numbers."""
        following = [b for b in self.in_flight if b is not failed and self._order(b) > self._order(failed)]
        count = failed.record_count
        self.next = (self.next - count) & SEQUENCE_MASK
        for batch in following:
            sequence = (batch.base_sequence - count) & SEQUENCE_MASK
            batch.sequence_was_reset = True
            batch.set_producer_state(batch.producer_id, batch.producer_epoch, sequence, batch.is_transactional)

    def start_over(self, producer: ProducerIdAndEpoch) -> None:
        """A new epoch: numbers start at 0, and what is in flight gets new ones in its order."""
        self.producer = producer
        sequence = 0
        for batch in self.in_flight:
            batch.sequence_was_reset = True
            batch.set_producer_state(producer.producer_id, producer.epoch, sequence, batch.is_transactional)
            sequence = next_sequence(sequence, batch.record_count)
        self.next = sequence
        self.last_acked_sequence = NO_SEQUENCE
