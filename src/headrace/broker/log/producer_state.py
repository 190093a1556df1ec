"""State of a partition's producers: recognises retries, gaps, fenced producers, and the last stable offset.

    batch of a producer ─ admit ─► error | duplicate of … | new ─ written ─► add
    end of a transaction ─ admit_marker ─► error | ok ─ written ─► add ─► aborted? into AbortedIndex

`admit` changes nothing, so a failed write leaves no trace. The state is a function of the log: replaying the batches
since a snapshot gives the same (replay.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.broker.log.index import AbortedEntry
from headrace.errors import BrokerError, Code
from headrace.wire.layout import CONTROL, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader
from headrace.wire.records import Marker

BATCHES_KEPT_MAX = 5
"""Of each producer: the number it may have in flight, so that a retry of any of them is recognised."""
SEQUENCE_MAX = 2**31 - 1
EPOCH_MAX = 2**15 - 1
NO_COORDINATOR_EPOCH = -1
NO_TRANSACTION = -1


class WrittenBatch(NamedTuple):
    """A batch that is in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerView(NamedTuple):
    """A producer, for DescribeProducers."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int  # -1 if there is none


class ProducerEntry:
    """The state of one producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "touched_ms",
        "transaction_start",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        self.transaction_start = NO_TRANSACTION
        self.batches: list[WrittenBatch] = []  # of this epoch, the oldest first
        self.touched_ms = 0  # by the broker's clock: timestamps of records are up to the producer

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = []


