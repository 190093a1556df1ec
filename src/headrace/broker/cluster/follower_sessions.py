"""Fetch sessions of followers, kept between their fetches (KIP-227, for followers only).

A follower names its partitions once, and after that only those whose position has changed, mostly the ones it has just
received records of. The leader marks partitions that were written, so that a fetch costs as much as has changed.

    append, high watermark ─► mark, mark_for_next ─┐
    fetch: partitions that changed ────────────────┴► due ─► read ─► unreported: the rows of the response
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.fetching import PartitionFetch, Read
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition

SESSION_ID_MAX = 2**31 - 1

TopicIdPartition = tuple[bytes, int]
"""A topic id and a partition index."""


class FollowerSession:
    """The fetch session of one follower. Event loop only."""

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.next_epoch = 1
        self.is_prompt = False  # a new high watermark completes a waiting fetch (KIP-1166)
        self._fetches: dict[TopicIdPartition, PartitionFetch] = {}
        self._ids: dict[TopicPartition, TopicIdPartition] = {}  # of the partitions that exist here
        self._reported: dict[TopicIdPartition, tuple[int, int]] = {}  # high watermark and start offset
        self._marked: set[TopicPartition] = set()
        self._waiting: asyncio.Future[None] | None = None

    # -- events of partitions --------------------------------------------------------------------

    def mark(self, key: TopicPartition) -> None:
        """Mark a partition with new records, and complete a waiting fetch."""
        self._marked.add(key)
        self._wake()

    def mark_for_next(self, key: TopicPartition) -> None:
        """Mark a partition for the next response; complete a waiting fetch only if the follower requests that."""
        self._marked.add(key)
        if self.is_prompt:
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            _complete(self._waiting)

    # -- requests --------------------------------------------------------------------------------

    def update(self, partition_id: TopicIdPartition, fetch: PartitionFetch) -> None:
        """Add a partition, or replace its position."""
        self.forget(partition_id)
        self._fetches[partition_id] = fetch
        if fetch.partition is not None:
            self._ids[fetch.partition.key] = partition_id
            fetch.partition.follower_sessions.append(self)

    def forget(self, partition_id: TopicIdPartition) -> None:
        """Remove a partition."""
        fetch = self._fetches.pop(partition_id, None)
        self._reported.pop(partition_id, None)
        if fetch is not None and fetch.partition is not None:
            partition = fetch.partition
            if self in partition.follower_sessions:
                partition.follower_sessions.remove(self)
            if self._ids.get(partition.key) == partition_id:
                del self._ids[partition.key]

    def close(self) -> None:
        for partition_id in [*self._fetches]:
            self.forget(partition_id)
        self._wake()

    def due(self, requested: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, PartitionFetch]:
        """Return the partitions to read: those of the request and those that are marked."""
        marked, self._marked = self._marked, set()
        due = {self._ids[key] for key in marked if key in self._ids}
        due.update(requested)
        return {partition_id: self._fetches[partition_id] for partition_id in due if partition_id in self._fetches}

    def wait(self, clock: TimerClock, timeout_ms: float) -> Coroutine[Any, Any, None]:
        """Wait until a partition is marked, or for the timeout. Marks count from this call on."""
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        timer = clock.call_later(timeout_ms, _complete, waiting)
        if self.is_prompt and self._marked:
            _complete(waiting)  # this fetch itself has advanced a high watermark
        return self._await_mark(waiting, timer)

    async def _await_mark(self, waiting: asyncio.Future[None], timer: Timer) -> None:
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def unreported(
        self, due: dict[TopicIdPartition, PartitionFetch], reads: Sequence[Read]
    ) -> list[tuple[TopicIdPartition, PartitionFetch, Read]]:
        """Return the reads with news for the follower; partitions that did not fit are marked again."""
        rows = []
        for (partition_id, fetch), read in zip(due.items(), reads, strict=True):
            partition = fetch.partition
            is_empty = not len(read.data) and read.diverging is None and not read.error_code
            if is_empty and partition is not None and partition.log.end_offset > fetch.offset:
                self._marked.add(partition.key)
            offsets = (read.high_watermark, read.start_offset)
            if is_empty and self._reported.get(partition_id) == offsets:
                continue
            self._reported[partition_id] = offsets
            rows.append((partition_id, fetch, read))
        return rows


class FollowerSessions:
    """The sessions by follower; a new session replaces the one before."""

    def __init__(self) -> None:
        self._by_node: dict[int, FollowerSession] = {}
        self._last_id = 0

    def find(self, node_id: int, session_id: int, epoch: int) -> FollowerSession:
        """Return the session of a fetch; epoch 0 begins a new one."""
        session = self._by_node.get(node_id)
        if epoch == 0:
            if session is not None:
                session.close()
            self._last_id = self._last_id % SESSION_ID_MAX + 1
            session = self._by_node[node_id] = FollowerSession(self._last_id)
            return session
        if session is None or session.id != session_id:
            raise BrokerError(
                f"unknown fetch session {session_id} of broker {node_id}", code=Code.FETCH_SESSION_ID_NOT_FOUND
            )
        if epoch != session.next_epoch:
            raise BrokerError(
                f"invalid fetch session epoch {epoch} of broker {node_id}: expected {session.next_epoch}",
                code=Code.INVALID_FETCH_SESSION_EPOCH,
            )
        session.next_epoch += 1
        return session

    def close(self) -> None:
        """Close all sessions and complete their waiting fetches."""
        for session in self._by_node.values():
            session.close()
        self._by_node.clear()


def _complete(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
