"""Group members: librdkafka consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer

from tests.support.waiting import eventually

CLIENT_ID = "billing-1"
SECONDS_MAX = 30


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """Yield a consumer with an assignment, without auto-commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": CLIENT_ID,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        eventually("an assignment", lambda: (consumer.poll(0.1), consumer.assignment())[1], SECONDS_MAX)
        yield consumer
    finally:
        consumer.close()
