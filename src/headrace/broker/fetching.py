"""Reading partitions for a fetch, and waiting until there is enough to read.

read_all    every wanted partition in turn, within the bytes that are allowed
wait        not enough: until enough has been written behind the high watermark, or time is up
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.partition import Partition
from headrace.broker.purgatory import Purgatory
from headrace.errors import BrokerError, Code
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.log import AbortedTransaction

Key = tuple[str, int]


@dataclass(slots=True)
class Wanted:
    """A partition that a fetch asks for."""

    index: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1  # as the client knows it
    last_fetched_epoch: int = -1
    start_offset: int = -1  # of the log of a follower
    partition: Partition | None = None  # set: it may be read
    preferred_replica: int = -1  # who is nearer to the reader; -1: nobody
    error: BrokerError | None = None


@dataclass(slots=True)
class Read:
    """What there is of it."""

    data: Buffer = b""
    high_watermark: int = -1
    last_stable_offset: int = -1
    start_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    diverging: tuple[int, int] | None = None  # the epoch that we know, and where it ended
    preferred_replica: int = -1
    error_code: int = Code.NONE


class Replica(NamedTuple):
    """A follower that fetches."""

    node_id: int
    broker_epoch: int
    fetched: Callable[[int, int, Partition, int, int], None]
    """Told what it asks for before it is read, so that the answer has the news.

    That is its number, its broker epoch, the partition, the offset it asks for, and where its log begins.
    """


@dataclass(frozen=True, slots=True)
class Limits:
    """What a fetch allows and demands."""

    bytes_min: int
    bytes_max: int
    committed_only: bool
    replica: Replica | None = None  # who asks, if it is a follower
    from_follower: bool = False  # clients may read here what another broker leads (KIP-392)

    def end(self, partition: Partition) -> int:
        """Where reading has to stop."""
        if self.replica is not None:
            return partition.log.end_offset
        return partition.log.last_stable_offset if self.committed_only else partition.log.high_watermark


def read_all(wanted: Sequence[Wanted], limits: Limits) -> tuple[list[Read], bool]:
    """What there is of each, and whether that is worth an answer now.

    Who asks for more partitions than fit into an answer gets them in turns: reading begins at any of them. The first
    batch that is found comes whole, whatever its size, else a small limit would stop a reader for ever (KIP-74).
    """
    reads = [Read()] * len(wanted)
    left = limits.bytes_max
    found = 0
    urgent = False
    first = random.randrange(len(wanted)) if len(wanted) > 1 else 0
    for turn in range(len(wanted)):
        place = (first + turn) % len(wanted)
        read = _read(wanted[place], limits, left, at_least_one=not found)
        reads[place] = read
        size = len(read.data)
        found += size
        left = max(left - size, 0)
        if read.error_code or read.diverging is not None or read.preferred_replica >= 0:
            urgent = True
    return reads, urgent or found >= limits.bytes_min


def _read(wanted: Wanted, limits: Limits, left: int, *, at_least_one: bool) -> Read:
    partition = wanted.partition
    try:
        if wanted.error is not None or partition is None:
            raise wanted.error or BrokerError(code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        if not partition.is_leader and not limits.from_follower:  # any more
            raise BrokerError(f"{partition.key} has another leader now", code=Code.NOT_LEADER_OR_FOLLOWER)
        partition.check_epoch(wanted.leader_epoch)
        log = partition.log
        if wanted.last_fetched_epoch >= 0:
            diverging = _diverging(partition, wanted)
            if diverging is not None:
                return Read(b"", log.high_watermark, log.last_stable_offset, log.start_offset, diverging=diverging)
        if wanted.preferred_replica >= 0:
            there = wanted.preferred_replica
            return Read(b"", log.high_watermark, log.last_stable_offset, log.start_offset, preferred_replica=there)
        if limits.replica is not None:
            node_id, broker_epoch, fetched = limits.replica
            fetched(node_id, broker_epoch, partition, wanted.offset, wanted.start_offset)
        bytes_max = min(wanted.bytes_max, left)
        part = log.read(
            wanted.offset,
            bytes_max,
            end_offset=limits.end(partition),
            at_least_one=at_least_one,
            committed_only=limits.committed_only,
        )
        aborted: Sequence[AbortedTransaction] | None = None
        if limits.committed_only:
            aborted = log.aborted_transactions(wanted.offset, part.next_offset) if len(part.data) else ()
        return Read(part.data, log.high_watermark, log.last_stable_offset, log.start_offset, aborted)
    except BrokerError as error:
        return Read(aborted=() if partition is None else None, error_code=error.code)


def _diverging(partition: Partition, wanted: Wanted) -> tuple[int, int] | None:
    """Where the reader's log and ours part, if they do: the epoch that both know, and where it ended here (KIP-595)."""
    log = partition.log
    epoch, end = log.end_of_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.offset < log.start_offset:
        raise BrokerError(
            f"{log.name}: where epoch {wanted.last_fetched_epoch} ended before {wanted.offset} is not known here",
            code=Code.OFFSET_OUT_OF_RANGE,
        )
    return (epoch, end) if epoch < wanted.last_fetched_epoch or end < wanted.offset else None


async def wait(
    purgatory: Purgatory[Key], wanted: Sequence[Wanted], limits: Limits, missing_bytes: int, timeout_ms: int
) -> None:
    """Return when `missing_bytes` more can be read, when something happened that the client has to know, or in time."""
    delayed = _DelayedFetch(wanted, limits.end, missing_bytes)
    purgatory.watch(delayed, [*delayed.keys()], timeout_ms)
    try:
        await delayed.over
    finally:
        purgatory.forget(delayed)


class _DelayedFetch:
    """Counts what is written behind the point where reading stopped."""

    def __init__(self, wanted: Sequence[Wanted], end: Callable[[Partition], int], missing_bytes: int) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing_bytes = missing_bytes
        self._end = end
        # Where each partition stood: what could be read of it, its bytes, and its leader's epoch.
        self._stood = {
            one.partition.key: (one.partition, end(one.partition), one.partition.log.size_bytes)
            for one in wanted
            if one.partition is not None
        }
        self._led = {key: partition.is_leader for key, (partition, _, _) in self._stood.items()}
        self._epochs = {key: partition.leader_epoch for key, (partition, _, _) in self._stood.items()}
        self._written: dict[Key, int] = {}

    def keys(self) -> Sequence[Key]:
        return [*self._stood]

    def try_complete(self, key: Key) -> bool:
        partition, end, size_bytes = self._stood[key]
        if (
            partition.is_leader is not self._led[key]
            or partition.leader_epoch != self._epochs[key]
            or partition.is_deleted
        ):
            self.expire()
            return True
        if self._end(partition) > end:
            # Retention may have taken more away than was written: then nobody can tell, and it counts as enough.
            grown = partition.log.size_bytes - size_bytes
            self._written[key] = grown if grown > 0 else self._missing_bytes
        if sum(self._written.values()) < self._missing_bytes:
            return False
        self.expire()
        return True

    def expire(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
