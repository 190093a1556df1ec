"""Fetch sessions (KIP-227): the broker keeps the partitions of a fetch, and later fetches contain the changes only.

Partitions that were written are marked, so that a fetch costs as much as has changed, whatever its session contains.

    high watermark, leader, deletion ─► mark ─┐
    fetch: partitions that changed ───────────┴► due ─► read ─► unreported: the rows of the response

The sessions of followers, which are marked by appends, are in `cluster/follower_sessions.py`.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.fetching import PartitionFetch, Read
from headrace.broker.partition import Partition
from headrace.errors import BrokerError, Code

NO_SESSION = 0
NEW_SESSION_EPOCH = 0
SESSION_ID_MAX = EPOCH_MAX = 0x7FFFFFFF
EVICTION_MS = 120_000.0
"""How old or idle a session must be before another one may take its slot, as in Kafka."""

SessionKey = tuple[bytes | str, int]
"""A topic id, or before version 13 a topic name, and a partition index."""


class FetchSession(ABC):
    """The partitions of a client's or follower's fetches. Event loop only."""

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.next_epoch = 1
        self._fetches: dict[SessionKey, PartitionFetch] = {}
        self._partitions: dict[SessionKey, Partition] = {}  # those that mark this session
        self._reported: dict[SessionKey, tuple[int, int]] = {}  # high watermark and start offset
        self._marked: set[SessionKey] = set()
        self._waiting: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._fetches)

    @staticmethod
    @abstractmethod
    def _sessions_of(partition: Partition) -> dict[Any, SessionKey]:
        """Return the sessions that a partition marks."""

    # -- requests --------------------------------------------------------------------------------

    def begin_fetch(self, epoch: int) -> None:
        """Check the epoch of a request; a fetch that still waits is completed."""
        if epoch != self.next_epoch:
            raise BrokerError(
                f"invalid epoch {epoch} of fetch session {self.id}: expected {self.next_epoch}",
                code=Code.INVALID_FETCH_SESSION_EPOCH,
            )
        self.next_epoch = epoch + 1 if epoch < EPOCH_MAX else 1
        self._wake()

    def update(self, key: SessionKey, fetch: PartitionFetch) -> None:
        """Add a partition, or replace its position."""
        self._fetches[key] = fetch
        partition = fetch.partition
        if partition is not None and self._partitions.get(key) is not partition:
            self._leave(key)
            self._partitions[key] = partition
            self._sessions_of(partition)[self] = key

    def forget(self, key: SessionKey) -> None:
        """Remove a partition."""
        self._fetches.pop(key, None)
        self._reported.pop(key, None)
        self._leave(key)

    def _leave(self, key: SessionKey) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._sessions_of(partition).pop(self, None)

    def close(self) -> None:
        for key in [*self._fetches]:
            self.forget(key)
        self._wake()

    def due(self, requested: Iterable[SessionKey]) -> dict[SessionKey, PartitionFetch]:
        """Return the partitions to read: those of the request and those that are marked."""
        due, self._marked = self._marked, set()
        due.update(requested)
        return {key: self._fetches[key] for key in due if key in self._fetches}

    def unreported(
        self, due: Mapping[SessionKey, PartitionFetch], reads: Sequence[Read], end: Callable[[Partition], int]
    ) -> list[tuple[SessionKey, PartitionFetch, Read]]:
        """Return the reads with news. Partitions with more to read, or with errors, are marked for the next fetch.

        A partition whose records were returned is among them: if the reader has dropped the records, it fetches the
        same offset again, which it does not repeat in its request.
        """
        rows = []
        for (key, fetch), read in zip(due.items(), reads, strict=True):
            is_special = bool(read.error_code) or read.diverging is not None or read.preferred_replica >= 0
            if is_special or (fetch.partition is not None and end(fetch.partition) > fetch.offset):
                self._marked.add(key)
            offsets = (read.high_watermark, read.start_offset)
            if is_special or len(read.data) or self._reported.get(key) != offsets:
                self._reported[key] = offsets
                rows.append((key, fetch, read))
        return rows

    # -- waiting ---------------------------------------------------------------------------------

    def _wait(self, clock: TimerClock, timeout_ms: float) -> Coroutine[Any, Any, None]:
        """Wait for `_wake`, or for the timeout. Counting starts with this call."""
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        return self._await_wake(waiting, clock.call_later(timeout_ms, _complete, waiting))

    async def _await_wake(self, waiting: asyncio.Future[None], timer: Timer) -> None:
        try:
            await waiting
        finally:
            timer.cancel()
            if self._waiting is waiting:
                self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None:
            _complete(self._waiting)


class ClientSession(FetchSession):
    """The fetch session of a consumer."""

    def __init__(self, session_id: int, *, by_id: bool, now_ms: float, acls_version: int) -> None:
        super().__init__(session_id)
        self.by_id = by_id  # its requests contain topic ids, not names
        self.created_ms = self.used_ms = now_ms
        self._acls_version = acls_version
        self._missing_bytes = 0
        self._written: dict[SessionKey, int] = {}  # while a fetch waits

    @staticmethod
    def _sessions_of(partition: Partition) -> dict[ClientSession, SessionKey]:
        return partition.client_sessions

    def mark(self, key: SessionKey) -> None:
        """Read a partition with the next response; complete a waiting fetch if enough was written."""
        self._marked.add(key)
        fetch = self._fetches.get(key)
        if self._waiting is None or fetch is None or fetch.partition is None:
            return
        # Without growth, something else has changed, or retention has removed more than was written: assume enough.
        grown = fetch.partition.log.size_bytes - fetch.size_bytes
        self._written[key] = grown if grown > 0 else self._missing_bytes
        if sum(self._written.values()) >= self._missing_bytes:
            self._wake()

    def check_acls(self, version: int) -> None:
        """Mark all partitions if ACLs have changed, so that their permissions are checked again."""
        if version != self._acls_version:
            self._acls_version = version
            self._marked.update(self._fetches)

    def wait(self, clock: TimerClock, timeout_ms: float, missing_bytes: int) -> Coroutine[Any, Any, None]:
        """Wait until `missing_bytes` more can be read, a partition has changed otherwise, or for the timeout."""
        self._missing_bytes = missing_bytes
        self._written = {}
        return self._wait(clock, timeout_ms)


class ClientSessions:
    """The fetch sessions of consumers, at most max.incremental.fetch.session.cache.slots."""

    def __init__(self, clock: TimerClock, slots: int) -> None:
        self._clock = clock
        self._slots = slots
        self._by_id: OrderedDict[int, ClientSession] = OrderedDict()  # the least recently used one first

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, partition_count: int, *, by_id: bool, acls_version: int) -> ClientSession | None:
        """Return a new session; None if there is no room: the client sends all partitions again, then."""
        now_ms = self._clock.monotonic_ms()
        if len(self._by_id) >= self._slots and not self._evict(partition_count, now_ms):
            return None
        # Random: after a restart of the broker, the session of one client must not match the id of another.
        session_id = random.randint(1, SESSION_ID_MAX)
        while session_id in self._by_id:
            session_id = random.randint(1, SESSION_ID_MAX)
        session = ClientSession(session_id, by_id=by_id, now_ms=now_ms, acls_version=acls_version)
        self._by_id[session_id] = session
        return session

    def _evict(self, partition_count: int, now_ms: float) -> bool:
        """Close an idle session, or an old one with fewer partitions; return whether there is room now."""
        if not self._by_id:
            return False
        oldest = next(iter(self._by_id.values()))
        if now_ms - oldest.used_ms > EVICTION_MS:
            self.remove(oldest.id)
            return True
        old = [session for session in self._by_id.values() if now_ms - session.created_ms > EVICTION_MS]
        smallest = min(old, key=len, default=None)
        if smallest is None or len(smallest) >= partition_count:
            return False
        self.remove(smallest.id)
        return True

    def continued(self, session_id: int, epoch: int, *, by_id: bool) -> ClientSession:
        """Return the session of an incremental fetch."""
        session = self._by_id.get(session_id)
        if session is None:
            raise BrokerError(f"unknown fetch session {session_id}", code=Code.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id is not by_id:
            raise BrokerError(
                f"fetch session {session_id} cannot change between topic names and ids",
                code=Code.FETCH_SESSION_TOPIC_ID_ERROR,
            )
        session.begin_fetch(epoch)
        session.used_ms = self._clock.monotonic_ms()
        self._by_id.move_to_end(session_id)
        return session

    def remove(self, session_id: int) -> None:
        """Close a session. Idempotent."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            session.close()


def _complete(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
