"""Reads a range of offsets into Arrow batches, on an executor.

    Fetcher.poll_batches → ArrowDecoder → offset, timestamp, key, value → + topic, partition, timestampType → Spark
    └──────────────────────────── on a thread: ReadAhead ─────────────────────────────────────┘

Keys and values with a format are decoded there, too: see record_decoding.py.

No Python object is created for a row. A range ends when the position has passed its last offset, not after a number of
rows: markers, aborted transactions and compaction leave gaps. A worker process keeps its fetchers, with their
connections, between tasks (Fetchers).
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.blocking import BlockingClient
from headrace.client.fetch_data import located
from headrace.client.fetcher import TOPIC_MAY_COME, Fetcher
from headrace.config.serde_options import CORRUPT
from headrace.errors import BrokerError, Code, TimedOutError, WireError
from headrace.spark import consumer_options
from headrace.spark.planning import OffsetRange, Recreated, report_data_loss
from headrace.spark.read_columns import ReadColumns
from headrace.spark.source_options import SourceOptions
from headrace.types import TopicPartition
from headrace.wire.columns import HEADERS_TYPE, ArrowDecoder
from headrace.wire.records import RecordBatch

if TYPE_CHECKING:
    from headrace.spark.record_decoding import RecordDecoding

BATCH_ROWS = 32 * 1024
"""Rows of a batch for Spark: fewer need more messages, more do not fit into CPU caches."""
BATCH_BYTES = 16 * 1024 * 1024
"""A batch is also full at this size."""
POLL_MS = 500.0

CREATE_TIME, LOG_APPEND_TIME = 0, 1

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
    "__topic": pa.string(),
    "__partition": pa.int32(),
    "__offset": pa.int64(),
    "__topic_id": pa.string(),
}


def read_range(options: SourceOptions, columns: ReadColumns, whole: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, in order."""
    with ReadAhead(_batches(options, columns, whole)) as batches:
        yield from batches


def _batches(options: SourceOptions, columns: ReadColumns, whole: OffsetRange) -> Iterator[pa.RecordBatch]:
    shape = _Shape(options, columns, whole)
    with FETCHERS.taken(options) as fetcher:
        open_batch: _OpenBatch | None = None
        fetch = _RangeFetch(options, fetcher, whole)
        for batch in fetch:
            time_type = LOG_APPEND_TIME if batch.header.append_time >= 0 else CREATE_TIME
            if open_batch is not None and (open_batch.is_full or open_batch.time_type != time_type):
                yield from shape.finished(open_batch)
                open_batch = None
            if open_batch is None:
                open_batch = _OpenBatch.begin(batch, time_type, with_headers=shape.with_headers)
            open_batch.add(batch, fetch)
        if open_batch is not None:
            yield from shape.finished(open_batch)
    shape.close()


@dataclass(slots=True)
class _OpenBatch:
    """A batch for Spark that is being filled."""

    decoder: ArrowDecoder
    time_type: int

    @classmethod
    def begin(cls, first: RecordBatch, time_type: int, *, with_headers: bool) -> _OpenBatch:
        row_bytes = first.header.size // max(1, first.header.record_count)
        hint = min(BATCH_BYTES, BATCH_ROWS * row_bytes)
        return cls(ArrowDecoder(with_headers=with_headers, bytes_hint=hint), time_type)

    @property
    def is_full(self) -> bool:
        return self.decoder.row_count >= BATCH_ROWS or self.decoder.byte_count >= BATCH_BYTES

    def add(self, batch: RecordBatch, fetch: _RangeFetch) -> None:
        try:
            self.decoder.add(batch, first_offset=fetch.first_offset, end_offset=fetch.whole.end)
        except WireError as error:
            raise located(error, fetch.name, batch.header.base_offset) from None


