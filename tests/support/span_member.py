"""A member of a group in a process of its own, to be killed or paused: prints what it has read and committed.

    python -m tests.support.span_member CLIENT BOOTSTRAP GROUP TOPIC PROTOCOL

PROTOCOL is `consumer` (KIP-848), or the assignor of a classic group. A line is `read PARTITION START END` when it has
records, and `committed PARTITION START END` when the group has their offsets: all since the last commit.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from headrace import Consumer, HeadraceError, RebalanceListener, TopicPartition

POLL_SECONDS = 0.1
RECORDS_MAX = 50
CLASSIC = {"session_timeout_ms": 4000, "heartbeat_interval_ms": 200}
COMMIT_SECONDS_MAX = 10.0


class Spans:
    """The records of each partition that are read, and not committed."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[int, int]] = {}

    def read(self, records: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Note records (partition, offset); returns the offsets to commit."""
        for partition, offset in records:
            start, end = self._pending.get(partition, (offset, offset))
            assert end == offset, f"partition {partition}: read {offset} after {end}"
            self._pending[partition] = (start, offset + 1)
        self._print("read")
        return {partition: end for partition, (_, end) in self._pending.items()}

    def committed(self) -> None:
        self._print("committed")
        self._pending.clear()

    def forget(self, partitions: Iterable[int]) -> None:
        """Note that partitions are moved to other members."""
        for partition in partitions:
            self._pending.pop(partition, None)

    def _print(self, event: str) -> None:
        for partition, (start, end) in self._pending.items():
            print(event, partition, start, end, flush=True)


class _Forgetting(RebalanceListener):
    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def on_revoked(self, partitions):
        self._spans.forget(tp.partition for tp in partitions)


def run_headrace(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    spans = Spans()
    classic = {**CLASSIC, "partition_assignment_strategy": protocol}
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=RECORDS_MAX,
        **({"group_protocol": "consumer"} if protocol == "consumer" else classic),
    )
    consumer.subscribe([topic], listener=_Forgetting(spans))
    while True:
        offsets = spans.read((record.partition, record.offset) for record in consumer.poll(POLL_SECONDS))
        if not offsets:
            continue
        try:
            consumer.commit({TopicPartition(topic, p): end for p, end in offsets.items()}, COMMIT_SECONDS_MAX)
        except HeadraceError as error:
            print("failed", error, flush=True)
        else:
            spans.committed()


def run_librdkafka(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    spans = Spans()
    options: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if protocol == "consumer":
        options["group.protocol"] = "consumer"
    else:
        options |= {name.replace("_", "."): value for name, value in CLASSIC.items()}
        options["partition.assignment.strategy"] = protocol
    consumer = confluent_kafka.Consumer(options)

    def on_revoke(consumer: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        spans.forget(tp.partition for tp in partitions)

    consumer.subscribe([topic], on_revoke=on_revoke, on_lost=on_revoke)
    while True:
        messages = consumer.consume(RECORDS_MAX, POLL_SECONDS)
        offsets = spans.read((m.partition() or 0, m.offset() or 0) for m in messages if m.error() is None)
        if not offsets:
            continue
        try:
            rows = [confluent_kafka.TopicPartition(topic, p, end) for p, end in offsets.items()]
            results = consumer.commit(offsets=rows, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            print("failed", error, flush=True)
        else:
            assert all(row.error is None for row in results or [])
            spans.committed()


class _AiokafkaListener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def on_partitions_revoked(self, revoked):
        self._spans.forget(tp.partition for tp in revoked)

    async def on_partitions_assigned(self, assigned):
        pass


async def _run_aiokafka(bootstrap: str, group: str, topic: str) -> None:
    spans = Spans()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[RangePartitionAssignor],
        max_poll_records=RECORDS_MAX,
        **CLASSIC,
    )
    await consumer.start()
    consumer.subscribe([topic], listener=_AiokafkaListener(spans))
    while True:
        polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        offsets = spans.read((record.partition, record.offset) for rows in polled.values() for record in rows)
        if not offsets:
            continue
        try:
            await consumer.commit({aiokafka.TopicPartition(topic, p): end for p, end in offsets.items()})
        except KafkaError as error:
            print("failed", error, flush=True)
        else:
            spans.committed()


def run_aiokafka(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    assert protocol == "range"
    asyncio.run(_run_aiokafka(bootstrap, group, topic))


CLIENTS: dict[str, Callable[[str, str, str, str], None]] = {
    "headrace": run_headrace,
    "librdkafka": run_librdkafka,
    "aiokafka": run_aiokafka,
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](*sys.argv[2:])
