"""How much goes through the cluster: records and bytes a second, from what has grown since the last look.

    end offsets of all partitions   → records in, of each topic and of all        any cluster tells
    bytes on the leaders' disks     → bytes in                                    any that lets us ask
    counters of a broker of ours    → bytes in and out, requests, failures        its control socket, where there is one

No cluster tells by Kafka's protocol what it hands out; where there is no control socket, that is not known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.topics import sizes_of
from headrace.client.offsets import LATEST
from headrace.errors import HeadraceError, IllegalStateError
from headrace.ui.collector import Collector, Feed
from headrace.ui.control import Control
from headrace.ui.history import Rate
from headrace.ui.topology import Topology

EVERY_SECONDS = 2.0
IDLE_SECONDS = 10.0
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
        self.ends: Feed[Ends] = collector.feed("ends", self._ask_ends, every_s=EVERY_SECONDS, idle_s=IDLE_SECONDS)
        self.sizes: Feed[Sizes] = collector.feed(
            "sizes", self._ask_sizes, every_s=SIZES_EVERY_SECONDS, idle_s=SIZES_IDLE_SECONDS
        )
        self.status: Feed[dict[str, Any]] | None = None
        if control is not None:
            self.status = collector.feed("status", self._ask_status, every_s=EVERY_SECONDS, idle_s=IDLE_SECONDS)

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
