"""A topic in the accumulator: its appender, a queue of batches for each partition, and its compression ratio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.concurrency import YieldingLock
from headrace.client.metadata import Cluster
from headrace.producer.batch import ProducerBatch
from headrace.producer.partitioners import PartitionWeights

if TYPE_CHECKING:
    from headrace.producer._send import TopicAppender

IMPROVING_STEP = 0.005
WORSENING_STEP = 0.05  # Larger: a batch that is too large costs a round trip.
SAFETY = 1.05
ROOM_FACTOR_MAX = 8  # Times batch.size.


class CompressionRatio:
    """The compressed size of a topic's batches relative to their plain size. Written by the I/O thread, read by any.

    Batches are compressed when they are sealed. The estimate is used to choose the size of a batch's buffer so that
    about `batch.size` bytes go over the wire, and to fill requests.
    """

    __slots__ = ("estimate",)

    def __init__(self) -> None:
        self.estimate = 1.0

    def observe(self, compressed_bytes: int, plain_bytes: int) -> None:
        """Update the estimate from a compressed batch."""
        observed = compressed_bytes / plain_bytes
        if observed > self.estimate:
            self.estimate = max(self.estimate + WORSENING_STEP, observed)
        else:
            self.estimate = max(self.estimate - IMPROVING_STEP, observed)

    def reset(self) -> None:
        """Discard the estimate: a batch was too large for the broker."""
        self.estimate = 1.0

    def room_bytes(self, batch_bytes: int, limit_bytes: int) -> int:
        """Return the buffer size for a batch of about `batch_bytes` compressed: a power of two times `batch_bytes`."""
        factor = 1
        while 2 * factor <= ROOM_FACTOR_MAX and 2 * factor * self.estimate * SAFETY <= 1:
            factor *= 2
        return max(batch_bytes, min(factor * batch_bytes, limit_bytes))


class PartitionQueue:
    """The batches of a partition, oldest first."""

    __slots__ = ("batches", "muted", "partition", "topic")

    def __init__(self, topic: TopicQueues, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()  # Guarded by topic.lock.
        self.muted = False  # I/O thread only.


class TopicQueues:
    """The appender of a topic, used by application threads, and the queues of its partitions, drained by the sender."""

    def __init__(
        self, name: str, partition_count: int, make_appender: Callable[[TopicQueues, int], TopicAppender]
    ) -> None:
        self.name = name
        self.lock = YieldingLock()
        self.queues = [PartitionQueue(self, partition) for partition in range(partition_count)]
        self._make_appender = make_appender
        self.appender = make_appender(self, partition_count)
        # Guarded by lock: cached by AdaptiveSticky for this cluster, until that time.
        self.weights: PartitionWeights | None = None
        self.weights_cluster: Cluster | None = None
        self.weights_until_ms = 0.0
        self.ratio = CompressionRatio()
        self.sticky_bytes = 0  # Guarded by lock: sent to the sticky partition since it was chosen.

    def grow(self, partition_count: int) -> None:
        """Add partitions. A new appender continues with the open batches of the old one."""
        with self.lock:
            old = self.appender
            added = [PartitionQueue(self, p) for p in range(len(self.queues), partition_count)]
            appender = self._make_appender(self, partition_count)
            appender.open_batches[: len(old.open_batches)] = old.open_batches
            appender.sticky_partition = old.sticky_partition
            # No call in between: a signal handler that raises runs before both or after both.
            self.appender = appender
            self.queues += added
            old.retire()

    def close_open(self, partition: int) -> bool:
        """Close the open batch of a partition; False if there is none. The lock is held."""
        batch = self.appender.open_batches[partition]
        if batch is None:
            return False
        batch.close()
        self.appender.open_batches[partition] = None
        if partition == self.appender.sticky_partition:
            self.sticky_bytes += batch.size
        return True
