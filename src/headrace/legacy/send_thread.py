"""The thread of an async producer: takes batches from the queue, hands them to the handler, and never dies of one."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from headrace.legacy.messages import Messages
from headrace.legacy.queue import MessageQueue
from headrace.legacy.waiting import WaitingClock

log = logging.getLogger("headrace")


class Handler(Protocol):
    """What becomes of a batch."""

    def handle(self, messages: Messages[object]) -> None: ...

    def close(self) -> None: ...


class SendThread(threading.Thread):
    """Sends on count or age; ends when the queue is closed and empty, and closes the handler then.

    Age counts from the last send, as in 0.8: a message waits for `queue.buffering.max.ms` at most, not at least.
    """

    def __init__(
        self,
        name: str,
        queue: MessageQueue,
        handler: Handler,
        batch_messages: int,
        age_ms_max: float,
        clock: WaitingClock,
    ) -> None:
        # A program that ends without `close` must not hang here; it is warned of what it leaves behind.
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
                self._try_to_handle(batch)
            last_send = self._clock.monotonic_ms()

    def _wait_ms(self, last_send: float) -> float:
        return self._age_ms_max - (self._clock.monotonic_ms() - last_send)

    def _try_to_handle(self, batch: Messages[object]) -> None:
        try:
            self._handler.handle(batch)
        except Exception:
            log.exception("a batch of %d messages was not sent, or not all of it", len(batch))
