"""Batches of records: open, closed, drained, in flight, done; and the batches of a produce request.

`ProducerBatch` extends the kernel's `OpenBatch`, to which compiled code appends records. The I/O thread writes a
batch's result once; the futures of its records read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.concurrency import OneShotEvent, in_thread
from headrace.client.metadata import Cluster
from headrace.errors import BrokerError, Code, HeadraceError, TimedOutError, UnsupportedVersionError
from headrace.producer._send import RecordFuture, run_callbacks
from headrace.producer.records import NULL_SIZE, UNKNOWN_PARTITION, Delivery, RecordMetadata
from headrace.wire import message_sets
from headrace.wire import records as wire_records
from headrace.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.wire.kernel import kernel
from headrace.wire.layout import (
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    EncodedBatch,
    Record,
)

if TYPE_CHECKING:
    from headrace.producer.transactions import TransactionManager
    from headrace.wire._reference import OpenBatch
else:
    OpenBatch = kernel.OpenBatch

BATCHES_OF_MAGIC_2 = 3  # Older versions of Produce carry message sets, which have no producer ids.
V2_TRANSACTIONS = 12
NEEDS_TOPIC_IDS = 13


# Guards the change to "done" against threads that add a callback. One lock for all batches: it is held briefly, once
# for each batch. Re-entrant, because a signal handler may add a callback.
_done_lock = threading.RLock()


class ProducerBatch(OpenBatch):
    """Records of one partition that are sent, retried and acknowledged together."""

    # Defaults on the class: batches are created often, and most of these never change.
    # I/O thread only.
    attempts = 0
    in_flight = False
    sent_to = -1  # The broker of the last attempt.
    sealed: memoryview | None = None
    producer_id = NO_PRODUCER_ID
    producer_epoch = NO_PRODUCER_EPOCH
    base_sequence = NO_SEQUENCE
    is_transactional = False
    sequence_was_reset = False
    _compression: tuple[int, int | None] = (0, None)
    was_encoded = False  # From Arrow columns.
    first_index = 0  # In the batch that this one was split from.
    # Written once under _done_lock.
    is_done = False
    base_offset = -1
    append_time = -1
    error: Exception | None = None
    _record_errors: Mapping[int, str] = MappingProxyType({})
    _parts: Sequence[ProducerBatch] = ()
    _event: OneShotEvent | None = None  # Created by the first thread that waits.
    callback_errors: Sequence[BaseException] = ()
    """Errors raised by callbacks; the caller of `complete` or `fail` reports them."""

    def __init__(self, topic: str, partition: int, buffer: bytearray, allocated_bytes: int, now: float) -> None:
        super().__init__(buffer)
        self.topic = topic
        self.partition = partition
        self.allocated_bytes = allocated_bytes  # to return to the pool; 0: not from the pool
        self.created_ms = self.last_attempt_ms = now

    @classmethod
    def from_encoded(cls, topic: str, encoded: EncodedBatch, allocated_bytes: int, now: float) -> ProducerBatch:
        """Return a closed batch of records that were encoded from Arrow columns."""
        batch = cls(topic, encoded.partition, encoded.buffer, allocated_bytes, now)
        batch.adopt(encoded.record_count, encoded.base_timestamp, encoded.max_timestamp)
        batch.was_encoded = True
        return batch

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.record_count - 1) & 0x7FFFFFFF

    def set_producer_state(self, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> None:
        """Set producer id, epoch and base sequence. A sealed batch is sealed again with them."""
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.base_sequence, self.is_transactional = base_sequence, transactional
        self.sealed = None

    def seal(self, codec: int, level: int | None) -> memoryview:
        """Return the bytes to send. They are encoded once for a producer state."""
        if self.sealed is None:
            self._compression = codec, level
            writer = wire_records.BatchProducer(
                self.producer_id, self.producer_epoch, self.base_sequence, self.is_transactional
            )
            self.sealed = wire_records.seal(self, codec=codec, level=level, producer=writer)
            self.sequence_was_reset = False  # the sealed bytes have the new sequence
        return self.sealed

    def as_message_set(self, produce_version: int) -> bytes:
        """Return the records for a broker older than 0.11: magic 1 with Produce v2, magic 0 before (P43)."""
        rows = self._rows()
        if any(row.headers for row in rows):
            raise UnsupportedVersionError(
                f"records to {self.topic}-{self.partition} have headers, which the broker cannot store: it supports "
                f"Produce up to v{produce_version}"
            )
        codec, level = self._compression
        return message_sets.encode(rows, magic=1 if produce_version == 2 else 0, codec=codec, level=level)

    def _rows(self) -> list[Record]:
        return kernel.decode_records(
            memoryview(self.buffer)[HEADER_BYTES : self.size], self.record_count, 0, self.base_timestamp, -1
        )

    def split(self, now: float) -> list[ProducerBatch]:
        """Split the batch into batches of about half its size; futures and callbacks move to them."""
        rows = self._rows()
        sizes = [wire_records.record_bytes_max(row.key, row.value, row.headers) for row in rows]
        room = max((self.size - HEADER_BYTES) // 2, *sizes)
        parts: list[ProducerBatch] = []
        sequence = self.base_sequence
        first = 0
        while first < len(rows):
            end, used = first, 0
            while end < len(rows) and (end == first or used + sizes[end] <= room):
                used += sizes[end]
                end += 1
            part = ProducerBatch(self.topic, self.partition, bytearray(HEADER_BYTES + used), 0, self.created_ms)
            for row in rows[first:end]:
                part.append(row.timestamp, row.key, row.value, row.headers)
            part.close()
            part.first_index = self.first_index + first
            part.last_attempt_ms = now
            if self.has_sequence:
                part.set_producer_state(self.producer_id, self.producer_epoch, sequence, self.is_transactional)
                sequence = (sequence + part.record_count) & 0x7FFFFFFF
            parts.append(part)
            first = end
        with _done_lock:
            self._parts = parts
            for future, callback in self._callback_pairs():
                self._part_of(future).callbacks += (future, callback)
            self.callbacks = []
        event = self._event
        if event is not None:
            event.set()  # threads that wait continue to wait for the part
        return parts

    # -- completion ----------------------------------------------------------------------------

    def complete(self, base_offset: int, append_time: int) -> bool:
        """Complete the batch: the broker has stored it. False if it was done already."""
        if not self._finish(base_offset, append_time, None, {}):
            return False
        if self.callbacks:
            self.callback_errors = run_callbacks(
                self.callbacks,
                RecordMetadata,
                self.topic,
                self.partition,
                base_offset,
                self.first_index,
                append_time,
            )
            self.callbacks = []  # breaks the reference cycle with its futures
        return True

    def fail(self, error: Exception, record_errors: dict[int, str] | None = None) -> bool:
        """Fail the batch. False if it was done already."""
        if not self._finish(-1, -1, error, record_errors or {}):
            return False
        errors = []
        for future, callback in self._callback_pairs():
            try:
                callback(None, self.error_of(future))
            except BaseException as raised:  # as in run_callbacks
                errors.append(raised)
        self.callbacks, self.callback_errors = [], errors
        return True

    def _finish(
        self, base_offset: int, append_time: int, error: Exception | None, record_errors: dict[int, str]
    ) -> bool:
        with _done_lock:
            if self.is_done:
                return False
            self.base_offset, self.append_time, self.error = base_offset, append_time, error
            self._record_errors = record_errors
            self.is_done = True
        event = self._event
        if event is not None:
            event.set()
        return True

    def _callback_pairs(self) -> Iterator[tuple[RecordFuture, Delivery]]:
        return zip(self.callbacks[::2], self.callbacks[1::2], strict=True)

    # -- for futures ---------------------------------------------------------------------------

    def done_for(self, future: RecordFuture) -> bool:
        return self._part_of(future).is_done

    def wait(self, future: RecordFuture, timeout: float | None = None) -> RecordMetadata:
        error = self.wait_error(future, timeout)
        if error is not None:
            raise error
        return self._part_of(future)._metadata_of(future)

    def wait_error(self, future: RecordFuture, timeout: float | None = None) -> Exception | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        part = self._part_of(future)
        while not part.is_done:  # the batch may be split meanwhile, and its parts again
            if not part._wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimedOutError(
                    f"timed out after {timeout:g} s waiting for the result of record {future.index} of a batch to "
                    f"{self.topic}-{self.partition}"
                )
            part = self._part_of(future)
        return part.error_of(future)

    def _wait(self, timeout: float | None) -> bool:
        if self.is_done:
            return True
        # First the event, then the check: `_finish` does it the other way round.
        event: OneShotEvent = self.__dict__.setdefault("_event", OneShotEvent())
        return bool(self.is_done or self._parts) or event.wait(timeout)

    def wait_done(self, timeout: float | None = None) -> bool:
        """Wait until the batch, or all its parts, are done; False on timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._wait(timeout):
            return False
        return all(
            part.wait_done(None if deadline is None else max(0.0, deadline - time.monotonic())) for part in self._parts
        )

    def final_parts(self) -> list[ProducerBatch]:
        """Return the parts that the batch was finally split into, or itself."""
        return [last for part in self._parts for last in part.final_parts()] if self._parts else [self]

    def _part_of(self, future: RecordFuture) -> ProducerBatch:
        for part in reversed(self._parts):
            if future.index >= part.first_index:
                return part._part_of(future)
        return self

    def _metadata_of(self, future: RecordFuture) -> RecordMetadata:
        return RecordMetadata(
            self.topic,
            self.partition,
            self.base_offset + future.index - self.first_index if self.base_offset >= 0 else None,
            self.append_time if self.append_time >= 0 else future.timestamp,
            future.key_size,
            future.value_size,
        )

    def error_of(self, future: RecordFuture) -> Exception | None:
        """Return a record's error: its own if the broker said which records are invalid (KIP-467)."""
        if self.error is None or not self._record_errors:
            return self.error
        own = self._record_errors.get(future.index - self.first_index)
        if own is not None:
            # With several invalid records, it is unknown which of them the batch's code belongs to.
            of_batch = self.error.code if isinstance(self.error, BrokerError) else Code.INVALID_RECORD
            return BrokerError(own, code=of_batch if len(self._record_errors) == 1 else Code.INVALID_RECORD)
        return HeadraceError(f"not stored, because another record of its batch was rejected: {self.error}")

    def add_done_callback(self, future: RecordFuture, callback: Callable[[RecordFuture], object]) -> None:
        def forward(metadata: RecordMetadata | None, error: Exception | None) -> None:
            callback(future)

        with _done_lock:
            part = self._part_of(future)
            if not part.is_done:
                part.callbacks += (future, forward)
                return
        callback(future)

    async def wait_async(self, future: RecordFuture) -> RecordMetadata:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(_: RecordFuture) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if waiter.done() else waiter.set_result(None))

        if not self.done_for(future):
            self.add_done_callback(future, wake)
            await waiter
        return self.wait(future, 0)


