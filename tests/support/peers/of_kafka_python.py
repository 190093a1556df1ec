"""kafka-python with the interface of clients.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import kafka.codec
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec

from headrace.wire.layout import Record
from tests.support.peers.clients import FACTS, Rebalance
from tests.support.waiting import eventually

SECONDS_MAX = 30
POLL_MS = 50


class KafkaPython:
    codecs: Sequence[str] = (
        "none",
        *(codec for codec in ("gzip", "snappy", "lz4", "zstd") if getattr(kafka.codec, f"has_{codec}")()),
    )
    facts: Sequence[str] = FACTS

    def close(self) -> None:
        """Nothing runs for it."""

    def produce(self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none") -> list[int]:
        compression = None if codec == "none" else codec
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression)
        try:
            futures = [
                producer.send(topic, value, key, list(headers), 0, timestamp)
                for _, timestamp, key, value, headers in records
            ]
            return [future.get(SECONDS_MAX).offset for future in futures]
        finally:
            producer.close(SECONDS_MAX)

    def consume(
        self, bootstrap: str, topic: str, count: int, *, isolation: str = "read_uncommitted"
    ) -> Sequence[Record]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, group_id=None)
        records: list[Record] = []
        try:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()

            def poll() -> bool:
                for message in _messages(consumer):
                    headers = tuple((key, value) for key, value in message.headers)
                    records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
                return len(records) >= count

            eventually(f"{count} records", poll)
        finally:
            consumer.close()
        return records

    def rebalance(self, bootstrap: str, topic: str, group: str, partitions: int, count: int) -> Rebalance:
        values: list[str] = []

        def poll(*members: KafkaConsumer) -> list[list[int]]:
            for member in members:
                values.extend(message.value.decode() for message in _messages(member))
            return [sorted(partition.partition for partition in member.assignment()) for member in members]

        def until_all(member: KafkaConsumer) -> list[int]:
            return eventually("all partitions", lambda: _if(lambda p: len(p) == partitions, poll(member)[0]))

        first, second = _member(bootstrap, group), _member(bootstrap, group)
        try:
            first.partitions_for_topic(topic)  # a leader that does not know the topic yet assigns nothing, for long
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
        partition = TopicPartition(source, 0)
        producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        consumer = _member(bootstrap, group, enable_auto_commit=False)

        def read() -> list[str]:
            values: list[str] = []

            def poll() -> bool:
                values.extend(message.value.decode() for message in _messages(consumer))
                return len(values) == count

            eventually("all records", poll)
            return values

        def write(texts: list[str]) -> None:
            producer.begin_transaction()
            for text in texts:
                producer.send(target, text.upper().encode())
            producer.flush(SECONDS_MAX)  # it throws away what it has not sent when the transaction is aborted
            offsets = {partition: OffsetAndMetadata(consumer.position(partition), "", -1)}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

        try:
            consumer.subscribe([source])
            producer.init_transactions()
            write(read())
            producer.abort_transaction()
            committed = consumer.committed(partition)
            consumer.seek(partition, 0)
            write(read())
            producer.commit_transaction()
        finally:
            consumer.close()
            producer.close(SECONDS_MAX)
        return None if committed is None else int(committed)

    def administer(self, bootstrap: str, topic: str, filled: str, group: str) -> Mapping[str, Any]:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            return _administer(admin, topic, TopicPartition(filled, 0), group)
        finally:
            admin.close()


def _administer(admin: Any, topic: str, filled: TopicPartition, group: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}

    def described() -> int:
        (description,) = admin.describe_topics([topic])
        return len(description["partitions"])

    def retention() -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        description = admin.describe_configs([resource], config_filter="all")
        return str(description[ConfigResourceType.TOPIC.name.lower()][topic]["retention.ms"]["value"])

    admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000000"}}})
    eventually("the topic", lambda: topic in admin.list_topics())
    facts["partitions"] = described()
    facts["retention"] = retention()
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "2000000"})])
    facts["altered"] = eventually("the value", lambda: _if(lambda value: value != facts["retention"], retention()))
    admin.create_partitions({topic: 3})
    facts["grown"] = eventually("three partitions", lambda: _if(lambda count: count == 3, described()))
    facts["listed"] = topic in admin.list_topics()
    admin.delete_topics([topic])
    facts["gone"] = eventually("the end of the topic", lambda: topic not in admin.list_topics())
    admin.delete_records({filled: 3})
    facts["offsets"] = [
        admin.list_partition_offsets({filled: spec})[filled].offset for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    ]
    cluster = admin.describe_cluster()
    facts["nodes"] = [[node["broker_id"], node["host"], node["port"]] for node in cluster["brokers"]]
    facts["controller"] = cluster["controller_id"]

    def groups() -> list[str]:
        return [listing["group_id"] for listing in admin.list_groups()]

    facts["group_listed"] = group in groups()
    facts["group_state"] = admin.describe_groups([group])[group]["group_state"]
    facts["committed"] = admin.list_group_offsets(group)[group][filled].offset
    admin.delete_groups([group])
    facts["group_gone"] = group not in groups()
    return facts


def _member(bootstrap: str, group: str, **options: Any) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=200,
        fetch_max_wait_ms=100,
        **options,
    )


def _messages(consumer: KafkaConsumer) -> list[Any]:
    return [message for messages in consumer.poll(POLL_MS).values() for message in messages]


def _if(matches: Any, value: Any) -> Any:
    return value if matches(value) else None
