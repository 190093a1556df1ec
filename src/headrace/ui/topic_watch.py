"""One topic, for who looks at it: partitions with their offsets and sizes, options, and how fast it grows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.topics import configs_of, described
from headrace.client.offsets import LATEST, Isolation
from headrace.errors import HeadraceError
from headrace.ui.collector import Collector, Feed
from headrace.ui.history import Rate

EVERY_SECONDS = 2.0
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
    return collector.feed(f"topic {name}", TopicWatch(name).ask, every_s=EVERY_SECONDS)


def options_feed(collector: Collector, name: str) -> Feed[list[dict[str, Any]]]:
    """The options of a topic."""
    return collector.feed(
        f"options of topic {name}", lambda admin: configs_of(admin, name), every_s=OPTIONS_EVERY_SECONDS
    )
