"""What followers want of this broker, kept between their fetches (KIP-227, for followers only).

A follower names its partitions once, and after that only those of which it wants something else than before: mostly
the ones that it has just got records of. The leader marks what was written, so that a fetch costs what has happened,
and not what there is.

    append, high watermark ─► mark, note ─┐
    fetch: rows that changed ─────────────┴► due ─► read ─► an answer with what is new
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from headrace.broker.clock import Clock
from headrace.broker.fetching import PartitionFetch, Read
from headrace.broker.replica_manager import Key
from headrace.errors import BrokerError, Code

SESSION_ID_MAX = 2**31 - 1

Place = tuple[bytes, int]
"""The id of a topic, and the index of a partition."""


class FollowerSession:
    """One follower, as it knows us. Event loop only."""

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.next_epoch = 1
        self.is_prompt = False  # it wants to hear of high watermarks at once (KIP-1166)
        self._wanted: dict[Place, PartitionFetch] = {}
        self._places: dict[Key, Place] = {}  # of those that are here
        self._told: dict[Place, tuple[int, int]] = {}  # the high watermark and the start that it has heard of
        self._marked: set[Key] = set()
        self._waiting: asyncio.Future[None] | None = None

    # -- what happens here -----------------------------------------------------------------------

    def mark(self, key: Key) -> None:
        """There is something for it: a fetch that waits is answered."""
        self._marked.add(key)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            _end(self._waiting)

    def note(self, key: Key) -> None:
        """There is something to be said with the next answer; that is now, for a follower which others read from."""
        self._marked.add(key)
        if self.is_prompt:
            self._wake()

    # -- what it asks for ------------------------------------------------------------------------

    def take(self, place: Place, wanted: PartitionFetch) -> None:
        """It wants something of a partition, or something else than before."""
        self.forget(place)
        self._wanted[place] = wanted
        if wanted.partition is not None:
            self._places[wanted.partition.key] = place
            wanted.partition.sessions.append(self)

    def forget(self, place: Place) -> None:
        """It wants nothing of it any more."""
        wanted = self._wanted.pop(place, None)
        self._told.pop(place, None)
        if wanted is not None and wanted.partition is not None:
            partition = wanted.partition
            if self in partition.sessions:
                partition.sessions.remove(self)
            if self._places.get(partition.key) == place:
                del self._places[partition.key]

    def close(self) -> None:
        for place in [*self._wanted]:
            self.forget(place)
        self._wake()

    def due(self, asked: Iterable[Place]) -> dict[Place, PartitionFetch]:
        """What has to be looked at: what it has asked for just now, and what was marked."""
        marked, self._marked = self._marked, set()
        places = {self._places[key] for key in marked if key in self._places}
        places.update(asked)
        return {place: self._wanted[place] for place in places if place in self._wanted}

    async def wait(self, clock: Clock, timeout_ms: float) -> None:
        """Until something is marked, or time is up."""
        if self.is_prompt and self._marked:
            return  # what it has just told us has raised a high watermark
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        timer = clock.call_later(timeout_ms, _end, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def news(self, due: dict[Place, PartitionFetch], reads: Sequence[Read]) -> list[tuple[Place, PartitionFetch, Read]]:
        """What of it the follower has not heard yet. What there was no room for comes next."""
        rows = []
        for (place, wanted), read in zip(due.items(), reads, strict=True):
            partition = wanted.partition
            silent = not len(read.data) and read.diverging is None and not read.error_code
            if silent and partition is not None and partition.log.end_offset > wanted.offset:
                self._marked.add(partition.key)
            known = (read.high_watermark, read.start_offset)
            if silent and self._told.get(place) == known:
                continue
            self._told[place] = known
            rows.append((place, wanted, read))
        return rows


class FollowerSessions:
    """One for each follower: who begins again leaves what was before."""

    def __init__(self) -> None:
        self._by_node: dict[int, FollowerSession] = {}
        self._last_id = 0

    def find(self, node_id: int, session_id: int, epoch: int) -> FollowerSession:
        """The session of a fetch; a new one if it begins one."""
        found = self._by_node.get(node_id)
        if epoch == 0:
            if found is not None:
                found.close()
            self._last_id = self._last_id % SESSION_ID_MAX + 1
            found = self._by_node[node_id] = FollowerSession(self._last_id)
            return found
        if found is None or found.id != session_id:
            raise BrokerError(f"broker {node_id} has no session here", code=Code.FETCH_SESSION_ID_NOT_FOUND)
        if epoch != found.next_epoch:
            raise BrokerError(
                f"fetch {epoch} of broker {node_id} came instead of {found.next_epoch}",
                code=Code.INVALID_FETCH_SESSION_EPOCH,
            )
        found.next_epoch += 1
        return found

    def close(self) -> None:
        """End them all: whoever waits is answered, and begins again."""
        for session in self._by_node.values():
            session.close()
        self._by_node.clear()


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
