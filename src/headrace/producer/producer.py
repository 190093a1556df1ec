"""The producer: from `send` to a batch. What happens then is in `sender.py`.

A record's journey, one named call a step:

    intercept → metadata → serialise → partition → size check → append → wake

`send` first tries the short way: for bytes, with the built-in partitioner and no interceptors, the compiled lane of
the topic does all of these steps at once, as long as the batch of the partition is open and has room.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.client import tls
from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.connection import ConnectionSettings
from headrace.client.metadata import Cluster, Metadata, MetadataUpdater, PartitionInfo
from headrace.client.network import NetworkClient, NetworkSettings
from headrace.errors import ClosedError, HeadraceError, IllegalStateError, TimedOutError
from headrace.producer import interceptors as interceptor_plugins
from headrace.producer import partitioners, serializers
from headrace.producer.accumulator import Accumulator, AccumulatorSettings, TopicQueues
from headrace.producer.arrow import ArrowDelivery, ArrowSender
from headrace.producer.batch import Delivery
from headrace.producer.buffer_pool import BufferPool
from headrace.producer.plugins import PluginLoader
from headrace.producer.records import ProducerRecord, RecordMetadata, checked_headers
from headrace.producer.sender import Sender, SenderSettings
from headrace.producer.settings import ProducerSettings, resolve
from headrace.producer.transactions import GroupMetadata, TransactionManager
from headrace.wire.layout import Header

if TYPE_CHECKING:
    from headrace.wire._reference import RecordFuture

Headers = Iterable[Header] | Mapping[str, bytes | None] | None

_live: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer:
    """Sends records to Kafka. Safe to share between threads, and faster so than one for each thread."""

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
        self.config = resolve(
            config, profile=profile, key_serializer=key_serializer, value_serializer=value_serializer, **options
        )
        self._plugins = PluginLoader(self.config)
        with contextlib.ExitStack() as opened:
            opened.callback(self._plugins.close)
            self._build(clock, opened)
            opened.pop_all()  # it is all ours now; until here, a failure closes what was opened on the way

    def _build(self, clock: Clock, opened: contextlib.ExitStack) -> None:
        settings = self.settings = ProducerSettings.build(self.config, self._plugins)
        self._clock = clock
        self._log = _logger(settings)
        self._key_serializer = self._plugins.load(
            "key.serializer", settings.key_serializer, serializers.KIND, is_key=True
        )
        self._value_serializer = self._plugins.load(
            "value.serializer", settings.value_serializer, serializers.KIND, is_key=False
        )
        self._interceptors = interceptor_plugins.Interceptors(
            [
                self._plugins.load("interceptor.classes", given, interceptor_plugins.KIND)
                for given in settings.interceptors
            ]
        )
        self._partitioner: partitioners.Partitioner | None = None
        if settings.partitioner is not None:
            self._partitioner = self._plugins.load("partitioner.class", settings.partitioner, partitioners.KIND)
        self._transactions = None
        if settings.enable_idempotence:
            self._transactions = TransactionManager(
                settings.transactional_id, settings.transaction_timeout_ms, self._log, self._wake
            )
        self._pool = BufferPool(settings.buffer_memory, settings.batch_size, clock, why_full=self._why_full)
        self._accumulator = Accumulator(
            _accumulator_settings(settings),
            self._pool,
            clock,
            self._wake,
            partitioners.AdaptiveSticky(settings.batch_size, adaptive=settings.partitioner_adaptive),
            on_open=self._transactions.add_partition if self._transactions and settings.transactional_id else None,
        )
        self._metadata = Metadata(
            clock,
            max_age_ms=settings.metadata_max_age_ms,
            max_idle_ms=settings.metadata_max_idle_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            on_update=self._plugins.on_update if self._plugins.has_listeners else None,
        )
        self._client = NetworkClient(
            _connection_settings(settings), _network_settings(settings), clock, None, self._log
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
            _sender_settings(settings),
            clock,
            self._log,
            self._transactions,
        )
        self._client.on_auth_failure = self._sender.fail_for_authentication
        self._arrow = ArrowSender(self._accumulator, self._pool, clock, settings.batch_size, settings.max_request_size)
        self._lanes = self._accumulator.lanes
        # Who needs none of the steps that only Python can do may take the short way.
        plain = isinstance(self._key_serializer, serializers.BytesSerializer) and isinstance(
            self._value_serializer, serializers.BytesSerializer
        )
        self._short = plain and not self._interceptors and self._partitioner is None
        self._thread = threading.Thread(target=self._sender.run, name=f"headrace-{settings.client_id}", daemon=True)
        self._thread.start()
        _live.add(self)

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """A producer from a `.properties` file; keyword arguments win over it."""
        return cls(Path(path), **options)

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = None,
        on_delivery: Delivery | None = None,
    ) -> RecordFuture:
        """Queue a record and return at once, unless metadata or memory has to be waited for (max.block.ms)."""
        if self._short and headers is None:
            lane = self._lanes.get(topic)
            if lane is not None:
                future = lane.append(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
        return self._send(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        """The same with a record as one object."""
        return self._send(
            record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers, on_delivery
        )

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
        deadline_ms = self._clock.monotonic_ms() + self.settings.max_block_ms
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ())
        if not self._interceptors:
            return self._queue(record, on_delivery, deadline_ms)
        record = self._interceptors.on_send(record)
        chosen: list[int] = []
        try:
            return self._queue(record, self._tell_interceptors(record, on_delivery), deadline_ms, chosen)
        except HeadraceError as error:
            self._interceptors.on_send_error(record, chosen[0] if chosen else None, error)
            raise

    def _queue(
        self,
        record: ProducerRecord,
        on_delivery: Delivery | None,
        deadline_ms: float,
        chosen: list[int] | None = None,
    ) -> RecordFuture:
        """Metadata, serialise, partition, append."""
        self._check_usable()
        if self._transactions is not None:
            self._transactions.may_send()
        topic = self._topic(record.topic, record.partition, deadline_ms)
        headers = list(checked_headers(record.headers))
        key = self._key_serializer.serialize(record.topic, record.key, headers)
        value = self._value_serializer.serialize(record.topic, record.value, headers)
        cluster = self._metadata.cluster
        partition = record.partition
        choose_again = None
        if partition is None and self._partitioner is not None:
            partition, choose_again = self._custom_partition(record, key, value, cluster)
        if chosen is not None and partition is not None:
            chosen.append(partition)
        return self._accumulator.append(
            topic, cluster, partition, record.timestamp_ms, key, value, headers, on_delivery, deadline_ms, choose_again
        )

    def _custom_partition(
        self, record: ProducerRecord, key: bytes | None, value: bytes | None, cluster: Cluster
    ) -> tuple[int, Any]:
        partitioner = self._partitioner
        assert partitioner is not None

        def choose() -> int:
            partition = partitioner.partition(record.topic, record.key, key, record.value, value, cluster)
            count = cluster.partition_count(record.topic) or 0
            if not isinstance(partition, int) or not 0 <= partition < count:
                raise ValueError(
                    f"{type(partitioner).__name__} chose partition {partition!r} of {record.topic!r}, "
                    f"which has 0 to {count - 1}"
                )
            return partition

        def choose_again(previous: int) -> int:
            partitioner.on_new_batch(record.topic, cluster, previous)
            return choose()

        return choose(), choose_again

    def _tell_interceptors(self, record: ProducerRecord, on_delivery: Delivery | None) -> Delivery:
        chain = self._interceptors

        def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
            chain.on_acknowledgement(metadata or RecordMetadata(record.topic, -1), error)
            if on_delivery is not None:
                on_delivery(metadata, error)

        return delivered

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
        """Send whole columns: each row is a record. Columns that are not there count as null, but for the value."""
        deadline_ms = self._clock.monotonic_ms() + self.settings.max_block_ms
        self._check_usable()
        if self._transactions is not None:
            self._transactions.may_send()
        queues = self._topic(topic, None, deadline_ms)
        names = {"key": key, "value": value, "headers": headers, "partition": partition, "timestamp": timestamp}
        return self._arrow.send(queues, self._metadata.cluster, table_or_batch, names, self.settings.max_block_ms)

    # -- metadata ------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """The partitions of a topic, as far as metadata tells."""
        self._check_usable()
        self._topic(topic, None, self._clock.monotonic_ms() + self.settings.max_block_ms)
        return self._metadata.cluster.topics[topic].partitions

    def _topic(self, topic: str, partition: int | None, deadline_ms: float) -> TopicQueues:
        """The queues of a topic, once metadata knows it, and the partition if one is asked for."""
        count = self._metadata.cluster.partition_count(topic)
        if count is None or (partition is not None and partition >= count):
            count = self._wait_for_metadata(topic, partition, deadline_ms)
        return self._accumulator.topic(topic, count)

    def _wait_for_metadata(self, topic: str, partition: int | None, deadline_ms: float) -> int:
        metadata = self._metadata
        metadata.add_topic(topic)
        started = self._clock.monotonic_ms()
        while True:
            version = metadata.request_update()
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
            metadata.add_topic(topic)

    # -- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Get a producer id, fence older instances of this transactional.id and wait until theirs are over."""
        self._manager("init_transactions").begin_init().wait(self.settings.max_block_ms)

    def begin_transaction(self) -> None:
        self._manager("begin_transaction").begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int | tuple[int, str]], group_metadata: GroupMetadata
    ) -> None:
        """Commit consumer offsets with the transaction: (topic, partition) → next offset to read."""
        manager = self._manager("send_offsets_to_transaction")
        if offsets:
            manager.begin_send_offsets(offsets, group_metadata).wait(self.settings.max_block_ms)

    def commit_transaction(self) -> None:
        """Send all that was queued and commit it; raises the first error of any record."""
        manager = self._manager("commit_transaction")
        self._accumulator.close_open_batches()
        manager.begin_commit().wait(self.settings.max_block_ms)

    def abort_transaction(self) -> None:
        """Drop what was not sent and abort the rest."""
        manager = self._manager("abort_transaction")
        self._accumulator.close_open_batches()
        manager.begin_abort().wait(self.settings.max_block_ms)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` commits at the end and aborts on an exception."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            if not self._manager("abort_transaction").has_fatal_error:
                self.abort_transaction()
            raise
        self.commit_transaction()

    def _manager(self, operation: str) -> TransactionManager:
        self._check_usable()
        if self._transactions is None or not self._transactions.is_transactional:
            raise IllegalStateError(f"{operation}() needs a transactional.id")
        return self._transactions

    # -- the end -------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait (seconds) until all that was sent before is answered, one way or the other."""
        self._check_usable()
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = self._accumulator.begin_flush()
        try:
            for batch in waiting:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not batch.wait_done(left):
                    undelivered = sum(b.record_count for b in waiting if not b.is_done)
                    raise TimedOutError(f"flush: {undelivered} records not answered within {timeout:g} s")
        finally:
            self._accumulator.end_flush()

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, abort an open transaction, and stop; after `timeout` seconds, give up on the rest."""
        if self._closed or self._forked:
            return
        self._closed = True
        _live.discard(self)
        thread = self._thread
        if thread is threading.current_thread():
            # Called from a callback: waiting for ourselves would be for ever.
            self._sender.force_close()
            self._plugins.close()
            return
        self._sender.initiate_close()
        assert thread is not None
        thread.join(timeout)
        if thread.is_alive():
            undelivered = sum(batch.record_count for batch in self._accumulator.incomplete())
            self._log.warning("closed by force after %g s: %d records were not acknowledged", timeout or 0, undelivered)
            self._sender.force_close()
            thread.join(self.settings.request_timeout_ms / 1000)
        self._plugins.close()

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
        if not cluster.brokers:
            return "no broker has answered yet"
        if away:
            return f"no connection to broker {', '.join(map(str, sorted(away)))}"
        return ""

    def _check_usable(self) -> None:
        if self._forked:
            raise IllegalStateError(
                "this producer was made before fork(): its I/O thread is in the parent. Make a new one in the child"
            )
        if self._closed:
            raise ClosedError("the producer is closed")

    def _after_fork_in_child(self) -> None:
        self._forked = True
        self._short = False


def _missing(topic: str, partition: int | None, cluster: Cluster, waited_ms: float, reason: str) -> str:
    count = cluster.partition_count(topic)
    what = (
        f"topic {topic!r} is not known" if count is None else f"partition {partition} of topic {topic!r} is not known"
    )
    of = "" if count is None else f" (it has {count} partitions)"
    return f"{what}{of} after {waited_ms:.0f} ms (max.block.ms)" + (f"; {reason}" if reason else "")


def _logger(settings: ProducerSettings) -> logging.LoggerAdapter[logging.Logger]:
    """Every line says which producer it is about."""
    prefix = f"[producer client_id={settings.client_id}"
    if settings.transactional_id is not None:
        prefix += f" transactional_id={settings.transactional_id}"

    class _Prefixed(logging.LoggerAdapter[logging.Logger]):
        def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
            return f"{prefix}] {msg}", kwargs

    return _Prefixed(logging.getLogger("headrace.producer"), {})


def _accumulator_settings(settings: ProducerSettings) -> AccumulatorSettings:
    return AccumulatorSettings(
        batch_bytes=settings.batch_size,
        linger_ms=settings.linger_ms,
        max_request_bytes=settings.max_request_size,
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        codec=settings.codec,
        level=settings.compression_level,
        hashes_keys=not settings.partitioner_ignore_keys,
        adaptive=settings.partitioner_adaptive,
    )


def _connection_settings(settings: ProducerSettings) -> ConnectionSettings:
    return ConnectionSettings(
        client_id=settings.client_id,
        request_timeout_ms=settings.request_timeout_ms,
        connect_timeout_ms=settings.connect_timeout_ms,
        connect_timeout_max_ms=settings.connect_timeout_max_ms,
        send_buffer_bytes=settings.send_buffer_bytes,
        receive_buffer_bytes=settings.receive_buffer_bytes,
        tls_context=None if settings.tls is None else tls.context(settings.tls),
        mechanism_factory=None if settings.sasl is None else settings.sasl.mechanism,
    )


def _network_settings(settings: ProducerSettings) -> NetworkSettings:
    return NetworkSettings(
        max_in_flight=settings.max_in_flight,
        reconnect_backoff_ms=settings.reconnect_backoff_ms,
        reconnect_backoff_max_ms=settings.reconnect_backoff_max_ms,
        connections_max_idle_ms=settings.connections_max_idle_ms,
    )


def _sender_settings(settings: ProducerSettings) -> SenderSettings:
    return SenderSettings(
        acks=settings.acks,
        retries=settings.retries,
        request_timeout_ms=settings.request_timeout_ms,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        keeps_order_by_muting=settings.max_in_flight == 1 and not settings.enable_idempotence,
    )


@atexit.register
def _warn_of_undelivered() -> None:
    """A process that ends with records still queued loses them: say so."""
    for producer in list(_live):
        count = sum(batch.record_count for batch in producer._accumulator.incomplete())
        if count:
            warnings.warn(
                f"{count} records of {producer!r} were not delivered when the process ended: call flush() or close()",
                ResourceWarning,
                stacklevel=1,
            )
            producer._log.warning(
                "%d records were not delivered when the process ended: call flush() or close()", count
            )


def _after_fork_in_child() -> None:
    for producer in list(_live):
        producer._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
