"""Who is in the cluster: brokers, topics, partitions and who leads them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.client.admin import AdminClient, ClusterDescription, TopicDescription, TopicPartition
from headrace.client.facts.topics import configs_of, described, sizes_of
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import LATEST, Isolation
from headrace.errors import HeadraceError, IllegalStateError
from headrace.ui.broker_control import Control
from headrace.ui.collector import Collector, Feed, Rate

TOPOLOGY_EVERY_SECONDS = 2.0
TOPOLOGY_IDLE_SECONDS = 15.0


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
    return collector.feed("topology", _fetch_topology, every_s=TOPOLOGY_EVERY_SECONDS, idle_s=TOPOLOGY_IDLE_SECONDS)


def _fetch_topology(admin: AdminClient) -> Topology:
    return Topology(admin.describe_cluster(), admin.describe_all_topics())


TRAFFIC_EVERY_SECONDS = 2.0
TRAFFIC_IDLE_SECONDS = 10.0
SIZES_EVERY_SECONDS = 10.0
SIZES_IDLE_SECONDS = 30.0
STATUS_SECONDS_MAX = 2.0
COUNTERS = ("received_bytes", "sent_bytes", "requests", "failed_requests")


@dataclass(slots=True, frozen=True)
class Ends:
    """The end of every partition that has a leader, and how fast each topic has grown since the last look."""

    offsets: Mapping[TopicPartition, int]
    records_per_s: Mapping[str, float]
    of_topic: Mapping[str, int] = field(default_factory=dict)
    """Sum of the ends of a topic: how many records it has ever had, about."""


@dataclass(slots=True, frozen=True)
class Sizes:
    of_partition: Mapping[TopicPartition, int]
    of_topic: Mapping[str, int]
    total: int


class Traffic:
    """The feeds, and their history. Histories are written by the collector's thread."""

    def __init__(self, collector: Collector, topology: Feed[Topology], control: Control | None) -> None:
        self._topology = topology
        self._control = control
        self._before: tuple[float, Ends] | None = None
        self.records_in: Rate[TopicPartition] = Rate()
        self.stored_bytes: Rate[TopicPartition] = Rate()
        self.counters: dict[str, Rate[str]] = {name: Rate() for name in COUNTERS}
        self.ends: Feed[Ends] = collector.feed(
            "ends", self._ask_ends, every_s=TRAFFIC_EVERY_SECONDS, idle_s=TRAFFIC_IDLE_SECONDS
        )
        self.sizes: Feed[Sizes] = collector.feed(
            "sizes", self._ask_sizes, every_s=SIZES_EVERY_SECONDS, idle_s=SIZES_IDLE_SECONDS
        )
        self.status: Feed[dict[str, Any]] | None = None
        if control is not None:
            self.status = collector.feed(
                "status", self._ask_status, every_s=TRAFFIC_EVERY_SECONDS, idle_s=TRAFFIC_IDLE_SECONDS
            )

    def _ask_ends(self, admin: AdminClient) -> Ends:
        # Who looks at what is in topics wants to see new ones soon.
        topology = self._topology.look() if self.ends.is_looked_at else self._topology.value
        if topology is None or not topology.leaders:
            self._before = None
            self.records_in.read(time.time(), {})
            return Ends({}, {})
        try:
            found = admin.list_offsets(dict.fromkeys(topology.leaders, LATEST))
        except HeadraceError:
            self.records_in.read(time.time(), None)
            raise
        now = time.time()
        offsets = {tp: answer.offset for tp, answer in found.items()}
        self.records_in.read(now, offsets)
        ends = Ends(offsets, self._grown(now, offsets), _by_topic(offsets))
        self._before = (now, ends)
        return ends

    def _grown(self, now: float, offsets: Mapping[TopicPartition, int]) -> dict[str, float]:
        if self._before is None or now <= self._before[0]:
            return {}
        then, before = self._before
        grown: dict[str, float] = {}
        for tp, end in offsets.items():
            more = end - before.offsets.get(tp, end)
            if more > 0:
                grown[tp.topic] = grown.get(tp.topic, 0.0) + more / (now - then)
        return grown

    def _ask_sizes(self, admin: AdminClient) -> Sizes:
        topology = self._topology.value
        leaders = {} if topology is None else topology.leaders
        sizes = sizes_of(admin, leaders) if leaders else {}
        self.stored_bytes.read(time.time(), sizes)
        return Sizes(sizes, _by_topic(sizes), sum(sizes.values()))

    def _ask_status(self, _: AdminClient) -> dict[str, Any]:
        assert self._control is not None
        try:
            status: dict[str, Any] = self._control.call("status", seconds_max=STATUS_SECONDS_MAX)
        except HeadraceError as error:
            for rate in self.counters.values():
                rate.read(time.time(), None)
            raise IllegalStateError(str(error)) from error  # of the side door: it says nothing of the cluster
        for name, rate in self.counters.items():
            rate.read(time.time(), {name: status.get(name) or 0})
        return status


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for tp, number in numbers.items():
        totals[tp.topic] = totals.get(tp.topic, 0) + number
    return totals


TOPIC_EVERY_SECONDS = 2.0
OPTIONS_EVERY_SECONDS = 10.0


@dataclass(slots=True, frozen=True)
class TopicNow:
    """A topic as it is."""

    facts: dict[str, Any]
    """As of `headrace topic describe`."""
    last_stable: dict[int, int]
    """Where a reader of committed records waits; below the end while a transaction is open."""
    per_partition: dict[int, float]
    """Records a second."""
    written: Rate[int]
    stored: Rate[int]


class TopicWatch:
    """Asks for a topic, and remembers what it was told before. The collector's thread only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._written: Rate[int] = Rate()
        self._stored: Rate[int] = Rate()
        self._before: tuple[float, dict[int, int]] | None = None

    def ask(self, admin: AdminClient) -> TopicNow:
        try:
            facts = described(admin, self._name)
        except HeadraceError:
            self._written.read(time.time(), None)
            raise
        ends = {p["partition"]: p["end_offset"] for p in facts["partitions"] if p["end_offset"] is not None}
        wanted = {TopicPartition(self._name, number): LATEST for number in ends}
        stable = admin.list_offsets(wanted, Isolation.READ_COMMITTED) if wanted else {}
        now = time.time()
        self._written.read(now, ends)
        self._stored.read(now, {p["partition"]: p["size_bytes"] or 0 for p in facts["partitions"]})
        rates: dict[int, float] = {}
        if self._before is not None and now > self._before[0]:
            then, before = self._before
            rates = {number: max(0, end - before.get(number, end)) / (now - then) for number, end in ends.items()}
        self._before = (now, ends)
        last_stable = {tp.partition: answer.offset for tp, answer in stable.items()}
        return TopicNow(facts, last_stable, rates, self._written, self._stored)


def topic_feed(collector: Collector, name: str) -> Feed[TopicNow]:
    """The feed of a topic; all who look at it share it."""
    return collector.feed(f"topic {name}", TopicWatch(name).ask, every_s=TOPIC_EVERY_SECONDS)


def options_feed(collector: Collector, name: str) -> Feed[list[dict[str, Any]]]:
    """The options of a topic."""
    return collector.feed(
        f"options of topic {name}", lambda admin: configs_of(admin, name), every_s=OPTIONS_EVERY_SECONDS
    )
