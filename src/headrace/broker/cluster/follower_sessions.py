"""Fetch sessions of followers, kept between their fetches (KIP-227).

A follower names its partitions once, and after that only those whose position has changed, mostly the ones it has just
received records of. The leader marks partitions that were written.

    append, high watermark ─► mark, mark_for_next ─► FetchSession.due
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from headrace.broker.clock import TimerClock
from headrace.broker.fetch_sessions import NEW_SESSION_EPOCH, SESSION_ID_MAX, FetchSession, SessionKey
from headrace.broker.partition import Partition
from headrace.errors import BrokerError, Code


class FollowerSession(FetchSession):
    """The fetch session of one follower. Event loop only."""

    def __init__(self, session_id: int) -> None:
        super().__init__(session_id)
        self.is_prompt = False  # a new high watermark completes a waiting fetch (KIP-1166)

    @staticmethod
    def _sessions_of(partition: Partition) -> dict[FollowerSession, SessionKey]:
        return partition.follower_sessions

    def mark(self, key: SessionKey) -> None:
        """Mark a partition with new records, and complete a waiting fetch."""
        self._marked.add(key)
        self._wake()

    def mark_for_next(self, key: SessionKey) -> None:
        """Mark a partition for the next response; complete a waiting fetch only if the follower requests that."""
        self._marked.add(key)
        if self.is_prompt:
            self._wake()

    def wait(self, clock: TimerClock, timeout_ms: float) -> Coroutine[Any, Any, None]:
        """Wait until a partition is marked, or for the timeout. Marks count from this call on."""
        waiting = self._wait(clock, timeout_ms)
        if self.is_prompt and self._marked:
            self._wake()  # this fetch itself has advanced a high watermark
        return waiting


class FollowerSessions:
    """The sessions by follower; a new session replaces the one before."""

    def __init__(self) -> None:
        self._by_node: dict[int, FollowerSession] = {}
        self._last_id = 0

    def find(self, node_id: int, session_id: int, epoch: int) -> FollowerSession:
        """Return the session of a fetch; epoch 0 begins a new one."""
        session = self._by_node.get(node_id)
        if epoch == NEW_SESSION_EPOCH:
            if session is not None:
                session.close()
            self._last_id = self._last_id % SESSION_ID_MAX + 1
            session = self._by_node[node_id] = FollowerSession(self._last_id)
            return session
        if session is None or session.id != session_id:
            raise BrokerError(
                f"unknown fetch session {session_id} of broker {node_id}", code=Code.FETCH_SESSION_ID_NOT_FOUND
            )
        session.begin_fetch(epoch)
        return session

    def close(self) -> None:
        """Close all sessions and complete their waiting fetches."""
        for session in self._by_node.values():
            session.close()
        self._by_node.clear()
