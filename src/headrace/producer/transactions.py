"""The transaction manager: producer id, sequences, and the state of the transaction.

    application threads: begin_… → the state changes, a request is queued, the caller waits for its result
    the I/O thread: next_request → (to the coordinator) → the request's handler → the state changes, the result is set

Nothing else holds this state. What is asked of the coordinator, and what its answers mean, is in
`transaction_requests.py`; the table of states in `transaction_state.py`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    AbortableError,
    BrokerError,
    FatalTransactionError,
    HeadraceError,
    IllegalStateError,
    TimedOutError,
    UnsupportedVersionError,
)
from headrace.producer.batch import ProducerBatch
from headrace.producer.sequences import (
    NO_PRODUCER_ID_AND_EPOCH,
    PartitionSequences,
    ProducerIdAndEpoch,
    TopicPartition,
    next_sequence,
)
from headrace.producer.transaction_state import State, is_legal

if TYPE_CHECKING:
    from headrace.producer.transaction_requests import TransactionRequest

EPOCH_MAX = 0x7FFF
OUT_OF_ORDER_SEQUENCE = 45
DUPLICATE_SEQUENCE = 46
INVALID_PRODUCER_EPOCH = 47
UNKNOWN_PRODUCER_ID = 59
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120
FATAL_CODES = frozenset({31, 53, PRODUCER_FENCED})  # cluster and transactional id authorisation, fenced
TRANSACTION_V2 = 2


class PendingResult:
    """What an application thread waits for."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._event = threading.Event()
        self._error: Exception | None = None
        self.acknowledged = False

    @property
    def is_done(self) -> bool:
        return self._event.is_set()

    def succeed(self) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        if not self._event.is_set():
            self._error = error
            self._event.set()

    def wait(self, timeout_ms: float) -> None:
        if not self._event.wait(timeout_ms / 1000):
            raise TimedOutError(
                f"{self.operation} did not end within {timeout_ms / 1000:g} s (max.block.ms); call it again to wait on"
            )
        self.acknowledged = True
        if self._error is not None:
            raise self._error


