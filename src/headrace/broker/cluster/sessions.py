"""Which brokers the controller hears of.

A session ends when no heartbeat has come for broker.session.timeout.ms, or a little after the connection that brought
the last one is gone: a process that was killed leaves no doubt, one that is paused or cut off does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.clock import Clock, Timer
from headrace.broker.context import Session
from headrace.errors import BrokerError

log = logging.getLogger("headrace.broker")

CHECK_MS = 100.0
RETRY_MS = 1_000.0
RECONNECT_MS_MAX = 500.0
"""How long a broker may be without a connection before it counts as gone."""


@dataclass(slots=True)
class _Heard:
    deadline_ms: float
    connection: Session | None  # that the last heartbeat came by; None: it is gone


class Sessions:
    """By node id. Event loop only."""

    def __init__(self, clock: Clock, timeout_ms: float, ended: Callable[[int], None]) -> None:
        """`ended` is called with the broker whose session is over; it is forgotten by then."""
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._ended = ended
        self._heard: dict[int, _Heard] = {}
        self._timer: Timer | None = None
        self._checked_ms = 0.0

    def touch(self, node_id: int, connection: Session | None) -> None:
        """A broker was heard of; without a connection if it only ought to be."""
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        self._heard[node_id] = _Heard(deadline_ms, connection)
        if self._timer is None:
            self._check_later()

    def is_connected(self, node_id: int) -> bool:
        """Whether the connection of the last heartbeat is still there."""
        heard = self._heard.get(node_id)
        return heard is not None and heard.connection is not None

    def disconnected(self, connection: Session) -> None:
        """A connection of the broker's server is gone, be it of another broker or not."""
        for heard in self._heard.values():
            if heard.connection is connection:
                heard.connection = None
                heard.deadline_ms = min(heard.deadline_ms, self._clock.monotonic_ms() + RECONNECT_MS_MAX)

    def forget(self, node_id: int) -> None:
        self._heard.pop(node_id, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_later(self) -> None:
        self._checked_ms = self._clock.monotonic_ms()
        self._timer = self._clock.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        now_ms = self._clock.monotonic_ms()
        stalled_ms = now_ms - self._checked_ms - CHECK_MS
        if stalled_ms > RECONNECT_MS_MAX:
            # It is we who were away: their heartbeats may lie unread.
            for heard in self._heard.values():
                heard.deadline_ms += stalled_ms
        self._check_later()
        for node_id in [node for node, heard in self._heard.items() if heard.deadline_ms <= now_ms]:
            if self._heard[node_id].deadline_ms <= now_ms:
                self._end(node_id, now_ms)

    def _end(self, node_id: int, now_ms: float) -> None:
        heard = self._heard.pop(node_id)
        try:
            self._ended(node_id)
        except BrokerError as error:  # the catalog cannot be written: the disk is full, perhaps
            log.error("broker %d has gone, but cannot be fenced: %s; it is tried again", node_id, error)
            heard.deadline_ms = now_ms + RETRY_MS
            self._heard[node_id] = heard
