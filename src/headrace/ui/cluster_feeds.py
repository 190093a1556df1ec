"""Feeds of the cluster: topology, throughput, and single topics.

    end offsets of all partitions   → records in, per topic and in total          any cluster
    log sizes of the leaders        → bytes in                                    clusters that permit DescribeLogDirs
    counters of a headrace broker   → bytes in and out, requests, failures        by its control socket

Kafka's protocol has no counter of bytes out; without a control socket that figure is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.client.admin import AdminClient, ClusterDescription, TopicDescription, TopicPartition
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import LATEST, Isolation
from headrace.client.queries.topics import describe_topic, partition_sizes, topic_configs
from headrace.errors import HeadraceError, IllegalStateError
from headrace.ui.broker_control import BrokerControl
from headrace.ui.collector import Collector, Feed, Rate

TOPOLOGY_EVERY_SECONDS = 2.0
TOPOLOGY_IDLE_SECONDS = 15.0
TRAFFIC_EVERY_SECONDS = 2.0
TRAFFIC_IDLE_SECONDS = 10.0
SIZES_EVERY_SECONDS = 10.0
SIZES_IDLE_SECONDS = 30.0
TOPIC_EVERY_SECONDS = 2.0
CONFIGS_EVERY_SECONDS = 10.0
STATUS_SECONDS_MAX = 2.0
COUNTERS = ("received_bytes", "sent_bytes", "requests", "failed_requests")


@dataclass(frozen=True)
class Topology:
    """A snapshot of the cluster."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicDescription]
    """By name, in order; internal topics included."""

    @cached_property
    def leaders(self) -> dict[TopicPartition, int]:
        """Leaders by partition, without leaderless partitions."""
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
        """Partitions without a leader."""
        return [tp for tp in self._partitions() if tp not in self.leaders]

    @cached_property
    def out_of_sync(self) -> list[TopicPartition]:
        """Partitions with replicas that are not in sync."""
        return [
            TopicPartition(name, info.partition)
            for name, topic in self.topics.items()
            for info in topic.partitions
            if len(info.isr) < len(info.replicas)
        ]

    @cached_property
    def led_by(self) -> dict[int, int]:
        """Number of partitions that each broker leads."""
        counts: dict[int, int] = {}
        for leader in self.leaders.values():
            counts[leader] = counts.get(leader, 0) + 1
        return counts

    def _partitions(self) -> Iterator[TopicPartition]:
        for name, topic in self.topics.items():
            for info in topic.partitions:
                yield TopicPartition(name, info.partition)


def topology_feed(collector: Collector) -> Feed[Topology]:
    return collector.feed("topology", _fetch_topology, every_s=TOPOLOGY_EVERY_SECONDS, idle_s=TOPOLOGY_IDLE_SECONDS)


def _fetch_topology(admin: AdminClient) -> Topology:
    return Topology(admin.describe_cluster(), admin.describe_all_topics())


# -- throughput ----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class EndOffsets:
    """End offsets of all partitions with a leader, and the growth of each topic since the previous fetch."""

    offsets: Mapping[TopicPartition, int]
    records_per_s: Mapping[str, float]
    of_topic: Mapping[str, int] = field(default_factory=dict)
    """Sum of the end offsets of a topic: about the number of records ever written to it."""


@dataclass(slots=True, frozen=True)
class LogSizes:
    """Bytes on the leaders' disks."""

    of_topic: Mapping[str, int]
    total: int