@dataclass(slots=True, frozen=True)
class GroupMetadata:
    """Which consumer group, and as whom, offsets are committed with a transaction (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class TransactionManager:
    """For an idempotent producer, and with a transactional id for a transactional one."""

    def __init__(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self._log = log
        self._wake = wake
        self.lock = threading.RLock()
        # All guarded by lock.
        self.state = State.UNINITIALIZED
        self.last_error: Exception | None = None
        self.producer = NO_PRODUCER_ID_AND_EPOCH
        self.coordinators: dict[str, int | None] = {"transaction": None, "group": None}
        self.v2_enabled = False
        self._pending: list[tuple[int, int, TransactionRequest]] = []
        self._order = itertools.count()
        self.request_in_flight: TransactionRequest | None = None
        self._result: PendingResult | None = None
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self.partitions: set[TopicPartition] = set()
        self.transaction_started = False
        self._sequences: dict[TopicPartition, PartitionSequences] = {}
        self._unresolved: set[TopicPartition] = set()
        self._bump_wanted_for: set[TopicPartition] = set()
        self.epoch_bump_required = False
        self.can_bump_epoch = False

    # -- state ---------------------------------------------------------------------------------

    @property
    def is_transactional(self) -> bool:
        return self.transactional_id is not None

    @property
    def has_producer_id(self) -> bool:
        return self.producer.is_valid

    @property
    def has_error(self) -> bool:
        return self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR)

    @property
    def has_fatal_error(self) -> bool:
        return self.state is State.FATAL_ERROR

    @property
    def is_completing(self) -> bool:
        return self.state in (State.COMMITTING, State.ABORTING)

    @property
    def has_ongoing_transaction(self) -> bool:
        return self.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR)

    @property
    def is_aborting(self) -> bool:
        return self.state is State.ABORTING

    def _go(self, target: State, error: Exception | None = None, *, by_application: str | None = None) -> None:
        """Take a step of the table. `by_application` names the call when an application thread takes it."""
        if not is_legal(self.state, target):
            if by_application is not None:
                raise IllegalStateError(
                    f"{by_application}() while the producer is {self.state}"
                    + (f": {self.last_error}" if self.last_error else "")
                )
            wrong = IllegalStateError(f"a step from {self.state} to {target} that must not be")
            self.state, self.last_error = State.FATAL_ERROR, wrong
            raise wrong
        if target in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            self.last_error = error
        else:
            self.last_error = None
        if target is State.FATAL_ERROR:
            self._log.error("fatal: %s", error)
        self.state = target

    def fail_abortable(self, error: Exception) -> None:
        """The transaction has to be aborted. Without one to abort, or while aborting, nothing is left but to stop."""
        with self.lock:
            if self.state is State.ABORTING:
                self._log.info("an error while aborting is not followed further: %s", error)
                return
            if self.state is State.FATAL_ERROR:
                return
            self._go(State.ABORTABLE_ERROR, _as(AbortableError, error))
            self._fail_result()

    def fail_fatally(self, error: Exception) -> None:
        with self.lock:
            if self.state is State.FATAL_ERROR:
                return
            self._go(State.FATAL_ERROR, _as(FatalTransactionError, error))
            self._fail_result()

    def _fail_result(self) -> None:
        if self._result is not None and self.last_error is not None:
            self._result.fail(self.last_error)

    def check_error(self) -> None:
        """Raise what has gone wrong before."""
        if self.has_error and self.last_error is not None:
            raise type(self.last_error)(*self.last_error.args) from self.last_error

    # -- application threads -------------------------------------------------------------------

    def begin_init(self) -> PendingResult:
        from headrace.producer.transaction_requests import InitProducerId

        def start() -> PendingResult:
            self._go(State.INITIALIZING, by_application="init_transactions")
            self.producer = NO_PRODUCER_ID_AND_EPOCH
            result = PendingResult("init_transactions")
            self.enqueue(InitProducerId(self, NO_PRODUCER_ID_AND_EPOCH, result))
            return result

        return self._start("init_transactions", start)

    def begin_transaction(self) -> None:
        """Local only: the coordinator learns of it with the first partition."""
        with self.lock:
            self._check_transactional("begin_transaction")
            self.check_error()
            self._go(State.IN_TRANSACTION, by_application="begin_transaction")

    def begin_commit(self) -> PendingResult:
        def start() -> PendingResult:
            self.check_error()
            self._go(State.COMMITTING, by_application="commit_transaction")
            return self._begin_end(committed=True)

        return self._start("commit_transaction", start)

    def begin_abort(self) -> PendingResult:
        def start() -> PendingResult:
            if self.state is State.FATAL_ERROR:
                self.check_error()
            self._go(State.ABORTING, by_application="abort_transaction")
            self._new_partitions.clear()
            return self._begin_end(committed=False)

        return self._start("abort_transaction", start)

    def _start(self, operation: str, start: Callable[[], PendingResult]) -> PendingResult:
        """Start an operation, or join the same one if its caller gave up waiting before."""
        with self.lock:
            self._check_transactional(operation)
            pending = self._result
            if pending is not None and not pending.acknowledged and pending.operation == operation:
                return pending
            if pending is not None and not pending.is_done:
                raise IllegalStateError(
                    f"{operation}() while {pending.operation}() has not ended: call that again first"
                )
            result = start()
            self._result = result
        self._wake()
        return result

    def _begin_end(self, committed: bool) -> PendingResult:
        from headrace.producer.transaction_requests import EndTransaction, InitProducerId

        result = PendingResult("commit_transaction" if committed else "abort_transaction")
        self._flush_new_partitions()
        needs_bump = self.epoch_bump_required and not committed and not self.v2_enabled
        self.enqueue(EndTransaction(self, committed, PendingResult("end") if needs_bump else result))
        if needs_bump:
            # KIP-360: a new epoch after the abort, so that sequences start again and old retries are fenced.
            self.enqueue(InitProducerId(self, self.producer, result, after_abort=True))
        return result

    def begin_send_offsets(self, offsets: Mapping[TopicPartition, Any], group: GroupMetadata) -> PendingResult:
        from headrace.producer.transaction_requests import AddOffsets, CommitOffsets

        def start() -> PendingResult:
            self.check_error()
            if self.state is not State.IN_TRANSACTION:
                raise IllegalStateError(f"send_offsets_to_transaction() while the producer is {self.state}")
            result = PendingResult("send_offsets_to_transaction")
            if self.v2_enabled:
                self.transaction_started = True
                self.enqueue(CommitOffsets(self, dict(offsets), group, result))
            else:
                self.enqueue(AddOffsets(self, dict(offsets), group, result))
            return result

        return self._start("send_offsets_to_transaction", start)

    def _check_transactional(self, operation: str) -> None:
        if not self.is_transactional:
            raise IllegalStateError(f"{operation}() needs a transactional.id")

    def may_send(self) -> None:
        """Called for every batch-opening send: is this a moment for records?"""
        if not self.is_transactional:
            if self.has_fatal_error:
                self.check_error()
            return
        self.check_error()
        if self.state is not State.IN_TRANSACTION:
            raise IllegalStateError(
                f"send() while the producer is {self.state}: call begin_transaction() first"
                if self.has_producer_id
                else f"send() while the producer is {self.state}: call init_transactions() first"
            )

    def add_partition(self, topic: str, partition: int) -> None:
        """A record goes to this partition: it has to be part of the transaction before its batch leaves."""
        with self.lock:
            key = (topic, partition)
            if self.state is not State.IN_TRANSACTION or key in self.partitions or key in self._pending_partitions:
                return
            if self.v2_enabled:
                # KIP-890: the broker adds it with the first batch.
                self.partitions.add(key)
                self.transaction_started = True
            else:
                self._new_partitions.add(key)

    # -- the I/O thread: requests --------------------------------------------------------------

    def enqueue(self, request: TransactionRequest) -> None:
        with self.lock:
            heapq.heappush(self._pending, (request.priority, next(self._order), request))

    def _flush_new_partitions(self) -> None:
        from headrace.producer.transaction_requests import AddPartitions

        if self._new_partitions:
            self._pending_partitions |= self._new_partitions
            self.enqueue(AddPartitions(self, frozenset(self._pending_partitions)))
            self._new_partitions.clear()

    def next_request(self, has_incomplete_batches: bool, now: float) -> TransactionRequest | None:
        """The next request to the coordinator, if it may go out now."""
        from headrace.producer.transaction_requests import EndTransaction

        with self.lock:
            if self.request_in_flight is not None:
                return None
            self._flush_new_partitions()
            if not self._pending:
                return None
            request = self._pending[0][2]
            if isinstance(request, EndTransaction):
                if has_incomplete_batches:
                    return None  # every batch of the transaction has to be answered first
                if not self.transaction_started and not self.has_fatal_error:
                    # Nothing was added to it: the coordinator has never heard of this transaction.
                    heapq.heappop(self._pending)
                    request.finish_locally()
                    return self.next_request(has_incomplete_batches, now)
            if request.retry_at_ms > now:
                return None
            heapq.heappop(self._pending)
            if self.has_fatal_error:
                request.give_up(self.last_error or FatalTransactionError("the producer failed"))
                return self.next_request(has_incomplete_batches, now)
            return request

    def next_retry_ms(self, now: float) -> float:
        with self.lock:
            if not self._pending:
                return float("inf")
            return max(0.0, self._pending[0][2].retry_at_ms - now)

    @property
    def has_requests(self) -> bool:
        return bool(self._pending) or self.request_in_flight is not None

    def lose_coordinator(self, kind: str) -> None:
        self.coordinators[kind] = None

    def cancel_requests(self, error: Exception) -> None:
        with self.lock:
            pending, self._pending = self._pending, []
            for _, _, request in pending:
                request.give_up(error)
            if self._result is not None:
                self._result.fail(error)

    def update_features(self, features: dict[str, int]) -> None:
        """Transactions v2 is switched by the cluster's finalised feature, between transactions only."""
        with self.lock:
            if self.state in (State.INITIALIZING, State.READY):
                self.v2_enabled = features.get("transaction.version", 0) >= TRANSACTION_V2

    # -- the I/O thread: what answers bring ----------------------------------------------------

    def take_producer_id(self, producer: ProducerIdAndEpoch) -> None:
        """From InitProducerId. A transactional producer is ready with it."""
        with self.lock:
            self.producer = producer
            self._sequences.clear()
            self._unresolved.clear()
            self._bump_wanted_for.clear()
            self.epoch_bump_required = False
            if self.is_transactional:
                self._go(State.READY)
                self._log.debug("producer id %d, epoch %d", producer.producer_id, producer.epoch)
            elif self.state is State.INITIALIZING:
                self._go(State.READY)

    def partitions_added(self, partitions: frozenset[TopicPartition]) -> None:
        with self.lock:
            self._pending_partitions -= partitions
            self.partitions |= partitions
            self.transaction_started = True

    def partitions_refused(self, partitions: frozenset[TopicPartition]) -> None:
        with self.lock:
            self._pending_partitions -= partitions

    def end(self, next_producer: ProducerIdAndEpoch | None, *, then_bump: bool = False) -> None:
        """The transaction is over."""
        with self.lock:
            if next_producer is not None and next_producer.is_valid and next_producer != self.producer:
                self.producer = next_producer  # transactions v2: a new epoch after every end
                self._sequences.clear()
                self._unresolved.clear()
                self.epoch_bump_required = False
            self.partitions.clear()
            self._pending_partitions.clear()
            self._new_partitions.clear()
            self.transaction_started = False
            self._go(State.INITIALIZING if then_bump else State.READY)

    # -- sequences (the I/O thread) ------------------------------------------------------------

    def sequences_of(self, batch: ProducerBatch) -> PartitionSequences:
        key = (batch.topic, batch.partition)
        found = self._sequences.get(key)
        if found is None:
            found = self._sequences[key] = PartitionSequences(self.producer)
        return found

    def may_drain(self, batch: ProducerBatch) -> bool:
        """May this batch, the oldest of its partition, go out now?"""
        key = (batch.topic, batch.partition)
        if not self.has_producer_id:
            return False
        if self.is_transactional and (self.has_error or key not in self.partitions):
            return False
        sequences = self.sequences_of(batch)
        if not batch.has_sequence:
            if key in self._unresolved:
                return False  # the fate of an earlier batch is not known: wait until it is
            # A stale epoch may still be in flight: numbers of the new one start when that is over.
            return sequences.producer == self.producer or not sequences.in_flight
        # A retry goes out only as the first of those in flight: the broker would refuse any other order.
        return sequences.first_in_flight_sequence in (-1, batch.base_sequence)

    def assign(self, batch: ProducerBatch) -> None:
        """Give a batch its place in the order."""
        sequences = self.sequences_of(batch)
        if sequences.producer != self.producer:
            sequences.start_over(self.producer)
        batch.set_producer_state(self.producer.producer_id, self.producer.epoch, sequences.next, self.is_transactional)
        sequences.next = next_sequence(sequences.next, batch.record_count)
        sequences.add_in_flight(batch)

    def adopt_parts(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """A batch was split: its parts take its place among those in flight."""
        sequences = self.sequences_of(batch)
        sequences.remove_in_flight(batch)
        for part in parts:
            sequences.add_in_flight(part)

    def batch_completed(self, batch: ProducerBatch) -> None:
        if batch.has_sequence:
            self.sequences_of(batch).acknowledge(batch)

    def batch_failed(self, batch: ProducerBatch, error: Exception, *, adjust: bool) -> None:
        """A batch failed for good. `adjust`: it is known not to be stored."""
        self._note_error(error)
        if not batch.has_sequence:
            return
        sequences = self.sequences_of(batch)
        code = error.code if isinstance(error, BrokerError) else 0
        if not self.has_fatal_error and adjust and code != OUT_OF_ORDER_SEQUENCE:
            if self.is_transactional:
                sequences.close_gap(batch)
            else:
                self._want_bump((batch.topic, batch.partition))
        sequences.remove_in_flight(batch)

    def _note_error(self, error: Exception) -> None:
        code = error.code if isinstance(error, BrokerError) else 0
        if code in FATAL_CODES or isinstance(error, UnsupportedVersionError):
            self.fail_fatally(error)
        elif self.is_transactional and self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if self.can_bump_epoch and self.state is not State.COMMITTING:
                self.epoch_bump_required = True
            self.fail_abortable(error)

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """A batch was given up while its fate is unknown: nothing new may follow until the rest is answered (T10)."""
        if batch.has_sequence:
            self._unresolved.add((batch.topic, batch.partition))

    def resolve_sequences(self) -> None:
        """With nothing in flight any more, either all was stored after all, or a number is missing."""
        for key in list(self._unresolved):
            sequences = self._sequences.get(key)
            if sequences is None:
                self._unresolved.discard(key)
                continue
            if sequences.in_flight:
                continue
            self._unresolved.discard(key)
            if sequences.is_next(sequences.next):
                continue
            if not self.is_transactional:
                self._want_bump(key)
            elif self.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTABLE_ERROR):
                self.epoch_bump_required = True
                self.fail_abortable(
                    HeadraceError(f"records to {key[0]}-{key[1]} expired, and whether they were stored is not known")
                )

    def can_retry(self, batch: ProducerBatch, code: int, retriable: bool) -> bool:
        """KIP-360: which errors of an idempotent batch can be got over."""
        if not batch.has_sequence:
            return retriable
        key = (batch.topic, batch.partition)
        sequences = self.sequences_of(batch)
        if code == OUT_OF_ORDER_SEQUENCE:
            if key not in self._unresolved and (batch.sequence_was_reset or not sequences.is_next(batch.base_sequence)):
                return True  # one before it failed; it is only out of turn
            if not self.is_transactional:
                self._want_bump(key)
                return True
            return False
        if code == UNKNOWN_PRODUCER_ID and not self.is_transactional:
            self._want_bump(key)
            return True
        return retriable

    def _want_bump(self, key: TopicPartition) -> None:
        self._bump_wanted_for.add(key)

    def maybe_bump_epoch(self) -> None:
        """An idempotent producer bumps its epoch by itself (KIP-360).

        What is in flight behind a gap cannot be stored any more: it is numbered anew and sent again.
        """
        if self.is_transactional or not self._bump_wanted_for or not self.has_producer_id:
            return
        if self.producer.epoch >= EPOCH_MAX:
            self._log.info("the epoch of producer id %d is used up: asking for a new id", self.producer.producer_id)
            self.producer = NO_PRODUCER_ID_AND_EPOCH
            with self.lock:
                self.state = State.UNINITIALIZED
            for key in self._bump_wanted_for:
                self._unresolved.discard(key)
            return
        self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
        self._log.info(
            "epoch %d: sequences of %d partitions start again", self.producer.epoch, len(self._bump_wanted_for)
        )
        for key in self._bump_wanted_for:
            sequences = self._sequences.get(key)
            if sequences is not None:
                sequences.start_over(self.producer)
            self._unresolved.discard(key)
        self._bump_wanted_for.clear()

    def maybe_init_idempotent(self) -> None:
        """An idempotent producer asks for its id before the first batch."""
        from headrace.producer.transaction_requests import InitProducerId

        with self.lock:
            if self.is_transactional or self.has_producer_id or self.state is not State.UNINITIALIZED:
                return
            self._go(State.INITIALIZING)
            self.enqueue(InitProducerId(self, NO_PRODUCER_ID_AND_EPOCH, PendingResult("init")))


def _as(cls: type[HeadraceError], error: Exception) -> Exception:
    """The error as one that says what to do; the original is its cause."""
    if isinstance(error, cls):
        return error
    wrapped = cls(str(error))
    wrapped.__cause__ = error
    return wrapped
