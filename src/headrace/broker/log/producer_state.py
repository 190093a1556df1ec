"""What a partition knows of its producers: enough to tell a retry from a gap, a zombie from the living, and where the
last stable offset is.

    batch of a producer ─ admit ─► refused | a duplicate of … | new ─ written ─► note_batch
    end of a transaction ─ admit_marker ─► refused | ok ─ written ─► note_marker ─► aborted? into the aborted index

Nothing is changed by `admit`, so a write that fails leaves no trace. The state is a function of the log: reading the
batches again from a snapshot on gives the same (`recovery.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.errors import BrokerError, Code
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from headrace.wire.records import Marker

BATCHES_KEPT_MAX = 5
"""Of each producer: as many as it may have in flight, so that a retry of any of them is recognised."""
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


class EndedTransaction(NamedTuple):
    """A transaction that had records here."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    last_stable_offset: int  # after it
    committed: bool


class ProducerView(NamedTuple):
    """A producer, for DescribeProducers."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int  # -1: none


class ProducerEntry:
    """One producer."""

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
        self.touched_ms = 0  # by our clock; records can be as old as their producer says

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    def facts(self) -> tuple[object, ...]:
        """What must be the same after a restart."""
        return (self.epoch, self.coordinator_epoch, self.last_timestamp, self.transaction_start, tuple(self.batches))

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = []


class ProducerState:
    """All producers of a partition. Event loop only."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the partition, for messages
        self.entries: dict[int, ProducerEntry] = {}
        self.first_unstable = NO_TRANSACTION  # the first offset that is not decided, or not yet safely so
        self._open: dict[int, int] = {}  # first offset → producer id, in the order of offsets
        self.unreplicated: dict[int, int] = {}  # first offset → offset of the marker that is above the high watermark

    # --- batches ---

    def admit(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, transactional: bool, client: bool
    ) -> WrittenBatch | None:
        """Whether a batch may be written. Returns the batch that it is a duplicate of."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return None  # everything of it may have been deleted: any sequence will do
        if epoch == entry.epoch and client:
            for written in entry.batches:
                if written.first_sequence == first_sequence and written.last_sequence == last_sequence:
                    if transactional:
                        self._check_not_ended(entry, written)
                    return written
        self._check_epoch(entry, epoch)
        if client:
            self._check_sequence(entry, epoch, first_sequence)
        if entry.transaction_start != NO_TRANSACTION and not transactional:
            raise BrokerError(
                f"{self._name}: producer {producer_id} has an open transaction since offset "
                f"{entry.transaction_start}, but this batch is not part of it",
                code=Code.INVALID_TXN_STATE,
            )
        return None

    def _check_not_ended(self, entry: ProducerEntry, written: WrittenBatch) -> None:
        """Refuse a sequence number that was used in a transaction that has ended.

        Kafka acknowledges it as a duplicate. But a producer that waits for its batches does not repeat one after the
        end of their transaction: this is a new batch, from a client that took back its sequence numbers when it
        aborted (librdkafka with the classic protocol), and to acknowledge it without writing it tears the transaction.
        OUT_OF_ORDER_SEQUENCE_NUMBER makes clients abort and go on with a new epoch.
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
                f"{self._name}: producer {entry.producer_id} writes with epoch {epoch}, but epoch {entry.epoch} "
                "has been seen",
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
        """What the next batch of a producer has to begin with."""
        return 0 if epoch != entry.epoch or entry.last_sequence == SEQUENCE_MAX else entry.last_sequence + 1

    def note_batch(self, producer_id: int, epoch: int, batch: WrittenBatch, transactional: bool, now_ms: int) -> None:
        """Remember a batch that was written."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        entry.move_to(epoch)
        batches = entry.batches
        batches.append(batch)
        if len(batches) > BATCHES_KEPT_MAX:
            del batches[0]
        entry.last_timestamp = batch.timestamp
        entry.touched_ms = now_ms
        if transactional and entry.transaction_start == NO_TRANSACTION:
            entry.transaction_start = batch.first_offset
            self._open[batch.first_offset] = producer_id
            self._find_first_unstable()

    # --- ends of transactions ---

    def admit_marker(self, producer_id: int, epoch: int, marker: Marker, transaction_version: int) -> None:
        """Whether a marker may be written: zombies are refused, coordinators and producers."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if transaction_version >= 2 and epoch == entry.epoch:
            # Each transaction has an epoch of its own and its marker the next one (KIP-890), so a marker with the
            # epoch of the records is late: of the transaction before. But a marker may be sent again, and the
            # last epoch has no next one.
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
                f"{self._name}: a marker of producer {producer_id} comes from a coordinator of epoch "
                f"{marker.coordinator_epoch}, but one of epoch {entry.coordinator_epoch} has been heard",
                code=Code.TRANSACTION_COORDINATOR_FENCED,
            )

    def note_marker(
        self, producer_id: int, epoch: int, marker: Marker, offset: int, timestamp: int, now_ms: int
    ) -> EndedTransaction | None:
        """Remember a marker that was written; the transaction it ended, if that had records here."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        entry.move_to(epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        entry.touched_ms = now_ms
        first_offset = entry.transaction_start
        if first_offset == NO_TRANSACTION:
            return None
        entry.transaction_start = NO_TRANSACTION
        del self._open[first_offset]
        self.unreplicated[first_offset] = offset
        self._find_first_unstable()
        return EndedTransaction(producer_id, first_offset, offset, next(iter(self._open), offset + 1), marker.committed)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """What was decided below it is decided for good."""
        if self.unreplicated:
            self.unreplicated = {first: end for first, end in self.unreplicated.items() if end >= high_watermark}
            self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first = next(iter(self._open), NO_TRANSACTION)
        if self.unreplicated:
            lowest = min(self.unreplicated)
            if first == NO_TRANSACTION or lowest < first:
                first = lowest
        self.first_unstable = first

    def drop_undecided(self, still_open: Mapping[int, int]) -> int:
        """Forget the open transactions because their markers may be lost; the first offset of them, or NO_TRANSACTION.

        `still_open` has those that are known to be open later: producer id → first offset.
        """
        dropped = [first for first, producer_id in self._open.items() if still_open.get(producer_id) != first]
        for first in dropped:
            self.entries[self._open.pop(first)].transaction_start = NO_TRANSACTION
        self._find_first_unstable()
        return dropped[0] if dropped else NO_TRANSACTION

    # --- as a whole ---

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether it has a transaction open here, in this epoch."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_start != NO_TRANSACTION and entry.epoch == epoch

    def views(self) -> list[ProducerView]:
        return [
            ProducerView(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
            for entry in self.entries.values()
        ]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget who has written nothing for long, unless it has a transaction open."""
        for producer_id, entry in list(self.entries.items()):
            if entry.transaction_start == NO_TRANSACTION and now_ms - entry.touched_ms >= expiration_ms:
                del self.entries[producer_id]

    def restore(self, entries: Iterable[ProducerEntry], unreplicated: dict[int, int]) -> None:
        """Take over a snapshot."""
        self.entries = {entry.producer_id: entry for entry in entries}
        started = ((e.transaction_start, e.producer_id) for e in self.entries.values() if e.transaction_start >= 0)
        self._open = dict(sorted(started))
        self.unreplicated = dict(unreplicated)
        self._find_first_unstable()

    def facts(self) -> object:
        """What must be the same after a restart."""
        return {p: e.facts() for p, e in self.entries.items()}, dict(self._open), dict(self.unreplicated)
