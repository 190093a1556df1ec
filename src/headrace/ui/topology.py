"""Who is in the cluster: brokers, topics, partitions and who leads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from headrace.client.admin import AdminClient, ClusterDescription, TopicDescription, TopicPartition
from headrace.client.metadata import NO_LEADER
from headrace.ui.collector import Collector, Feed

EVERY_SECONDS = 2.0
IDLE_SECONDS = 15.0


@dataclass(frozen=True)
class Topology:
    """A snapshot of the cluster."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicDescription]
    """By name, in order; with those that brokers keep for themselves."""

    @cached_property
    def leaders(self) -> dict[TopicPartition, int]:
        """Who leads each partition; those that nobody leads are not in it."""
        return {
            TopicPartition(name, info.partition): info.leader
            for name, topic in self.topics.items()
            for info in topic.partitions
            if info.leader != NO_LEADER
        }

    @cached_property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    @cached_property
    def leaderless(self) -> list[TopicPartition]:
        """Partitions that can be neither written nor read now."""
        return [tp for tp in self._partitions() if tp not in self.leaders]

    @cached_property
    def out_of_sync(self) -> list[TopicPartition]:
        """Partitions with replicas that have fallen behind."""
        return [
            TopicPartition(name, info.partition)
            for name, topic in self.topics.items()
            for info in topic.partitions
            if len(info.isr) < len(info.replicas)
        ]

    @cached_property
    def led_by(self) -> dict[int, int]:
        """How many partitions each broker leads."""
        counts: dict[int, int] = {}
        for leader in self.leaders.values():
            counts[leader] = counts.get(leader, 0) + 1
        return counts

    def _partitions(self) -> Iterator[TopicPartition]:
        for name, topic in self.topics.items():
            for info in topic.partitions:
                yield TopicPartition(name, info.partition)


def topology_feed(collector: Collector) -> Feed[Topology]:
    return collector.feed("topology", _ask, every_s=EVERY_SECONDS, idle_s=IDLE_SECONDS)


def _ask(admin: AdminClient) -> Topology:
    return Topology(admin.describe_cluster(), admin.describe_all_topics())
