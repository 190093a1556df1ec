"""A topic in the accumulator: its appender, where records are appended, and a deque of batches for each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.locks import TurnLock
from headrace.client.metadata import Cluster
from headrace.producer.batch import ProducerBatch
from headrace.producer.compression_ratio import CompressionRatio
from headrace.producer.partitioners import Odds

if TYPE_CHECKING:
    from headrace.producer._send import TopicAppender


class PartitionQueue:
    """The batches of one partition, oldest first."""

    __slots__ = ("batches", "muted", "partition", "topic")

    def __init__(self, topic: TopicQueues, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()  # Guarded by topic.lock.
        self.muted = False  # I/O thread only.


class TopicQueues:
    """A topic: its appender for appending, its queues for sending."""

    def __init__(
        self, name: str, partition_count: int, make_appender: Callable[[TopicQueues, int], TopicAppender]
    ) -> None:
        self.name = name
        self.lock = TurnLock()
        self.queues = [PartitionQueue(self, partition) for partition in range(partition_count)]
        self._make_appender = make_appender
        self.appender = make_appender(self, partition_count)
        # Guarded by lock: how likely each partition is to be next, for which cluster, until when.
        self.odds: Odds | None = None
        self.odds_of: Cluster | None = None
        self.odds_until_ms = 0.0
        self.ratio = CompressionRatio()
        self.sticky_bytes = 0  # Guarded by lock: what went to the sticky partition since it was chosen.

    def grow(self, partition_count: int) -> None:
        """More partitions: a new appender that goes on with the open batches of the old one."""
        with self.lock:
            old = self.appender
            added = [PartitionQueue(self, p) for p in range(len(self.queues), partition_count)]
            appender = self._make_appender(self, partition_count)
            appender.open_batches[: len(old.open_batches)] = old.open_batches
            appender.sticky_partition = old.sticky_partition
            # No call in between: a signal handler that raises comes before both or after both.
            self.appender = appender
            self.queues += added

    def close_open(self, partition: int) -> bool:
        """The open batch takes no more; False if there is none. The lock is held."""
        batch = self.appender.open_batches[partition]
        if batch is None:
            return False
        batch.close()
        self.appender.open_batches[partition] = None
        if partition == self.appender.sticky_partition:
            self.sticky_bytes += batch.size
        return True
