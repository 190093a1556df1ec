"""Sequence numbers, which make retries idempotent.

Each batch of a producer id carries the sequence number of its first record. The broker accepts the batches of a
partition in this order only, and recognizes the last five. The producer therefore tracks for each partition the next
number, the batches in flight in order, and the last acknowledged number. Numbers wrap from 2^31−1 to 0.

A batch is "in flight" here from when it gets its number until its final result, also while it waits for a retry.
"""

from __future__ import annotations

from bisect import insort

from headrace.errors import BrokerError, Code
from headrace.producer.batch import ProducerBatch
from headrace.types import ProducerIdAndEpoch
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

SEQUENCE_MASK = 0x7FFFFFFF
HALF_WAY = 0x40000000  # A distance below this is ahead, above it behind (across the wrap).
TopicPartition = tuple[str, int]
NO_PRODUCER_ID_AND_EPOCH = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def next_sequence(sequence: int, count: int) -> int:
    """Return `sequence` + `count`, with wrap."""
    return (sequence + count) & SEQUENCE_MASK


class PartitionSequences:
    """The sequence numbers of one partition. I/O thread only."""

    __slots__ = ("in_flight", "last_acked_offset", "last_acked_sequence", "next", "producer")

    def __init__(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.next = 0
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset = -1
        self.in_flight: list[ProducerBatch] = []  # In order of sequence.

    def assign(self, batch: ProducerBatch, transactional: bool) -> None:
        """Assign the next sequence numbers to a batch."""
        batch.set_producer_state(self.producer.producer_id, self.producer.epoch, self.next, transactional)
        self.next = next_sequence(self.next, batch.record_count)
        self.in_flight.append(batch)  # the highest sequence so far

    def add_in_flight(self, batch: ProducerBatch) -> None:
        """Insert a batch that has sequence numbers already."""
        insort(self.in_flight, batch, key=self._order)

    def _order(self, batch: ProducerBatch) -> int:
        # Distance from the last acknowledged number, across the wrap. Negative if a batch was stored, its response
        # lost, and the next batch acknowledged before the retry.
        start = next_sequence(self.last_acked_sequence, 1) if self.last_acked_sequence != NO_SEQUENCE else 0
        return ((batch.base_sequence - start + HALF_WAY) & SEQUENCE_MASK) - HALF_WAY

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        if self.in_flight and self.in_flight[0] is batch:  # nearly always: responses come in order
            del self.in_flight[0]
        else:
            self.in_flight = [other for other in self.in_flight if other is not batch]

    def is_first(self, batch: ProducerBatch) -> bool:
        """Return whether no other batch must be stored before this one."""
        return not self.in_flight or self.in_flight[0] is batch

    def acknowledge(self, batch: ProducerBatch, base_offset: int = -1) -> None:
        """Record that a batch was stored; its offset may be unknown (-1)."""
        if (batch.producer_id, batch.producer_epoch) == self.producer:  # else its numbers are of an older epoch
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
        """Return whether a later batch was acknowledged: the broker accepts batches in order only."""
        if batch.sequence_was_reset or (batch.producer_id, batch.producer_epoch) != self.producer:
            return False
        ahead = (self.last_acked_sequence - batch.last_sequence) & SEQUENCE_MASK
        return self.last_acked_sequence != NO_SEQUENCE and ahead < HALF_WAY

    @property
    def all_acknowledged(self) -> bool:
        """Whether the last assigned number is acknowledged."""
        last = self.last_acked_sequence
        return self.next == (0 if last == NO_SEQUENCE else next_sequence(last, 1))

    def close_gap(self, failed: ProducerBatch) -> None:
        """Move the batches behind a failed one, which was not stored, up into its numbers."""
        if not any(batch is failed for batch in self.in_flight):
            return  # its numbers are of an older epoch
        following = [b for b in self.in_flight if b is not failed and self._order(b) > self._order(failed)]
        count = failed.record_count
        self.next = (self.next - count) & SEQUENCE_MASK
        for batch in following:
            sequence = (batch.base_sequence - count) & SEQUENCE_MASK
            batch.sequence_was_reset = True
            batch.set_producer_state(batch.producer_id, batch.producer_epoch, sequence, batch.is_transactional)

    def start_over(self, producer: ProducerIdAndEpoch) -> None:
        """Restart at 0 with a new producer id or epoch, and renumber the batches in flight in order."""
        self.producer = producer
        sequence = 0
        for batch in self.in_flight:
            batch.sequence_was_reset = True
            batch.set_producer_state(producer.producer_id, producer.epoch, sequence, batch.is_transactional)
            sequence = next_sequence(sequence, batch.record_count)
        self.next = sequence
        self.last_acked_sequence = NO_SEQUENCE


class SequenceTable:
    """The sequence numbers of all partitions, and which partitions have unresolved batches. I/O thread only."""

    def __init__(self, *, transactional: bool = False) -> None:
        self._transactional = transactional
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        # The number after a failed batch that may have been stored.
        self._unresolved: dict[TopicPartition, int] = {}
        self._to_start_over: set[TopicPartition] = set()
        self._known_at: set[TopicPartition] = set()  # Partitions where a batch of this producer id was stored.

    def of(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> PartitionSequences:
        """Return the sequence numbers of a batch's partition, created for `producer` if missing."""
        key = (batch.topic, batch.partition)
        sequences = self._partitions.get(key)
        if sequences is None:
            sequences = self._partitions[key] = PartitionSequences(producer)
        return sequences

    def clear(self, *, is_same_id: bool) -> None:
        """Restart all partitions with a new epoch or id. Nothing is in flight."""
        self._partitions.clear()
        self._unresolved.clear()
        self._to_start_over.clear()
        if not is_same_id:
            self._known_at.clear()

    def forget(self, batch: ProducerBatch) -> None:
        """Restart a partition in which the broker does not know the producer id."""
        key = (batch.topic, batch.partition)
        self._partitions.pop(key, None)
        self._unresolved.pop(key, None)
        self._known_at.discard(key)

    def may_drain(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> bool:
        """Return whether this batch, the oldest of its partition, may be sent now."""
        sequences = self.of(batch, producer)
        if batch.has_sequence:
            # A retry must be the first in flight: the broker rejects any other order.
            return sequences.is_first(batch)
        key = (batch.topic, batch.partition)
        if key in self._unresolved:
            return False  # an earlier batch may have been stored: wait for the result
        if not sequences.in_flight:
            return True
        # Batches of an old epoch may be in flight: the new epoch starts after them. And a broker that does not know the
        # producer id accepts any first number: a second batch could overtake the first (KAFKA-14359).
        return sequences.producer == producer and key in self._known_at

    def assign(self, batch: ProducerBatch, producer: ProducerIdAndEpoch) -> None:
        """Assign sequence numbers to a batch."""
        sequences = self.of(batch, producer)
        if sequences.producer != producer:
            sequences.start_over(producer)
        sequences.assign(batch, self._transactional)

    def acknowledge(self, batch: ProducerBatch, producer: ProducerIdAndEpoch, base_offset: int) -> None:
        """Record that a batch was stored."""
        self.of(batch, producer).acknowledge(batch, base_offset)
        if batch.producer_id == producer.producer_id:
            self._known_at.add((batch.topic, batch.partition))

    # -- errors (KIP-360) ----------------------------------------------------------------------

    def can_retry(
        self, batch: ProducerBatch, code: int, retriable: bool, log_start_offset: int, producer: ProducerIdAndEpoch
    ) -> bool:
        """Return whether a batch with this error can be retried."""
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
            return True  # an earlier batch failed, or its numbers have changed since
        if self._transactional:
            return False
        if unresolved is None or unresolved == batch.base_sequence:
            self.want_start_over(key)
        return True

    def _can_retry_unknown_producer(
        self, batch: ProducerBatch, sequences: PartitionSequences, log_start_offset: int
    ) -> bool:
        if log_start_offset == -1 or batch.sequence_was_reset:
            return True  # the partition was moving, or the numbers have changed since
        if not self._transactional:
            self.want_start_over((batch.topic, batch.partition))
            return True
        if sequences.last_acked_offset < log_start_offset:
            sequences.start_over(sequences.producer)  # retention deleted our records, and our state with them
            return True
        return False

    def settle_failed(
        self, batch: ProducerBatch, error: Exception, producer: ProducerIdAndEpoch, *, adjust: bool
    ) -> None:
        """Record that a batch failed. `adjust`: it was certainly not stored."""
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
        """Record that a batch, which may have been stored, is not sent again."""
        self.mark_unresolved(batch)
        self.of(batch, producer).remove_in_flight(batch)

    # -- unresolved batches --------------------------------------------------------------------

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        key = (batch.topic, batch.partition)
        after = next_sequence(batch.last_sequence, 1)
        known = self._unresolved.get(key)
        if known is None or (after - known) & SEQUENCE_MASK < HALF_WAY:
            self._unresolved[key] = after

    def take_gaps(self) -> list[TopicPartition]:
        """Resolve partitions without batches in flight; returns those where a number is missing."""
        gaps = []
        for key in list(self._unresolved):
            sequences = self._partitions.get(key)
            if sequences is not None and sequences.in_flight:
                continue
            del self._unresolved[key]
            if sequences is not None and not sequences.all_acknowledged:
                gaps.append(key)
        return gaps

    # -- new epochs ----------------------------------------------------------------------------

    def want_start_over(self, key: TopicPartition) -> None:
        """Request a new epoch, because this partition cannot continue with its numbers."""
        self._to_start_over.add(key)

    @property
    def wants_new_epoch(self) -> bool:
        return bool(self._to_start_over)

    def take_new_id(self, producer: ProducerIdAndEpoch) -> None:
        """Restart with a new producer id."""
        self._known_at.clear()
        self.start_over(producer)

    def start_over(self, producer: ProducerIdAndEpoch) -> int:
        """Restart the partitions that need the new epoch; the others restart when nothing is in flight."""
        keys, self._to_start_over = self._to_start_over, set()
        for key in keys:
            self._unresolved.pop(key, None)
            if key in self._partitions:
                self._partitions[key].start_over(producer)
        return len(keys)
