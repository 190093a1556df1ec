"""A producer without a broker, for the tests of those who use one.

    send → interceptors, serializers, partitioner, as ever → `history` (in a transaction: `uncommitted` first)

Records are acknowledged at once, or, with `auto_complete=False`, when the test says so: `complete_next`, `error_next`.
Transactions follow the same table of states as the real ones; `fence` plays the second instance.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from headrace.client.addresses import Endpoint
from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.metadata import Cluster, PartitionInfo, TopicInfo
from headrace.config import read_properties
from headrace.errors import (
    API_ERRORS,
    AbortableError,
    ClosedError,
    FatalError,
    IllegalStateError,
    RecordTooLargeError,
    TimedOutError,
)
from headrace.producer._send import RecordFuture, TopicAppender
from headrace.producer.arrow import ArrowDelivery
from headrace.producer.batch import Delivery, ProducerBatch, refused_future
from headrace.producer.interceptors import Ending
from headrace.producer.metrics import MetricName, Value
from headrace.producer.partitioners import partition_for_key
from headrace.producer.plugins import PluginLoader, is_for_application
from headrace.producer.producer import Headers, TransactionScope
from headrace.producer.records import PreparedRecord, ProducerRecord
from headrace.producer.settings import PrefixedLogger, ProducerSettings, resolve
from headrace.producer.steps import Steps
from headrace.producer.transaction_state import State, is_legal
from headrace.producer.transactions import GroupMetadata, Offsets
from headrace.wire.layout import HEADER_BYTES, Header
from headrace.wire.records import record_bytes_max

_BROKER = 1
_ENDPOINT = Endpoint("mock", 9092)


class SentRecord(NamedTuple):
    """A record as the broker would have got it, and as it was sent."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int
    record: ProducerRecord


