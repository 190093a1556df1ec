"""The I/O thread: sends batches as produce requests, and completes, retries or fails them.

One iteration of the loop, `run_once`:

    transactions → metadata → expire → ready nodes → drain → requests → poll → (response handlers) complete or retry

Everything runs on this thread except `wakeup`, `initiate_close` and `force_close`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.client.connection import Request, Response
from headrace.client.metadata import Metadata, MetadataUpdater
from headrace.client.network import NetworkClient
from headrace.config.backoff import exponential_backoff
from headrace.config.clock import Clock
from headrace.errors import (
    AbortableError,
    AuthenticationError,
    BrokerError,
    ClosedError,
    Code,
    ConnectionFailedError,
    HeadraceError,
    IoThreadError,
    TimedOutError,
    UnsupportedVersionError,
)
from headrace.producer.accumulator import Accumulator
from headrace.producer.batch import ProduceBatches, ProducerBatch
from headrace.producer.transaction_requests import FindCoordinator, QueuedRequest
from headrace.producer.transactions import TransactionManager
from headrace.wire.api.leaders import NodeEndpoint
from headrace.wire.api.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse

_CLOSED = "the producer was closed before the record was acknowledged"
IDLE_MS = 60_000.0
NODE_WAIT_MS_MAX = 50.0  # between checks whether a coordinator can be reached
ERROR_PAUSE_SECONDS = 0.1
STALE_LEADER = frozenset({Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH})  # may name the new leader (KIP-951)
STALE_METADATA = STALE_LEADER | {
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE,
    Code.REPLICA_NOT_AVAILABLE,
    Code.NETWORK_EXCEPTION,
    Code.KAFKA_STORAGE_ERROR,
    Code.LISTENER_NOT_FOUND,
    Code.PREFERRED_LEADER_NOT_AVAILABLE,
    Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    Code.ELECTION_NOT_NEEDED,
    Code.UNKNOWN_TOPIC_ID,
    Code.INCONSISTENT_TOPIC_ID,
}


@dataclass(slots=True, frozen=True)
class SenderSettings:
    acks: int = -1
    retries: int = 0x7FFFFFFF
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: float = 120_000
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1000
    keeps_order_by_muting: bool = False  # one request in flight, and no sequence numbers


class SenderObserver(Protocol):
    """Called for the metrics."""

    def produce_request(self, batches: Sequence[ProducerBatch], now: float) -> None: ...
    def produce_response(self, node_id: int, latency_ms: float, throttle_ms: float, delivery_ms: float) -> None: ...
    def batch_retried(self, batch: ProducerBatch, error: Exception) -> None: ...
    def batch_failed(self, batch: ProducerBatch) -> None: ...
    def batch_split(self, batch: ProducerBatch) -> None: ...
    def callback_failed(self, batch: ProducerBatch, error: BaseException) -> None: ...


class Sender:
    """The loop of the I/O thread. Owns requests in flight, retries and expiry."""

    def __init__(
        self,
        client: NetworkClient,
        updater: MetadataUpdater,
        accumulator: Accumulator,
        settings: SenderSettings,
        clock: Clock,
        *,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        transactions: TransactionManager | None = None,
        observer: SenderObserver | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._updater = updater
        self._metadata: Metadata = updater.metadata
        self._accumulator = accumulator
        self._settings = settings
        self._clock = clock
        self._log = log
        self._transactions = transactions
        self._observer = observer
        self._random = rng or random.Random()
        self._in_flight: dict[ProducerBatch, None] = {}
        self._next_expiry_check_ms = 0.0
        # Set by other threads, read here.
        self._running = True
        self._forced = False
        # Set here, read by other threads.
        self.failure: IoThreadError | None = None
        """Why this thread died, if it did."""

    # -- other threads -------------------------------------------------------------------------

    def wakeup(self) -> None:
        self._client.wakeup()

    def initiate_close(self) -> None:
        """Send what is left, then stop."""
        # In this order: after the loop has ended, no batch may be added.
        self._accumulator.close()
        self._running = False
        self.wakeup()

    def force_close(self) -> None:
        """Stop now; batches without a result fail."""
        self._forced = True
        self.initiate_close()

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the thread until the producer is closed. However it ends, every future and wait gets a result."""
        try:
            while self._running:
                self._turn()
            while not self._forced and self._has_work():
                self._turn()
            if self._transactions is not None and self._transactions.is_transactional:
                self._abort_open_transaction(self._transactions)
            self._finish()
        except BaseException as error:
            self._die(error)

    def _die(self, error: BaseException) -> None:
        """Fail all current and later records and waits with the error that ends this thread."""
        failure = IoThreadError(
            f"the I/O thread of the producer died with {error!r}: close this producer and create a new one"
        )
        failure.__cause__ = error
        self.failure = failure
        self._running, self._forced = False, True
        # Each of these may fail with the same error; the next one must still run.
        with contextlib.suppress(BaseException):
            self._accumulator.close(failure)
        for batch in self._accumulator.incomplete():
            with contextlib.suppress(BaseException):
                batch.fail(failure)
                self._report_callback_errors(batch)
        with contextlib.suppress(BaseException):
            self._metadata.close(failure)
        with contextlib.suppress(BaseException):
            if self._transactions is not None:
                self._transactions.cancel_requests(failure)
        with contextlib.suppress(BaseException):
            self._client.close()
        with contextlib.suppress(BaseException):
            self._log.critical("%s", failure, exc_info=error)

    def _abort_open_transaction(self, transactions: TransactionManager) -> None:
        """Abort an open transaction instead of leaving it to its timeout."""
        while not self._forced and transactions.has_ongoing_transaction:
            if not transactions.is_completing:
                try:
                    transactions.abort_for_close()
                except HeadraceError:
                    self._log.exception(
                        "cannot abort the open transaction; the coordinator aborts it after transaction.timeout.ms"
                    )
                    self._forced = True
            self._turn()

    def _turn(self) -> None:
        try:
            self.run_once()
        except BaseException:
            self._log.exception("an iteration of the I/O loop failed; continuing")
            time.sleep(ERROR_PAUSE_SECONDS)  # an error that persists must not use all CPU

    def _has_work(self) -> bool:
        transactions = self._transactions
        if transactions is not None and not transactions.has_fatal_error and transactions.is_completing:
            return True
        return self._accumulator.has_incomplete()

    def _finish(self) -> None:
        error = ClosedError(_CLOSED)
        if self._transactions is not None:
            self._transactions.cancel_requests(ClosedError("the producer was closed"))
        try:
            self._client.close()  # fails requests in flight
        except BaseException:
            self._log.exception("closing the connections failed")
        self._fail_undrained(error)
        for batch in self._accumulator.incomplete():
            self._drop(batch, error)

    def run_once(self) -> None:
        """Run one iteration of the loop."""
        now = self._clock.monotonic_ms()
        wait_ms = IDLE_MS
        if self._transactions is not None:
            wait_ms = min(wait_ms, self._run_transactions(self._transactions, now))
        wait_ms = min(wait_ms, self._updater.maybe_update(now))
        wait_ms = min(wait_ms, self._send_ready(now))
        self._client.poll(wait_ms, now)

    # -- transactions --------------------------------------------------------------------------

    def _run_transactions(self, transactions: TransactionManager, now: float) -> float:
        """Send the next request to a coordinator, if any; returns the time until there is more to do."""
        transactions.maybe_reset()
        transactions.resolve_sequences()
        transactions.maybe_bump_epoch()
        refusal = transactions.take_refusal()
        if refusal is not None:
            self._fail_undrained(refusal)
        if transactions.has_fatal_error:
            self._fail_undrained(transactions.last_error or HeadraceError("the producer failed"))
            return IDLE_MS
        if (transactions.has_abortable_error or transactions.is_aborting) and self._accumulator.has_undrained():
            self._drop_unsent(transactions)
        if self._accumulator.has_incomplete():
            transactions.maybe_init_idempotent()
        transactions.update_features(self._client.finalized_features())
        request = transactions.next_request(self._accumulator.has_incomplete, now)
        if request is None:
            return transactions.next_retry_ms(now) if transactions.request_in_flight is None else IDLE_MS
        return self._send_to_coordinator(transactions, request, now)

    def _fail_undrained(self, error: Exception) -> None:
        for batch in self._accumulator.undrained():
            self._drop(batch, error)

    def _drop_unsent(self, transactions: TransactionManager) -> None:
        """Drop batches that were never sent. Batches that may have been stored must get a response first."""
        error = transactions.last_error or AbortableError("the transaction was aborted before the record was sent")
        for batch in self._accumulator.undrained():
            if batch.has_sequence:
                self._accumulator.reenqueue(batch, batch.last_attempt_ms, counted=False)
            else:
                self._drop(batch, error)

    def _send_to_coordinator(self, transactions: TransactionManager, request: QueuedRequest, now: float) -> float:
        if request.coordinator is not None and request.coordinator not in transactions.coordinators:
            transactions.enqueue(request)
            request = FindCoordinator(transactions, request.coordinator, self._client.set_node)
        coordinator = request.coordinator
        if coordinator is None:
            node_id = self._client.least_loaded_node(self._updater.node_ids, now)
        else:
            node_id = transactions.coordinators[coordinator]
        if node_id is None or not self._client.is_ready(node_id, now):
            delay = NODE_WAIT_MS_MAX if node_id is None else min(self._client.delay_ms(node_id, now), NODE_WAIT_MS_MAX)
            if coordinator is not None and node_id is not None and self._client.is_backing_off(node_id, now):
                transactions.coordinators.pop(coordinator, None)  # it may have moved
                request.postpone(now, self._retry_backoff_ms(request.attempts + 1))
            else:
                transactions.enqueue(request)
            return max(1.0, delay)
        transactions.request_in_flight = request

        def on_response(response: Response[Any]) -> None:
            request.on_response(response, self._clock.monotonic_ms(), self._retry_backoff_ms)

        self._client.send(
            node_id,
            Request(
                request.api_key, request.build, on_response, request.allowed_versions, self._settings.request_timeout_ms
            ),
            now,
        )
        return IDLE_MS

    def _retry_backoff_ms(self, attempts: int) -> float:
        settings = self._settings
        return exponential_backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, attempts, self._random)

    def request_metadata(self, node_id: int) -> None:
        """Update the metadata, because a node cannot be reached: its partitions may have new leaders."""
        self._metadata.request_update()

    # -- sending -------------------------------------------------------------------------------

    def _send_ready(self, now: float) -> float:
        """Drain ready batches into requests; returns the time until more are ready."""
        accumulator, transactions = self._accumulator, self._transactions
        self._expire(now)
        ready = accumulator.ready(self._metadata.cluster, now)
        if ready.leaderless:
            self._metadata.touch(ready.leaderless)
            self._metadata.request_update()
        wait_ms = min(ready.next_check_ms, self._next_expiry_check_ms - now)
        may_drain = None if transactions is None else transactions.may_drain
        assign = None if transactions is None else transactions.assign
        for node_id, queues in ready.nodes.items():
            # Several requests may be in flight to a node. Behind the ready batches there may be batches that are still
            # filling: they stay.
            opened_by_ms = float("inf")
            accumulator.sticky.node_was_ready(node_id, self._client.is_ready(node_id, now), now)
            while self._client.is_ready(node_id, now):
                batches = accumulator.drain(queues, may_drain, assign, opened_by_ms)
                opened_by_ms = now - accumulator.linger_ms
                if accumulator.unsendable:
                    self._fail_unsendable()
                if not batches:
                    break
                self._send_produce(node_id, batches, now)
                if self._settings.keeps_order_by_muting:
                    break
            else:
                wait_ms = min(wait_ms, max(1.0, self._client.delay_ms(node_id, now)))
        return wait_ms

    def _fail_unsendable(self) -> None:
        """Fail batches that cannot be encoded or compressed."""
        failed, self._accumulator.unsendable = self._accumulator.unsendable, []
        for batch, error in failed:
            reason = HeadraceError(f"{batch.record_count} records to {batch.topic}-{batch.partition}: {error!r}")
            self._fail(batch, reason, adjust=True)

    def _send_produce(self, node_id: int, batches: list[ProducerBatch], now: float) -> None:
        settings, transactions = self._settings, self._transactions
        for batch in batches:
            batch.in_flight = True
            batch.sent_to = node_id
            self._in_flight[batch] = None
            if settings.keeps_order_by_muting:
                self._accumulator.mute(batch)
        if self._observer is not None:
            self._observer.produce_request(batches, now)
        sent = ProduceBatches(batches, self._metadata.cluster)
        self._metadata.touch(sent.by_topic)
        transactional_id = transactions.transactional_id if transactions is not None else None
        self._client.send(
            node_id,
            Request(
                ProduceRequest.api_key,
                lambda version: sent.request(version, transactional_id, settings.acks, settings.request_timeout_ms),
                lambda response: self._on_produced(response, sent),
                sent.versions(transactions),
                settings.request_timeout_ms,
                expects_response=settings.acks != 0,
            ),
            now,
        )

    # -- responses -----------------------------------------------------------------------------

    def _on_produced(self, response: Response[ProduceResponse], sent: ProduceBatches) -> None:
        now = self._clock.monotonic_ms()
        for batch in sent.batches:
            batch.in_flight = False
            self._in_flight.pop(batch, None)
            if self._settings.keeps_order_by_muting:
                self._accumulator.unmute(batch)
        if response.error is not None:
            for batch in sent.batches:
                self._settle(batch, self._on_no_response, response.error, now)
            return
        if response.message is None:  # acks=0: there is no response
            for batch in sent.batches:
                self._settle(batch, self._complete, -1, -1)
            return
        if self._observer is not None:
            delivery_ms = now - sent.batches[0].created_ms  # a sample: the first batch varies
            self._observer.produce_response(response.node_id, response.latency_ms, response.throttle_ms, delivery_ms)
        for batch, result in sent.results(response.message):
            if result is None:
                missing = ConnectionFailedError("the produce response does not have the partition")
                self._settle(batch, self._on_no_response, missing, now)
            else:
                self._settle(batch, self._on_result, result, response.message.node_endpoints, now)

    def _settle(self, batch: ProducerBatch, outcome: Callable[..., None], *args: Any) -> None:
        """Handle the result of a batch. An error in doing so fails this batch only."""
        try:
            outcome(batch, *args)
        except BaseException as error:
            self._log.exception("failed to process the produce response for %s-%d", batch.topic, batch.partition)
            reason = HeadraceError(f"the response could not be processed: {error!r}")
            if self._transactions is not None and not batch.is_done:
                self._transactions.mark_unresolved(batch)
                self._record_failure(self._transactions, batch, reason, adjust=False)
            batch.fail(reason)
            self._report_callback_errors(batch)
            self._accumulator.finish(batch)

    def _on_no_response(self, batch: ProducerBatch, error: HeadraceError, now: float) -> None:
        """Retry or fail a batch that may have been stored. Sequence numbers make the retry safe."""
        if isinstance(error, UnsupportedVersionError):
            self._fail(batch, error, adjust=True)
            return
        self._metadata.request_update()
        if self._may_retry(batch, now) and isinstance(error, ConnectionFailedError):
            self._retry(batch, error, now)
        else:
            self._give_up(batch, error, now)

    def _on_result(
        self, batch: ProducerBatch, result: PartitionProduceResponse, endpoints: Sequence[NodeEndpoint], now: float
    ) -> None:
        code = result.error_code
        if not code:
            self._complete(batch, result.base_offset, result.log_append_time_ms)
            return
        if code == Code.MESSAGE_TOO_LARGE and batch.record_count > 1 and not batch.is_done:
            self._split(batch, now)
            return
        is_duplicate = code == Code.DUPLICATE_SEQUENCE_NUMBER
        if is_duplicate if self._transactions is None else self._transactions.was_stored(batch, code):
            # An earlier attempt was stored. The broker does not know the offset of old duplicates.
            self._complete(batch, result.base_offset, result.log_append_time_ms)
            return
        if code in STALE_METADATA:
            if code in STALE_LEADER:
                self._updater.set_leader(batch.topic, batch.partition, result.current_leader, endpoints)
            self._metadata.request_update()
        error = BrokerError(
            f"{batch.topic}-{batch.partition}" + (f": {result.error_message}" if result.error_message else ""),
            code=code,
        )
        retriable = error.retriable
        if self._transactions is not None and not batch.is_done:
            retriable = self._transactions.can_retry(batch, code, retriable, result.log_start_offset)
        if not retriable:
            reason = result.error_message or error.name
            record_errors = {e.batch_index: e.batch_index_error_message or reason for e in result.record_errors}
            # Its sequence numbers are free only if no attempt was stored; an earlier one may have been.
            is_first = batch.attempts == 0
            if self._transactions is not None and not is_first and not batch.is_done:
                self._transactions.mark_unresolved(batch)
            self._fail(batch, error, adjust=is_first, record_errors=record_errors)
        elif self._may_retry(batch, now):
            self._log.debug("retrying %s-%d: %s", batch.topic, batch.partition, error)
            self._retry(batch, error, now)
        else:
            self._give_up(batch, error, now)

    def _may_retry(self, batch: ProducerBatch, now: float) -> bool:
        return (
            not batch.is_done
            and batch.attempts < self._settings.retries
            and now - batch.created_ms < self._settings.delivery_timeout_ms
            and not (self._transactions is not None and self._transactions.has_fatal_error)
            and not self._forced
        )

    def _retry(self, batch: ProducerBatch, error: Exception, now: float) -> None:
        if self._observer is not None:
            self._observer.batch_retried(batch, error)
        self._accumulator.reenqueue(batch, now)

    def _split(self, batch: ProducerBatch, now: float) -> None:
        self._log.warning(
            "%s-%d: a batch of %d records is too large for the broker (MESSAGE_TOO_LARGE): splitting it",
            batch.topic,
            batch.partition,
            batch.record_count,
        )
        parts = self._accumulator.split_and_reenqueue(batch, now)
        if self._transactions is not None and batch.has_sequence:
            self._transactions.adopt_parts(batch, parts)
        if self._observer is not None:
            self._observer.batch_split(batch)

    def _complete(self, batch: ProducerBatch, base_offset: int, append_time: int) -> None:
        if self._transactions is not None:
            self._transactions.batch_completed(batch, base_offset)
        batch.complete(base_offset, append_time)
        if batch.callback_errors:
            self._report_callback_errors(batch)
        self._accumulator.finish(batch)

    def _give_up(self, batch: ProducerBatch, error: Exception, now: float) -> None:
        """Fail a batch that may have been stored, after its time or attempts are used up."""
        if self._transactions is not None and not batch.is_done:
            self._transactions.mark_unresolved(batch)
        waited = now - batch.created_ms
        if waited >= self._settings.delivery_timeout_ms:
            error = self._expiry_error(batch, waited, str(error))
        elif self._forced:
            error = ClosedError(_CLOSED)
        self._fail(batch, error, adjust=False)

    def _fail(
        self, batch: ProducerBatch, error: Exception, *, adjust: bool, record_errors: dict[int, str] | None = None
    ) -> None:
        if self._transactions is not None and not batch.is_done:
            self._record_failure(self._transactions, batch, error, adjust=adjust)
        self._end_failed(batch, error, record_errors)

    def _drop(self, batch: ProducerBatch, error: Exception) -> None:
        """Fail a batch that is not sent any more."""
        if self._transactions is not None and not batch.is_done:
            self._transactions.batch_dropped(batch)
        self._end_failed(batch, error)

    def _end_failed(self, batch: ProducerBatch, error: Exception, record_errors: dict[int, str] | None = None) -> None:
        is_first_result = batch.fail(error, record_errors)  # else it expired while in flight
        self._report_callback_errors(batch)
        if not batch.in_flight:  # otherwise a socket may still read its bytes (KAFKA-19012)
            self._accumulator.finish(batch)
        if is_first_result and self._observer is not None:
            self._observer.batch_failed(batch)

    def _report_callback_errors(self, batch: ProducerBatch) -> None:
        errors, batch.callback_errors = batch.callback_errors, ()
        for error in errors:
            self._log.error("delivery callback for %s-%d failed", batch.topic, batch.partition, exc_info=error)
            if self._observer is not None:
                self._observer.callback_failed(batch, error)

    def _record_failure(
        self, transactions: TransactionManager, batch: ProducerBatch, error: Exception, *, adjust: bool
    ) -> None:
        try:
            transactions.batch_failed(batch, error, adjust=adjust)
        except HeadraceError:
            self._log.exception("unexpected batch failure; the producer is now in a fatal state")
        if transactions.has_error:
            self._accumulator.close_open_batches()

    # -- expiry --------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        """Fail batches older than delivery.timeout.ms, queued or in flight."""
        if now < self._next_expiry_check_ms:
            return
        for batch in self._accumulator.expired(now):
            if self._transactions is not None:
                self._transactions.mark_unresolved(batch)
            self._fail(batch, self._expiry_error(batch, now - batch.created_ms), adjust=False)
        limit = now - self._settings.delivery_timeout_ms
        for batch in [b for b in self._in_flight if b.created_ms <= limit and not b.is_done]:
            if self._transactions is not None:
                self._transactions.mark_unresolved(batch)
            self._fail(
                batch,
                self._expiry_error(batch, now - batch.created_ms, "no response to the last attempt"),
                adjust=False,
            )
        oldest = min((b.created_ms for b in self._in_flight if not b.is_done), default=float("inf"))
        next_in_flight = oldest + self._settings.delivery_timeout_ms - now
        pause = min(self._accumulator.next_expiry_ms(now), next_in_flight, self._settings.delivery_timeout_ms)
        self._next_expiry_check_ms = now + max(1.0, pause)

    def _expiry_error(self, batch: ProducerBatch, waited_ms: float, last: str = "") -> TimedOutError:
        reason = last or self._why_waiting(batch)
        return TimedOutError(
            f"{batch.record_count} records to {batch.topic}-{batch.partition} expired: {waited_ms:.0f} ms since the "
            f"batch was created, delivery.timeout.ms is {self._settings.delivery_timeout_ms:.0f}, "
            f"{batch.attempts} attempts" + (f"; {reason}" if reason else "")
        )

    def _why_waiting(self, batch: ProducerBatch) -> str:
        leader = self._metadata.cluster.leader(batch.topic, batch.partition)
        if leader < 0:
            return "the partition has no leader"
        if not self._client.is_connected(leader):
            return f"no connection to broker {leader}"
        return ""

    def fail_for_authentication(self, error: AuthenticationError) -> None:
        """Fail waits for metadata, and a transactional producer, because wrong credentials are permanent."""
        self._metadata.fail(error, fatal=True)
        if self._transactions is not None and self._transactions.is_transactional:
            self._transactions.fail_fatally(error)
