"""Reading partitions for a fetch, and waiting until enough bytes are available.

read_all    read every partition, within the byte limits
wait        wait until enough bytes have been written below the high watermark, or for the timeout
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.partition import Partition
from headrace.broker.purgatory import Purgatory
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.log import AbortedRange

NO_REPLICA = -1


@dataclass(slots=True)
class PartitionFetch:
    """A partition of a fetch request."""

    index: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1  # known to the client; -1: any
    last_fetched_epoch: int = -1
    start_offset: int = -1  # of the follower's log
    partition: Partition | None = None  # None: not authorized or unknown
    preferred_replica: int = NO_REPLICA  # nearer to the client than this one
    error: BrokerError | None = None
    size_bytes: int = 0  # of the log when it was read last


@dataclass(slots=True)
class Read:
    """The result of reading a partition."""

    data: Buffer = b""
    high_watermark: int = -1
    last_stable_offset: int = -1
    start_offset: int = -1
    aborted: Sequence[AbortedRange] | None = None
    diverging: tuple[int, int] | None = None  # the last common epoch and its end offset
    preferred_replica: int = NO_REPLICA
    error_code: int = Code.NONE


class Replica(NamedTuple):
    """The follower of a fetch request."""

    node_id: int
    broker_epoch: int
    fetched: Callable[[int, int, Partition, int, int], None]
    """Called before reading, so that the response has the new high watermark.

    Arguments: node id, broker epoch, partition, fetch offset and start offset of the follower's log.
    """


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits of a fetch request."""

    bytes_min: int
    bytes_max: int
    committed_only: bool
    replica: Replica | None = None  # None: a client
    from_follower: bool = False  # clients may read from followers (KIP-392)

    def end(self, partition: Partition) -> int:
        """Return the offset at which reading stops."""
        if self.replica is not None:
            return partition.log.end_offset
        return partition.log.last_stable_offset if self.committed_only else partition.log.high_watermark


def read_all(fetches: Sequence[PartitionFetch], limits: FetchLimits) -> tuple[list[Read], bool]:
    """Read all partitions; return the results, and whether to respond now.

    Reading starts at a random partition, so that partitions take turns if the response is too small for all. The first
    batch is returned whole, whatever its size: otherwise a small limit would block a consumer forever (KIP-74).
    """
    reads = [Read()] * len(fetches)
    left = limits.bytes_max
    total_bytes = 0
    urgent = False
    first = random.randrange(len(fetches)) if len(fetches) > 1 else 0
    for turn in range(len(fetches)):
        index = (first + turn) % len(fetches)
        read = _read(fetches[index], limits, left, at_least_one=not total_bytes)
        reads[index] = read
        size = len(read.data)
        total_bytes += size
        left = max(left - size, 0)
        if read.error_code or read.diverging is not None or read.preferred_replica >= 0:
            urgent = True
    return reads, urgent or total_bytes >= limits.bytes_min


