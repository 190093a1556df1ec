"""A producer without a broker, for tests of applications.

    send → interceptors, serializers, partitioner → `history` (in a transaction: `uncommitted` first)

Records are acknowledged at once or, with `auto_complete=False`, by `complete_next` and `error_next`. Transactions
follow the same state table as in `Producer`; `fence` simulates a second instance.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from headrace.client.addresses import Endpoint
from headrace.client.metadata import Cluster, PartitionInfo, TopicInfo
from headrace.client.plugins import PluginLoader, is_for_application
from headrace.config import Config, read_properties
from headrace.config.clock import SYSTEM_CLOCK, Clock
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
from headrace.producer.batch import ArrowDelivery, ProducerBatch, refused_future
from headrace.producer.interceptors import InterceptorCallback
from headrace.producer.partitioners import partition_for_key
from headrace.producer.pipeline import SendPipeline
from headrace.producer.producer import TransactionScope
from headrace.producer.records import (
    ArrowTable,
    Delivery,
    Headers,
    Offset,
    Offsets,
    PreparedRecord,
    ProducerRecord,
    offsets_of,
)
from headrace.producer.settings import ProducerSettings, producer_log, resolve
from headrace.producer.transaction_state import State, is_legal
from headrace.telemetry.metrics import MetricName, Value
from headrace.types import GroupMember, GroupMetadata, PositionedMember
from headrace.wire.layout import HEADER_BYTES, Header
from headrace.wire.records import record_bytes_max

if TYPE_CHECKING:
    from headrace.config.option_types import ProducerOptions
    from headrace.producer.settings import ProducerArguments

    class MockArguments(ProducerArguments, total=False):
        """The keyword arguments of `MockProducer`."""

        auto_complete: bool
        topics: Mapping[str, int] | None


_BROKER = 1
_ENDPOINT = Endpoint("mock", 9092)


class SentRecord(NamedTuple):
    """A record as the broker would get it, and as it was sent."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int
    record: ProducerRecord


