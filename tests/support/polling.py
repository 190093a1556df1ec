"""Our consumers in tests of groups: topics with records, a listener that notes its calls, polling in turn."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace import Consumer, ConsumerRecord, Producer, RebalanceListener
from tests.support.topics import unique

SECONDS_MAX = 30.0


def fill(broker, count: int, partitions: int) -> str:
    """Return a new topic with records in turn in its partitions."""
    topic = unique("grouped")
    broker.create_topic(topic, partitions)
    produce(broker, topic, count, partitions)
    return topic


def produce(broker, topic: str, count: int, partitions: int) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(count):
            producer.send(topic, f"value {i}".encode(), partition=i % partitions)


class Log(RebalanceListener):
    """Notes what the group does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def on_assigned(self, partitions):
        self.calls.append(("assigned", [tp.partition for tp in partitions]))

    def on_revoked(self, partitions):
        self.calls.append(("revoked", [tp.partition for tp in partitions]))

    def on_lost(self, partitions):
        self.calls.append(("lost", [tp.partition for tp in partitions]))


def poll_until(condition: Callable[[], object], *consumers: Consumer) -> list[ConsumerRecord]:
    """Poll all consumers in turn until a condition is true; returns the records."""
    out: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        for consumer in consumers:
            out += consumer.poll(0.05)
    return out