def refused_future(topic: str, error: Exception, on_delivery: Delivery | None, now: float) -> RecordFuture:
    """Call the callback of a record that was not queued, and return its failed future."""
    batch = ProducerBatch(topic, UNKNOWN_PARTITION, bytearray(HEADER_BYTES), 0, now)
    batch.close()
    future = RecordFuture(batch, 0, NULL_SIZE, NULL_SIZE, NO_TIMESTAMP)
    if on_delivery is not None:
        batch.callbacks += (future, on_delivery)
    batch.fail(error)
    return future


class ProduceBatches:
    """The batches of one produce request: at most one for each partition."""

    def __init__(self, batches: list[ProducerBatch], cluster: Cluster) -> None:
        self.batches = batches
        self.by_topic: defaultdict[str, list[ProducerBatch]] = defaultdict(list)
        for batch in batches:
            self.by_topic[batch.topic].append(batch)
        self._ids = {topic: cluster.topic_id(topic) for topic in self.by_topic}

    def versions(self, transactions: TransactionManager | None) -> tuple[int, int]:
        """Return the lowest and the highest version of Produce that can carry the batches."""
        lowest = 0 if transactions is None else BATCHES_OF_MAGIC_2
        if transactions is not None and transactions.is_transactional and not transactions.v2_enabled:
            return lowest, V2_TRANSACTIONS - 1  # v12 would add partitions to the transaction implicitly
        return lowest, NEEDS_TOPIC_IDS if all(self._ids.values()) else NEEDS_TOPIC_IDS - 1

    def request(self, version: int, transactional_id: str | None, acks: int, timeout_ms: int) -> ProduceRequest:
        """Return the request in a version."""
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=tuple(
                TopicProduceData(
                    name=topic,
                    topic_id=self._ids[topic] or bytes(16),
                    partition_data=tuple(_partition_data(batch, version) for batch in batches),
                )
                for topic, batches in self.by_topic.items()
            ),
        )

    def results(self, response: ProduceResponse) -> Iterator[tuple[ProducerBatch, PartitionProduceResponse | None]]:
        """Yield each batch with its part of the response; last, with None, those that the response does not have."""
        names = {topic_id: topic for topic, topic_id in self._ids.items()}
        waiting = {(batch.topic, batch.partition): batch for batch in self.batches}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for partition in topic.partition_responses:
                batch = waiting.pop((name, partition.partition_index), None)
                if batch is not None:
                    yield batch, partition
        for batch in waiting.values():
            yield batch, None


