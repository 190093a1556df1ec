"""A batch of records on its way: open, closed, drained, in flight, done.

It is the kernel's `OpenBatch` (records are appended in compiled code) and all that the producer has to know besides.
What became of it is written once, by the I/O thread; the futures of its records read it from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.client.locks import OneShotEvent
from headrace.errors import BrokerError, Code, HeadraceError, TimedOutError, UnsupportedVersionError
from headrace.producer._send import RecordFuture, run_callbacks
from headrace.producer.records import NULL_SIZE, UNKNOWN_PARTITION, RecordMetadata
from headrace.wire import legacy
from headrace.wire import records as wire_records
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
    from headrace.wire._reference import OpenBatch
else:
    OpenBatch = kernel.OpenBatch

Delivery = Callable[[RecordMetadata | None, Exception | None], object]


# Guards the step from "not done" to "done" against threads that add a callback. One for all: it is held for a moment,
# once for each batch. Re-entrant, for a signal handler may add a callback, too.
_done_lock = threading.RLock()


class ProducerBatch(OpenBatch):
    """Records of one partition that are sent, retried and answered together."""

    # Defaults on the class: a batch is made for every few hundred records, and most of this never changes for it.
    # I/O thread only.
    attempts = 0
    in_flight = False
    sent_to = -1  # the broker of the last attempt
    sealed: memoryview | None = None
    producer_id = NO_PRODUCER_ID
    producer_epoch = NO_PRODUCER_EPOCH
    base_sequence = NO_SEQUENCE
    is_transactional = False
    sequence_was_reset = False
    _compression: tuple[int, int | None] = (0, None)
    was_encoded = False  # from columns, not record by record
    first_index = 0  # in the batch this one was split from
    # Written once under _done_lock.
    is_done = False
    base_offset = -1
    append_time = -1
    error: Exception | None = None
    _record_errors: Mapping[int, str] = MappingProxyType({})
    _parts: Sequence[ProducerBatch] = ()
    _event: OneShotEvent | None = None  # Made by the first thread that waits.
    callback_errors: Sequence[BaseException] = ()
    """What callbacks have raised; the caller of `complete` or `fail` tells it."""

    def __init__(self, topic: str, partition: int, buffer: bytearray, allocated_bytes: int, now: float) -> None:
        super().__init__(buffer)
        self.topic = topic
        self.partition = partition
        self.allocated_bytes = allocated_bytes  # what the pool wants back; 0: it is not the pool's
        self.created_ms = self.last_attempt_ms = now

    @classmethod
    def from_encoded(cls, topic: str, encoded: EncodedBatch, allocated_bytes: int, now: float) -> ProducerBatch:
        """A batch whose records were encoded from columns: closed from the start."""
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
        """Who writes it and where in the order it stands; a sealed batch is sealed again with it."""
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.base_sequence, self.is_transactional = base_sequence, transactional
        self.sealed = None

    def seal(self, codec: int, level: int | None) -> memoryview:
        """The bytes to send; made once for a producer state."""
        if self.sealed is None:
            self._compression = codec, level
            writer = wire_records.Producer(
                self.producer_id, self.producer_epoch, self.base_sequence, self.is_transactional
            )
            self.sealed = wire_records.seal(self, codec=codec, level=level, producer=writer)
            self.sequence_was_reset = False  # what goes out from here on has the new numbers
        return self.sealed

    def as_message_set(self, produce_version: int) -> bytes:
        """The same records for a broker from before 0.11: magic 1 with Produce v2, magic 0 before (P43)."""
        rows = self._rows()
        if any(row.headers for row in rows):
            raise UnsupportedVersionError(
                f"records to {self.topic}-{self.partition} have headers, which a broker that takes no more than "
                f"Produce v{produce_version} cannot store"
            )
        codec, level = self._compression
        return legacy.encode(rows, magic=1 if produce_version == 2 else 0, codec=codec, level=level)

    def _rows(self) -> list[Record]:
        return kernel.decode_records(
            memoryview(self.buffer)[HEADER_BYTES : self.size], self.record_count, 0, self.base_timestamp, -1
        )

    def split(self, now: float) -> list[ProducerBatch]:
        """The same records in batches of about half the size; futures and callbacks go with them."""
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
            event.set()  # whoever waits goes on waiting for its part
        return parts

    # -- the end -------------------------------------------------------------------------------

    def complete(self, base_offset: int, append_time: int) -> bool:
        """The broker has it. False if the batch was over already."""
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
            self.callbacks = []  # futures in it point back here
        return True

    def fail(self, error: Exception, record_errors: dict[int, str] | None = None) -> bool:
        """It will not be delivered. False if the batch was over already."""
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

    # -- what futures ask ----------------------------------------------------------------------

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
        while not part.is_done:  # it may be split while we wait, and the parts again
            if not part._wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimedOutError(
                    f"no answer for record {future.index} of a batch to {self.topic}-{self.partition} "
                    f"after {timeout:g} s"
                )
            part = self._part_of(future)
        return part.error_of(future)

    def _wait(self, timeout: float | None) -> bool:
        if self.is_done:
            return True
        # First the event, then the look: who ends the batch does it the other way round.
        event: OneShotEvent = self.__dict__.setdefault("_event", OneShotEvent())
        return bool(self.is_done or self._parts) or event.wait(timeout)

    def wait_done(self, timeout: float | None = None) -> bool:
        """Wait until it is over, with all it was split into; False if the time is up first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._wait(timeout):
            return False
        return all(
            part.wait_done(None if deadline is None else max(0.0, deadline - time.monotonic())) for part in self._parts
        )

    def final_parts(self) -> list[ProducerBatch]:
        """Itself, or what it was split into in the end."""
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
        """A record's own error where the broker named the culprits (KIP-467)."""
        if self.error is None or not self._record_errors:
            return self.error
        own = self._record_errors.get(future.index - self.first_index)
        if own is not None:
            # Of several culprits it is not known which of them the code of the batch speaks of.
            of_batch = self.error.code if isinstance(self.error, BrokerError) else Code.INVALID_RECORD
            return BrokerError(own, code=of_batch if len(self._record_errors) == 1 else Code.INVALID_RECORD)
        return HeadraceError(f"not stored, because another record of its batch was refused: {self.error}")

    def add_done_callback(self, future: RecordFuture, callback: Callable[[RecordFuture], object]) -> None:
        def forward(metadata: Any, error: Any) -> None:
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(lambda: None if waiter.done() else waiter.set_result(None))

        if not self.done_for(future):
            self.add_done_callback(future, wake)
            await waiter
        return self.wait(future, 0)


def refused_future(topic: str, error: Exception, on_delivery: Delivery | None, now: float) -> RecordFuture:
    """The future of a record that was not queued: it has failed already. Its callback is called here."""
    batch = ProducerBatch(topic, UNKNOWN_PARTITION, bytearray(HEADER_BYTES), 0, now)
    batch.close()
    future = RecordFuture(batch, 0, NULL_SIZE, NULL_SIZE, NO_TIMESTAMP)
    if on_delivery is not None:
        batch.callbacks += (future, on_delivery)
    batch.fail(error)
    return future
