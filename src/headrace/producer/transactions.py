"""The transaction manager: producer id, sequences, and the state of the transaction.

    application threads: begin_… → the state changes, a request is queued, the caller waits for its result
    the I/O thread: next_request → (to the coordinator) → the request's handler → the state changes, the result is set

Nothing else holds this state. What is asked of the coordinator, and what its answers mean, is in
`transaction_requests.py`; the table of states in `transaction_state.py`; the numbers of batches in `sequences.py`.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.client.locks import OwnedLock
from headrace.errors import (
    AbortableError,
    BrokerError,
    Code,
    FatalError,
    HeadraceError,
    IllegalStateError,
    InvalidProducerEpochError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from headrace.producer.batch import ProducerBatch
from headrace.producer.pending import PendingResult
from headrace.producer.sequences import NO_PRODUCER_ID_AND_EPOCH, SequenceTable, TopicPartition
from headrace.producer.transaction_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    TransactionRequest,
)
from headrace.producer.transaction_state import State, is_legal
from headrace.types import ProducerIdAndEpoch

EPOCH_MAX = 0x7FFF
# A batch that fails with one of these ends the producer: cluster and transactional id authorisation, a producer id that
# is not ours, fenced.
FATAL_CODES = frozenset({31, 49, 53, 90})
TRANSACTION_V2 = 2
Coordinator = tuple[str, str]  # kind and key: ("transaction", transactional id) or ("group", group id)


@dataclass(slots=True, frozen=True)
class GroupMetadata:
    """Which consumer group, and as whom, offsets are committed with a transaction (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


Offsets = Mapping[tuple[str, int], int | tuple[int, str]]
"""(topic, partition) → the next offset to read, or that and a note."""


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
        self.lock = OwnedLock()
        # All guarded by lock.
        self.state = State.UNINITIALIZED
        self.last_error: Exception | None = None
        self.producer = NO_PRODUCER_ID_AND_EPOCH
        self.v2_enabled = False  # Changes between transactions only.
        self.partitions: set[TopicPartition] = set()
        self.transaction_started = False  # The coordinator has heard, or will hear, of this transaction.
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._pending: list[tuple[int, int, TransactionRequest]] = []
        self._order = itertools.count()
        self._result: PendingResult | None = None  # Of the last init, commit or abort.
        self._forgetting: tuple[str, PendingResult] | None = None  # The id to go on with, and who waits for that.
        # I/O thread only.
        self.request_in_flight: TransactionRequest | None = None
        self.coordinators: dict[Coordinator, int] = {}
        self.can_bump_epoch = False  # InitProducerId v3 or later is there (KIP-360).
        self.epoch_bump_required = False
        self._v2_wanted = False
        self._refusal: Exception | None = None
        self._sequences = SequenceTable(transactional=self.is_transactional)

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
    def has_abortable_error(self) -> bool:
        return self.state is State.ABORTABLE_ERROR

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
                raise IllegalStateError(f"{by_application}() while the producer is {self.state}")
            wrong = IllegalStateError(f"a step from {self.state} to {target} that must not be")
            self._log.error("fatal: %s", wrong)
            self.state, self.last_error = State.FATAL_ERROR, wrong
            self._drop_requests(wrong)
            raise wrong
        self.last_error = error if target in (State.ABORTABLE_ERROR, State.FATAL_ERROR) else None
        if target is State.FATAL_ERROR:
            self._log.error("fatal: %s", error)
        self.state = target

    def fail_abortable(self, error: Exception) -> None:
        """The transaction has to be aborted. The first reason is the one that is told."""
        with self.lock:
            if self.state is State.ABORTING:
                self._log.info("an error while aborting is not followed further: %s", error)
                return
            if self.has_error:
                return
            if not self.has_producer_id:
                self.refuse_producer_id(_as(AbortableError, error))  # there is nothing to abort yet
                return
            self._go(State.ABORTABLE_ERROR, _as(AbortableError, error))
            # A commit that waited in the queue must not be found there by the abort that follows.
            self._drop_requests(self.last_error or error)

    def fail_fatally(self, error: Exception) -> None:
        with self.lock:
            if self.state is State.FATAL_ERROR:
                return
            self._go(State.FATAL_ERROR, _as(FatalError, error))
            self._drop_requests(self.last_error or error)

    def _drop_requests(self, error: Exception) -> None:
        """Nothing that was asked for before goes out after an error; finding a coordinator does no harm."""
        kept = []
        for entry in self._pending:
            if isinstance(entry[2], FindCoordinator) and self.state is not State.FATAL_ERROR:
                kept.append(entry)
            else:
                entry[2].give_up(error)
        heapq.heapify(kept)
        self._pending = kept  # last: what a signal handler that raises leaves in the queue, `next_request` gives up
        if self._result is not None:
            self._result.fail(error)

    def check_error(self) -> None:
        """Raise the error that put the producer into an error state.

        As in Kafka's producer, a fenced one gets its own class again; any other error becomes the cause.
        """
        error = self.last_error
        if not self.has_error or error is None:
            return
        if isinstance(error, ProducerFencedError | InvalidProducerEpochError | IllegalStateError):
            raise copy.copy(error) from error
        category = AbortableError if self.has_abortable_error else FatalError
        raise category(str(error)) from error

    # -- application threads -------------------------------------------------------------------

    def begin_init(self) -> PendingResult:
        return self._start(
            "init_transactions",
            State.INITIALIZING,
            lambda result: InitProducerId(self, NO_PRODUCER_ID_AND_EPOCH, result),
        )

    def begin_transaction(self) -> None:
        """Local only: the coordinator learns of it with the first partition."""
        with self.lock:
            self._check_no_other("begin_transaction")
            self.check_error()
            self._go(State.IN_TRANSACTION, by_application="begin_transaction")

    def begin_commit(self) -> PendingResult:
        return self._start(
            "commit_transaction", State.COMMITTING, lambda result: EndTransaction(self, committed=True, result=result)
        )

    def begin_abort(self) -> PendingResult:
        return self._start("abort_transaction", State.ABORTING, self._make_abort)

    def abort_for_close(self) -> None:
        """Nobody will end this transaction any more, whatever was being waited for."""
        with self.lock:
            self._queue_operation("abort_transaction", State.ABORTING, self._make_abort)

    def _make_abort(self, result: PendingResult) -> EndTransaction:
        return EndTransaction(self, committed=False, result=result)

    def _start(
        self, operation: str, target: State, make_request: Callable[[PendingResult], TransactionRequest]
    ) -> PendingResult:
        """Start an operation, or join the same one if its caller gave up waiting before."""
        with self.lock:
            self._check_transactional(operation)
            result = self._result
            if result is None or result.acknowledged or result.operation != operation:
                self._check_no_other(operation)
                result = self._queue_operation(operation, target, make_request)
        self._wake()
        return result

    def _queue_operation(
        self, operation: str, target: State, make_request: Callable[[PendingResult], TransactionRequest]
    ) -> PendingResult:
        """Queue the request of an operation and change the state. The lock is held."""
        if not (target is State.ABORTING and self.has_abortable_error):
            self.check_error()
        # Only a new epoch after the end of a transaction goes from another state to INITIALIZING.
        is_second_init = target is State.INITIALIZING and self.state is not State.UNINITIALIZED
        if is_second_init or not is_legal(self.state, target):
            raise IllegalStateError(f"{operation}() while the producer is {self.state}")
        result = PendingResult(operation)
        pending = self._pending_with(make_request(result))
        new_partitions = set() if target is State.ABORTING else self._new_partitions
        # No call from here on: a signal handler that raises comes before all of this or after it. Before, nothing has
        # happened; after, the same call joins this one.
        self._pending = pending
        self._new_partitions = new_partitions
        self.state, self.last_error = target, None
        self._result = result
        return result

    def _pending_with(self, request: TransactionRequest) -> list[tuple[int, int, TransactionRequest]]:
        """Return the queue with one more request: a sorted list is a heap."""
        return sorted([*self._pending, (request.priority, next(self._order), request)])

    def begin_forget(self, transactional_id: str) -> PendingResult:
        """Start anew under this id. What is open stays so at the broker: somebody else will end it.

        The I/O thread does it, because coordinators and sequences are its own.
        """
        result = PendingResult("forget")
        with self.lock:
            if self._forgetting is not None:
                raise IllegalStateError("forget() while another one is under way: wait for it first")
            self._forgetting = transactional_id, result
        self._wake()
        return result

    def begin_send_offsets(self, offsets: Offsets, group: GroupMetadata) -> PendingResult:
        with self.lock:
            self._check_no_other("send_offsets_to_transaction")
            self.check_error()
            if self.state is not State.IN_TRANSACTION:
                raise IllegalStateError(f"send_offsets_to_transaction() while the producer is {self.state}")
            result = PendingResult("send_offsets_to_transaction")
            make_request = CommitOffsets if self.v2_enabled else AddOffsets
            pending = self._pending_with(make_request(self, dict(offsets), group, result))
            # No call from here on, see _queue_operation.
            self._pending = pending
            self.transaction_started = self.transaction_started or self.v2_enabled
        self._wake()
        return result

    def _check_transactional(self, operation: str) -> None:
        if not self.is_transactional:
            raise IllegalStateError(f"{operation}() needs a transactional.id")

    def _check_no_other(self, operation: str) -> None:
        """An operation whose caller gave up waiting has an outcome that nobody knows: it has to be asked for first."""
        self._check_transactional(operation)
        pending = self._result
        if pending is not None and not pending.acknowledged:
            raise IllegalStateError(
                f"{operation}() while the outcome of {pending.operation}() is not known (state: {self.state}): "
                f"call {pending.operation}() again first"
            )

    def may_send(self) -> None:
        """Called for every batch-opening send: is this a moment for records?"""
        self.check_error()
        if self.is_transactional and self.state is not State.IN_TRANSACTION:
            missing = "begin_transaction" if self.has_producer_id else "init_transactions"
            raise IllegalStateError(f"send() while the producer is {self.state}: call {missing}() first")

    def record_refused(self, error: Exception) -> None:
        """A record of the transaction was not queued: without it, the transaction must not be committed."""
        with self.lock:
            if self.state is State.IN_TRANSACTION:
                self.fail_abortable(error)

    def add_partition(self, topic: str, partition: int) -> None:
        """A batch is opened for this partition: it has to be part of the transaction before the batch leaves.

        Raises where there is no transaction, or not any more: another thread may have ended it since `may_send`.
        """
        self.lock.check_not_owned()
        with self.lock:
            self.may_send()
            key = (topic, partition)
            if not self.is_transactional or key in self.partitions or key in self._pending_partitions:
                return
            if self.v2_enabled:
                self.partitions.add(key)  # KIP-890: the broker adds it with the first batch, see `assign`
            else:
                self._new_partitions.add(key)

    # -- the I/O thread: requests --------------------------------------------------------------

    def maybe_forget(self) -> None:
        """Do what `begin_forget` asks for."""
        with self.lock:
            if self._forgetting is None:
                return
            (transactional_id, result), self._forgetting = self._forgetting, None
            if self.request_in_flight is not None:
                result.fail(IllegalStateError("a transaction can only be left when all of it is answered"))
                return
            self.coordinators.pop(("transaction", self.transactional_id or ""), None)
            self.transactional_id = transactional_id
            self.state, self.last_error = State.UNINITIALIZED, None
            self.producer = NO_PRODUCER_ID_AND_EPOCH
            for one in (self.partitions, self._new_partitions, self._pending_partitions, self._pending):
                one.clear()
            self.transaction_started = self.epoch_bump_required = False
            self._result = self._refusal = None
            self._sequences.clear(is_same_id=False)
            result.succeed()

    def enqueue(self, request: TransactionRequest) -> None:
        with self.lock:
            if self.has_fatal_error:
                request.give_up(self.last_error or FatalError("the producer failed"))
                return
            heapq.heappush(self._pending, (request.priority, next(self._order), request))

    def _flush_new_partitions(self) -> None:
        if self._new_partitions:
            self._pending_partitions |= self._new_partitions
            self.enqueue(AddPartitions(self, frozenset(self._pending_partitions)))
            self._new_partitions.clear()

    def next_request(self, has_incomplete_batches: Callable[[], bool], now: float) -> TransactionRequest | None:
        """The next request to the coordinator, if it may go out now."""
        with self.lock:
            if self.request_in_flight is not None:
                return None
            self._flush_new_partitions()
            while self._pending:
                request = self._pending[0][2]
                if request.retry_at_ms > now:
                    return None
                # Asked for only now, under the lock: a send and a commit may both have come since the turn began.
                if isinstance(request, EndTransaction) and has_incomplete_batches():
                    return None  # every batch of the transaction has to be answered first
                heapq.heappop(self._pending)
                if self.has_error and not (self.has_abortable_error and isinstance(request, FindCoordinator)):
                    request.give_up(self.last_error or HeadraceError("the producer failed"))
                elif isinstance(request, EndTransaction) and not self.transaction_started:
                    # Nothing was added to it: the coordinator has never heard of this transaction (KAFKA-18401).
                    self.end(None, request.result)
                else:
                    return request
            return None

    def next_retry_ms(self, now: float) -> float:
        """How long until the next request may go out, if that is a matter of time."""
        with self.lock:
            if not self._pending:
                return float("inf")
            left = self._pending[0][2].retry_at_ms - now
            return left if left > 0 else float("inf")  # it waits for an answer, which comes by itself

    def lose_coordinator(self, coordinator: Coordinator) -> None:
        self.coordinators.pop(coordinator, None)

    def cancel_requests(self, error: Exception) -> None:
        """Whoever waits is told that it will not be."""
        with self.lock:
            pending, self._pending = self._pending, []
            for _, _, request in pending:
                request.give_up(error)
            if self.request_in_flight is not None:
                self.request_in_flight.give_up(error)
            if self._result is not None:
                self._result.fail(error)
            if self._forgetting is not None:
                self._forgetting[1].fail(error)

    def update_features(self, features: Mapping[str, int]) -> None:
        """Transactions v2 is switched by the cluster's finalised feature, between transactions only."""
        if features:  # else no broker is connected just now, or it is an old one
            self._v2_wanted = features.get("transaction.version", 0) >= TRANSACTION_V2

    # -- the I/O thread: what answers bring ----------------------------------------------------

    def take_producer_id(self, producer: ProducerIdAndEpoch) -> None:
        """From InitProducerId. A transactional producer is ready with it."""
        with self.lock:
            self._go(State.READY)
            is_same_id = producer.producer_id == self.producer.producer_id
            self.producer = producer
            self._log.debug("producer id %d, epoch %d", producer.producer_id, producer.epoch)
            if self.is_transactional:
                self._sequences.clear(is_same_id=is_same_id)
                self.epoch_bump_required = False
                self.v2_enabled = self._v2_wanted
            else:
                self._sequences.take_new_id(producer)

    def refuse_producer_id(self, error: Exception) -> None:
        """No producer id now. What waits for it fails; later, or with the rights for it, it may be asked for again."""
        with self.lock:
            self._go(State.UNINITIALIZED)
            self._refusal = error
            self._drop_requests(error)

    def take_refusal(self) -> Exception | None:
        """The error that all waiting batches have to be failed with, once."""
        error, self._refusal = self._refusal, None
        return error

    def partitions_added(self, partitions: frozenset[TopicPartition]) -> None:
        with self.lock:
            self._pending_partitions -= partitions
            self.partitions |= partitions
            self.transaction_started = True

    def partitions_refused(self, partitions: frozenset[TopicPartition]) -> None:
        with self.lock:
            self._pending_partitions -= partitions

    def end(self, next_producer: ProducerIdAndEpoch | None, result: PendingResult | None) -> None:
        """The transaction is over. Its caller may have to wait on for a new epoch."""
        with self.lock:
            has_new_epoch = next_producer is not None and next_producer.is_valid
            if has_new_epoch and next_producer is not None:
                # Transactions v2: a new epoch after every end, and a new id when they are used up.
                is_same_id = next_producer.producer_id == self.producer.producer_id
                self.producer = next_producer
                self._sequences.clear(is_same_id=is_same_id)
                self.epoch_bump_required = False
            # KIP-360: with a new epoch sequences start again and old retries are fenced.
            # KIP-890: the same goes for what was sent before v2 was switched on.
            needs_bump = self.can_bump_epoch and not has_new_epoch
            needs_bump = needs_bump and (self.epoch_bump_required or (self._v2_wanted and not self.v2_enabled))
            self._go(State.INITIALIZING if needs_bump else State.READY)
            self.partitions.clear()
            self._pending_partitions.clear()
            self._new_partitions.clear()
            self.transaction_started = False
            if needs_bump:
                self.enqueue(InitProducerId(self, self.producer, result))
            else:
                self.v2_enabled = self.v2_enabled and self._v2_wanted
                if result is not None:
                    result.succeed()

    # -- batches (the I/O thread) --------------------------------------------------------------

    def may_drain(self, batch: ProducerBatch) -> bool:
        """May this batch, the oldest of its partition, go out now?"""
        if not self.has_producer_id or self.has_fatal_error:
            return False
        if self.is_transactional and (batch.topic, batch.partition) not in self.partitions:
            return False
        return self._sequences.may_drain(batch, self.producer)

    def assign(self, batch: ProducerBatch) -> None:
        """Give a batch its place in the order."""
        self._sequences.assign(batch, self.producer)
        if self.v2_enabled:
            # Only now: a send that a signal handler interrupts may open a batch and take it back, and the coordinator
            # refuses to commit a transaction that it has not heard of (KAFKA-18401).
            with self.lock:
                self.transaction_started = True

    def adopt_parts(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """A batch was split: its parts take its place among those in flight."""
        sequences = self._sequences.of(batch, self.producer)
        sequences.remove_in_flight(batch)
        for part in parts:
            sequences.add_in_flight(part)

    def batch_completed(self, batch: ProducerBatch, base_offset: int) -> None:
        if batch.has_sequence:
            self._sequences.acknowledge(batch, self.producer, base_offset)

    def batch_failed(self, batch: ProducerBatch, error: Exception, *, adjust: bool) -> None:
        """A batch failed for good. `adjust`: it is known not to be stored."""
        try:
            self._note_error(error)
        finally:
            if batch.has_sequence and not self.has_fatal_error:
                self._sequences.settle_failed(batch, error, self.producer, adjust=adjust)

    def batch_dropped(self, batch: ProducerBatch) -> None:
        """A batch is not sent any more for a reason that is known here."""
        if batch.has_sequence:
            self._sequences.drop(batch, self.producer)

    def _note_error(self, error: Exception) -> None:
        code = error.code if isinstance(error, BrokerError) else 0
        if code in FATAL_CODES or isinstance(error, UnsupportedVersionError):
            self.fail_fatally(error)
        elif self.is_transactional:
            if not self.is_completing:
                self.epoch_bump_required = self.can_bump_epoch
            self.fail_abortable(error)

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """A batch was given up while its fate is unknown: nothing new may follow until the rest is answered (T10)."""
        if batch.has_sequence:
            self._sequences.mark_unresolved(batch)

    def resolve_sequences(self) -> None:
        """With nothing in flight any more, either all was stored after all, or a number is missing."""
        for key in self._sequences.take_gaps():
            if not self.is_transactional:
                self._sequences.want_start_over(key)
                continue
            error = HeadraceError(f"records to {key[0]}-{key[1]} expired, and whether they were stored is not known")
            if self.can_bump_epoch:
                self.epoch_bump_required = True
                self.fail_abortable(error)
            else:
                self.fail_fatally(error)

    def was_stored(self, batch: ProducerBatch, code: int) -> bool:
        """Does an error only say that the broker has had this batch long ago?"""
        if code == Code.DUPLICATE_SEQUENCE_NUMBER:
            return True
        return code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self._sequences.of(batch, self.producer).was_stored(batch)

    def can_retry(self, batch: ProducerBatch, code: int, retriable: bool, log_start_offset: int = -1) -> bool:
        """May a batch that came back with this error be sent again? `retriable`: what the table of codes says."""
        if not batch.has_sequence:
            return retriable
        return self._sequences.can_retry(batch, code, retriable, log_start_offset, self.producer)

    # -- an idempotent producer (the I/O thread) -----------------------------------------------

    def maybe_bump_epoch(self) -> None:
        """An idempotent producer bumps its epoch by itself (KIP-360).

        What is in flight behind a gap cannot be stored any more: it is numbered anew and sent again.
        """
        if self.is_transactional or self.has_fatal_error or not self.has_producer_id:
            return
        if not self._sequences.wants_new_epoch:
            return
        if self.producer.epoch >= EPOCH_MAX:
            self._log.info("the epoch of producer id %d is used up: asking for a new id", self.producer.producer_id)
            with self.lock:
                self._go(State.UNINITIALIZED)
                self.producer = NO_PRODUCER_ID_AND_EPOCH
            return
        self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
        count = self._sequences.start_over(self.producer)
        self._log.info("epoch %d: sequences of %d partitions start again", self.producer.epoch, count)

    def maybe_init_idempotent(self) -> None:
        """An idempotent producer asks for its id before the first batch."""
        with self.lock:
            if self.is_transactional or self.has_producer_id or self.state is not State.UNINITIALIZED:
                return
            self._go(State.INITIALIZING)
            self.enqueue(InitProducerId(self, NO_PRODUCER_ID_AND_EPOCH, None))


def _as(cls: type[HeadraceError], error: Exception) -> Exception:
    """Return `error` if it is in the category `cls`; else an error of that category with `error` as its cause."""
    if isinstance(error, cls):
        return error
    wrapped = cls(str(error))
    wrapped.__cause__ = error
    return wrapped
