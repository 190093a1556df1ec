"""Where messages wait for the send thread: a bounded queue, and what becomes of who finds it full.

    queue.enqueue.timeout.ms   0          not taken: QueueFullError
                               negative   waits for room, as long as the queue is open
                               positive   waits that long, then QueueFullError

The thread is woken when a batch is complete, not for every message.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from itertools import chain

from headrace.errors import ClosedError
from headrace.legacy.errors import QueueFullError
from headrace.legacy.messages import FIELDS, KeyedMessage, Messages
from headrace.legacy.waiting import WAIT_MS_MAX, WaitingClock

_NEVER = sys.maxsize


class MessageQueue:
    """`queue.buffering.max.messages` messages. Any number of threads put, one takes.

    `put` does without the lock, which would cost as much as the rest of it. What it relies on: the fields of a message
    are appended in one step of the interpreter, and only ever to the end; who takes says what is awaited before
    looking, and who puts looks at that after having put. Threads that find the last place free at the same moment all
    take it: there may be more messages than allowed by as many.
    """

    def __init__(self, messages_max: int, enqueue_timeout_ms: float, clock: WaitingClock) -> None:
        self.messages_max = messages_max
        self.enqueue_timeout_ms = enqueue_timeout_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._has_batch = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._fields: list[object] = []  # of the messages. Taken away, and looked at for good, with _lock only.
        self._fields_max = messages_max * FIELDS  # Changed with _lock only. 0: closed.
        self._awaited = _NEVER  # Changed with _lock only: how many fields somebody wants to hear of.
        self._is_over = False  # Guarded by _lock: closed, and found empty.

    def __len__(self) -> int:
        return len(self._fields) // FIELDS

    @property
    def is_closed(self) -> bool:
        return self._fields_max == 0

    def put(self, message: KeyedMessage) -> None:
        """Append a message, if need be after waiting for room."""
        fields = self._fields
        if len(fields) >= self._fields_max:
            with self._lock:
                self._wait_for_room(1)
        fields += message
        if len(fields) >= self._awaited:
            with self._lock:
                if self._is_over:  # closed between our first look and now
                    raise self._closed(1)
                self._wake_taker()

    def put_all(self, messages: Sequence[KeyedMessage]) -> None:
        """The same for many, in their order. At the first that finds no room the rest is dropped with it."""
        with self._lock:
            put_count = 0
            while put_count < len(messages):
                if len(self._fields) >= self._fields_max:
                    self._wait_for_room(len(messages) - put_count)
                some = messages[put_count : put_count + max(self.messages_max - len(self), 1)]
                # A list first: to draw on an iterator is many steps, and others put in between.
                self._fields += list(chain.from_iterable(some))
                put_count += len(some)
                if len(self._fields) >= self._awaited:
                    self._wake_taker()

    def take(self, count_max: int, wait_ms: float) -> Messages[object] | None:
        """A whole batch as soon as there is one; else what has come when the time is up, or the queue is closed.

        None: it is closed and empty, and there will never be more.
        """
        with self._lock:
            self._wait_for_batch(count_max * FIELDS, wait_ms)
            count = min(len(self), count_max)
            taken = Messages[object].of_flat(self._fields, count * FIELDS)
            del self._fields[: count * FIELDS]
            self._has_room.notify(count)
            self._is_over = self.is_closed and not count
            return None if self._is_over else taken

    def close(self) -> None:
        """Nothing more goes in. What is in is still to be taken."""
        with self._lock:
            self._fields_max = self._awaited = 0
            self._has_batch.notify_all()
            self._has_room.notify_all()

    def discard(self) -> int:
        """Forget what is in it; how many those were."""
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
            self._awaited = _NEVER  # once is enough
        self._has_batch.notify()

    def _wait_for_room(self, wanted_count: int) -> None:
        """With the lock held. `wanted_count` messages are lost if there is none in time."""
        timeout_ms = self.enqueue_timeout_ms
        started = self._clock.monotonic_ms()
        while len(self._fields) >= self._fields_max:
            if self.is_closed:
                raise self._closed(wanted_count)
            left_ms = WAIT_MS_MAX if timeout_ms < 0 else started + timeout_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise self._full(wanted_count)
            self._clock.wait_ms(self._has_room, min(left_ms, WAIT_MS_MAX))

    def _closed(self, wanted_count: int) -> ClosedError:
        return ClosedError(f"the producer was closed; {wanted_count} messages were not taken")

    def _full(self, dropped_count: int) -> QueueFullError:
        waited = f"for {self.enqueue_timeout_ms:.0f} ms" if self.enqueue_timeout_ms else "and nothing may wait"
        return QueueFullError(
            f"the queue is full ({self.messages_max} messages) {waited}: {dropped_count} dropped; send more slowly, "
            "raise queue.buffering.max.messages, or let send wait (queue.enqueue.timeout.ms; -1: as long as it takes)",
            dropped_count=dropped_count,
        )
