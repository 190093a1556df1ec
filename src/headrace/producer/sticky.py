"""Which partition a topic's records without a key go to next (KIP-794).

    the I/O thread: node_was_ready → how long each node has taken nothing
    application threads, when the sticky partition has had its share: move_on → odds → topic.appender.sticky_partition

Queues that are short are chosen more often. A partition is left out while its leader has had batches waiting for
longer than partitioner.availability.timeout.ms without being able to take any.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.client.clock import Clock
from headrace.client.metadata import Cluster
from headrace.producer.partitioners import AdaptiveSticky, Odds
from headrace.producer.queues import TopicQueues

SMALL_TOPIC_PARTITIONS = 32
ODDS_MS_FOR_A_PARTITION = 0.05


@dataclass(slots=True)
class _NodeTimes:
    ready_ms: float
    """When there was something for it last."""
    drained_ms: float
    """When it could take it."""


class StickyChoice:
    """The choice for all topics of a producer."""

    def __init__(self, clock: Clock, *, adaptive: bool = True, availability_timeout_ms: float = 0) -> None:
        self._clock = clock
        self._adaptive = adaptive
        self._availability_timeout_ms = availability_timeout_ms  # 0: no node is left out
        self._sticky = AdaptiveSticky(adaptive=adaptive)
        self._chance = random.Random()
        self._nodes: dict[int, _NodeTimes] = {}  # Written by the I/O thread, read by any.

    def node_was_ready(self, node_id: int, could_drain: bool, now: float) -> None:
        """There was something to be sent to a node, and it could take it or not. The I/O thread."""
        if self._availability_timeout_ms <= 0:
            return
        times = self._nodes.setdefault(node_id, _NodeTimes(now, now))
        if could_drain:
            times.drained_ms = now
        times.ready_ms = now

    def _is_available(self, node_id: int) -> bool:
        times = self._nodes.get(node_id)
        if times is None:
            return True
        ready_ms = times.ready_ms  # first: the other one may be written in between, and only be later
        return ready_ms - times.drained_ms <= self._availability_timeout_ms

    def move_on(self, topic: TopicQueues, cluster: Cluster) -> None:
        """Choose the partition for the next records without a key. topic.lock is held."""
        topic.appender.sticky_partition = self._sticky.next_partition(self._odds(topic, cluster), self._chance)
        topic.sticky_bytes = 0

    def _odds(self, topic: TopicQueues, cluster: Cluster) -> Odds:
        """To look at every queue for every batch would make large topics dear: for them a look is good for a while."""
        now, count = self._clock.monotonic_ms(), len(topic.queues)
        if topic.odds is not None and topic.odds_of is cluster and now < topic.odds_until_ms:
            return topic.odds
        available = [p for p in cluster.available_partitions_for(topic.name) if p < count]
        sizes = None
        if self._adaptive:
            sizes = {p: len(topic.queues[p].batches) for p in available}
            if self._nodes:
                sizes = {p: size for p, size in sizes.items() if self._is_available(cluster.leader(topic.name, p))}
        topic.odds = self._sticky.odds(sizes, available, range(count))
        topic.odds_of, topic.odds_until_ms = cluster, now
        if count > SMALL_TOPIC_PARTITIONS:
            topic.odds_until_ms += count * ODDS_MS_FOR_A_PARTITION
        return topic.odds