def _partition_data(batch: ProducerBatch, version: int) -> PartitionProduceData:
    return PartitionProduceData(
        partition_index=batch.partition,
        records=batch.sealed if version >= BATCHES_OF_MAGIC_2 else batch.as_message_set(version),
    )


class OffsetRange(NamedTuple):
    """The offsets from `first` to `last`, inclusive."""

    first: int
    last: int


class ArrowDelivery:
    """The pending result of a `send_arrow`."""

    def __init__(self, batches: Sequence[ProducerBatch], refusal: Exception | None = None) -> None:
        self._batches = batches
        self.refusal = refusal
        """Why some rows were not queued, or None. Rows before them are sent."""

    @property
    def queued_rows(self) -> int:
        return sum(batch.record_count for batch in self._batches)

    def done(self) -> bool:
        return all(batch.wait_done(0) for batch in self._batches)

    def result(self, timeout: float | None = None) -> dict[int, list[OffsetRange]]:
        """Wait up to `timeout` seconds for all rows; returns partition → offset ranges, or raises the first error."""
        if self.refusal is not None:
            raise self.refusal
        deadline = None if timeout is None else time.monotonic() + timeout
        offsets: defaultdict[int, list[OffsetRange]] = defaultdict(list)
        for batch in self._batches:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not batch.wait_done(left):
                raise TimedOutError(
                    f"timed out after {timeout:g} s waiting for rows to {batch.topic}-{batch.partition}"
                )
            for part in batch.final_parts():
                if part.error is not None:
                    raise part.error
                if part.base_offset >= 0:
                    _extend(offsets[part.partition], part.base_offset, part.base_offset + part.record_count - 1)
        return dict(offsets)

    def __await__(self) -> Generator[Any, None, dict[int, list[OffsetRange]]]:
        return in_thread(self.result).__await__()


def _extend(ranges: list[OffsetRange], first: int, last: int) -> None:
    if ranges and ranges[-1].last + 1 == first:
        ranges[-1] = OffsetRange(ranges[-1].first, last)
    else:
        ranges.append(OffsetRange(first, last))