class Traffic:
    """Throughput of the cluster: feeds and history. The history is written by the collector's thread."""

    def __init__(self, collector: Collector, topology: Feed[Topology], control: BrokerControl | None) -> None:
        self._topology = topology
        self._control = control
        self._previous: tuple[float, EndOffsets] | None = None
        self.records_in: Rate[TopicPartition] = Rate()
        self.stored_bytes: Rate[TopicPartition] = Rate()
        self.counters: dict[str, Rate[str]] = {name: Rate() for name in COUNTERS}
        self.ends: Feed[EndOffsets] = collector.feed(
            "ends", self._fetch_ends, every_s=TRAFFIC_EVERY_SECONDS, idle_s=TRAFFIC_IDLE_SECONDS
        )
        self.sizes: Feed[LogSizes] = collector.feed(
            "sizes", self._fetch_sizes, every_s=SIZES_EVERY_SECONDS, idle_s=SIZES_IDLE_SECONDS
        )
        self.status: Feed[dict[str, Any]] | None = None
        if control is not None:
            self.status = collector.feed(
                "status", self._fetch_status, every_s=TRAFFIC_EVERY_SECONDS, idle_s=TRAFFIC_IDLE_SECONDS
            )

    def _fetch_ends(self, admin: AdminClient) -> EndOffsets:
        # While a page shows end offsets, new topics should appear soon: keep the topology watched as well.
        topology = self._topology.get() if self.ends.is_watched else self._topology.value
        if topology is None or not topology.leaders:
            self._previous = None
            self.records_in.sample(time.time(), {})
            return EndOffsets({}, {})
        try:
            listed = admin.list_offsets(dict.fromkeys(topology.leaders, LATEST))
        except HeadraceError:
            self.records_in.sample(time.time(), None)
            raise
        now = time.time()
        offsets = {tp: result.offset for tp, result in listed.items()}
        self.records_in.sample(now, offsets)
        ends = EndOffsets(offsets, self._growth(now, offsets), _by_topic(offsets))
        self._previous = (now, ends)
        return ends

    def _growth(self, now: float, offsets: Mapping[TopicPartition, int]) -> dict[str, float]:
        if self._previous is None or now <= self._previous[0]:
            return {}
        then, previous = self._previous
        growth: dict[str, float] = {}
        for tp, end in offsets.items():
            added = end - previous.offsets.get(tp, end)
            if added > 0:
                growth[tp.topic] = growth.get(tp.topic, 0.0) + added / (now - then)
        return growth

    def _fetch_sizes(self, admin: AdminClient) -> LogSizes:
        topology = self._topology.value
        leaders = {} if topology is None else topology.leaders
        sizes = partition_sizes(admin, leaders) if leaders else {}
        self.stored_bytes.sample(time.time(), sizes)
        return LogSizes(_by_topic(sizes), sum(sizes.values()))

    def _fetch_status(self, _: AdminClient) -> dict[str, Any]:
        assert self._control is not None
        try:
            status: dict[str, Any] = self._control.call("status", seconds_max=STATUS_SECONDS_MAX)
        except HeadraceError as error:
            for rate in self.counters.values():
                rate.sample(time.time(), None)
            raise IllegalStateError(str(error)) from error  # the control socket, not the cluster
        for name, rate in self.counters.items():
            rate.sample(time.time(), {name: status.get(name) or 0})
        return status


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for tp, number in numbers.items():
        totals[tp.topic] = totals.get(tp.topic, 0) + number
    return totals


# -- one topic -----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class TopicSnapshot:
    """A topic at one moment."""

    facts: dict[str, Any]
    """As printed by `headrace topic describe`."""
    last_stable: dict[int, int]
    """Last stable offset of each partition; below the end offset while a transaction is open."""
    records_per_s: dict[int, float]
    records_in: Rate[int]
    stored_bytes: Rate[int]


class TopicFetcher:
    """Query of one topic, with its history. Collector thread only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._records_in: Rate[int] = Rate()
        self._stored_bytes: Rate[int] = Rate()
        self._previous: tuple[float, dict[int, int]] | None = None

    def fetch(self, admin: AdminClient) -> TopicSnapshot:
        try:
            facts = describe_topic(admin, self._name)
        except HeadraceError:
            self._records_in.sample(time.time(), None)
            raise
        ends = {p["partition"]: p["end_offset"] for p in facts["partitions"] if p["end_offset"] is not None}
        specs = {TopicPartition(self._name, number): LATEST for number in ends}
        stable = admin.list_offsets(specs, Isolation.READ_COMMITTED) if specs else {}
        now = time.time()
        self._records_in.sample(now, ends)
        self._stored_bytes.sample(now, {p["partition"]: p["size_bytes"] or 0 for p in facts["partitions"]})
        rates: dict[int, float] = {}
        if self._previous is not None and now > self._previous[0]:
            then, previous = self._previous
            rates = {number: max(0, end - previous.get(number, end)) / (now - then) for number, end in ends.items()}
        self._previous = (now, ends)
        last_stable = {tp.partition: result.offset for tp, result in stable.items()}
        return TopicSnapshot(facts, last_stable, rates, self._records_in, self._stored_bytes)


def topic_feed(collector: Collector, name: str) -> Feed[TopicSnapshot]:
    return collector.feed(f"topic {name}", TopicFetcher(name).fetch, every_s=TOPIC_EVERY_SECONDS)


def configs_feed(collector: Collector, name: str) -> Feed[list[dict[str, Any]]]:
    """Return the feed of a topic's configuration."""
    return collector.feed(
        f"configs of topic {name}", lambda admin: topic_configs(admin, name), every_s=CONFIGS_EVERY_SECONDS
    )
