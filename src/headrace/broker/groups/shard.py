"""One partition of __consumer_offsets: the groups whose ids fall into it, and their offsets.

Writing: the record goes into the log, and when it is replicated, into memory. Several writes may be on their way; they
reach memory in the order in which they reached the log, whichever is heard of first. For that `InternalTopics.append`
has to put the record into the log before it waits for anything.

Loading: record by record from the beginning. Records of transactions wait for their marker, as they do live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.clock import Clock
from headrace.broker.groups.group import Group, State
from headrace.broker.groups.offsets import Offsets
from headrace.broker.groups.records import Entry, GroupChange, OffsetChange, decode
from headrace.broker.groups.timers import Timers
from headrace.broker.internal_topics import code_for_clients
from headrace.broker.tasks import start_task
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.layout import NO_PRODUCER_ID, Record
from headrace.wire.records import NO_PRODUCER, Producer, RecordBatch, decode_marker

log = logging.getLogger("headrace.broker.groups")

LOAD_SLICE_BATCHES = 1000
"""So many are loaded before others get a turn of the event loop."""


class InternalLog(Protocol):
    """What is used of InternalTopics."""

    def ensure(self, topic: str) -> int: ...

    def partitions_led(self, topic: str) -> list[int]: ...

    async def append(
        self, topic: str, index: int, records: Sequence[Record], *, producer: Producer = NO_PRODUCER
    ) -> int: ...

    def batches(self, topic: str, index: int) -> Iterator[RecordBatch]: ...

    def when_confirmed(self, topic: str, index: int, then: Callable[[], None]) -> None: ...


class Shard:
    """Groups and offsets of one partition. Event loop only."""

    def __init__(self, index: int, internal: InternalLog, clock: Clock) -> None:
        self.index = index
        self.is_loading = True
        self._is_closed = False
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.timers = Timers(clock)
        self.clock = clock
        self._internal = internal
        self._last_write: asyncio.Future[None] | None = None
        self._ended_while_loading: list[tuple[int, bool]] = []
        self._tasks: set[asyncio.Task[Any]] = set()  # a task that nobody holds may vanish

    # Groups.

    def group(self, group_id: str) -> Group:
        """The group, or GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise BrokerError(f"there is no group {group_id!r}", code=Code.GROUP_ID_NOT_FOUND)
        return group

    def group_or_new(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def remove(self, group: Group) -> None:
        """Forget a group whose tombstone is in the log, unless somebody has joined it meanwhile."""
        if self.groups.get(group.id) is group and group.state is State.EMPTY:
            group.transition(State.DEAD, self.clock.time_ms())
            del self.groups[group.id]

    # Writing.

    def spawn(self, operation: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run what must come to its end even if the connection that asked for it is gone."""
        task = start_task(operation, "group coordinator", outcomes=(BrokerError,))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def write(
        self, entries: Sequence[Entry], apply: Callable[[int], object], *, producer: Producer = NO_PRODUCER
    ) -> None:
        """Put records into the log, then call `apply` with the offset of the first, in the order of the log."""
        now_ms = self.clock.time_ms()
        records = [Record(0, now_ms, entry.key, entry.value, ()) for entry in entries]
        before, mine = self._last_write, asyncio.get_running_loop().create_future()
        self._last_write = mine
        try:
            first_offset = await self._internal.append(CONSUMER_OFFSETS, self.index, records, producer=producer)
            if before is not None:
                await before
            apply(first_offset)
        except BrokerError as error:
            code = code_for_clients(error)
            raise BrokerError(f"partition {self.index} of {CONSUMER_OFFSETS}: {error}", code=code) from error
        finally:
            if before is None or before.done():
                mine.set_result(None)
            else:
                before.add_done_callback(lambda _: mine.set_result(None))

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker was written. What was written before it comes first."""
        if self.is_loading:
            self._ended_while_loading.append((producer_id, committed))
        elif self._last_write is None or self._last_write.done():
            self.offsets.complete(producer_id, committed)
        else:
            self._last_write.add_done_callback(lambda _: self.offsets.complete(producer_id, committed))

    # Loading.

    def load(self, loaded: Callable[[], object]) -> None:
        """Replay the partition: a short one at once, the rest of a long one in the background."""
        batches = self._internal.batches(CONSUMER_OFFSETS, self.index)
        is_last = self._try_replay_slice(batches)
        if is_last:
            self._confirm(loaded)
        elif is_last is not None:
            self.spawn(self._go_on_loading(batches, loaded))

    async def _go_on_loading(self, batches: Iterator[RecordBatch], loaded: Callable[[], object]) -> None:
        is_last: bool | None = False
        while is_last is False and not self._is_closed:
            await asyncio.sleep(0)
            is_last = self._try_replay_slice(batches)
        if is_last and not self._is_closed:
            self._confirm(loaded)

    def _try_replay_slice(self, batches: Iterator[RecordBatch]) -> bool | None:
        """Whether that was the last one; None if it cannot be read."""
        try:
            return self._replay_slice(batches)
        except (WireError, BrokerError, OSError):
            # Groups of which half is missing would be worse than groups that cannot be used.
            log.exception("%s-%d cannot be loaded: its groups stay unavailable", CONSUMER_OFFSETS, self.index)
            return None

    def _confirm(self, loaded: Callable[[], object]) -> None:
        """Nobody is to hear of what might still be lost."""
        self._internal.when_confirmed(CONSUMER_OFFSETS, self.index, lambda: self._finish_loading(loaded))

    def _replay_slice(self, batches: Iterator[RecordBatch]) -> bool:
        """Whether that was the last one."""
        chunk = list(islice(batches, LOAD_SLICE_BATCHES))
        for batch in chunk:
            self._replay(batch)
        return len(chunk) < LOAD_SLICE_BATCHES

    def _replay(self, batch: RecordBatch) -> None:
        header = batch.header
        if not header.record_count:
            return  # compaction has left the shell only
        if header.is_control:
            marker = decode_marker(batch.records()[0])
            if marker is not None:
                self.offsets.complete(header.producer_id, marker.committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in batch.records():
            try:
                change = decode(record)
            except WireError:
                log.exception("record %d of %s-%d is skipped", record.offset, CONSUMER_OFFSETS, self.index)
                continue
            if isinstance(change, OffsetChange):
                self.apply_offset(change, producer_id)
            elif isinstance(change, GroupChange):
                self._apply_group(change)

    def apply_offset(self, change: OffsetChange, producer_id: int = NO_PRODUCER_ID) -> None:
        """A record about an offset has come into the log, now or long ago."""
        if change.committed is None:
            self.offsets.remove(change.group_id, change.place)
        else:
            self.group_or_new(change.group_id)  # a group may be nothing but its offsets
            self.offsets.store(change.group_id, change.place, change.committed, producer_id)

    def _apply_group(self, change: GroupChange) -> None:
        if change.group is None:
            self.groups.pop(change.group_id, None)
        else:
            self.groups[change.group_id] = change.group

    def _finish_loading(self, loaded: Callable[[], object]) -> None:
        if self._is_closed:
            return
        for producer_id, committed in self._ended_while_loading:
            self.offsets.complete(producer_id, committed)
        self._ended_while_loading.clear()
        self.is_loading = False
        if self.groups:
            log.info("%s-%d: %d groups", CONSUMER_OFFSETS, self.index, len(self.groups))
        loaded()

    # The end.

    def close(self) -> Iterable[asyncio.Task[Any]]:
        """Stop the timers; what is still being written is returned."""
        self._is_closed = True
        self.timers.cancel_all()
        return tuple(self._tasks)