class MockProducer(TransactionScope):
    """Has the methods of `Producer`, and more to look into it. Any thread."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        auto_complete: bool = True,
        topics: Mapping[str, int] | None = None,
        key_serializer: object = None,
        value_serializer: object = None,
        profile: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: object,
    ) -> None:
        """`topics` says how many partitions each has; without it every topic exists and has one."""
        if isinstance(config, str | os.PathLike):
            config = read_properties(config)
        # Nobody asks for it, but it has to be set.
        if not {"bootstrap.servers", "bootstrap_servers"} & {*(config or {}), *options}:
            options["bootstrap_servers"] = str(_ENDPOINT)
        self.config = resolve(
            config, profile=profile, key_serializer=key_serializer, value_serializer=value_serializer, **options
        )
        self._log = PrefixedLogger(self.config.of(str, "client.id"), self.config.optional(str, "transactional.id"))
        self._plugins = PluginLoader(self.config, self._log)
        self.settings = ProducerSettings.build(self.config, self._plugins)
        self._steps = Steps(self.settings, self._plugins)
        self._clock = clock
        self._topics = None if topics is None else dict(topics)
        self.auto_complete = auto_complete
        self.history: list[SentRecord] = []
        """What a reader would see: committed, or sent without a transaction."""
        self.uncommitted: list[SentRecord] = []
        self.committed_offsets: dict[str, dict[tuple[str, int], int | tuple[int, str]]] = {}
        """Group → offsets that were committed with transactions."""
        self.failures: dict[str, Exception] = {}
        """Method → what it raises from now on: `producer.failures["commit_transaction"] = TimedOutError()`."""
        self.commits = 0
        self.closed = False
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._pending: deque[ProducerBatch] = deque()
        self._appenders: dict[str, TopicAppender] = {}
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._turn = 0
        self._uncommitted_offsets: dict[str, dict[tuple[str, int], int | tuple[int, str]]] = {}
        self._state = State.UNINITIALIZED
        self._error: Exception | None = None

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **options: Any) -> Self:
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
        return self.send_record(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()), on_delivery)

    def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        record, on_delivery = self._steps.intercept(record, on_delivery)
        try:
            self._begin("send")
            if self.settings.transactional_id is not None:
                self._check_error()
                self._check_state("send", State.IN_TRANSACTION)
            cluster = self._cluster(record.topic, record.partition)
            future = self._append(record, self._steps.prepare(record, on_delivery, cluster), on_delivery, cluster)
        except Exception as error:
            if isinstance(on_delivery, Ending):
                on_delivery.refused(error)
                on_delivery = on_delivery.on_delivery
            if not isinstance(error, API_ERRORS):
                raise
            with self._lock:
                self._fail_transaction(error)
            future = refused_future(record.topic, error, on_delivery, self._clock.monotonic_ms())
            self._report_callback_errors(future.batch)
            return future
        if self.auto_complete:
            self.complete_next()
        return future

    def _append(
        self, record: ProducerRecord, prepared: PreparedRecord, on_delivery: Delivery | None, cluster: Cluster
    ) -> RecordFuture:
        size = HEADER_BYTES + record_bytes_max(prepared.key, prepared.value, prepared.headers)
        limit = self.settings.max_request_size
        if size > limit:
            raise RecordTooLargeError(f"a record of {size} bytes serialised is larger than max.request.size ({limit})")
        count = cluster.partition_count(record.topic) or 1
        with self._lock:
            partition = self._partition(prepared, count)
            appender = self._appenders.get(record.topic)
            if appender is None:
                appender = TopicAppender(
                    record.topic,
                    count,
                    record_bytes_max=limit,
                    hashes_keys=True,
                    lock=self._lock,
                    now_ms=self._clock.time_ms,
                )
                self._appenders[record.topic] = appender
            # A batch of its own for every record: each can be completed by itself.
            batch = ProducerBatch(record.topic, partition, bytearray(size), 0, self._clock.monotonic_ms())
            appender.open_batches[partition] = batch
            future = appender.try_append(
                prepared.key, prepared.value, partition, prepared.timestamp_ms, prepared.headers, on_delivery
            )
            appender.open_batches[partition] = None
            batch.close()
            assert future is not None
            if isinstance(on_delivery, Ending):
                on_delivery.partition = partition
            self._pending.append(batch)
            written = self.history if self.settings.transactional_id is None else self.uncommitted
            written.append(
                SentRecord(
                    record.topic,
                    partition,
                    prepared.key,
                    prepared.value,
                    tuple(prepared.headers),
                    future.timestamp,
                    record,
                )
            )
        return future

    def _partition(self, prepared: PreparedRecord, count: int) -> int:
        if prepared.partition is not None:
            return prepared.partition
        if prepared.key is not None and not self.settings.partitioner_ignore_keys:
            return partition_for_key(prepared.key, count)
        self._turn += 1
        return (self._turn - 1) % count

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
        """Row by row here; keys and values have to be what the serializers take."""
        futures = []
        for row in table_or_batch.to_pylist():
            stamp = row.get(timestamp)
            pairs = [(header["key"], header["value"]) for header in row.get(headers) or ()]
            futures.append(
                self.send(
                    topic,
                    row[value],
                    row.get(key),
                    partition=row.get(partition),
                    timestamp_ms=int(stamp.timestamp() * 1000) if hasattr(stamp, "timestamp") else stamp,
                    headers=pairs,
                )
            )
        return ArrowDelivery([future.batch for future in futures])

    # -- what the test says --------------------------------------------------------------------

    def complete_next(self) -> bool:
        """Acknowledge the oldest record that waits; False if none does."""
        with self._lock:
            if not self._pending:
                return False
            batch = self._pending.popleft()
            place = (batch.topic, batch.partition)
            offset = self._next_offsets.get(place, 0)
            self._next_offsets[place] = offset + 1
        is_news = batch.complete(-1 if self.settings.acks == 0 else offset, -1)
        self._report_callback_errors(batch)
        return is_news

    def error_next(self, error: Exception) -> bool:
        """Let the oldest record that waits fail; in a transaction, that has to be aborted then."""
        with self._lock:
            if not self._pending:
                return False
            batch = self._pending.popleft()
            self._fail_transaction(error)
        is_news = batch.fail(error)
        self._report_callback_errors(batch)
        return is_news

    def _fail_transaction(self, error: Exception) -> None:
        """An open transaction has to be aborted now. The lock is held."""
        if self._state is State.IN_TRANSACTION:
            self._state = State.ABORTABLE_ERROR
            self._error = AbortableError(str(error))

    def _report_callback_errors(self, batch: ProducerBatch) -> None:
        errors, batch.callback_errors = batch.callback_errors, ()
        for error in errors:
            if is_for_application(error):
                raise error
            self._log.error("a delivery callback for %s-%d failed", batch.topic, batch.partition, exc_info=error)

    def fence(self) -> None:
        """Another producer has taken over the transactional.id: this one can do no more."""
        with self._lock:
            self._state = State.FATAL_ERROR
            self._error = FatalError("PRODUCER_FENCED (90): another instance has the transactional.id now")
            self.uncommitted.clear()
            self._uncommitted_offsets.clear()
        self._fail_pending(self._error)

    def clear(self) -> None:
        """Forget what was sent."""
        with self._lock:
            self.history.clear()
            self.uncommitted.clear()
            self._pending.clear()

    # -- metadata ------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        self._begin("partitions_for")
        return self._cluster(topic, None).topics[topic].partitions

    def _cluster(self, topic: str, partition: int | None) -> Cluster:
        counts = {topic: 1} if self._topics is None else self._topics
        count = counts.get(topic)
        if count is None or (partition is not None and partition >= count):
            what = f"topic {topic!r}" if count is None else f"partition {partition} of topic {topic!r}"
            raise TimedOutError(f"{what} is not known to this MockProducer: name it in `topics`")
        infos = {
            name: TopicInfo(
                name, bytes(16), tuple(PartitionInfo(p, _BROKER, 0, (_BROKER,), (_BROKER,)) for p in range(n)), False
            )
            for name, n in counts.items()
        }
        return Cluster({_BROKER: _ENDPOINT}, infos)

    def metrics(self) -> dict[MetricName, Value]:
        """There are none."""
        return {}

    # -- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        with self._transactional("init_transactions"):
            self._go("init_transactions", State.INITIALIZING)
            self._state = State.READY

    def begin_transaction(self) -> None:
        with self._transactional("begin_transaction"):
            self._check_error()
            self._go("begin_transaction", State.IN_TRANSACTION)

    def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata) -> None:
        with self._transactional("send_offsets_to_transaction"):
            self._check_error()
            self._check_state("send_offsets_to_transaction", State.IN_TRANSACTION)
            if offsets:
                self._uncommitted_offsets.setdefault(group_metadata.group_id, {}).update(offsets)

    def commit_transaction(self) -> None:
        with self._transactional("commit_transaction"):
            self._check_error()
            self._go("commit_transaction", State.COMMITTING)
            self._complete_all()
            self.history += self.uncommitted
            for group, offsets in self._uncommitted_offsets.items():
                self.committed_offsets.setdefault(group, {}).update(offsets)
            self._end_transaction()
            self.commits += 1

    def abort_transaction(self) -> None:
        with self._transactional("abort_transaction"):
            if self._state is State.FATAL_ERROR:
                self._check_error()
            self._go("abort_transaction", State.ABORTING)
            self._fail_pending(ClosedError("the transaction was aborted before the record was sent"))
            self._end_transaction()

    def _abort_after_error(self) -> None:
        if self._state is not State.FATAL_ERROR:
            self.abort_transaction()

    def _end_transaction(self) -> None:
        self.uncommitted.clear()
        self._uncommitted_offsets.clear()
        self._state, self._error = State.READY, None

    @contextlib.contextmanager
    def _transactional(self, call: str) -> Iterator[None]:
        with self._lock:
            self._begin(call)
            if self.settings.transactional_id is None:
                raise IllegalStateError(f"{call}() needs a transactional.id")
            yield

    def _go(self, call: str, target: State) -> None:
        if not is_legal(self._state, target):
            raise IllegalStateError(f"{call}() while the producer is {self._state}")
        self._state = target

    def _check_state(self, call: str, wanted: State) -> None:
        if self._state is not wanted:
            raise IllegalStateError(f"{call}() while the producer is {self._state}")

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- the end -------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Acknowledges all that waits."""
        self._begin("flush")
        self._complete_all()

    def close(self, timeout: float | None = None) -> None:
        """Acknowledges what waits, unless there is no time for it; an open transaction is lost."""
        if self.closed:
            return
        if timeout == 0:
            self._fail_pending(ClosedError("the producer was closed before the record was acknowledged"))
        else:
            self._complete_all()
        self.uncommitted.clear()
        self.closed = True
        self._plugins.close()

    def _complete_all(self) -> None:
        while self.complete_next():
            pass

    def _fail_pending(self, error: Exception) -> None:
        with self._lock:
            pending = list(self._pending)
            self._pending.clear()
        for batch in pending:
            batch.fail(error)
            self._report_callback_errors(batch)

    def _begin(self, call: str) -> None:
        if self.closed:
            raise ClosedError("the producer is closed")
        if call in self.failures:
            raise self.failures[call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