class _RangeFetch:
    """Yields the encoded batches of a range; the first and the last may extend beyond it."""

    def __init__(self, options: SourceOptions, fetcher: Fetcher, whole: OffsetRange) -> None:
        self._options = options
        self._fetcher = fetcher
        self.whole = whole
        self.name = TopicPartition(whole.topic, whole.partition)
        self.first_offset = whole.start
        """Records before it in the first batch are skipped."""

    def __iter__(self) -> Iterator[RecordBatch]:
        fetcher, name, whole = self._fetcher, self.name, self.whole
        fetcher.assign({name: whole.start}, {name: whole.end}, check=False, topic_ids=self._expected_ids)
        moved_at, position = time.monotonic(), whole.start
        while not fetcher.is_finished():
            try:
                fetched = fetcher.poll_batches(POLL_MS)
            except BrokerError as error:
                if error.code != Code.OFFSET_OUT_OF_RANGE and error.code not in TOPIC_MAY_COME:
                    raise
                fetched = {}
                self._lost(error)
            yield from fetched.get(name, ())
            now = time.monotonic()
            if fetcher.position(name) != position:
                moved_at, position = now, fetcher.position(name)
            elif (now - moved_at) * 1000 >= self._options.poll_timeout_ms:
                raise TimedOutError(
                    f"{whole}: timed out after {self._options.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs) "
                    f"waiting for records at offset {position}; the broker reports {fetcher.watermarks(name)}"
                )

    def _lost(self, error: BrokerError) -> None:
        """Report the data loss; with failOnDataLoss=false, continue at the next record that exists."""
        fetcher, name, whole = self._fetcher, self.name, self.whole
        position, resume, fail = fetcher.position(name), whole.end, self._options.fail_on_data_loss
        if topic := self._recreated():
            what = f"{topic}, after {whole} was planned for the deleted topic"
            report_data_loss(what, fail=fail, instead="skip the rows of the deleted topic")
        elif error.code in TOPIC_MAY_COME:  # after waiting for it
            report_data_loss(
                f"{name} does not exist any more; offsets {position} up to {whole.end} were to be read", fail=fail
            )
        else:
            (earliest,) = fetcher.beginning_offsets([name]).values()
            (latest,) = fetcher.end_offsets([name]).values()
            what = f"{name} has offsets from {earliest} up to {latest}; {position} up to {whole.end} were to be read"
            report_data_loss(what, fail=fail)
            if position < earliest:
                resume = min(earliest, whole.end)
        self.first_offset = resume
        fetcher.seek(name, resume)

    @property
    def _expected_ids(self) -> dict[str, bytes]:
        topic_id = self.whole.topic_id
        return {} if topic_id is None else {self.whole.topic: uuid.UUID(topic_id).bytes}

    def _recreated(self) -> Recreated | None:
        planned, current = self.whole.topic_id, self._fetcher.topic_id(self.whole.topic)
        if planned is None or current is None or uuid.UUID(planned).bytes == current:
            return None
        return Recreated(self.whole.topic, planned, str(uuid.UUID(bytes=current)))


