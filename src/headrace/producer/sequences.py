"""Sequence numbers: what makes a retry harmless.

Each batch of a producer id carries the number of its first record. The broker takes batches of a partition in that
order only and knows the last five again. So per partition there is a next number, the batches in flight in their order,
and the last number that was acknowledged. Numbers wrap from 2^31−1 to 0.

A batch is "in flight" here from the moment it gets its number until it is answered for good: also while it waits to be
sent again.
"""

from __future__ import annotations

from bisect import insort

from headrace.errors import BrokerError, Code
from headrace.producer.batch import ProducerBatch
from headrace.types import ProducerIdAndEpoch
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

SEQUENCE_MASK = 0x7FFFFFFF
HALF_WAY = 0x40000000  # what is nearer than this lies ahead, what is farther lies behind, around the end
TopicPartition = tuple[str, int]
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
        self.in_flight: list[ProducerBatch] = []  # in the order of their numbers

    def assign(self, batch: ProducerBatch, transactional: bool) -> None:
        """Give a batch the next numbers."""
        batch.set_producer_state(self.producer.producer_id, self.producer.epoch, self.next, transactional)
        self.next = next_sequence(self.next, batch.record_count)
        self.in_flight.append(batch)  # the newest number is the last

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """A batch that has its numbers already takes its place."""
        insort(self.in_flight, batch, key=self._order)

    def _order(self, batch: ProducerBatch) -> int:
        # Distance from the last number that is known to be stored, right across the wrap as well. It may be negative:
        # if a batch was stored, its answer lost, and the next one acknowledged before it is sent again.
        start = next_sequence(self.last_acked_sequence, 1) if self.last_acked_sequence != NO_SEQUENCE else 0
        return ((batch.base_sequence - start + HALF_WAY) & SEQUENCE_MASK) - HALF_WAY

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        if self.in_flight and self.in_flight[0] is batch:  # nearly always: answers come in order
            del self.in_flight[0]
        else:
            self.in_flight = [other for other in self.in_flight if other is not batch]

    def is_first(self, batch: ProducerBatch) -> bool:
        """True if no other batch has to be stored before this one."""
        return not self.in_flight or self.in_flight[0] is batch

    def acknowledge(self, batch: ProducerBatch, base_offset: int = -1) -> None:
        """A batch was stored, at an offset that may not be known."""
        if (batch.producer_id, batch.producer_epoch) == self.producer:  # else its numbers are not of this count
            last = batch.last_sequence
            if (
                self.last_acked_sequence == NO_SEQUENCE
                or (last - self.last_acked_sequence) & SEQUENCE_MASK < SEQUENCE_MASK // 2
            ):
                self.last_acked_sequence = last
        if base_offset >= 0:
            self.last_acked_offset = max(self.last_acked_offset, base_offset + batch.record_count - 1)
        self.remove_in_flight(batch)

    def was_stored(self, batch: ProducerBatch) -> bool:
        """True if one behind it was acknowledged: the broker takes them in order only."""
        if batch.sequence_was_reset or (batch.producer_id, batch.producer_epoch) != self.producer:
            return False
        ahead = (self.last_acked_sequence - batch.last_sequence) & SEQUENCE_MASK
        return self.last_acked_sequence != NO_SEQUENCE and ahead < HALF_WAY

    @property
    def all_acknowledged(self) -> bool:
        """True if the last number that was given is the last that was stored."""
        last = self.last_acked_sequence
        return self.next == (0 if last == NO_SEQUENCE else next_sequence(last, 1))

    def close_gap(self, failed: ProducerBatch) -> None:
        """A batch failed for good without being stored: those behind it move up into its numbers."""
        if not any(batch is failed for batch in self.in_flight):
            return  # its numbers are not of this count any more
        following = [b for b in self.in_flight if b is not failed and self._order(b) > self._order(failed)]
        count = failed.record_count
        self.next = (self.next - count) & SEQUENCE_MASK
        for batch in following:
            sequence = (batch.base_sequence - count) & SEQUENCE_MASK
            batch.sequence_was_reset = True
            batch.set_producer_state(batch.producer_id, batch.producer_epoch, sequence, batch.is_transactional)

    def start_over(self, producer: ProducerIdAndEpoch) -> None:
        """Numbers start at 0, and what is in flight gets new ones in its order."""
        self.producer = producer
        sequence = 0
        for batch in self.in_flight:
            batch.sequence_was_reset = True
            batch.set_producer_state(producer.producer_id, producer.epoch, sequence, batch.is_transactional)
            sequence = next_sequence(sequence, batch.record_count)
        self.next = sequence
        self.last_acked_sequence = NO_SEQUENCE


