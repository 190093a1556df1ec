"""The engine below `Producer`, `AsyncProducer` and the Spark worker: from a prepared record to the I/O thread.

A record's way, on the caller's thread:

    prepare (serialize, partition) → topic or wait_for_topic (metadata) → append or try_append + wait_for_memory

`append` and the waits block until a deadline. `topic` and `try_append` do not block and return None instead, so that an
event loop can do the waiting elsewhere. What happens to the batch then is in `sender.py`, on the I/O thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.client.metadata import Cluster, Metadata, MetadataUpdater, PartitionInfo
from headrace.client.network import NetworkClient
from headrace.client.plugins import PluginLoader, is_for_application
from headrace.config import Config
from headrace.config.clock import Clock, timed
from headrace.errors import (
    API_ERRORS,
    BufferExhaustedError,
    ClosedError,
    HeadraceError,
    IllegalStateError,
    IoThreadError,
    TimedOutError,
)
from headrace.producer import process
from headrace.producer._send import RecordFuture, TopicAppender
from headrace.producer.accumulator import Accumulator
from headrace.producer.batch import ArrowDelivery, refused_future
from headrace.producer.buffer_pool import BufferPool, Claim
from headrace.producer.interceptors import InterceptorCallback
from headrace.producer.metrics import MetricsObserver, ProducerMetrics, Transaction
from headrace.producer.partitioners import AdaptiveSticky
from headrace.producer.pipeline import SendPipeline, refuse_unused_formats
from headrace.producer.queues import TopicQueues
from headrace.producer.recent import Recent
from headrace.producer.records import Delivery, Offsets, PreparedRecord, ProducerRecord, offsets_of
from headrace.producer.sender import Sender
from headrace.producer.settings import ProducerSettings, producer_log
from headrace.producer.transaction_requests import PendingResult
from headrace.producer.transactions import TransactionManager
from headrace.telemetry import reporters
from headrace.telemetry.listeners import SnapshotSource
from headrace.types import GroupMember, GroupMetadata, PositionedMember
from headrace.wire.records import record_bytes_max

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.producer.arrow import ArrowSender

NO_WAIT_MS = 0.0  # A deadline in the past.
ARROW_COLUMN_NAMES = {name: name for name in ("key", "value", "headers", "partition", "timestamp")}


class SendEngine:
    """One producer's buffer, metadata, connections, transactions and I/O thread. Any thread may call it."""

    def __init__(self, config: Config, clock: Clock, *, creates_topics: bool = True) -> None:
        """With `creates_topics=False`, brokers do not create unknown topics for this producer."""
        self.config = config
        self._creates_topics = creates_topics
        self.clock = clock
        self.log = producer_log(config.of(str, "client.id"), config.optional(str, "transactional.id"))
        self._closed = False
        self._forked = False
        self._cluster_seen_ms = clock.monotonic_ms()
        self._plugins = PluginLoader(config, self.log)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._plugins.close)
            settings = self.settings = ProducerSettings.build(config, self._plugins)
            self.pipeline = SendPipeline(settings, self._plugins)
            self.metrics = self._make_metrics()
            on_failure.callback(self.metrics.close)
            self.recent = Recent(clock)
            self.transactions = self._make_transactions()
            self.pool = self._make_pool()
            self.accumulator = self._make_accumulator()
            self.metadata = self._make_metadata()
            observer = MetricsObserver(
                self.metrics, self.recent, authenticates=settings.sasl is not None or settings.tls is not None
            )
            self.network = NetworkClient(settings.connection(), settings.network(), clock, observer, self.log)
            on_failure.callback(self.network.close)
            self.sender = self._make_sender(observer)
            self._register_gauges()
            refuse_unused_formats(config)
            config.warn_of_unused(self.log)
            self.thread = threading.Thread(target=self._run, name=f"headrace-{settings.client_id}", daemon=True)
            self.thread.start()
            on_failure.pop_all()
        process.register(self)
        self.metrics.announce(self._snapshot_source)

    # -- composition ---------------------------------------------------------------------------

    def _make_metrics(self) -> ProducerMetrics:
        settings = self.settings
        return ProducerMetrics(
            settings.client_id,
            clock=self.clock,
            samples=settings.metrics_num_samples,
            sample_window_ms=settings.metrics_sample_window_ms,
            reporters=[
                self._plugins.load("metric.reporters", given, reporters.KIND) for given in settings.metric_reporters
            ],
            log=self.log,
        )

    def _make_transactions(self) -> TransactionManager | None:
        settings = self.settings
        if not settings.enable_idempotence:
            return None
        return TransactionManager(settings.transactional_id, settings.transaction_timeout_ms, self.log, self.wake)

    def _make_pool(self) -> BufferPool:
        return BufferPool(
            self.settings.buffer_memory,
            self.settings.batch_size,
            self.clock,
            why_full=self._why_blocked,
            on_wait=lambda waited_ms: self.metrics.bufferpool_wait(waited_ms * 1e6),
            on_exhausted=self.metrics.buffer_exhausted,
        )

    def _make_accumulator(self) -> Accumulator:
        settings, transactions = self.settings, self.transactions
        sticky = AdaptiveSticky(
            self.clock,
            adaptive=settings.partitioner_adaptive,
            availability_timeout_ms=settings.partitioner_availability_timeout_ms,
        )
        on_open = transactions.add_partition if transactions is not None and settings.transactional_id else None
        return Accumulator(settings.accumulator(), self.pool, self.clock, self.wake, sticky=sticky, on_open=on_open)

    def _make_metadata(self) -> Metadata:
        settings = self.settings
        return Metadata(
            self.clock,
            max_age_ms=settings.metadata_max_age_ms,
            max_idle_ms=settings.metadata_max_idle_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            on_update=self._on_cluster,
            is_lazy=True,
        )

    def _make_sender(self, observer: MetricsObserver) -> Sender:
        settings = self.settings
        updater = MetadataUpdater(
            self.metadata,
            self.network,
            settings.bootstrap_servers,
            request_timeout_ms=settings.request_timeout_ms,
            rebootstrap_trigger_ms=settings.rebootstrap_trigger_ms if settings.rebootstrap else None,
            allow_auto_topic_creation=self._creates_topics,
            log=self.log,
        )
        sender = Sender(
            self.network,
            updater,
            self.accumulator,
            settings.sender(),
            self.clock,
            log=self.log,
            transactions=self.transactions,
            observer=observer,
        )
        self.network.on_auth_failure = sender.fail_for_authentication
        self.network.on_failure = sender.request_metadata
        return sender

    def _snapshot_source(self) -> SnapshotSource:
        # Imported here: the models of reports cost 14 ms, and few producers report.
        from headrace.producer.snapshot import SnapshotCollector

        return SnapshotCollector(
            settings=self.settings,
            clock=self.clock,
            steps=self.pipeline,
            metrics=self.metrics,
            accumulator=self.accumulator,
            client=self.network,
            metadata=self.metadata,
            transactions=self.transactions,
            recent=self.recent,
            log=self.log,
        )

    def _register_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("buffer-total-bytes", lambda: self.pool.total_bytes)
        gauge("buffer-available-bytes", lambda: self.pool.available_bytes)
        gauge("waiting-threads", lambda: self.pool.waiting_threads)
        gauge("interceptor-error-total", lambda: self.pipeline.interceptor_errors)
        gauge("requests-in-flight", self.network.total_in_flight)
        gauge("metadata-age", lambda: (self.clock.monotonic_ms() - self._cluster_seen_ms) / 1000)

    def _run(self) -> None:
        """Run the I/O thread. At its end, reporters release the metrics, then plug-ins are closed."""
        try:
            self.sender.run()
        finally:
            self.metrics.close()
            self._plugins.close()

    # -- sending -------------------------------------------------------------------------------

    @property
    def appenders(self) -> dict[str, TopicAppender]:
        """The appenders by topic, for the fast path. The dict stays the same object."""
        return self.accumulator.appenders

    def deadline_ms(self) -> float:
        """Return the deadline of a call that starts now and may block for max.block.ms."""
        return self.clock.monotonic_ms() + self.settings.max_block_ms

    def check_sendable(self) -> None:
        """Raise unless records can be sent now."""
        self.check_usable()
        if self.transactions is not None:
            self.transactions.may_send()

    def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        """Intercept, prepare and append a record; blocks for metadata and memory."""
        deadline_ms = self.deadline_ms()
        record, on_delivery = self.pipeline.intercept(record, on_delivery)
        try:
            self.check_sendable()
            topic = self.wait_for_topic(record.topic, record.partition, deadline_ms)
            return self.append(topic, self.prepare(record, on_delivery), on_delivery, deadline_ms)
        except Exception as error:
            refused = self.refuse(record.topic, on_delivery, error)
            if refused is None:
                raise
            return refused

    def prepare(self, record: ProducerRecord, on_delivery: Delivery | None) -> PreparedRecord:
        """Serialize the record, and choose its partition if the partitioner is not the built-in one."""
        return self.pipeline.prepare(record, on_delivery, self.metadata.cluster)

    def append(
        self, topic: TopicQueues, prepared: PreparedRecord, on_delivery: Delivery | None, deadline_ms: float
    ) -> RecordFuture:
        """Append a record; blocks for memory until the deadline."""
        future = self.accumulator.append(topic, self.metadata.cluster, prepared, on_delivery, deadline_ms)
        if isinstance(on_delivery, InterceptorCallback):
            on_delivery.partition = future.batch.partition
        return future

    def try_append(
        self, topic: TopicQueues, prepared: PreparedRecord, on_delivery: Delivery | None
    ) -> RecordFuture | None:
        """Append a record without blocking; None if there is not enough memory now."""
        if self.pool.waiting_threads or self.pool.available_bytes < self._memory_needed(topic, prepared):
            return None
        try:
            return self.append(topic, prepared, on_delivery, NO_WAIT_MS)
        except BufferExhaustedError:  # another thread took the memory
            return None

    def wait_for_memory(self, topic: TopicQueues, prepared: PreparedRecord, deadline_ms: float) -> None:
        """Block until there is memory for the record, without taking it."""
        self.wake()  # sending what is buffered is what frees memory
        claim, left_ms = Claim(), max(0.0, deadline_ms - self.clock.monotonic_ms())
        self.pool.reserve(self._memory_needed(topic, prepared), left_ms, claim)
        self.pool.give_back(claim)

    def _memory_needed(self, topic: TopicQueues, prepared: PreparedRecord) -> int:
        """Return how much the record takes from the pool if it needs a new batch."""
        size = record_bytes_max(prepared.key, prepared.value, prepared.headers)
        return min(self.accumulator.room_bytes(topic, size), self.pool.total_bytes)

    @cached_property
    def _arrow(self) -> ArrowSender:
        # Imported on first use: pyarrow takes 0.1 s to load and starts threads.
        from headrace.producer.arrow import ArrowSender

        return ArrowSender(
            self.accumulator,
            self.pool,
            self.clock,
            batch_bytes=self.settings.batch_size,
            max_request_bytes=self.settings.max_request_size,
            hashes_keys=not self.settings.partitioner_ignore_keys,
        )

    def send_arrow(
        self,
        topic: str,
        table_or_batch: pa.Table | pa.RecordBatch,
        column_names: Mapping[str, str] = ARROW_COLUMN_NAMES,
    ) -> ArrowDelivery:
        """Encode and append whole columns; blocks for metadata and memory."""
        self.check_sendable()
        table_or_batch = self.pipeline.serialize_columns(topic, table_or_batch, column_names)
        try:
            highest_partition = self._arrow.check(table_or_batch, column_names)
            queues = self.wait_for_topic(topic, highest_partition, self.deadline_ms())
            delivery = self._arrow.send(
                queues, self.metadata.cluster, table_or_batch, column_names, self.settings.max_block_ms
            )
        except API_ERRORS as error:
            delivery = ArrowDelivery([], error)
        if delivery.refusal is not None:
            self._count_refused(delivery.refusal, table_or_batch.num_rows - delivery.queued_rows)
        return delivery

    def refuse(self, topic: str, on_delivery: Delivery | None, error: Exception) -> RecordFuture | None:
        """Handle a record that was not appended.

        As in Kafka's producer, an API error fails the record's future, is passed to the callback, and makes an open
        transaction abortable: returns the future. Any other error has to be raised: returns None.
        """
        self._count_refused(error)
        if isinstance(on_delivery, InterceptorCallback):
            on_delivery.refused(error)
            on_delivery = on_delivery.on_delivery
        if not isinstance(error, API_ERRORS):
            return None
        future = refused_future(topic, error, on_delivery, self.clock.monotonic_ms())
        for raised in future.batch.callback_errors:
            if is_for_application(raised):
                raise raised
            self.log.error("delivery callback for topic %s failed", topic, exc_info=raised)
            self.metrics.callback_failed()
            self.recent.failed(f"delivery callback of {topic}", raised)
        return future

    def _count_refused(self, error: Exception, count: int = 1) -> None:
        self.metrics.record_failed(None, count)
        self.recent.failed("send", error)
        if isinstance(error, API_ERRORS) and self.transactions is not None and self.transactions.is_transactional:
            self.transactions.record_refused(error)
            self.accumulator.close_open_batches()  # the fast path must notice it

    # -- metadata ------------------------------------------------------------------------------

    def topic(self, name: str, partition: int | None) -> TopicQueues | None:
        """Return the queues of a topic; None if metadata does not have the topic, or the partition, yet."""
        count = self.metadata.cluster.partition_count(name)
        if count is None or (partition is not None and partition >= count):
            return None
        return self.accumulator.topic(name, count)

    def wait_for_topic(self, name: str, partition: int | None, deadline_ms: float) -> TopicQueues:
        """Return the queues of a topic; blocks for its metadata until the deadline."""
        queues = self.topic(name, partition)
        if queues is not None:
            return queues
        self.check_may_wait(f"metadata of topic {name!r} is not available yet, and cannot be waited for")
        metadata = self.metadata
        started_ms = self.clock.monotonic_ms()
        with timed(self.metrics.metadata_wait):
            while True:
                version = metadata.version
                metadata.add_topic(name)
                metadata.request_update()
                # Another thread's update may have come since the first check.
                metadata.raise_topic_error(name)
                queues = self.topic(name, partition)
                if queues is not None:
                    return queues
                self.wake()
                left_ms = deadline_ms - self.clock.monotonic_ms()
                if left_ms <= 0 or not metadata.wait_for_version(version, left_ms):
                    waited_ms = self.clock.monotonic_ms() - started_ms
                    raise TimedOutError(_no_metadata(name, partition, metadata.cluster, waited_ms, self._why_blocked()))
                self.check_usable()

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return the partitions of a topic; blocks for its metadata."""
        self.check_usable()
        self.wait_for_topic(topic, None, self.deadline_ms())
        return self.metadata.cluster.topics[topic].partitions

    def _on_cluster(self, cluster: Cluster) -> None:
        self._cluster_seen_ms = self.clock.monotonic_ms()
        self._plugins.on_update(cluster)

    # -- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> PendingResult:
        """Get a producer id, fence older producers with this transactional.id, and wait for their transactions.

        The caller of this, of `commit_transaction` and of `abort_transaction` sets `acknowledged` on the result as its
        last step. If Ctrl-C interrupts it before, the same call can be repeated to learn the outcome.
        """
        with self._transactional("init_transactions", "init") as manager:
            result = manager.begin_init()
            result.wait_unacknowledged(self.settings.max_block_ms)
        return result

    def begin_transaction(self) -> None:
        """Begin a transaction, locally."""
        with self._transactional("begin_transaction", "begin") as manager:
            manager.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Offsets | PositionedMember, group: GroupMetadata | GroupMember | None = None
    ) -> None:
        """Commit consumer offsets with the transaction."""
        with self._transactional("send_offsets_to_transaction", "send-offsets") as manager:
            named, metadata = offsets_of(offsets, group)
            if named:
                manager.begin_send_offsets(named, metadata).wait(self.settings.max_block_ms)

    def commit_transaction(self) -> PendingResult:
        """Send all queued records and commit."""
        with self._transactional("commit_transaction", "commit") as manager:
            result = manager.begin_commit()
            # Only after begin_commit, when no thread can open a batch: queued records are sent without lingering.
            self.accumulator.close_open_batches()
            result.wait_unacknowledged(self.settings.max_block_ms)
        return result

    def abort_transaction(self) -> PendingResult:
        """Drop records that were not sent, and abort."""
        with self._transactional("abort_transaction", "abort") as manager:
            result = manager.begin_abort()
            self.accumulator.close_open_batches()
            result.wait_unacknowledged(self.settings.max_block_ms)
        return result

    def abort_after_error(self) -> None:
        """Abort if possible. The caller raises the error that led here."""
        if self.transactions is not None and not self.transactions.has_fatal_error:
            try:
                self.abort_transaction().acknowledged = True
            except HeadraceError as error:
                self.log.warning("could not abort the transaction: %s", error)

    def detach_transaction(self, transactional_id: str) -> None:
        """Leave the open transaction for another process to end, and continue under `transactional_id`.

        Connections, metadata and the I/O thread stay. All records must have been acknowledged.
        """
        manager = self._manager("detach_transaction")
        if self.accumulator.awaits_results():
            raise IllegalStateError("detach_transaction() while records are not acknowledged: call flush() first")
        manager.begin_reset(transactional_id).wait(self.settings.max_block_ms)

    def _manager(self, operation: str) -> TransactionManager:
        if self.transactions is None or not self.transactions.is_transactional:
            raise IllegalStateError(f"{operation}() needs a transactional.id")
        return self.transactions

    @contextlib.contextmanager
    def _transactional(self, operation: str, metric: Transaction) -> Iterator[TransactionManager]:
        """Check that `operation` is possible now, and time it."""
        self.check_usable()
        manager = self._manager(operation)
        self.check_may_wait(f"{operation}() cannot be called")
        with timed(lambda ns: self.metrics.txn(metric, ns)):
            yield manager

    # -- flush and close -----------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds until all records sent before have a result."""
        self.check_usable()
        self.check_may_wait("flush() cannot be called")
        self._check_holds_no_topic()
        deadline = None if timeout is None else time.monotonic() + timeout
        flush = object()
        try:
            batches = self.accumulator.begin_flush(flush)
            with timed(self.metrics.flush):
                for batch in batches:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    if not batch.wait_done(left):
                        undelivered = sum(b.record_count for b in batches if not b.wait_done(0))
                        raise TimedOutError(f"flush timed out after {timeout:g} s: {undelivered} records pending")
        finally:
            self.accumulator.flushes.pop(flush, None)

    def close(self, timeout: float | None) -> None:
        """Send what is left, abort an open transaction, and stop the I/O thread."""
        if self._forked:
            return
        self._check_not_reentered()
        self._check_holds_no_topic()
        was_closed, self._closed = self._closed, True
        process.unregister(self)
        if self._on_io_thread():
            if not was_closed:
                self.sender.force_close()
            return
        settings = self.settings
        if timeout is None:
            timeout = (settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000
        self.sender.initiate_close()
        self.metadata.close(ClosedError("the producer was closed"))
        self.thread.join(timeout)
        if self.thread.is_alive():
            pending = sum(batch.record_count for batch in self.accumulator.incomplete())
            self.log.warning("closed by force after %g s: %d records were not acknowledged", timeout, pending)
            self.sender.force_close()
            self.thread.join(settings.request_timeout_ms / 1000)
        if not was_closed:
            self._raise_failure()

    # -- checks --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the I/O thread."""
        self.network.wakeup()

    def check_usable(self) -> None:
        """Raise if the producer is closed, was inherited by fork(), or its I/O thread is dead."""
        if self._forked:
            raise IllegalStateError(
                "this producer was created before fork(): its I/O thread is in the parent. Create one in the child"
            )
        if self._closed:
            raise ClosedError("the producer is closed")
        self._raise_failure()

    def check_may_wait(self, what: str) -> None:
        """Raise if waiting would never end: in a callback, or in a signal handler that interrupted the engine."""
        self._check_not_reentered()
        if self._on_io_thread():
            raise IllegalStateError(f"{what} in a callback: callbacks run on the I/O thread, which would have to act")

    def _raise_failure(self) -> None:
        """Raise if the I/O thread is dead."""
        failure = self.sender.failure
        if failure is not None:
            raise IoThreadError(*failure.args) from failure.__cause__

    def _check_not_reentered(self) -> None:
        """Raise in a signal handler that would wait for the thread that it interrupted."""
        locks = [self.pool.lock, self.metadata.lock, self.accumulator.topics_lock]
        if self.transactions is not None:
            locks.append(self.transactions.lock)
        for lock in locks:
            lock.check_not_owned()

    def _check_holds_no_topic(self) -> None:
        """Raise in a signal handler that interrupted a thread holding a topic's lock, which closing batches needs."""
        for topic in list(self.accumulator.topics.values()):
            topic.lock.check_not_owned()

    def _on_io_thread(self) -> bool:
        return threading.current_thread() is self.thread

    def _why_blocked(self) -> str:
        """Return the likeliest reason why nothing is sent, for error messages."""
        cluster = self.metadata.cluster
        unconnected = [node for node in cluster.brokers if not self.network.is_connected(node)]
        if cluster.brokers and not unconnected:
            return ""
        nodes = ", ".join(map(str, sorted(unconnected)))
        failure = self.network.last_failure
        if failure is None:
            return f"no connection to broker {nodes}" if unconnected else "no broker has responded yet"
        return f"no connection to {f'broker {nodes}' if unconnected else 'a broker'}: {failure}"

    # -- end of the process, fork --------------------------------------------------------------

    def warn_of_undelivered(self) -> None:
        """Warn at exit of records without a result."""
        if count := sum(batch.record_count for batch in self.accumulator.incomplete()):
            text = (
                f"{count} records of the producer with client.id {self.settings.client_id!r} were not delivered when "
                "the process ended: call flush() or close()"
            )
            warnings.warn(text, ResourceWarning, stacklevel=1)
            self.log.warning("%s", text)

    def after_fork_in_child(self) -> None:
        """Make this copy unusable: the parent delivers pending records."""
        self._forked = True
        for appender in self.appenders.values():
            appender.retire()
        self.appenders.clear()  # closes the fast path


def _no_metadata(topic: str, partition: int | None, cluster: Cluster, waited_ms: float, reason: str) -> str:
    count = cluster.partition_count(topic)
    missing = f"topic {topic!r}" if count is None else f"partition {partition} of topic {topic!r}"
    known = "" if count is None else f" (the topic has {count} partitions)"
    why = f"; {reason}" if reason else ""
    return f"{missing} is not in the metadata after {waited_ms:.0f} ms (max.block.ms){known}{why}"
