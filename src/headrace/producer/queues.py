"""A topic in the accumulator: its lane, where records are appended, and a deque of batches for each partition."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.metadata import Cluster
from headrace.producer.batch import ProducerBatch
from headrace.producer.compression_ratio import CompressionRatio
from headrace.producer.partitioners import Odds

if TYPE_CHECKING:
    from headrace.wire._reference import Lane

TURN_S = 0.00005


class TurnLock:
    """A re-entrant lock that nobody holds while waiting for the GIL, but for a thread that was interrupted in it.

    Threads that block in `Lock.acquire` get the lock first and the GIL up to 5 ms later. The one that runs meanwhile
    needs the lock again for its next batch, blocks, and so on: they form a convoy in which every batch costs
    two switches of threads, and four threads with one producer need twice the time of four with one each. Here a thread
    that finds the lock taken lets the others run and tries again, with the GIL in its hands. For moments only.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        while not self._lock.acquire(blocking=False):
            time.sleep(TURN_S)

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


class PartitionQueue:
    """The batches of one partition, oldest first."""

    __slots__ = ("batches", "muted", "partition", "topic")

    def __init__(self, topic: TopicQueues, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()  # Guarded by topic.lock.
        self.muted = False  # I/O thread only.


class TopicQueues:
    """A topic: its lane for appending, its queues for sending."""

    def __init__(self, name: str, partition_count: int, make_lane: Callable[[TopicQueues, int], Lane]) -> None:
        self.name = name
        self.lock = TurnLock()
        self.queues = [PartitionQueue(self, partition) for partition in range(partition_count)]
        self._make_lane = make_lane
        self.lane = make_lane(self, partition_count)
        # Guarded by lock: how likely each partition is to be next, for which cluster, until when.
        self.odds: Odds | None = None
        self.odds_of: Cluster | None = None
        self.odds_until_ms = 0.0
        self.ratio = CompressionRatio()
        self.sticky_bytes = 0  # Guarded by lock: what went to the sticky partition since it was chosen.

    def grow(self, partition_count: int) -> None:
        """More partitions: a new lane that goes on with the open batches of the old one."""
        with self.lock:
            old = self.lane
            self.queues += [PartitionQueue(self, p) for p in range(len(self.queues), partition_count)]
            lane = self._make_lane(self, partition_count)
            lane.open_batches[: len(old.open_batches)] = old.open_batches
            lane.sticky = old.sticky
            self.lane = lane

    def close_open(self, partition: int) -> bool:
        """The open batch takes no more; False if there is none. The lock is held."""
        batch = self.lane.open_batches[partition]
        if batch is None:
            return False
        batch.close()
        self.lane.open_batches[partition] = None
        if partition == self.lane.sticky:
            self.sticky_bytes += batch.size
        return True
