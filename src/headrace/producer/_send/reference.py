"""The part of `send()` that runs for every record, in plain Python: the definition of what `compiled.pyx` does."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.producer.records import Delivery, Headers, RecordMetadata
from headrace.wire._reference.checksums import murmur2
from headrace.wire.layout import Header


class RecordFuture:
    """The pending result of one record. The batch has the result; the future has the record's index in the batch."""

    __slots__ = ("batch", "index", "key_size", "timestamp", "value_size")

    def __init__(self, batch: Any, index: int, key_size: int, value_size: int, timestamp: int) -> None:
        self.batch: Any = batch
        self.index: int = index
        self.key_size: int = key_size
        self.value_size: int = value_size
        self.timestamp: int = timestamp

    def done(self) -> bool:
        """Return True once there is a result or an error."""
        return bool(self.batch.done_for(self))

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds for the record's metadata, or raise the error of the send."""
        metadata: RecordMetadata = self.batch.wait(self, timeout)
        return metadata

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait up to `timeout` seconds for the error of the send; None if the record was delivered."""
        error: Exception | None = self.batch.wait_error(self, timeout)
        return error

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(future)` when done: on the I/O thread, or at once if it is done already."""
        self.batch.add_done_callback(self, callback)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        metadata: Generator[Any, None, RecordMetadata] = self.batch.wait_async(self).__await__()
        return metadata


class TopicAppender:
    """The open batches of a topic, one for each partition."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        *,
        record_bytes_max: int,
        hashes_keys: bool,
        lock: AbstractContextManager[Any],
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.open_batches: list[Any] = [None] * partition_count
        self.sticky_partition = -1  # of records without a key; -1: not chosen yet
        self._partition_count = partition_count
        self._record_bytes_max = record_bytes_max
        self._hashes_keys = hashes_keys
        self._lock = lock
        self._now_ms = now_ms

    def retire(self) -> None:
        """Accept no more records: another appender takes over, or the producer is unusable."""
        self.open_batches = [None] * self._partition_count

    def try_append(
        self,
        key: object,
        value: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header] | None,
        on_delivery: Delivery | None,
    ) -> RecordFuture | None:
        """Append a record to the open batch of its partition and return its future.

        Return None where more is needed: a key or value that is not bytes, an unknown partition, no open batch, or
        no room in it.
        """
        with self._lock:
            return self.try_append_locked(key, value, partition, timestamp_ms, headers, on_delivery)

    def try_append_locked(
        self,
        key: object,
        value: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header] | None,
        on_delivery: Delivery | None,
    ) -> RecordFuture | None:
        """`try_append` for a thread that holds the topic's lock."""
        if (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
            return None
        if partition is None:
            is_hashed = key is not None and self._hashes_keys
            partition = (
                (murmur2(key or b"") & 0x7FFFFFFF) % self._partition_count if is_hashed else self.sticky_partition
            )
        if not 0 <= partition < self._partition_count:
            return None
        key_size, value_size = -1 if key is None else len(key), -1 if value is None else len(value)
        batch = self.open_batches[partition]
        if batch is None or key_size + value_size > self._record_bytes_max:
            return None
        timestamp = self._now_ms() if timestamp_ms is None else timestamp_ms
        if timestamp < 0:
            return None
        index = batch.append(timestamp, key, value, headers or ())
        if index < 0:
            return None
        future = RecordFuture(batch, index, key_size, value_size, timestamp)
        if on_delivery is not None:
            batch.callbacks += (future, on_delivery)
        return future


class FastSend:
    """A base class with the fast path of `send`: append to the open batch if that is all that is needed."""

    _appenders: dict[str, TopicAppender]
    _fast_send_enabled: bool  # False: every record goes through `_send`

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
        """Queue a record and return its future at once. Blocks only for metadata and memory, up to max.block.ms."""
        if self._fast_send_enabled and headers is None:
            appender = self._appenders.get(topic)
            if appender is not None:
                future = appender.try_append(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
        return self._send(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    def _send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        on_delivery: Delivery | None,
    ) -> RecordFuture:
        raise NotImplementedError


def run_callbacks(
    callbacks: list[Any],
    metadata_class: type[RecordMetadata],
    topic: str,
    partition: int,
    base_offset: int,
    first_index: int,
    append_time: int,
) -> list[BaseException]:
    """Call each delivery callback with the metadata of its record. Return the exceptions that callbacks raised.

    `first_index` is the index of the batch's first record: above 0 if the batch was split off another one.
    """
    errors: list[BaseException] = []
    for future, callback in zip(callbacks[::2], callbacks[1::2], strict=True):
        offset = base_offset + future.index - first_index if base_offset >= 0 else None
        timestamp = append_time if append_time >= 0 else future.timestamp
        try:
            callback(metadata_class(topic, partition, offset, timestamp, future.key_size, future.value_size), None)
        except BaseException as error:  # sys.exit() in a callback must not end the thread that runs it
            errors.append(error)
    return errors
