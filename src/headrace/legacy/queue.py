"""The asynchronous part of the 0.8 producer: a bounded message queue, and the thread that sends its batches.

    queue.enqueue.timeout.ms   0          fail at once: QueueFullError
                               negative   wait for room, for as long as the queue is open
                               positive   wait that long, then QueueFullError

The thread is woken when a batch is complete, not for every message.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from itertools import chain
from typing import Protocol

from headrace.config.clock import Clock, SystemClock
from headrace.errors import ClosedError, HeadraceError
from headrace.legacy.messages import FIELDS, KeyedMessage, Messages

log = logging.getLogger("headrace")

WAIT_MS_MAX = 1000.0
"""The longest single wait; a longer one is made of several."""
_NEVER = sys.maxsize


class QueueFullError(HeadraceError):
    """The queue had no room within `queue.enqueue.timeout.ms`; `dropped_count` messages were dropped."""

    _fields = ("dropped_count",)

    def __init__(self, message: str, *, dropped_count: int) -> None:
        super().__init__(message)
        self.dropped_count = dropped_count


class WaitingClock(Clock, Protocol):
    """A clock with waits, so that tests control the time that passes in a waiting thread."""

    def sleep_ms(self, ms: float) -> None: ...

    def wait_ms(self, condition: threading.Condition, ms: float) -> None:
        """Wait to be notified; the caller holds the condition."""
        ...


class SystemWaitingClock(SystemClock):
    """The system clock."""

    def sleep_ms(self, ms: float) -> None:
        time.sleep(ms / 1000.0)

    def wait_ms(self, condition: threading.Condition, ms: float) -> None:
        condition.wait(ms / 1000.0)


SYSTEM_WAITING_CLOCK = SystemWaitingClock()


class MessageQueue:
    """`queue.buffering.max.messages` messages. Any number of threads put, one takes.

    `put` works without the lock, which would double its cost. It relies on two facts: the fields of a message are
    appended atomically, at the end only; and the taker sets `_awaited` before it checks the length, while a putter
    reads it after appending. Threads that see the last free slot at the same moment all use it, so the queue may exceed
    its limit by the number of those threads.
    """

    def __init__(self, messages_max: int, enqueue_timeout_ms: float, clock: WaitingClock) -> None:
        self.messages_max = messages_max
        self.enqueue_timeout_ms = enqueue_timeout_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._has_batch = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._fields: list[object] = []  # Of all messages. Removed with _lock only.
        self._fields_max = messages_max * FIELDS  # Changed with _lock only. 0: closed.
        self._awaited = _NEVER  # Changed with _lock only: the number of fields that wakes the taker.
        self._is_drained = False  # Guarded by _lock: closed and empty.

    def __len__(self) -> int:
        return len(self._fields) // FIELDS

    @property
    def is_closed(self) -> bool:
        return self._fields_max == 0

    def put(self, message: KeyedMessage) -> None:
        """Append a message; wait for room if the queue is full."""
        fields = self._fields
        if len(fields) >= self._fields_max:
            with self._lock:
                self._wait_for_room(1)
        fields += message
        if len(fields) >= self._awaited:
            with self._lock:
                if self._is_drained:  # closed since the length was checked
                    raise self._closed_error(1)
                self._wake_taker()

    def put_all(self, messages: Sequence[KeyedMessage]) -> None:
        """Append messages in order. If one finds no room, it and all following ones are dropped."""
        with self._lock:
            put_count = 0
            while put_count < len(messages):
                if len(self._fields) >= self._fields_max:
                    self._wait_for_room(len(messages) - put_count)
                some = messages[put_count : put_count + max(self.messages_max - len(self), 1)]
                # Extending with a list is atomic; with an iterator other threads could append in between.
                self._fields += list(chain.from_iterable(some))
                put_count += len(some)
                if len(self._fields) >= self._awaited:
                    self._wake_taker()

    def take(self, count_max: int, wait_ms: float) -> Messages[object] | None:
        """Return a full batch as soon as there is one, or fewer messages after `wait_ms` or if the queue is closed.

        Returns None if the queue is closed and empty.
        """
        with self._lock:
            self._wait_for_batch(count_max * FIELDS, wait_ms)
            count = min(len(self), count_max)
            taken = Messages[object].of_flat(self._fields, count * FIELDS)
            del self._fields[: count * FIELDS]
            self._has_room.notify(count)
            self._is_drained = self.is_closed and not count
            return None if self._is_drained else taken

    def close(self) -> None:
        """Refuse further messages; those in the queue can still be taken."""
        with self._lock:
            self._fields_max = self._awaited = 0
            self._has_batch.notify_all()
            self._has_room.notify_all()

    def discard(self) -> int:
        """Drop all messages, and return their number."""
        with self._lock:
            count = len(self)
            del self._fields[: count * FIELDS]
            return count

    def _wait_for_batch(self, fields: int, wait_ms: float) -> None:
        deadline = self._clock.monotonic_ms() + wait_ms
        while not self.is_closed:
            self._awaited = fields
            left_ms = deadline - self._clock.monotonic_ms()
            if len(self._fields) >= fields or left_ms <= 0:
                self._awaited = _NEVER
                break
            self._clock.wait_ms(self._has_batch, min(left_ms, WAIT_MS_MAX))

    def _wake_taker(self) -> None:
        if not self.is_closed:
            self._awaited = _NEVER
        self._has_batch.notify()

    def _wait_for_room(self, count: int) -> None:
        """Wait with the lock held; an error names `count` as the number of dropped messages."""
        timeout_ms = self.enqueue_timeout_ms
        started = self._clock.monotonic_ms()
        while len(self._fields) >= self._fields_max:
            if self.is_closed:
                raise self._closed_error(count)
            left_ms = WAIT_MS_MAX if timeout_ms < 0 else started + timeout_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise self._full_error(count)
            self._clock.wait_ms(self._has_room, min(left_ms, WAIT_MS_MAX))

    def _closed_error(self, count: int) -> ClosedError:
        return ClosedError(f"the producer is closed; {count} messages were not sent")

    def _full_error(self, dropped_count: int) -> QueueFullError:
        waited = f" for {self.enqueue_timeout_ms:.0f} ms" if self.enqueue_timeout_ms else ""
        return QueueFullError(
            f"queue full{waited} (queue.buffering.max.messages={self.messages_max}), {dropped_count} dropped: "
            "send more slowly, raise the limit, or let send wait (queue.enqueue.timeout.ms; -1 waits without a limit)",
            dropped_count=dropped_count,
        )


class BatchHandler(Protocol):
    """Sends batches."""

    def handle(self, messages: Messages[object]) -> None: ...

    def close(self) -> None: ...


class SendThread(threading.Thread):
    """Sends a batch when it is full or old enough; closes the handler when the queue is closed and empty.

    The age is measured from the last send, as in 0.8: `queue.buffering.max.ms` is the longest time a message waits.
    """

    def __init__(
        self,
        name: str,
        queue: MessageQueue,
        handler: BatchHandler,
        *,
        batch_messages: int,
        age_ms_max: float,
        clock: WaitingClock,
    ) -> None:
        # A daemon: a program that exits without `close` must not hang; it gets a warning.
        super().__init__(name=name, daemon=True)
        self._queue = queue
        self._handler = handler
        self._batch_messages = batch_messages
        self._age_ms_max = age_ms_max
        self._clock = clock

    def run(self) -> None:
        try:
            self._send_until_closed()
        finally:
            self._handler.close()

    def _send_until_closed(self) -> None:
        last_send = self._clock.monotonic_ms()
        while (batch := self._queue.take(self._batch_messages, self._wait_ms(last_send))) is not None:
            if batch:
                self._handle(batch)
            last_send = self._clock.monotonic_ms()

    def _wait_ms(self, last_send: float) -> float:
        return self._age_ms_max - (self._clock.monotonic_ms() - last_send)

    def _handle(self, batch: Messages[object]) -> None:
        try:
            self._handler.handle(batch)
        except Exception:
            log.exception("sending a batch of %d messages failed, at least in part", len(batch))