class MockProducer(TransactionScope):
    """A fake `Producer` with attributes and methods for tests. Any thread."""

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
        **options: Unpack[ProducerOptions],
    ) -> None:
        """`topics` has the number of partitions of each topic; by default every topic exists and has one."""
        if isinstance(config, str | os.PathLike):
            config = read_properties(config)
        # Not used, but required.
        if not {"bootstrap.servers", "bootstrap_servers"} & {*(config or {}), *options}:
            options["bootstrap_servers"] = str(_ENDPOINT)
        self.config: Config = resolve(
            config, profile=profile, key_serializer=key_serializer, value_serializer=value_serializer, **options
        )
        self._log = producer_log(self.config.of(str, "client.id"), self.config.optional(str, "transactional.id"))
        self._plugins = PluginLoader(self.config, self._log)
        self.settings: ProducerSettings = ProducerSettings.build(self.config, self._plugins)
        self._pipeline = SendPipeline(self.settings, self._plugins)
        self._clock = clock
        self._topics = None if topics is None else dict(topics)
        self.auto_complete: bool = auto_complete
        self.history: list[SentRecord] = []
        """Records that a read_committed consumer would see."""
        self.uncommitted: list[SentRecord] = []
        self.committed_offsets: dict[str, dict[tuple[str, int], Offset]] = {}
        """Group → offsets committed with transactions."""
        self.failures: dict[str, Exception] = {}
        """Method → the error that it raises: `producer.failures["commit_transaction"] = TimedOutError()`."""
        self.commits: int = 0
        self.closed: bool = False
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._pending: deque[ProducerBatch] = deque()
        self._appenders: dict[str, TopicAppender] = {}
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._turn = 0
        self._uncommitted_offsets: dict[str, dict[tuple[str, int], Offset]] = {}
        self._state = State.UNINITIALIZED
        self._error: Exception | None = None

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **arguments: Unpack[MockArguments]) -> Self:
        """Return a producer with the options of a `.properties` file; keyword arguments take precedence."""
        return cls(Path(path), **arguments)

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = None,
        on_delivery: Delivery | None = None,
    ) -> RecordFuture:
        return self.send_record(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()), on_delivery)

    def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        record, on_delivery = self._pipeline.intercept(record, on_delivery)
        try:
            self._begin("send")
            if self.settings.transactional_id is not None:
                self._check_error()
                self._check_state("send", State.IN_TRANSACTION)
            cluster = self._cluster(record.topic, record.partition)
            future = self._append(record, self._pipeline.prepare(record, on_delivery, cluster), on_delivery, cluster)
        except Exception as error:
            if isinstance(on_delivery, InterceptorCallback):
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
            raise RecordTooLargeError(f"the record takes {size} bytes serialized, more than max.request.size ({limit})")
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
            # A batch for every record, so that each can be completed separately.
            batch = ProducerBatch(record.topic, partition, bytearray(size), 0, self._clock.monotonic_ms())
            appender.open_batches[partition] = batch
            future = appender.try_append(
                prepared.key, prepared.value, partition, prepared.timestamp_ms, prepared.headers, on_delivery
            )
            appender.open_batches[partition] = None
            batch.close()
            assert future is not None
            if isinstance(on_delivery, InterceptorCallback):
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
        table_or_batch: ArrowTable,
        *,
        key: str = "key",
        value: str = "value",
        headers: str = "headers",
        partition: str = "partition",
        timestamp: str = "timestamp",
    ) -> ArrowDelivery:
        """Send each row as a record; keys and values must have the types that the serializers expect."""
        futures = []
        for row in table_or_batch.to_pylist():
            stamp: Any = row.get(timestamp)
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

    # -- control by the test -------------------------------------------------------------------

    def complete_next(self) -> bool:
        """Acknowledge the oldest pending record; False if there is none."""
        with self._lock:
            if not self._pending:
                return False
            batch = self._pending.popleft()
            key = (batch.topic, batch.partition)
            offset = self._next_offsets.get(key, 0)
            self._next_offsets[key] = offset + 1
        completed = batch.complete(-1 if self.settings.acks == 0 else offset, -1)
        self._report_callback_errors(batch)
        return completed

    def error_next(self, error: Exception) -> bool:
        """Fail the oldest pending record; False if there is none. An open transaction becomes abortable."""
        with self._lock:
            if not self._pending:
                return False
            batch = self._pending.popleft()
            self._fail_transaction(error)
        failed = batch.fail(error)
        self._report_callback_errors(batch)
        return failed

    def _fail_transaction(self, error: Exception) -> None:
        """Make an open transaction abortable. The lock is held."""
        if self._state is State.IN_TRANSACTION:
            self._state = State.ABORTABLE_ERROR
            self._error = AbortableError(str(error))

    def _report_callback_errors(self, batch: ProducerBatch) -> None:
        errors, batch.callback_errors = batch.callback_errors, ()
        for error in errors:
            if is_for_application(error):
                raise error
            self._log.error("delivery callback for %s-%d failed", batch.topic, batch.partition, exc_info=error)

    def fence(self) -> None:
        """Fence this producer, as a newer one with the same transactional.id would."""
        with self._lock:
            self._state = State.FATAL_ERROR
            self._error = FatalError("PRODUCER_FENCED (90): a newer producer has the same transactional.id")
            self.uncommitted.clear()
            self._uncommitted_offsets.clear()
        self._fail_pending(self._error)

    def clear(self) -> None:
        """Discard all records."""
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
            raise TimedOutError(f"{what} is unknown to this MockProducer: add it to `topics`")
        infos = {
            name: TopicInfo(
                name, bytes(16), tuple(PartitionInfo(p, _BROKER, 0, (_BROKER,), (_BROKER,)) for p in range(n)), False
            )
            for name, n in counts.items()
        }
        return Cluster({_BROKER: _ENDPOINT}, infos)

    def metrics(self) -> dict[MetricName, Value]:
        """Return no metrics."""
        return {}

    # -- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        with self._transactional("init_transactions"):
            self._transition_to("init_transactions", State.INITIALIZING)
            self._state = State.READY

    def begin_transaction(self) -> None:
        with self._transactional("begin_transaction"):
            self._check_error()
            self._transition_to("begin_transaction", State.IN_TRANSACTION)

    def send_offsets_to_transaction(
        self, offsets: Offsets | PositionedMember, group: GroupMetadata | GroupMember | None = None
    ) -> None:
        with self._transactional("send_offsets_to_transaction"):
            self._check_error()
            self._check_state("send_offsets_to_transaction", State.IN_TRANSACTION)
            given, metadata = offsets_of(offsets, group)
            if given:
                named = {(topic, number): offset for (topic, number), offset in given.items()}
                self._uncommitted_offsets.setdefault(metadata.group_id, {}).update(named)

    def commit_transaction(self) -> None:
        with self._transactional("commit_transaction"):
            self._check_error()
            self._transition_to("commit_transaction", State.COMMITTING)
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
            self._transition_to("abort_transaction", State.ABORTING)
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

    def _transition_to(self, call: str, target: State) -> None:
        if not is_legal(self._state, target):
            raise IllegalStateError(f"{call}() while the producer is {self._state}")
        self._state = target

    def _check_state(self, call: str, expected: State) -> None:
        if self._state is not expected:
            raise IllegalStateError(f"{call}() while the producer is {self._state}")

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- flush and close -----------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Acknowledge all pending records."""
        self._begin("flush")
        self._complete_all()

    def close(self, timeout: float | None = None) -> None:
        """Acknowledge pending records, or with `timeout=0` fail them; an open transaction is discarded."""
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