class _Shape:
    """Puts decoded columns in Spark's order, and adds those that are constant for all rows."""

    def __init__(self, options: SourceOptions, columns: ReadColumns, whole: OffsetRange) -> None:
        self._columns = columns.names
        types = dict(_TYPES)
        self._records: RecordDecoding | None = None
        if columns.typed or CORRUPT in columns.names:
            from headrace.spark.record_decoding import RecordDecoding  # imports the registry's client

            self._records = RecordDecoding(options, columns, whole)
            types |= self._records.types
        self._schema = pa.schema([pa.field(name, types[name]) for name in columns.names])
        self._whole = whole
        # With at least BATCH_ROWS rows: a batch takes a slice, which is not a copy.
        self._constants: dict[tuple[str, str | int | None], pa.Array] = {}
        # Records may have the ids of their schemas in headers.
        self.with_headers = "headers" in columns.names or self._records is not None

    def finished(self, open_batch: _OpenBatch) -> Iterator[pa.RecordBatch]:
        """Yield the collected rows in batches of limited size: one record batch of Kafka may have very many."""
        rows = open_batch.decoder.finish()
        if "headers" in self._columns:
            index = rows.schema.get_field_index("headers")
            rows = rows.set_column(index, "headers", _null_where_empty(rows.column(index)))
        for start in range(0, rows.num_rows, BATCH_ROWS * 2):
            yield from self._shaped(rows.slice(start, BATCH_ROWS * 2), open_batch.time_type)

    def _shaped(self, rows: pa.RecordBatch, time_type: int) -> Iterator[pa.RecordBatch]:
        try:
            typed = {} if self._records is None else self._records.decode(rows)
        except OverflowError:
            # The decoded columns would be larger than Arrow allows; one row never is: RecordDecoding refuses it.
            half = rows.num_rows // 2
            yield from self._shaped(rows.slice(0, half), time_type)
            yield from self._shaped(rows.slice(half), time_type)
            return
        arrays = [typed[name] if name in typed else self._column(name, rows, time_type) for name in self._columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def close(self) -> None:
        """Log what could not be decoded."""
        if self._records is not None:
            self._records.log_bad_records()

    def _column(self, name: str, decoded: pa.RecordBatch, time_type: int) -> pa.Array:
        constants: dict[str, str | int | None] = {
            "topic": self._whole.topic,
            "partition": self._whole.partition,
            "timestampType": time_type,
            "__topic": self._whole.topic,
            "__partition": self._whole.partition,
            "__topic_id": self._whole.topic_id,
        }
        if name in constants:
            return self._repeated(name, constants[name], decoded.num_rows)
        column = decoded.column("offset" if name == "__offset" else name)
        return column.cast(_TYPES[name]) if name == "timestamp" else column

    def _repeated(self, name: str, value: str | int | None, rows: int) -> pa.Array:
        array = self._constants.get((name, value))
        if array is None or len(array) < rows:
            array = self._constants[name, value] = pa.repeat(pa.scalar(value, _TYPES[name]), max(rows, BATCH_ROWS))
        return array.slice(0, rows)


def _null_where_empty(headers: pa.ListArray) -> pa.ListArray:
    """Return null for records without headers, as Spark's own source does."""
    has_headers = pc.greater(pc.list_value_length(headers), 0)
    if pc.all(has_headers).as_py():
        return headers
    return pa.ListArray.from_arrays(headers.offsets, headers.values, type=HEADERS_TYPE, mask=pc.invert(has_headers))


AHEAD_MAX = 2
"""Items in the queue. With batches of 16 MiB: one being built, two in the queue, one being written."""
PUT_SECONDS = 0.1
STOP_SECONDS_MAX = 30.0

T = TypeVar("T")


class _End:
    """Follows the last item; has the error of the source, if it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class ReadAhead(Generic[T]):
    """Iterates a source on a thread, a bounded number of items ahead of the consumer.

    A context manager: leaving it stops the thread, and closes the source if that is a generator.
    """

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._items: queue.Queue[T | _End] = queue.Queue(AHEAD_MAX)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-read-ahead", daemon=True)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    break
        except BaseException as raised:  # the consumer raises it
            error = raised
        finally:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
        self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._stopped.is_set():
            try:
                self._items.put(item, timeout=PUT_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._items.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS_MAX)


IDLE_SECONDS_MAX = 60.0
KEPT_MAX = 4
"""Idle fetchers in a process; beyond that, a returned fetcher is closed."""

_Key = tuple[object, ...]


class KeptFetcher:
    """A fetcher with its client."""

    def __init__(self, options: SourceOptions) -> None:
        config = consumer_options.resolve(options.kafka)
        self.client = BlockingClient(consumer_options.client_settings(config, options.client_id))
        self.fetcher = Fetcher(self.client, **consumer_options.fetcher_arguments(config))

    def close(self) -> None:
        self.client.close()


class Fetchers:
    """Idle fetchers, by their options. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[_Key, list[KeptFetcher]] = {}  # Guarded by _lock.
        self._timer: threading.Timer | None = None  # Guarded by _lock.

    @contextmanager
    def taken(self, options: SourceOptions) -> Iterator[Fetcher]:
        """Lend a fetcher to one task. After an error it is closed, because its state is unknown."""
        # A child of a fork must not use the sockets of its parent.
        key = (os.getpid(), options.client_id, *sorted(options.kafka.items()))
        with self._lock:
            idle = self._idle.get(key)
            kept = idle.pop() if idle else None
        kept = kept or KeptFetcher(options)
        try:
            yield kept.fetcher
        except BaseException:
            kept.close()
            raise
        kept.fetcher.assign({}, check=False)
        self._keep(key, kept)

    def _keep(self, key: _Key, kept: KeptFetcher) -> None:
        with self._lock:
            if sum(map(len, self._idle.values())) < KEPT_MAX:
                self._idle.setdefault(key, []).append(kept)
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = threading.Timer(IDLE_SECONDS_MAX, self.close_idle)
                self._timer.daemon = True
                self._timer.start()
                return
        kept.close()

    def close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
            self._timer = None
        for kept in (kept for group in idle.values() for kept in group):
            kept.close()


FETCHERS = Fetchers()
"""The idle fetchers of this process."""
