"""confluent-kafka (librdkafka) with the interface of clients.py."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.peers.clients import CODECS, FACTS, RIDE_SECONDS_MAX, Noted, Rebalance, Ride
from tests.support.waiting import eventually

SECONDS_MAX = 30
POLL_SECONDS = 0.05
PAUSE_SECONDS = 0.004


class Confluent:
    codecs: Sequence[str] = CODECS
    facts: Sequence[str] = FACTS

    def close(self) -> None:
        """Nothing runs for it."""

    def produce(self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none") -> list[int]:
        offsets: list[int | None] = []
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.codec": codec, "enable.idempotence": True, "log_level": 0}
        )
        for _, timestamp, key, value, headers in records:
            producer.produce(
                *(topic, value, key, 0),
                on_delivery=lambda _, message: offsets.append(message.offset()),
                timestamp=timestamp,
                headers=list(headers),
            )
        assert producer.flush(SECONDS_MAX) == 0
        return [offset for offset in offsets if offset is not None]

    def consume(
        self, bootstrap: str, topic: str, count: int, *, isolation: str = "read_uncommitted"
    ) -> Sequence[Record]:
        return librdkafka.consume(bootstrap, topic, count, isolation=isolation)

    def rebalance(self, bootstrap: str, topic: str, group: str, partitions: int, count: int) -> Rebalance:
        values: list[str] = []

        def partitions_of(member: Consumer) -> list[int]:
            return sorted(partition.partition for partition in member.assignment())

        def poll(*members: Consumer) -> list[list[int]]:
            for member in members:
                values.extend(_text(message) for message in member.consume(100, POLL_SECONDS))
            return [partitions_of(member) for member in members]

        def until_all(member: Consumer) -> list[int]:
            return eventually("all partitions", lambda: _if(lambda p: len(p) == partitions, poll(member)[0]))

        first, second = _member(bootstrap, group), _member(bootstrap, group)
        try:
            first.subscribe([topic])
            alone = until_all(first)
            second.subscribe([topic])
            shared = eventually(
                "both to have some", lambda: _if(lambda p: all(map(len, p)) and p[0] != alone, poll(first, second))
            )
            second.close()
            again = until_all(first)
            eventually("all values", lambda: poll(first) and len(set(values)) == count)
        finally:
            first.close()
            second.close()
        return Rebalance(alone, shared, again, values)

    def transform(
        self, bootstrap: str, source: str, target: str, group: str, transactional_id: str, count: int
    ) -> int | None:
        producer = librdkafka.transactional(bootstrap, transactional_id)
        consumer = _member(bootstrap, group, **{"enable.auto.commit": False})

        def read() -> list[str]:
            values: list[str] = []

            def poll() -> bool:
                values.extend(map(_text, consumer.consume(count, POLL_SECONDS)))
                return len(values) == count

            eventually("all records", poll)
            return values

        def write(texts: list[str]) -> None:
            producer.begin_transaction()
            for text in texts:
                producer.produce(target, text.upper())
            assert producer.flush(SECONDS_MAX) == 0  # it throws away what it has not sent when it aborts
            position = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), SECONDS_MAX)

        try:
            consumer.subscribe([source])
            write(read())
            producer.abort_transaction(SECONDS_MAX)
            (committed,) = consumer.committed([TopicPartition(source, 0)], SECONDS_MAX)
            consumer.seek(TopicPartition(source, 0, 0))
            write(read())
            producer.commit_transaction(SECONDS_MAX)
        finally:
            consumer.close()
        return None if committed.offset < 0 else committed.offset

    def ride(self, bootstrap: str, topic: str, group: str, partitions: int, stop: Path) -> Ride:
        ride = Ride([], [], [])
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        consumer = _member(bootstrap, group)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                ride.errors.append(str(error))
            else:
                ride.acknowledged.append(_noted(message))

        def read() -> int:
            ride.consumed.extend(_noted(message) for message in consumer.consume(100, PAUSE_SECONDS))
            return len({row.number for row in ride.consumed})

        def write() -> bool:
            number = next(numbers)
            producer.produce(topic, str(number), partition=number % partitions, on_delivery=on_delivery)
            producer.poll(0)
            read()
            return stop.exists()

        numbers = itertools.count()
        try:
            consumer.subscribe([topic])
            eventually("the end of writing", write, RIDE_SECONDS_MAX)
            assert producer.flush(SECONDS_MAX) == 0
            eventually("all that was written", lambda: read() == len(ride.acknowledged))
        finally:
            consumer.close()
        return ride

    def administer(self, bootstrap: str, topic: str, filled: str, group: str) -> Mapping[str, Any]:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        facts: dict[str, Any] = {}

        def done(futures: Mapping[Any, Any]) -> Any:
            (future,) = futures.values()
            return future.result(SECONDS_MAX)

        def topics() -> Mapping[str, Any]:
            topics: Mapping[str, Any] = admin.list_topics(timeout=SECONDS_MAX).topics
            return topics

        def described() -> int:
            return len(topics()[topic].partitions)

        def retention() -> str:
            return str(done(admin.describe_configs([resource]))["retention.ms"].value)

        done(admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "1000000"})]))
        eventually("the topic", lambda: topic in topics())
        facts["partitions"] = described()
        facts["retention"] = retention()
        entry = ConfigEntry("retention.ms", "2000000", incremental_operation=AlterConfigOpType.SET)
        done(
            admin.incremental_alter_configs(
                [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])]
            )
        )
        facts["altered"] = eventually("the value", lambda: _if(lambda value: value != facts["retention"], retention()))
        done(admin.create_partitions([NewPartitions(topic, 3)]))
        facts["grown"] = eventually("three partitions", lambda: _if(lambda count: count == 3, described()))
        facts["listed"] = topic in topics()
        done(admin.delete_topics([topic]))
        facts["gone"] = eventually("the end of the topic", lambda: topic not in topics())
        done(admin.delete_records([TopicPartition(filled, 0, 3)]))
        facts["offsets"] = [
            done(admin.list_offsets({TopicPartition(filled, 0): spec})).offset
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        cluster = admin.describe_cluster().result(SECONDS_MAX)
        facts["nodes"] = [[node.id, node.host, node.port] for node in cluster.nodes]
        facts["controller"] = cluster.controller.id

        def groups() -> list[str]:
            return [listing.group_id for listing in admin.list_consumer_groups().result(SECONDS_MAX).valid]

        facts["group_listed"] = group in groups()
        facts["group_state"] = done(admin.describe_consumer_groups([group])).state.name.capitalize()
        offsets = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        facts["committed"] = offsets.topic_partitions[0].offset
        done(admin.delete_consumer_groups([group]))
        facts["group_gone"] = group not in groups()
        return facts


def _member(bootstrap: str, group: str, **options: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
            **options,
        }
    )


def _noted(message: Message) -> Noted:
    number, partition, offset = int(_text(message)), message.partition(), message.offset()
    assert partition is not None
    return Noted(number, partition, -1 if offset is None else offset)


def _text(message: Message) -> str:
    assert message.error() is None, message.error()
    value = message.value()
    assert isinstance(value, bytes)
    return value.decode()


def _if(matches: Any, value: Any) -> Any:
    return value if matches(value) else None
