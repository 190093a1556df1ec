"""aiokafka with the interface of clients.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace.wire.layout import Record
from tests.support.peers.clients import CODECS, FACTS, Rebalance

SECONDS_MAX = 30
POLL_MS = 50

T = TypeVar("T")


class Aiokafka:
    codecs: Sequence[str] = CODECS
    facts: Sequence[str] = tuple(fact for fact in FACTS if fact != "group_gone")  # it deletes no groups

    def close(self) -> None:
        """Nothing runs for it."""

    def produce(self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none") -> list[int]:
        async def main() -> list[int]:
            compression = None if codec == "none" else codec
            async with AIOKafkaProducer(
                bootstrap_servers=bootstrap, compression_type=compression, enable_idempotence=True
            ) as producer:
                futures = [
                    await producer.send(topic, value, key, 0, timestamp, list(headers))
                    for _, timestamp, key, value, headers in records
                ]
                return [(await future).offset for future in futures]

        return _run(main())

    def consume(
        self, bootstrap: str, topic: str, count: int, *, isolation: str = "read_uncommitted"
    ) -> Sequence[Record]:
        async def main() -> list[Record]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
            records: list[Record] = []
            async with consumer:
                consumer.assign([TopicPartition(topic, 0)])
                await consumer.seek_to_beginning()
                while len(records) < count:
                    message = await consumer.getone()
                    headers = tuple(message.headers)
                    records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
            return records

        return _run(main())

    def rebalance(self, bootstrap: str, topic: str, group: str, partitions: int, count: int) -> Rebalance:
        return _run(_rebalance(bootstrap, topic, group, partitions, count))

    def transform(
        self, bootstrap: str, source: str, target: str, group: str, transactional_id: str, count: int
    ) -> int | None:
        return _run(_transform(bootstrap, source, target, group, transactional_id, count))

    def administer(self, bootstrap: str, topic: str, filled: str, group: str) -> Mapping[str, Any]:
        return _run(_administer(bootstrap, topic, TopicPartition(filled, 0), group))


async def _rebalance(bootstrap: str, topic: str, group: str, partitions: int, count: int) -> Rebalance:
    values: list[str] = []

    async def poll(*members: AIOKafkaConsumer) -> list[list[int]]:
        for member in members:
            values.extend(message.value.decode() for message in await _messages(member))
        return [sorted(partition.partition for partition in member.assignment()) for member in members]

    async def until_all(member: AIOKafkaConsumer) -> list[int]:
        async def attempt() -> list[int] | None:
            (assigned,) = await poll(member)
            return assigned if len(assigned) == partitions else None

        return await _eventually("all partitions", attempt)

    async with _member(bootstrap, topic, group) as first:
        alone = await until_all(first)

        async with _member(bootstrap, topic, group) as second:

            async def attempt() -> list[list[int]] | None:
                assigned = await poll(first, second)
                return assigned if all(assigned) and assigned[0] != alone else None

            shared = await _eventually("both to have some", attempt)
        again = await until_all(first)

        async def is_all_read() -> bool:
            await poll(first)
            return len(set(values)) == count

        await _eventually("all values", is_all_read)
    return Rebalance(alone, shared, again, values)


async def _transform(
    bootstrap: str, source: str, target: str, group: str, transactional_id: str, count: int
) -> int | None:
    partition = TopicPartition(source, 0)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    consumer = _member(bootstrap, source, group, enable_auto_commit=False)

    async def attempt() -> None:
        await producer.begin_transaction()
        for _ in range(count):
            message = await consumer.getone()
            await producer.send(target, message.value.upper())
        await producer.send_offsets_to_transaction({partition: await consumer.position(partition)}, group)

    async with producer, consumer:
        await attempt()
        await producer.abort_transaction()
        committed = await consumer.committed(partition)
        consumer.seek(partition, 0)
        await attempt()
        await producer.commit_transaction()
    return None if committed is None else int(committed)


async def _administer(bootstrap: str, topic: str, filled: TopicPartition, group: str) -> dict[str, Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    facts: dict[str, Any] = {}

    async def described() -> int:
        (description,) = await admin.describe_topics([topic])
        return len(description["partitions"])

    async def retention() -> str:
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = {entry[0]: entry[1] for entry in response.resources[0][4]}
        return str(entries["retention.ms"])

    async def is_altered() -> str | None:
        value = await retention()
        return value if value != facts["retention"] else None

    async def is_grown() -> int | None:
        count = await described()
        return count if count == 3 else None

    async def is_listed() -> bool:
        return topic in await admin.list_topics()

    async def is_gone() -> bool:
        return not await is_listed()

    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000000"})])
        await _eventually("the topic", is_listed)
        facts["partitions"] = await described()
        facts["retention"] = await retention()
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "2000000"})
        await admin.alter_configs([changed])
        facts["altered"] = await _eventually("the value", is_altered)
        await admin.create_partitions({topic: NewPartitions(3)})
        facts["grown"] = await _eventually("three partitions", is_grown)
        facts["listed"] = await is_listed()
        await admin.delete_topics([topic])
        facts["gone"] = await _eventually("the end of the topic", is_gone)
        deleted = await admin.delete_records({filled: RecordsToDelete(3)})
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            ends = await consumer.end_offsets([filled])
        facts["offsets"] = [deleted[filled], ends[filled]]
        cluster = await admin.describe_cluster()
        facts["nodes"] = [[node["node_id"], node["host"], node["port"]] for node in cluster["brokers"]]
        facts["controller"] = cluster["controller_id"]
        facts["group_listed"] = group in [listing[0] for listing in await admin.list_consumer_groups()]
        (response,) = await admin.describe_consumer_groups([group])
        facts["group_state"] = response.groups[0][2]
        facts["committed"] = (await admin.list_consumer_group_offsets(group))[filled].offset
    finally:
        await admin.close()
    return facts


def _member(bootstrap: str, topic: str, group: str, **options: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=200,
        fetch_max_wait_ms=100,
        **options,
    )


async def _messages(consumer: AIOKafkaConsumer) -> list[Any]:
    fetched = await consumer.getmany(timeout_ms=POLL_MS)
    return [message for messages in fetched.values() for message in messages]


async def _eventually(what: str, attempt: Callable[[], Awaitable[T | None]]) -> T:
    deadline = time.monotonic() + SECONDS_MAX
    while not (response := await attempt()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {SECONDS_MAX} s")
        await asyncio.sleep(0.02)
    return response


def _run(work: Awaitable[T]) -> T:
    return asyncio.run(asyncio.wait_for(work, SECONDS_MAX))
