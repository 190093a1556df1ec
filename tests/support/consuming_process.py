"""A member of a group in a process of its own, to be killed or paused: prints and commits every record.

    python -m tests.support.consuming_process BOOTSTRAP GROUP TOPIC PROTOCOL

A line is `partition value`, after its offset is committed.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

POLL_SECONDS = 0.1
CLASSIC_SESSION_MS = 1_500


def main(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    options: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if protocol == "classic":
        options |= {
            "session.timeout.ms": CLASSIC_SESSION_MS,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    consumer = Consumer(options)
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(POLL_SECONDS)
        if message is None or message.error():
            continue
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException:
            # The group is rebalancing: read the record again, unless the partition belongs to another member now.
            with suppress(KafkaException):
                consumer.seek(TopicPartition(topic, message.partition() or 0, message.offset() or 0))
            continue
        print(message.partition(), (message.value() or b"").decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
