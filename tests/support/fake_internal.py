"""The surroundings of coordinators, without a disk: a manual clock, topics in memory, replicas that record markers.

    clock = HandClock()
    internal = FakeInternal(clock, {"__transaction_state": 2})
    internal.fail(Code.NOT_ENOUGH_REPLICAS, times=2)      the next two appends fail
    with internal.held(): …                               appends wait until the block is left
    internal.fuse = replicas.fuse = Fuse(3)               after the third write everything hangs, as in a dead process
    await clock.run(500)                                  half a second passes; what is due happens

Records are kept as batches, in bytes, so that what is replayed has gone through the format.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from headrace.broker.catalog.cluster import Identity
from headrace.broker.catalog.configs import Configs
from headrace.broker.catalog.journal import Event
from headrace.broker.catalog.topics import Topics
from headrace.errors import BrokerError, Code
from headrace.wire.layout import Record
from headrace.wire.records import NO_PRODUCER, BatchProducer, Marker, RecordBatch, encode, read_batches

START_MS = 1_700_000_000_000
TURNS_MAX = 200
"""Turns of the event loop that everything woken by a moment gets."""


class HandTimer:
    """A pending call."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._call: tuple[Callable[..., object], tuple[object, ...]] | None = (callback, arguments)

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call[0](*call[1])


class HandClock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._due: list[tuple[float, int, HandTimer]] = []
        self._ticket = itertools.count()

    def monotonic_ms(self) -> float:
        return self.now_ms

    def time_ms(self) -> int:
        return START_MS + int(self.now_ms)

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> HandTimer:
        timer = HandTimer(callback, arguments)
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._ticket), timer))
        return timer

    async def run(self, ms: float = 0) -> None:
        """Advance the clock from timer to timer, and let tasks run after each."""
        end = self.now_ms + ms
        await settle()
        while self._due and self._due[0][0] <= end:
            self.fire_next()
            await settle()
        self.now_ms = end

    def fire_next(self) -> None:
        """Advance the clock to the next timer, and fire it."""
        at, _, timer = heapq.heappop(self._due)
        self.now_ms = max(self.now_ms, at)
        timer.fire()


async def settle() -> None:
    """Run the event loop until all tasks that can make progress have done so."""
    ready: deque[asyncio.Handle] = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # no public name
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if not ready:
            return


class Fuse:
    """Lets a number of writes reach the disk, and none after them. The last one may or may not get a response."""

    def __init__(self, writes: int, *, responds_to_last: bool = False) -> None:
        self.left = writes
        self._responds_to_last = responds_to_last

    def check(self) -> bool:
        """Count a write; return whether it reaches the disk."""
        self.left -= 1
        return self.left >= 0

    async def respond(self) -> None:
        """Return, or wait for ever after the last write."""
        if self.left < (0 if self._responds_to_last else 1):
            await asyncio.get_running_loop().create_future()


class FakeCatalog:
    """A catalog in memory only."""

    def __init__(self) -> None:
        self.topics = Topics()
        self.identity = Identity()
        self.configs = Configs()
        self.offset = 0

    def record(self, *events: Event) -> None:
        sections: tuple[Topics | Configs | Identity, ...] = (self.topics, self.configs, self.identity)
        for event in events:
            next(section for section in sections if event["kind"] in section.kinds).apply(event)
            self.offset += 1


class FakeInternal:
    """Internal topics: a list of batches for each partition."""

    def __init__(self, clock: HandClock, counts: Mapping[str, int] | None = None) -> None:
        self._clock = clock
        self._counts = dict(counts or {})
        self._failures: deque[Code] = deque()
        self._gate: asyncio.Event | None = None
        self.fuse: Fuse | None = None
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.appends: list[tuple[str, int, tuple[Record, ...]]] = []

    def ensure(self, topic: str) -> int:
        return self._counts.setdefault(topic, 1)

    def partitions_led(self, topic: str) -> list[int]:
        return list(range(self._counts.get(topic, 0)))

    async def append(
        self, topic: str, index: int, records: Sequence[Record], *, producer: BatchProducer = NO_PRODUCER
    ) -> int:
        if self._gate is not None:
            await self._gate.wait()
        if self._failures:
            raise BrokerError("an error of the test", code=self._failures.popleft())
        if self.fuse and not self.fuse.check():
            await self.fuse.respond()
        log = self.logs.setdefault((topic, index), [])
        base = [batch.header.last_offset + 1 for batch in read_batches(log[-1])][-1] if log else 0
        rows = [record._replace(offset=base + n) for n, record in enumerate(records)]
        log.append(bytes(encode(rows, producer=producer)))
        self.appends.append((topic, index, tuple(rows)))
        if self.fuse:
            await self.fuse.respond()
        return base

    def when_confirmed(self, topic: str, index: int, then: Callable[[], None]) -> None:
        then()

    def batches(self, topic: str, index: int) -> Iterator[RecordBatch]:
        for data in self.logs.get((topic, index), []):
            yield from read_batches(data)

    def fail(self, code: Code, times: int = 1) -> None:
        """Make the next appends fail."""
        self._failures.extend([code] * times)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay appends until the context ends."""
        gate = self._gate = asyncio.Event()
        try:
            yield
        finally:
            self._gate = None
            gate.set()


class Written(NamedTuple):
    """A marker that was written."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class FakeReplicas:
    """Accepts markers and records them."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, int], deque[Code]] = {}
        self._gate: asyncio.Event | None = None
        self.fuse: Fuse | None = None
        self.markers: list[Written] = []
        self.marker_listener: Callable[[int, int, bool], None] = lambda index, producer_id, committed: None

    async def write_marker(
        self, topic: str, index: int, producer_id: int, epoch: int, marker: Marker, *, transaction_version: int = 1
    ) -> None:
        if self._gate is not None:
            await self._gate.wait()
        if failures := self._failures.get((topic, index)):
            raise BrokerError("an error of the test", code=failures.popleft())
        if self.fuse and not self.fuse.check():
            await self.fuse.respond()
        self.markers.append(
            Written(topic, index, producer_id, epoch, marker.committed, marker.coordinator_epoch, transaction_version)
        )
        if self.fuse:
            await self.fuse.respond()

    def fail(self, topic: str, index: int, code: Code, times: int = 1) -> None:
        """Make the next markers of a partition fail."""
        self._failures.setdefault((topic, index), deque()).extend([code] * times)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay markers until the context ends."""
        gate = self._gate = asyncio.Event()
        try:
            yield
        finally:
            self._gate = None
            gate.set()
