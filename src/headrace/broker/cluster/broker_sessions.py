"""The sessions of brokers with the controller.

A session expires if no heartbeat arrives for broker.session.timeout.ms, or shortly after the connection of the last
heartbeat is closed: that means a killed process, while a paused or disconnected one keeps its connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.context import Session
from headrace.errors import BrokerError

log = logging.getLogger("headrace.broker")

CHECK_MS = 100.0
RETRY_MS = 1_000.0
RECONNECT_MS_MAX = 500.0
"""How long a session lasts without a connection."""


@dataclass(slots=True)
class _BrokerSession:
    deadline_ms: float
    connection: Session | None  # of the last heartbeat; None: closed


class BrokerSessions:
    """The sessions by node id. Event loop only."""

    def __init__(self, clock: TimerClock, timeout_ms: float, expired: Callable[[int], None]) -> None:
        """`expired` is called with the node id of a session that has just been removed."""
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._expired = expired
        self._sessions: dict[int, _BrokerSession] = {}
        self._timer: Timer | None = None
        self._checked_ms = 0.0

    def touch(self, node_id: int, connection: Session | None) -> None:
        """Start or extend a session; None if the broker has not connected yet."""
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        self._sessions[node_id] = _BrokerSession(deadline_ms, connection)
        if self._timer is None:
            self._check_later()

    def is_connected(self, node_id: int) -> bool:
        """Return whether the connection of the last heartbeat is open."""
        session = self._sessions.get(node_id)
        return session is not None and session.connection is not None

    def disconnected(self, connection: Session) -> None:
        """Shorten the session of a closed connection, if it belongs to a broker."""
        for session in self._sessions.values():
            if session.connection is connection:
                session.connection = None
                session.deadline_ms = min(session.deadline_ms, self._clock.monotonic_ms() + RECONNECT_MS_MAX)

    def forget(self, node_id: int) -> None:
        self._sessions.pop(node_id, None)

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
            # This process was stalled: heartbeats may be unread.
            for session in self._sessions.values():
                session.deadline_ms += stalled_ms
        self._check_later()
        for node_id in [node for node, session in self._sessions.items() if session.deadline_ms <= now_ms]:
            if self._sessions[node_id].deadline_ms <= now_ms:
                self._end(node_id, now_ms)

    def _end(self, node_id: int, now_ms: float) -> None:
        session = self._sessions.pop(node_id)
        try:
            self._expired(node_id)
        except BrokerError as error:  # the catalog cannot be written, for example because the disk is full
            log.error("failed to fence broker %d: %s; retrying in %g s", node_id, error, RETRY_MS / 1000)
            session.deadline_ms = now_ms + RETRY_MS
            self._sessions[node_id] = session
