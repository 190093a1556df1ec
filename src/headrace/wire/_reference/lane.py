"""A topic's open batches, in plain Python. The compiled one needs no lock: it never gives up the GIL half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.wire._reference.checksums import murmur2
from headrace.wire.layout import Header


class RecordFuture:
    """The answer for one record, to come. All of it is in the batch; this only knows its place there."""

    __slots__ = ("batch", "index", "key_size", "timestamp", "value_size")

    def __init__(self, batch: Any, index: int, key_size: int, value_size: int, timestamp: int) -> None:
        self.batch = batch
        self.index = index
        self.key_size = key_size
        self.value_size = value_size
        self.timestamp = timestamp

    def done(self) -> bool:
        """True once there is a result or an error."""
        return bool(self.batch.done_for(self))

    def result(self, timeout: float | None = None) -> Any:
        """Wait (seconds) for the metadata of the record, or raise what became of it."""
        return self.batch.wait(self, timeout)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the error; None if there is none."""
        error: Exception | None = self.batch.wait_error(self, timeout)
        return error

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(future)` when done, on the I/O thread, or at once."""
        self.batch.add_done_callback(self, callback)

    def __await__(self) -> Any:
        return self.batch.wait_async(self).__await__()


class Lane:
    """A topic's open batches, one for each partition."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        record_bytes_max: int,
        hashes_keys: bool,
        lock: AbstractContextManager[Any],
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.open_batches: list[Any] = [None] * partition_count
        self.sticky = -1  # the partition of records without a key; -1: not chosen yet
        self._partition_count = partition_count
        self._record_bytes_max = record_bytes_max
        self._hashes_keys = hashes_keys
        self._lock = lock
        self._now_ms = now_ms

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Sequence[Header] | None,
        callback: Callable[..., object] | None,
    ) -> RecordFuture | None:
        """Put a record of bytes into the open batch of its partition.

        Returns its future, or None where that takes more: another kind of value, a partition that is not known, a
        batch that is full or not there.
        """
        with self._lock:
            return self.append_locked(key, value, partition, timestamp, headers, callback)

    def append_locked(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Sequence[Header] | None,
        callback: Callable[..., object] | None,
    ) -> RecordFuture | None:
        """`append` for a thread that holds the lock."""
        if (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
            return None
        if partition is None:
            hashed = key is not None and self._hashes_keys
            partition = (murmur2(key or b"") & 0x7FFFFFFF) % self._partition_count if hashed else self.sticky
        if not 0 <= partition < self._partition_count:
            return None
        key_size, value_size = -1 if key is None else len(key), -1 if value is None else len(value)
        batch = self.open_batches[partition]
        if batch is None or key_size + value_size > self._record_bytes_max:
            return None
        stamp = self._now_ms() if timestamp is None else timestamp
        if stamp < 0:
            return None
        index = batch.append(stamp, key, value, headers or ())
        if index < 0:
            return None
        future = RecordFuture(batch, index, key_size, value_size, stamp)
        if callback is not None:
            batch.callbacks += (future, callback)
        return future


class SendPath:
    """The short way of `send`, for a class to inherit: straight into the lane of the topic, if that will do."""

    lanes: dict[str, Lane]
    is_short: bool  # False: every record takes the long way

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] | Mapping[str, bytes | None] | None = None,
        on_delivery: Callable[[Any, Exception | None], object] | None = None,
    ) -> RecordFuture:
        """Queue a record and return its future at once, unless metadata or memory has to be waited for."""
        if self.is_short and headers is None:
            lane = self.lanes.get(topic)
            if lane is not None:
                future = lane.append(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
        return self._send(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Iterable[Header] | Mapping[str, bytes | None] | None,
        on_delivery: Callable[[Any, Exception | None], object] | None,
    ) -> RecordFuture:
        raise NotImplementedError


def run_callbacks(
    callbacks: list[Any],
    metadata_class: Callable[..., Any],
    topic: str,
    partition: int,
    base_offset: int,
    first_index: int,
    append_time: int,
) -> list[BaseException]:
    """Tell each callback the metadata of its future. Returns the errors that callbacks raised.

    `first_index` is that of the first record of the batch, where futures count from an earlier one.
    """
    errors: list[BaseException] = []
    for future, callback in zip(callbacks[::2], callbacks[1::2], strict=True):
        offset = base_offset + future.index - first_index if base_offset >= 0 else None
        stamp = append_time if append_time >= 0 else future.timestamp
        try:
            callback(metadata_class(topic, partition, offset, stamp, future.key_size, future.value_size), None)
        except BaseException as error:  # sys.exit() in a callback must not end the thread that runs it
            errors.append(error)
    return errors