class ProducerStateManager:
    """All producers of a partition. Event loop only."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the partition, for messages
        self.entries: dict[int, ProducerEntry] = {}
        self.first_unstable = NO_TRANSACTION  # of the first transaction that is open, or whose marker is not replicated
        self._open: dict[int, int] = {}  # first offset → producer id, in the order of offsets
        self.unreplicated: dict[int, int] = {}  # first offset → offset of a marker above the high watermark

    # --- batches ---

    def admit(self, header: BatchHeader, from_client: bool) -> WrittenBatch | None:
        """Check that a batch may be written. Return the written batch that it is a duplicate of, if any.

        Raise BrokerError. Only batches of clients have their sequence numbers checked.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None  # all its records may have been deleted: any sequence is accepted
        epoch = header.producer_epoch
        transactional = header.attributes & TRANSACTIONAL
        if epoch == entry.epoch and from_client:
            sequences = header.base_sequence, last_sequence(header)
            for written in entry.batches:
                if (written.first_sequence, written.last_sequence) == sequences:
                    if transactional:
                        self._check_not_ended(entry, written)
                    return written
        self._check_epoch(entry, epoch)
        if from_client:
            self._check_sequence(entry, epoch, header.base_sequence)
        if entry.transaction_start != NO_TRANSACTION and not transactional:
            raise BrokerError(
                f"{self._name}: producer {header.producer_id} has an open transaction since offset "
                f"{entry.transaction_start}, but this batch is not part of it",
                code=Code.INVALID_TXN_STATE,
            )
        return None

    def _check_not_ended(self, entry: ProducerEntry, written: WrittenBatch) -> None:
        """Raise if a sequence number was used in a transaction that has ended.

        Kafka acknowledges it as a duplicate. But a producer that waits for its batches does not repeat one after the
        end of their transaction: this is a new batch, of a client that has reset its sequence numbers with the abort
        (librdkafka with the classic protocol), and acknowledging it without writing it would tear the transaction.
        OUT_OF_ORDER_SEQUENCE_NUMBER makes clients abort and continue with a new epoch.
        """
        if not 0 <= entry.transaction_start <= written.first_offset:
            raise BrokerError(
                f"{self._name}: producer {entry.producer_id}, epoch {entry.epoch}, used sequences "
                f"{written.first_sequence} to {written.last_sequence} in a transaction that has ended: expected "
                f"{self._next_sequence(entry, entry.epoch)}",
                code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
            )

    def _check_epoch(self, entry: ProducerEntry, epoch: int) -> None:
        if epoch < entry.epoch:
            raise BrokerError(
                f"{self._name}: producer {entry.producer_id} with epoch {epoch} is fenced: the current epoch is "
                f"{entry.epoch}",
                code=Code.INVALID_PRODUCER_EPOCH,
            )

    def _check_sequence(self, entry: ProducerEntry, epoch: int, first_sequence: int) -> None:
        expected = self._next_sequence(entry, epoch)
        if first_sequence != expected:
            raise BrokerError(
                f"{self._name}: producer {entry.producer_id}, epoch {epoch}, wrote up to sequence "
                f"{expected - 1}: expected {expected}, got {first_sequence}",
                code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
            )

    def _next_sequence(self, entry: ProducerEntry, epoch: int) -> int:
        """Return the base sequence that the next batch of a producer must have."""
        return 0 if epoch != entry.epoch or entry.last_sequence == SEQUENCE_MAX else entry.last_sequence + 1

    # --- written batches and markers ---

    def add(self, header: BatchHeader, base_offset: int, marker: Marker | None, now_ms: int) -> AbortedEntry | None:
        """Add a written batch. Return the transaction that it aborted, if that has records in this partition."""
        if marker is not None:
            return self._add_marker(header, base_offset, marker, now_ms)
        if not header.attributes & CONTROL:
            self._add_batch(header, base_offset, now_ms)
        return None

    def _add_batch(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        producer_id, timestamp = header.producer_id, header.max_timestamp
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        entry.move_to(header.producer_epoch)
        batches = entry.batches
        last_offset = base_offset + header.last_offset_delta
        batches.append(WrittenBatch(header.base_sequence, last_sequence(header), base_offset, last_offset, timestamp))
        if len(batches) > BATCHES_KEPT_MAX:
            del batches[0]
        entry.last_timestamp = timestamp
        entry.touched_ms = now_ms
        if header.attributes & TRANSACTIONAL and entry.transaction_start == NO_TRANSACTION:
            entry.transaction_start = base_offset
            self._open[base_offset] = producer_id
            self._update_first_unstable()

    def _add_marker(self, header: BatchHeader, offset: int, marker: Marker, now_ms: int) -> AbortedEntry | None:
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        entry.move_to(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.touched_ms = now_ms
        first_offset = entry.transaction_start
        if first_offset == NO_TRANSACTION:
            return None
        entry.transaction_start = NO_TRANSACTION
        del self._open[first_offset]
        self.unreplicated[first_offset] = offset
        self._update_first_unstable()
        if marker.committed:
            return None
        return AbortedEntry(producer_id, first_offset, offset, next(iter(self._open), offset + 1))

    # --- ends of transactions ---

    def admit_marker(self, producer_id: int, epoch: int, marker: Marker, transaction_version: int) -> None:
        """Check that a marker may be written. Raise BrokerError if its producer or its coordinator is fenced."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if transaction_version >= 2 and epoch == entry.epoch:
            # Each transaction has a new epoch, and its marker the epoch after that (KIP-890), so a marker with the
            # epoch of the records is late: it ends the previous transaction. But a marker may be sent again, and the
            # last epoch has no successor.
            if entry.transaction_start != NO_TRANSACTION and epoch != EPOCH_MAX:
                raise BrokerError(
                    f"{self._name}: a marker of producer {producer_id} has the epoch of the open transaction, {epoch}: "
                    "expected a later one",
                    code=Code.INVALID_PRODUCER_EPOCH,
                )
        else:
            self._check_epoch(entry, epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise BrokerError(
                f"{self._name}: a marker of producer {producer_id} from a coordinator with epoch "
                f"{marker.coordinator_epoch} is fenced: the current coordinator epoch is {entry.coordinator_epoch}",
                code=Code.TRANSACTION_COORDINATOR_FENCED,
            )

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Remove the markers below the high watermark from those that are not replicated."""
        if self.unreplicated:
            self.unreplicated = {first: end for first, end in self.unreplicated.items() if end >= high_watermark}
            self._update_first_unstable()

    def _update_first_unstable(self) -> None:
        first = next(iter(self._open), NO_TRANSACTION)
        if self.unreplicated:
            lowest = min(self.unreplicated)
            if first == NO_TRANSACTION or lowest < first:
                first = lowest
        self.first_unstable = first

    def drop_undecided(self, still_open: Mapping[int, int]) -> int:
        """Drop the open transactions whose markers may be lost, and return the first offset of them or NO_TRANSACTION.

        `still_open` has those that are known to be open later: producer id → first offset.
        """
        dropped = [first for first, producer_id in self._open.items() if still_open.get(producer_id) != first]
        for first in dropped:
            self.entries[self._open.pop(first)].transaction_start = NO_TRANSACTION
        self._update_first_unstable()
        return dropped[0] if dropped else NO_TRANSACTION

    # --- the whole state ---

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction with this epoch."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_start != NO_TRANSACTION and entry.epoch == epoch

    def views(self) -> list[ProducerView]:
        return [
            ProducerView(
                e.producer_id, e.epoch, e.last_sequence, e.last_timestamp, e.coordinator_epoch, e.transaction_start
            )
            for e in self.entries.values()
        ]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that have written nothing for `expiration_ms` and have no open transaction."""
        for producer_id, entry in list(self.entries.items()):
            if entry.transaction_start == NO_TRANSACTION and now_ms - entry.touched_ms >= expiration_ms:
                del self.entries[producer_id]

    def restore(self, entries: Iterable[ProducerEntry], unreplicated: Mapping[int, int]) -> None:
        """Replace the state by that of a snapshot."""
        self.entries = {entry.producer_id: entry for entry in entries}
        started = ((e.transaction_start, e.producer_id) for e in self.entries.values() if e.transaction_start >= 0)
        self._open = dict(sorted(started))
        self.unreplicated = dict(unreplicated)
        self._update_first_unstable()

    def clear(self) -> None:
        """Remove all producers."""
        self.restore((), {})


def last_sequence(header: BatchHeader) -> int:
    """Return the sequence number of the last record of a batch; numbers wrap to 0 after SEQUENCE_MAX."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return header.base_sequence + header.last_offset_delta & SEQUENCE_MAX
