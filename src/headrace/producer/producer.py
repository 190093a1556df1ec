"""The producer: from `send` to a batch. What happens then is in `sender.py`.

A record's journey, one named call a step:

    intercept → metadata → serialise → partition → size check → append → wake

`send` itself is compiled (`SendPath`, in the kernel) and tries the short way first: for bytes, with the built-in
partitioner and no interceptors, the lane of the topic does all of these steps at once, as long as the batch of the
partition is open and has room. What it cannot do comes to `_send`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.metadata import Cluster, Metadata, MetadataUpdater, PartitionInfo
from headrace.client.network import NetworkClient
from headrace.errors import (
    API_ERRORS,
    ClosedError,
    HeadraceError,
    IllegalStateError,
    IoThreadError,
    TimedOutError,
)
from headrace.producer import parts, process, reporters
from headrace.producer.accumulator import Accumulator
from headrace.producer.arrow import ArrowDelivery, ArrowSender
from headrace.producer.batch import Delivery, refused_future
from headrace.producer.buffer_pool import BufferPool
from headrace.producer.interceptors import Ending
from headrace.producer.metrics import MetricName, ProducerMetrics, Transaction, Value
from headrace.producer.observers import MetricsObserver
from headrace.producer.plugins import PluginLoader, is_for_application
from headrace.producer.queues import TopicQueues
from headrace.producer.recent import Recent
from headrace.producer.records import ProducerRecord, checked_headers
from headrace.producer.sender import Sender
from headrace.producer.settings import PrefixedLogger, ProducerSettings, resolve
from headrace.producer.steps import Prepared, Steps
from headrace.producer.sticky import StickyChoice
from headrace.producer.transaction_scope import TransactionScope
from headrace.producer.transactions import GroupMetadata, TransactionManager
from headrace.telemetry.listeners import SnapshotSource
from headrace.wire.kernel import kernel
from headrace.wire.layout import Header

if TYPE_CHECKING:
    from headrace.wire._reference import RecordFuture, SendPath
else:
    SendPath = kernel.SendPath

Headers = Iterable[Header] | Mapping[str, bytes | None] | None


class Producer(SendPath, TransactionScope):
    """Sends records to Kafka. Safe to share between threads: their records then share batches and requests."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
        profile: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: object,
    ) -> None:
        self._thread: threading.Thread | None = None
        self._closed = False
        self._forked = False
        self._cluster_seen_ms = clock.monotonic_ms()
        self.config = resolve(
            config, profile=profile, key_serializer=key_serializer, value_serializer=value_serializer, **options
        )
        self._log = PrefixedLogger(self.config.of(str, "client.id"), self.config.optional(str, "transactional.id"))
        self._plugins = PluginLoader(self.config, self._log)
        with contextlib.ExitStack() as opened:
            opened.callback(self._plugins.close)
            self._build(clock, opened)
            opened.pop_all()  # it is all ours now; until here, a failure closes what was opened on the way

    def _build(self, clock: Clock, opened: contextlib.ExitStack) -> None:
        settings = self.settings = ProducerSettings.build(self.config, self._plugins)
        self._clock = clock
        self._steps = Steps(settings, self._plugins)
        self._metrics = ProducerMetrics(
            settings.client_id,
            clock=clock,
            samples=settings.metrics_num_samples,
            sample_window_ms=settings.metrics_sample_window_ms,
            reporters=[
                self._plugins.load("metric.reporters", given, reporters.KIND) for given in settings.metric_reporters
            ],
            log=self._log,
        )
        opened.callback(self._metrics.close)
        self._recent = Recent(clock)
        authenticates = settings.sasl is not None or settings.tls is not None
        observer = MetricsObserver(self._metrics, self._recent, authenticates=authenticates)
        self._transactions = None
        if settings.enable_idempotence:
            self._transactions = TransactionManager(
                settings.transactional_id, settings.transaction_timeout_ms, self._log, self._wake
            )
        self._pool = BufferPool(
            settings.buffer_memory,
            settings.batch_size,
            clock,
            why_full=self._why_full,
            on_wait=lambda waited_ms: self._metrics.bufferpool_wait(waited_ms * 1e6),
            on_exhausted=self._metrics.buffer_exhausted,
        )
        self._accumulator = Accumulator(
            parts.accumulator_settings(settings),
            self._pool,
            clock,
            self._wake,
            StickyChoice(
                clock,
                adaptive=settings.partitioner_adaptive,
                availability_timeout_ms=settings.partitioner_availability_timeout_ms,
            ),
            on_open=self._transactions.add_partition if self._transactions and settings.transactional_id else None,
        )
        self._metadata = Metadata(
            clock,
            max_age_ms=settings.metadata_max_age_ms,
            max_idle_ms=settings.metadata_max_idle_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            on_update=self._on_cluster,
            is_lazy=True,
        )
        self._client = NetworkClient(
            parts.connection_settings(settings), parts.network_settings(settings), clock, observer, self._log
        )
        opened.callback(self._client.close)
        updater = MetadataUpdater(
            self._metadata,
            self._client,
            settings.bootstrap_servers,
            request_timeout_ms=settings.request_timeout_ms,
            rebootstrap_trigger_ms=settings.rebootstrap_trigger_ms if settings.rebootstrap else None,
            log=self._log,
        )
        self._sender = Sender(
            self._client,
            updater,
            self._accumulator,
            parts.sender_settings(settings),
            clock,
            self._log,
            self._transactions,
            observer,
        )
        self._client.on_auth_failure = self._sender.fail_for_authentication
        self._client.on_failure = self._sender.look_for_leaders
        self._arrow = ArrowSender(
            self._accumulator,
            self._pool,
            clock,
            batch_bytes=settings.batch_size,
            max_request_bytes=settings.max_request_size,
            hashes_keys=not settings.partitioner_ignore_keys,
        )
        self._register_gauges()
        self.config.warn_of_unused(self._log)
        self.lanes = self._accumulator.lanes
        # Who needs none of the steps that only Python can do may take the short way.
        self.is_short = self._steps.are_none
        self._thread = threading.Thread(target=self._run, name=f"headrace-{settings.client_id}", daemon=True)
        self._thread.start()
        process.opened(self)
        self._metrics.announce(self._snapshot_source)

    def _snapshot_source(self) -> SnapshotSource:
        from headrace.producer.snapshot import (
            SnapshotCollector,  # only for producers that report: it slows the start down
        )

        return SnapshotCollector(
            settings=self.settings,
            clock=self._clock,
            steps=self._steps,
            metrics=self._metrics,
            accumulator=self._accumulator,
            client=self._client,
            metadata=self._metadata,
            transactions=self._transactions,
            recent=self._recent,
            log=self._log,
        )

    def _register_gauges(self) -> None:
        gauge = self._metrics.gauge
        gauge("buffer-total-bytes", lambda: self._pool.total_bytes)
        gauge("buffer-available-bytes", lambda: self._pool.available_bytes)
        gauge("waiting-threads", lambda: self._pool.waiting_threads)
        gauge("requests-in-flight", self._client.total_in_flight)
        gauge("metadata-age", lambda: (self._clock.monotonic_ms() - self._cluster_seen_ms) / 1000)

    def _run(self) -> None:
        """The I/O thread. When nothing moves any more, reporters let go of the metrics, then plug-ins are closed."""
        try:
            self._sender.run()
        finally:
            self._metrics.close()
            self._plugins.close()

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """A producer from a `.properties` file; keyword arguments win over it."""
        return cls(Path(path), **options)

    # -- sending -------------------------------------------------------------------------------

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        on_delivery: Delivery | None,
    ) -> RecordFuture:
        lane = self.lanes.get(topic) if self._steps.only_serialize else None
        if lane is None:
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ())
            return self.send_record(record, on_delivery)
        # Nearly as short as the short way: once they are bytes, the lane may do the rest.
        try:
            pairs = [] if headers is None else list(checked_headers(headers))
            key, value = self._steps.serialize(topic, key, value, pairs)
            future = lane.append(key, value, partition, timestamp_ms, pairs, on_delivery)
            if future is not None:
                return future
            ProducerRecord(topic, None, None, partition, timestamp_ms)  # looks at what the lane did not take
            self._check_may_send()
            deadline_ms = self._deadline_ms()
            queues = self._topic(topic, partition, deadline_ms)
            prepared = Prepared(partition, timestamp_ms, key, value, pairs, None)
            return self._append(queues, self._metadata.cluster, prepared, on_delivery, deadline_ms)
        except Exception as error:
            refused = self._refuse(topic, on_delivery, error)
            if refused is None:
                raise
            return refused

    def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        """`send` with a record as one object."""
        deadline_ms = self._deadline_ms()
        record, on_delivery = self._steps.intercept(record, on_delivery)
        try:
            self._check_may_send()
            topic = self._topic(record.topic, record.partition, deadline_ms)
            return self._queue(topic, record, on_delivery, deadline_ms)
        except Exception as error:
            refused = self._refuse(record.topic, on_delivery, error)
            if refused is None:
                raise
            return refused

    def _queue(
        self, topic: TopicQueues, record: ProducerRecord, on_delivery: Delivery | None, deadline_ms: float
    ) -> RecordFuture:
        """Serialise, partition, append."""
        cluster = self._metadata.cluster
        prepared = self._steps.prepare(record, on_delivery, cluster)
        return self._append(topic, cluster, prepared, on_delivery, deadline_ms)

    def _append(
        self,
        topic: TopicQueues,
        cluster: Cluster,
        prepared: Prepared,
        on_delivery: Delivery | None,
        deadline_ms: float,
    ) -> RecordFuture:
        partition, timestamp_ms, key, value, headers, choose_again = prepared
        future = self._accumulator.append(
            topic, cluster, partition, timestamp_ms, key, value, headers, on_delivery, deadline_ms, choose_again
        )
        if isinstance(on_delivery, Ending):
            on_delivery.partition = future.batch.partition
        return future

    def _refuse(self, topic: str, on_delivery: Delivery | None, error: Exception) -> RecordFuture | None:
        """Deal with a record that was not queued.

        As in Kafka's producer, an API error is told by the future, the callback and the transaction: returns the
        future. Anything else is raised, and this returns None.
        """
        self._count_refused(error)
        if isinstance(on_delivery, Ending):
            on_delivery.refused(error)
            on_delivery = on_delivery.on_delivery
        if not isinstance(error, API_ERRORS):
            return None
        future = refused_future(topic, error, on_delivery, self._clock.monotonic_ms())
        for raised in future.batch.callback_errors:
            if is_for_application(raised):
                raise raised
            self._log.error("a delivery callback for topic %s failed", topic, exc_info=raised)
            self._recent.failed(f"delivery callback of {topic}", raised)
        return future

    def _count_refused(self, error: Exception, count: int = 1) -> None:
        self._metrics.record_failed(None, count)
        self._recent.failed("send", error)
        if isinstance(error, API_ERRORS) and self._transactions is not None and self._transactions.is_transactional:
            self._transactions.record_refused(error)
            self._accumulator.close_open_batches()  # so that the next send hears of it

    def _deadline_ms(self) -> float:
        return self._clock.monotonic_ms() + self.settings.max_block_ms

    def send_arrow(
        self,
        topic: str,
        table_or_batch: pa.Table | pa.RecordBatch,
        *,
        key: str = "key",
        value: str = "value",
        headers: str = "headers",
        partition: str = "partition",
        timestamp: str = "timestamp",
    ) -> ArrowDelivery:
        """Send whole columns: each row is a record. Columns that are not there count as null, but for the value.

        Keys and values are bytes or text already: serializers, interceptors and partitioner.class are passed by.
        """
        self._check_may_send()
        names = {"key": key, "value": value, "headers": headers, "partition": partition, "timestamp": timestamp}
        try:
            highest = self._arrow.check(table_or_batch, names)
            queues = self._topic(topic, highest, self._deadline_ms())
            delivery = self._arrow.send(
                queues, self._metadata.cluster, table_or_batch, names, self.settings.max_block_ms
            )
        except API_ERRORS as error:
            delivery = ArrowDelivery([], error)
        if delivery.refusal is not None:
            self._count_refused(delivery.refusal, table_or_batch.num_rows - delivery.queued_rows)
        return delivery

    # -- metadata ------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """The partitions of a topic, as far as metadata tells."""
        self._check_usable()
        self._topic(topic, None, self._deadline_ms())
        return self._metadata.cluster.topics[topic].partitions

    def _topic(self, topic: str, partition: int | None, deadline_ms: float) -> TopicQueues:
        """The queues of a topic, once metadata knows it, and the partition if one is asked for."""
        count = self._metadata.cluster.partition_count(topic)
        if count is None or (partition is not None and partition >= count):
            count = self._wait_for_metadata(topic, partition, deadline_ms)
        return self._accumulator.topic(topic, count)

    def _wait_for_metadata(self, topic: str, partition: int | None, deadline_ms: float) -> int:
        self._check_may_wait(f"metadata of topic {topic!r} is not there yet, and cannot be waited for")
        metadata = self._metadata
        started = self._clock.monotonic_ms()
        with self._timed(self._metrics.metadata_wait):
            while True:
                version = metadata.version
                metadata.add_topic(topic)
                metadata.request_update()
                # Somebody else's update may have come between the look before and here.
                metadata.raise_topic_error(topic)
                count = metadata.cluster.partition_count(topic)
                if count is not None and (partition is None or partition < count):
                    return count
                self._wake()
                left = deadline_ms - self._clock.monotonic_ms()
                if left <= 0 or not metadata.wait_for_update(version, left):
                    waited = self._clock.monotonic_ms() - started
                    raise TimedOutError(_missing(topic, partition, metadata.cluster, waited, self._why_full()))
                self._check_usable()

    def _on_cluster(self, cluster: Cluster) -> None:
        self._cluster_seen_ms = self._clock.monotonic_ms()
        self._plugins.on_update(cluster)

    def metrics(self) -> dict[MetricName, Value]:
        """Every metric, under Kafka's name, with its value now."""
        return self._metrics.snapshot()

    # -- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Get a producer id, fence older instances of this transactional.id and wait until theirs are over."""
        with self._manager("init_transactions", "init") as manager:
            manager.begin_init().wait(self.settings.max_block_ms)

    def begin_transaction(self) -> None:
        """From here on, what is sent belongs together. Local: the broker hears of it with the first record."""
        with self._manager("begin_transaction", "begin") as manager:
            manager.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int | tuple[int, str]], group_metadata: GroupMetadata
    ) -> None:
        """Commit consumer offsets with the transaction: (topic, partition) → next offset to read."""
        with self._manager("send_offsets_to_transaction", "send-offsets") as manager:
            if offsets:
                manager.begin_send_offsets(offsets, group_metadata).wait(self.settings.max_block_ms)

    def commit_transaction(self) -> None:
        """Send all that was queued and commit it; raises the first error of any record."""
        with self._manager("commit_transaction", "commit") as manager:
            result = manager.begin_commit()
            # Only now, for nobody can open a batch any more: what is queued goes out without lingering.
            self._accumulator.close_open_batches()
            result.wait(self.settings.max_block_ms)

    def abort_transaction(self) -> None:
        """Drop what was not sent and abort the rest."""
        with self._manager("abort_transaction", "abort") as manager:
            result = manager.begin_abort()
            self._accumulator.close_open_batches()
            result.wait(self.settings.max_block_ms)

    def _abort_after_error(self) -> None:
        if self._transactions is not None and not self._transactions.has_fatal_error:
            try:
                self.abort_transaction()
            except HeadraceError as error:
                self._log.warning("the transaction could not be aborted: %s", error)

    @contextlib.contextmanager
    def _manager(self, operation: str, metric: Transaction) -> Iterator[TransactionManager]:
        self._check_usable()
        if self._transactions is None or not self._transactions.is_transactional:
            raise IllegalStateError(f"{operation}() needs a transactional.id")
        self._check_may_wait(f"{operation}() cannot be called")
        with self._timed(lambda ns: self._metrics.txn(metric, ns)):
            yield self._transactions

    # -- the end -------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait (seconds) until all that was sent before is answered, one way or the other."""
        self._check_usable()
        self._check_may_wait("flush() cannot be called")
        self._check_holds_no_topic()
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = self._accumulator.begin_flush()
        try:
            with self._timed(self._metrics.flush):
                for batch in waiting:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    if not batch.wait_done(left):
                        undelivered = sum(b.record_count for b in waiting if not b.wait_done(0))
                        raise TimedOutError(f"flush: {undelivered} records not answered within {timeout:g} s")
        finally:
            self._accumulator.end_flush()

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, abort an open transaction, and stop; after `timeout` seconds, give up on the rest.

        Without a timeout, that is when every record must have been answered or have expired. From a callback it gives
        up at once: the thread that would have to wait is the one that is waited for.
        """
        if self._forked:
            return
        self._check_not_reentered()
        self._check_holds_no_topic()
        was_closed, self._closed = self._closed, True
        process.closed(self)
        if self._on_io_thread():
            if not was_closed:
                self._sender.force_close()
            return
        settings, thread = self.settings, self._thread
        assert thread is not None
        if timeout is None:
            timeout = (settings.delivery_timeout_ms + settings.request_timeout_ms) / 1000
        self._sender.initiate_close()
        self._metadata.close(ClosedError("the producer was closed"))
        thread.join(timeout)
        if thread.is_alive():
            undelivered = sum(batch.record_count for batch in self._accumulator.incomplete())
            self._log.warning("closed by force after %g s: %d records were not acknowledged", timeout, undelivered)
            self._sender.force_close()
            thread.join(settings.request_timeout_ms / 1000)
        if not was_closed:
            self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        servers = ",".join(map(str, self.settings.bootstrap_servers))
        return f"Producer(client_id={self.settings.client_id!r}, bootstrap_servers={servers!r})"

    # -- small things --------------------------------------------------------------------------

    def _wake(self) -> None:
        self._client.wakeup()

    def _why_full(self) -> str:
        """The likeliest reason why nothing moves, for error messages."""
        cluster = self._metadata.cluster
        away = [node for node in cluster.brokers if not self._client.is_connected(node)]
        if cluster.brokers and not away:
            return ""
        what = f"no connection to broker {', '.join(map(str, sorted(away)))}" if away else "no broker has answered yet"
        failure = self._client.last_failure
        return what if failure is None else f"{what}: {failure}"

    @contextlib.contextmanager
    def _timed(self, record: Callable[[float], None]) -> Iterator[None]:
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            record(time.perf_counter_ns() - started)

    def _on_io_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _check_may_wait(self, what: str) -> None:
        self._check_not_reentered()
        if self._on_io_thread():
            raise IllegalStateError(f"{what} in a callback: that runs on the thread that would be waited for")

    def _check_may_send(self) -> None:
        self._check_usable()
        if self._transactions is not None:
            self._transactions.may_send()

    def _check_usable(self) -> None:
        if self._forked:
            raise IllegalStateError(
                "this producer was made before fork(): its I/O thread is in the parent. Make a new one in the child"
            )
        if self._closed:
            raise ClosedError("the producer is closed")
        if self._sender.failure is not None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._sender.failure
        if failure is not None:
            raise IoThreadError(*failure.args) from failure.__cause__

    def _check_not_reentered(self) -> None:
        """Raise in a signal handler that would wait for the very thread it has interrupted."""
        locks = [self._pool.lock, self._metadata.lock, self._accumulator.topics_lock]
        if self._transactions is not None:
            locks.append(self._transactions.lock)
        for lock in locks:
            lock.check_not_owned()

    def _check_holds_no_topic(self) -> None:
        """Likewise, for calls that close the open batches of all topics."""
        for topic in list(self._accumulator.topics.values()):
            topic.lock.check_not_owned()

    def _warn_of_undelivered(self) -> None:
        count = sum(batch.record_count for batch in self._accumulator.incomplete())
        if count:
            what = f"{count} records of {self!r} were not delivered when the process ended: call flush() or close()"
            warnings.warn(what, ResourceWarning, stacklevel=1)
            self._log.warning("%s", what)

    def _after_fork_in_child(self) -> None:
        self._forked = True
        self.is_short, self.lanes = False, {}


def _missing(topic: str, partition: int | None, cluster: Cluster, waited_ms: float, reason: str) -> str:
    count = cluster.partition_count(topic)
    what = (
        f"topic {topic!r} is not known" if count is None else f"partition {partition} of topic {topic!r} is not known"
    )
    of = "" if count is None else f" (it has {count} partitions)"
    return f"{what}{of} after {waited_ms:.0f} ms (max.block.ms)" + (f"; {reason}" if reason else "")
