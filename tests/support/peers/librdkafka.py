"""librdkafka (confluent-kafka) as another client of the same broker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from headrace.wire.layout import NO_TIMESTAMP, Header, Record

SECONDS_MAX = 30


def produce(bootstrap: str, topic: str, records: Iterable[Record], *, codec: str = "none", partition: int = 0) -> None:
    """Send records to a partition, in one batch if they fit, and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.codec": codec, "linger.ms": 100, "log_level": 0})
    append(producer, topic, records, partition)


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    """A producer that is ready to begin a transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(SECONDS_MAX)
    return producer


def append(producer: Producer, topic: str, records: Iterable[Record], partition: int = 0) -> None:
    """Send records with a producer there is, and wait until all are acknowledged."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)

    for _, timestamp, key, value, headers in records:
        producer.produce(
            topic, value, key, partition, timestamp=timestamp, headers=list(headers), on_delivery=delivered
        )
    unsent = producer.flush(SECONDS_MAX)
    assert (unsent, errors) == (0, [])


def consume(
    bootstrap: str, topic: str, count: int, *, partition: int = 0, isolation: str = "read_uncommitted"
) -> list[Record]:
    """The first `count` records of a partition, with checksums checked."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        records: list[Record] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(records) < count and time.monotonic() < deadline:
            records += [_record(message) for message in consumer.consume(count - len(records), timeout=1)]
    finally:
        consumer.close()
    assert len(records) == count, f"{len(records)} of {count} records after {SECONDS_MAX} s"
    return records


def consume_to_end(
    bootstrap: str, topic: str, *, partition: int = 0, isolation: str = "read_committed"
) -> list[Record]:
    """Return all records of a partition. A read_committed reader would stop at an open transaction."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is known with the first fetch that returns nothing
            "log_level": 0,
        }
    )
    records: list[Record] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.05):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return records
                records.append(_record(message))
    finally:
        consumer.close()
    raise TimeoutError(f"no end of {topic}-{partition} after {SECONDS_MAX} s and {len(records)} records")


def _record(message: Message) -> Record:
    if message.error():
        raise KafkaException(message.error())
    kind, timestamp = message.timestamp()
    offset, headers = message.offset(), cast("list[Header]", message.headers() or [])
    assert offset is not None
    return Record(
        offset,
        timestamp if kind else NO_TIMESTAMP,
        message.key(),
        message.value(),
        tuple(headers),
    )
