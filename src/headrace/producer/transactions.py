"""The transaction manager: producer id, sequence numbers and the state of the transaction.

    application threads: begin_… → change the state, queue a request, wait for its result
    I/O thread: next_request → (coordinator) → TransactionRequest.handle → change the state, set the result

Requests and the handling of their responses are in `transaction_requests.py`, the legal transitions in
`transaction_state.py`, sequence numbers in `sequences.py`.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import logging
from collections.abc import Callable, Mapping

from headrace.client.concurrency import OwnedLock
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
from headrace.producer.records import Offsets
from headrace.producer.sequences import NO_PRODUCER_ID_AND_EPOCH, SequenceTable, TopicPartition
from headrace.producer.transaction_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Coordinator,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    PendingResult,
    QueuedRequest,
)
from headrace.producer.transaction_state import State, is_legal
from headrace.types import GroupMetadata, ProducerIdAndEpoch

EPOCH_MAX = 0x7FFF
# A batch that fails with one of these puts the producer into a fatal state.
FATAL_CODES = (
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.INVALID_PRODUCER_ID_MAPPING,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Code.PRODUCER_FENCED,
)
TRANSACTION_V2 = 2


class TransactionManager:
    """The state of an idempotent producer; with a transactional id, of a transactional one."""

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
        self.transaction_started = False  # The coordinator knows, or will know, this transaction.
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._pending: list[tuple[int, int, QueuedRequest]] = []
        self._order = itertools.count()
        self._result: PendingResult | None = None  # Of the last init, commit or abort.
        self._pending_reset: tuple[str, PendingResult] | None = None  # The new transactional id, and the result.
        # I/O thread only.
        self.request_in_flight: QueuedRequest | None = None
        self.coordinators: dict[Coordinator, int] = {}
        self.can_bump_epoch = False  # The broker supports InitProducerId v3 (KIP-360).
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

    def _transition_to(self, target: State, error: Exception | None = None, *, operation: str | None = None) -> None:
        """Change the state. `operation` names the application's call that does so, if one does."""
        if not is_legal(self.state, target):
            if operation is not None:
                raise IllegalStateError(f"{operation}() while the producer is {self.state}")
            wrong = IllegalStateError(f"illegal state transition {self.state} → {target}; please report this")
            self._log.error("fatal: %s", wrong)
            self.state, self.last_error = State.FATAL_ERROR, wrong
            self._drop_requests(wrong)
            raise wrong
        self.last_error = error if target in (State.ABORTABLE_ERROR, State.FATAL_ERROR) else None
        if target is State.FATAL_ERROR:
            self._log.error("fatal: %s", error)
        self.state = target

    def fail_abortable(self, error: Exception) -> None:
        """Enter the abortable error state. Only the first error is kept."""
        with self.lock:
            if self.state is State.ABORTING:
                self._log.info("ignoring an error while aborting: %s", error)
                return
            if self.has_error:
                return
            if not self.has_producer_id:
                self.refuse_producer_id(_as(AbortableError, error))  # nothing to abort yet
                return
            self._transition_to(State.ABORTABLE_ERROR, _as(AbortableError, error))
            # A queued commit must not be sent after the abort that follows.
            self._drop_requests(self.last_error or error)

    def fail_fatally(self, error: Exception) -> None:
        with self.lock:
            if self.state is State.FATAL_ERROR:
                return
            self._transition_to(State.FATAL_ERROR, _as(FatalError, error))
            self._drop_requests(self.last_error or error)

    def _drop_requests(self, error: Exception) -> None:
        """Fail queued requests after an error, except FindCoordinator, which is harmless."""
        kept = []
        for entry in self._pending:
            if isinstance(entry[2], FindCoordinator) and self.state is not State.FATAL_ERROR:
                kept.append(entry)
            else:
                entry[2].give_up(error)
        heapq.heapify(kept)
        self._pending = kept  # last: if a signal handler raises before, `next_request` fails what is left
        if self._result is not None:
            self._result.fail(error)

    def check_error(self) -> None:
        """Raise the error that put the producer into an error state.

        As in Kafka's producer, errors about fencing keep their class; any other error becomes the cause.
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
        """Begin a transaction locally. The coordinator learns of it with the first partition."""
        with self.lock:
            self._check_no_other("begin_transaction")
            self.check_error()
            self._transition_to(State.IN_TRANSACTION, operation="begin_transaction")

    def begin_commit(self) -> PendingResult:
        return self._start(
            "commit_transaction", State.COMMITTING, lambda result: EndTransaction(self, committed=True, result=result)
        )

    def begin_abort(self) -> PendingResult:
        return self._start("abort_transaction", State.ABORTING, self._make_abort)

    def abort_for_close(self) -> None:
        """Abort the transaction because the producer closes, regardless of a pending operation."""
        with self.lock:
            self._queue_operation("abort_transaction", State.ABORTING, self._make_abort)

    def _make_abort(self, result: PendingResult) -> EndTransaction:
        return EndTransaction(self, committed=False, result=result)

    def _start(
        self, operation: str, target: State, make_request: Callable[[PendingResult], QueuedRequest]
    ) -> PendingResult:
        """Start an operation, or join the same one if its caller timed out before."""
        with self.lock:
            self._check_transactional(operation)
            result = self._result
            if result is None or result.acknowledged or result.operation != operation:
                self._check_no_other(operation)
                result = self._queue_operation(operation, target, make_request)
        self._wake()
        return result

    def _queue_operation(
        self, operation: str, target: State, make_request: Callable[[PendingResult], QueuedRequest]
    ) -> PendingResult:
        """Queue the request of an operation and change the state. The lock is held."""
        if not (target is State.ABORTING and self.has_abortable_error):
            self.check_error()
        # Only an epoch bump after a transaction enters INITIALIZING from another state.
        is_second_init = target is State.INITIALIZING and self.state is not State.UNINITIALIZED
        if is_second_init or not is_legal(self.state, target):
            raise IllegalStateError(f"{operation}() while the producer is {self.state}")
        result = PendingResult(operation)
        pending = self._pending_with(make_request(result))
        new_partitions = set() if target is State.ABORTING else self._new_partitions
        # No call from here on: a signal handler that raises runs before all of this or after it. Before, nothing has
        # happened; after, the same call joins this operation.
        self._pending = pending
        self._new_partitions = new_partitions
        self.state, self.last_error = target, None
        self._result = result
        return result

    def _pending_with(self, request: QueuedRequest) -> list[tuple[int, int, QueuedRequest]]:
        """Return the queue with one more request. A sorted list is a heap."""
        return sorted([*self._pending, (request.priority, next(self._order), request)])

    def begin_reset(self, transactional_id: str) -> PendingResult:
        """Restart under another transactional id. An open transaction stays open for another process to end.

        The I/O thread does it (`maybe_reset`), because it owns coordinators and sequences.
        """
        result = PendingResult("reset")
        with self.lock:
            if self._pending_reset is not None:
                raise IllegalStateError("reset() while another reset is pending: wait for it first")
            self._pending_reset = transactional_id, result
        self._wake()
        return result

    def begin_send_offsets(self, offsets: Offsets, group: GroupMetadata) -> PendingResult:
        with self.lock:
            self._check_no_other("send_offsets_to_transaction")
            self.check_error()
            if self.state is not State.IN_TRANSACTION:
                raise IllegalStateError(f"send_offsets_to_transaction() while the producer is {self.state}")
            result = PendingResult("send_offsets_to_transaction")
            named = {(topic, number): offset for (topic, number), offset in offsets.items()}
            make_request = CommitOffsets if self.v2_enabled else AddOffsets
            pending = self._pending_with(make_request(self, named, group, result))
            # No call from here on: see _queue_operation.
            self._pending = pending
            self.transaction_started = self.transaction_started or self.v2_enabled
        self._wake()
        return result

    def _check_transactional(self, operation: str) -> None:
        if not self.is_transactional:
            raise IllegalStateError(f"{operation}() needs a transactional.id")

    def _check_no_other(self, operation: str) -> None:
        """Raise if the result of an earlier operation is unknown, because its caller timed out."""
        self._check_transactional(operation)
        pending = self._result
        if pending is not None and not pending.acknowledged:
            raise IllegalStateError(
                f"{operation}() while the result of {pending.operation}() is unknown (state: {self.state}): "
                f"call {pending.operation}() again first"
            )

    def may_send(self) -> None:
        """Raise unless records can be sent now. Called when a send opens a batch."""
        self.check_error()
        if self.is_transactional and self.state is not State.IN_TRANSACTION:
            missing = "begin_transaction" if self.has_producer_id else "init_transactions"
            raise IllegalStateError(f"send() while the producer is {self.state}: call {missing}() first")

    def record_refused(self, error: Exception) -> None:
        """Make the transaction abortable, because one of its records was not queued."""
        with self.lock:
            if self.state is State.IN_TRANSACTION:
                self.fail_abortable(error)

    def add_partition(self, topic: str, partition: int) -> None:
        """Add a partition, for which a batch is opened, to the transaction.

        Raises if there is no open transaction: another thread may have ended it since `may_send`.
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

    # -- I/O thread: requests ------------------------------------------------------------------

    def maybe_reset(self) -> None:
        """Do the reset that `begin_reset` requested."""
        with self.lock:
            if self._pending_reset is None:
                return
            (transactional_id, result), self._pending_reset = self._pending_reset, None
            if self.request_in_flight is not None:
                result.fail(IllegalStateError("reset() while a request is in flight: wait for its response"))
                return
            self.coordinators.pop(("transaction", self.transactional_id or ""), None)
            self.transactional_id = transactional_id
            self.state, self.last_error = State.UNINITIALIZED, None
            self.producer = NO_PRODUCER_ID_AND_EPOCH
            for collection in (self.partitions, self._new_partitions, self._pending_partitions, self._pending):
                collection.clear()
            self.transaction_started = self.epoch_bump_required = False
            self._result = self._refusal = None
            self._sequences.clear(is_same_id=False)
            result.succeed()

    def enqueue(self, request: QueuedRequest) -> None:
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

    def next_request(self, has_incomplete_batches: Callable[[], bool], now: float) -> QueuedRequest | None:
        """Return the next request to a coordinator, if one may be sent now."""
        with self.lock:
            if self.request_in_flight is not None:
                return None
            self._flush_new_partitions()
            while self._pending:
                request = self._pending[0][2]
                if request.retry_at_ms > now:
                    return None
                # Checked under the lock: a send and a commit may have come since the iteration began.
                if isinstance(request, EndTransaction) and has_incomplete_batches():
                    return None  # every batch of the transaction needs a result first
                heapq.heappop(self._pending)
                if self.has_error and not (self.has_abortable_error and isinstance(request, FindCoordinator)):
                    request.give_up(self.last_error or HeadraceError("the producer failed"))
                elif isinstance(request, EndTransaction) and not self.transaction_started:
                    # Nothing was added: the coordinator does not know this transaction (KAFKA-18401).
                    self.end(None, request.result)
                else:
                    return request
            return None

    def next_retry_ms(self, now: float) -> float:
        """Return the time until the next request may be sent, if it waits for a back-off."""
        with self.lock:
            if not self._pending:
                return float("inf")
            left = self._pending[0][2].retry_at_ms - now
            return left if left > 0 else float("inf")  # it waits for a response, which wakes the loop

    def cancel_requests(self, error: Exception) -> None:
        """Fail all pending requests."""
        with self.lock:
            pending, self._pending = self._pending, []
            for _, _, request in pending:
                request.give_up(error)
            if self.request_in_flight is not None:
                self.request_in_flight.give_up(error)
            if self._result is not None:
                self._result.fail(error)
            if self._pending_reset is not None:
                self._pending_reset[1].fail(error)

    def update_features(self, features: Mapping[str, int]) -> None:
        """Follow the cluster's finalized feature `transaction.version`; it takes effect between transactions."""
        if features:  # empty if no broker is connected, or an old one
            self._v2_wanted = features.get("transaction.version", 0) >= TRANSACTION_V2

    # -- I/O thread: results of requests -------------------------------------------------------

    def take_producer_id(self, producer: ProducerIdAndEpoch) -> None:
        """Set the producer id from InitProducerId."""
        with self.lock:
            self._transition_to(State.READY)
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
        """Fail what waits for a producer id. It can be requested again, for example when authorized."""
        with self.lock:
            self._transition_to(State.UNINITIALIZED)
            self._refusal = error
            self._drop_requests(error)

    def take_refusal(self) -> Exception | None:
        """Return, once, the error with which all queued batches must fail."""
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
        """End the transaction. Its caller may have to wait for a new epoch."""
        with self.lock:
            has_new_epoch = next_producer is not None and next_producer.is_valid
            if has_new_epoch and next_producer is not None:
                # Transactions v2: a new epoch after every transaction, and a new id when epochs are exhausted.
                is_same_id = next_producer.producer_id == self.producer.producer_id
                self.producer = next_producer
                self._sequences.clear(is_same_id=is_same_id)
                self.epoch_bump_required = False
            # KIP-360: a new epoch restarts sequences and fences old retries.
            # KIP-890: also for batches that were sent before v2 was enabled.
            needs_bump = self.can_bump_epoch and not has_new_epoch
            needs_bump = needs_bump and (self.epoch_bump_required or (self._v2_wanted and not self.v2_enabled))
            self._transition_to(State.INITIALIZING if needs_bump else State.READY)
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

    # -- I/O thread: batches -------------------------------------------------------------------

    def may_drain(self, batch: ProducerBatch) -> bool:
        """Return whether this batch, the oldest of its partition, may be sent now."""
        if not self.has_producer_id or self.has_fatal_error:
            return False
        if self.is_transactional and (batch.topic, batch.partition) not in self.partitions:
            return False
        return self._sequences.may_drain(batch, self.producer)

    def assign(self, batch: ProducerBatch) -> None:
        """Assign sequence numbers to a batch."""
        self._sequences.assign(batch, self.producer)
        if self.v2_enabled:
            # Only now: a send that a signal handler interrupts may open a batch and discard it, and the coordinator
            # rejects the commit of a transaction that it does not know (KAFKA-18401).
            with self.lock:
                self.transaction_started = True

    def adopt_parts(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replace a batch in flight by the parts that it was split into."""
        sequences = self._sequences.of(batch, self.producer)
        sequences.remove_in_flight(batch)
        for part in parts:
            sequences.add_in_flight(part)

    def batch_completed(self, batch: ProducerBatch, base_offset: int) -> None:
        if batch.has_sequence:
            self._sequences.acknowledge(batch, self.producer, base_offset)

    def batch_failed(self, batch: ProducerBatch, error: Exception, *, adjust: bool) -> None:
        """Record that a batch failed. `adjust`: it was certainly not stored."""
        try:
            self._record_error(error)
        finally:
            if batch.has_sequence and not self.has_fatal_error:
                self._sequences.settle_failed(batch, error, self.producer, adjust=adjust)

    def batch_dropped(self, batch: ProducerBatch) -> None:
        """Record that a batch is not sent any more."""
        if batch.has_sequence:
            self._sequences.drop(batch, self.producer)

    def _record_error(self, error: Exception) -> None:
        code = error.code if isinstance(error, BrokerError) else 0
        if code in FATAL_CODES or isinstance(error, UnsupportedVersionError):
            self.fail_fatally(error)
        elif self.is_transactional:
            if not self.is_completing:
                self.epoch_bump_required = self.can_bump_epoch
            self.fail_abortable(error)

    def mark_unresolved(self, batch: ProducerBatch) -> None:
        """Hold back new batches of a partition until those in flight have a result: this one may be stored (T10)."""
        if batch.has_sequence:
            self._sequences.mark_unresolved(batch)

    def resolve_sequences(self) -> None:
        """Resolve partitions without batches in flight: all was stored, or a sequence number is missing."""
        for key in self._sequences.take_gaps():
            if not self.is_transactional:
                self._sequences.want_start_over(key)
                continue
            error = HeadraceError(f"records to {key[0]}-{key[1]} expired, and it is unknown whether they were stored")
            if self.can_bump_epoch:
                self.epoch_bump_required = True
                self.fail_abortable(error)
            else:
                self.fail_fatally(error)

    def was_stored(self, batch: ProducerBatch, code: int) -> bool:
        """Return whether the error means that an earlier attempt of this batch was stored."""
        if code == Code.DUPLICATE_SEQUENCE_NUMBER:
            return True
        return code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self._sequences.of(batch, self.producer).was_stored(batch)

    def can_retry(self, batch: ProducerBatch, code: int, retriable: bool, log_start_offset: int = -1) -> bool:
        """Return whether a batch with this error can be retried. `retriable`: whether the code is in general."""
        if not batch.has_sequence:
            return retriable
        return self._sequences.can_retry(batch, code, retriable, log_start_offset, self.producer)

    # -- I/O thread: idempotent producers ------------------------------------------------------

    def maybe_bump_epoch(self) -> None:
        """Bump the epoch of an idempotent producer after a gap (KIP-360).

        Batches in flight behind the gap cannot be stored any more: they are renumbered and sent again.
        """
        if self.is_transactional or self.has_fatal_error or not self.has_producer_id:
            return
        if not self._sequences.wants_new_epoch:
            return
        if self.producer.epoch >= EPOCH_MAX:
            self._log.info("the epochs of producer id %d are exhausted: requesting a new id", self.producer.producer_id)
            with self.lock:
                self._transition_to(State.UNINITIALIZED)
                self.producer = NO_PRODUCER_ID_AND_EPOCH
            return
        self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
        count = self._sequences.start_over(self.producer)
        self._log.info("epoch %d: restarting the sequences of %d partitions", self.producer.epoch, count)

    def maybe_init_idempotent(self) -> None:
        """Request the producer id of an idempotent producer before its first batch."""
        with self.lock:
            if self.is_transactional or self.has_producer_id or self.state is not State.UNINITIALIZED:
                return
            self._transition_to(State.INITIALIZING)
            self.enqueue(InitProducerId(self, NO_PRODUCER_ID_AND_EPOCH, None))


def _as(cls: type[HeadraceError], error: Exception) -> Exception:
    """Return `error` if it is in the category `cls`; else an error of that category with `error` as its cause."""
    if isinstance(error, cls):
        return error
    wrapped = cls(str(error))
    wrapped.__cause__ = error
    return wrapped