class SequenceTable:
    """The orders of all partitions, and which of them are in doubt. I/O thread only."""

    def __init__(self, *, transactional: bool = False) -> None:
        self._transactional = transactional
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        # Partition → the number after a batch that was given up while its fate was not known.
        self._unresolved: dict[TopicPartition, int] = {}
        self._to_start_over: set[TopicPartition] = set()
        self._known_at: set[TopicPartition] = set()  # Where something of this producer id was stored.

    def of(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> PartitionSequences:
        """The order of a batch's partition, begun for `producer` if there is none yet."""
        key = (batch.topic, batch.partition)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PartitionSequences(producer)
        return found

    def clear(self, *, is_same_id: bool) -> None:
        """Another epoch, or another id, for everything: nothing is in flight."""
        self._partitions.clear()
        self._unresolved.clear()
        self._to_start_over.clear()
        if not is_same_id:
            self._known_at.clear()

    def forget(self, batch: ProducerBatch) -> None:
        """The broker knows nothing of us in this partition: it takes a first number again."""
        key = (batch.topic, batch.partition)
        self._partitions.pop(key, None)
        self._unresolved.pop(key, None)
        self._known_at.discard(key)

    def may_drain(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> bool:
        """May this batch, the oldest of its partition, go out now?"""
        sequences = self.of(batch, producer)
        if batch.has_sequence:
            # A retry goes out only as the first of those in flight: the broker would refuse any other order.
            return sequences.is_first(batch)
        key = (batch.topic, batch.partition)
        if key in self._unresolved:
            return False  # the fate of an earlier batch is not known: wait until it is
        if not sequences.in_flight:
            return True
        # A stale epoch may still be in flight: numbers of the new one start when that is over. And a broker that has
        # never heard of us takes any number for the first: a second batch before that could overtake it (KAFKA-14359).
        return sequences.producer == producer and key in self._known_at

    def assign(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> None:
        """Give a batch its place in the order."""
        sequences = self.of(batch, producer)
        if sequences.producer != producer:
            sequences.start_over(producer)
        sequences.assign(batch, self._transactional)

    def acknowledge(self, batch: ProducerBatch, producer: ProducerIdAndEpoch, base_offset: int) -> None:
        """A batch was stored."""
        self.of(batch, producer).acknowledge(batch, base_offset)
        if batch.producer_id == producer.producer_id:
            self._known_at.add((batch.topic, batch.partition))

    # -- errors (KIP-360) ----------------------------------------------------------------------

    def can_retry(
        self, batch: ProducerBatch, code: int, retriable: bool, log_start_offset: int, producer: ProducerIdAndEpoch
    ) -> bool:
        """Which errors of a numbered batch can be got over."""
        sequences = self.of(batch, producer)
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return self._can_retry_out_of_order(batch, sequences)
        if code == Code.UNKNOWN_PRODUCER_ID:
            return self._can_retry_unknown_producer(batch, sequences, log_start_offset)
        return retriable

    def _can_retry_out_of_order(self, batch: ProducerBatch, sequences: PartitionSequences) -> bool:
        key = (batch.topic, batch.partition)
        unresolved = self._unresolved.get(key)
        if unresolved is None and (batch.sequence_was_reset or not sequences.is_first(batch)):
            return True  # one before it failed, or its numbers have changed since: it is only out of turn
        if self._transactional:
            return False
        if unresolved is None or unresolved == batch.base_sequence:
            self.want_start_over(key)
        return True

    def _can_retry_unknown_producer(
        self, batch: ProducerBatch, sequences: PartitionSequences, log_start_offset: int
    ) -> bool:
        if log_start_offset == -1 or batch.sequence_was_reset:
            return True  # the partition was just moving, or the numbers have changed since
        if not self._transactional:
            self.want_start_over((batch.topic, batch.partition))
            return True
        if sequences.last_acked_offset < log_start_offset:
            sequences.start_over(sequences.producer)  # what we wrote was deleted for its age, and our state with it
            return True
        return False

    def settle_failed(
        self, batch: ProducerBatch, error: Exception, producer: ProducerIdAndEpoch, *, adjust: bool
    ) -> None:
        """A batch failed for good. `adjust`: it is known not to be stored."""
        sequences = self.of(batch, producer)
        code = error.code if isinstance(error, BrokerError) else 0
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._transactional:
            self.want_start_over((batch.topic, batch.partition))
        elif code == Code.UNKNOWN_PRODUCER_ID:
            self.forget(batch)
        elif adjust and self._transactional:
            sequences.close_gap(batch)
        elif adjust:
            self.want_start_over((batch.topic, batch.partition))
        sequences.remove_in_flight(batch)

    def drop(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> None:
        """A batch is not sent again, whatever became of it."""
        self.mark_unresolved(batch)
        self.of(batch, producer).remove_in_flight(batch)

    # -- doubt ---------------------------------------------------------------------------------

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        key = (batch.topic, batch.partition)
        after = next_sequence(batch.last_sequence, 1)
        known = self._unresolved.get(key)
        if known is None or (after - known) & SEQUENCE_MASK < HALF_WAY:
            self._unresolved[key] = after

    def take_gaps(self) -> list[TopicPartition]:
        """Resolve what has nothing in flight any more; returns the partitions where a number is missing."""
        gaps = []
        for key in list(self._unresolved):
            sequences = self._partitions.get(key)
            if sequences is not None and sequences.in_flight:
                continue
            del self._unresolved[key]
            if sequences is not None and not sequences.all_acknowledged:
                gaps.append(key)
        return gaps

    # -- a new epoch ---------------------------------------------------------------------------

    def want_start_over(self, key: TopicPartition) -> None:
        """This partition cannot go on with its numbers: it needs a new epoch."""
        self._to_start_over.add(key)

    @property
    def wants_new_epoch(self) -> bool:
        return bool(self._to_start_over)

    def take_new_id(self, producer: ProducerIdAndEpoch) -> None:
        """A new id, because the epochs of the old one were used up."""
        self._known_at.clear()
        self.start_over(producer)

    def start_over(self, producer: ProducerIdAndEpoch) -> int:
        """A new epoch: the partitions that needed one begin again with it; the others when nothing is in flight."""
        wanted, self._to_start_over = self._to_start_over, set()
        for key in wanted:
            self._unresolved.pop(key, None)
            if key in self._partitions:
                self._partitions[key].start_over(producer)
        return len(wanted)