def _read(fetch: PartitionFetch, limits: FetchLimits, left: int, *, at_least_one: bool) -> Read:
    partition = fetch.partition
    try:
        if fetch.error is not None or partition is None:
            raise fetch.error or BrokerError(code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        if not partition.is_leader and not limits.from_follower:
            raise BrokerError(
                f"broker {partition.leader} is the leader of {partition.key}", code=Code.NOT_LEADER_OR_FOLLOWER
            )
        log = partition.log
        fetch.size_bytes = log.size_bytes
        partition.check_epoch(fetch.leader_epoch)
        if fetch.last_fetched_epoch >= 0:
            diverging = _diverging(partition, fetch)
            if diverging is not None:
                return Read(b"", log.high_watermark, log.last_stable_offset, log.start_offset, diverging=diverging)
        if fetch.preferred_replica >= 0:
            replica = fetch.preferred_replica
            return Read(b"", log.high_watermark, log.last_stable_offset, log.start_offset, preferred_replica=replica)
        if limits.replica is not None:
            node_id, broker_epoch, fetched = limits.replica
            fetched(node_id, broker_epoch, partition, fetch.offset, fetch.start_offset)
        bytes_max = min(fetch.bytes_max, left)
        part = log.read(
            fetch.offset,
            bytes_max,
            end_offset=limits.end(partition),
            at_least_one=at_least_one,
            committed_only=limits.committed_only,
        )
        aborted: Sequence[AbortedRange] | None = None
        if limits.committed_only:
            aborted = log.aborted.between(fetch.offset, part.next_offset) if len(part.data) else ()
        return Read(part.data, log.high_watermark, log.last_stable_offset, log.start_offset, aborted)
    except BrokerError as error:
        return Read(aborted=() if partition is None else None, error_code=error.code)


def _diverging(partition: Partition, fetch: PartitionFetch) -> tuple[int, int] | None:
    """Return the last common epoch and its end offset if the logs diverge, otherwise None (KIP-595)."""
    log = partition.log
    epoch, end = log.end_of_epoch(fetch.last_fetched_epoch)
    if epoch < 0 or fetch.offset < log.start_offset:
        raise BrokerError(
            f"{log.name}: unknown leader epoch {fetch.last_fetched_epoch} before offset {fetch.offset}",
            code=Code.OFFSET_OUT_OF_RANGE,
        )
    return (epoch, end) if epoch < fetch.last_fetched_epoch or end < fetch.offset else None


def wait(
    purgatory: Purgatory[TopicPartition],
    fetches: Sequence[PartitionFetch],
    limits: FetchLimits,
    missing_bytes: int,
    timeout_ms: int,
) -> Awaitable[None]:
    """Wait until `missing_bytes` more can be read, the leader changes, or the timeout.

    Counting starts with this call, not when its result is awaited: other requests may write before that.
    """
    delayed = _DelayedFetch(fetches, limits.end, missing_bytes)
    purgatory.watch(delayed, [*delayed.keys()], timeout_ms)
    return _await_completion(purgatory, delayed)


async def _await_completion(purgatory: Purgatory[TopicPartition], delayed: _DelayedFetch) -> None:
    try:
        await delayed.done_waiting
    finally:
        purgatory.forget(delayed)


class _DelayedFetch:
    """Counts the bytes written after the point where reading stopped."""

    def __init__(self, fetches: Sequence[PartitionFetch], end: Callable[[Partition], int], missing_bytes: int) -> None:
        self.done_waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing_bytes = missing_bytes
        self._end = end
        # Each partition at the start of the wait: readable end offset and size.
        self._initial: dict[TopicPartition, tuple[Partition, int, int]] = {
            fetch.partition.key: (fetch.partition, end(fetch.partition), fetch.partition.log.size_bytes)
            for fetch in fetches
            if fetch.partition is not None
        }
        self._was_leader = {key: partition.is_leader for key, (partition, _, _) in self._initial.items()}
        self._epochs = {key: partition.leader_epoch for key, (partition, _, _) in self._initial.items()}
        self._written: dict[TopicPartition, int] = {}

    def keys(self) -> Sequence[TopicPartition]:
        return [*self._initial]

    def try_complete(self, key: TopicPartition) -> bool:
        partition, end, size_bytes = self._initial[key]
        if (
            partition.is_leader is not self._was_leader[key]
            or partition.leader_epoch != self._epochs[key]
            or partition.is_deleted
        ):
            self.expire()
            return True
        if self._end(partition) > end:
            # Retention may have removed more than was written: then assume enough.
            grown = partition.log.size_bytes - size_bytes
            self._written[key] = grown if grown > 0 else self._missing_bytes
        if sum(self._written.values()) < self._missing_bytes:
            return False
        self.expire()
        return True

    def expire(self) -> None:
        if not self.done_waiting.done():
            self.done_waiting.set_result(None)
