"""Groups of other client libraries: mixed, restarted, killed and fenced."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor

from headrace import AbortableError, FatalError, GroupMetadata, Producer
from headrace.client.admin import AdminClient
from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.topics import unique
from tests.support.waiting import eventually

PARTITIONS = 4
SECONDS = 30
POLL_SECONDS = 0.2
SESSION_MS = 6_000
HEARTBEAT_MS = 300
KAFKA_PYTHON_POLL_MS = 1_500
"""Longer than a rebalance: when a poll ends in the middle of one, kafka-python 3.0 may lose the assignment it got."""


@pytest.fixture
def topic(broker) -> str:
    """Create a topic with several partitions and two records in each."""
    name: str = broker.create_topic(unique("topic"), PARTITIONS)
    for partition in range(PARTITIONS):
        rows = [Record(0, 0, None, b"%d %d" % (partition, n), ()) for n in range(2)]
        librdkafka.produce(broker.bootstrap, name, rows, partition=partition)
    return name


class Consumer:
    """A group member with a polling thread, so that one that waits for a rebalance does not block another."""

    def __init__(self, broker, topic: str, group: str, **options: Any) -> None:
        self.values: list[bytes] = []
        self._owned: set[int] = set()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(broker.bootstrap, topic, group, options), daemon=True)
        self._thread.start()

    def partitions(self) -> set[int]:
        return self._owned

    def close(self) -> None:
        """Stop polling, and leave."""
        self._idle.set()
        self._thread.join(SECONDS)

    def _live(self, bootstrap: str, topic: str, group: str, options: dict[str, Any]) -> None:
        raise NotImplementedError


class Confluent(Consumer):
    """A member with librdkafka."""

    def _live(self, bootstrap: str, topic: str, group: str, options: dict[str, Any]) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "log_level": 0,
                **options,
            }
        )
        self.consumer.subscribe([topic])
        while not self._idle.is_set():
            message = self.consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")
            self._owned = {partition.partition for partition in self.consumer.assignment()}
        self.consumer.close()


class KafkaPython(Consumer):
    """A member with kafka-python."""

    def _live(self, bootstrap: str, topic: str, group: str, options: dict[str, Any]) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **options,
        )
        while not self._idle.is_set():
            for rows in consumer.poll(timeout_ms=KAFKA_PYTHON_POLL_MS).values():
                self.values += [row.value for row in rows]
            self._owned = {partition.partition for partition in consumer.assignment()}
        consumer.close()


class AioKafka(Consumer):
    """A member with aiokafka."""

    def _live(self, bootstrap: str, topic: str, group: str, options: dict[str, Any]) -> None:
        asyncio.run(self._poll(bootstrap, topic, group, options))

    async def _poll(self, bootstrap: str, topic: str, group: str, options: dict[str, Any]) -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(AioRange,),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **options,
        )
        async with consumer:
            while not self._idle.is_set():
                batches = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                self.values += [row.value for rows in batches.values() for row in rows]
                self._owned = {partition.partition for partition in consumer.assignment()}


CLIENTS = [Confluent, KafkaPython, AioKafka]


def shared(*members: Consumer) -> bool:
    """Return whether each partition has one owner and every member at least one partition."""
    owned = [member.partitions() for member in members]
    return all(owned) and sorted(p for part in owned for p in part) == list(range(PARTITIONS))


def state_of(broker, group: str) -> tuple[str, int]:
    """Return the state of a group and its number of members."""
    with AdminClient(broker.bootstrap) as admin:
        described = admin.describe_groups([group])[group]
        return described.state, len(described.members)


def test_three_client_libraries_share_a_group(broker, topic):
    group = unique("mixed")
    members: list[Consumer] = [client(broker, topic, group) for client in CLIENTS]
    try:
        eventually("the work is shared", lambda: shared(*members))
        last = members.pop()
        last.close()
        eventually("the others take it over", lambda: shared(*members))
        eventually("all is read", lambda: len({v for item in (*members, last) for v in item.values}) == 2 * PARTITIONS)
        read = {value for member in (*members, last) for value in member.values}
        assert read == {b"%d %d" % (partition, n) for partition in range(PARTITIONS) for n in range(2)}
    finally:
        for member in members:
            member.close()
    assert state_of(broker, group) == ("Empty", 0)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_of_three_shrinks_and_grows(broker, topic, client):
    group = unique("three")
    members = [client(broker, topic, group) for _ in range(3)]
    try:
        eventually("three share", lambda: shared(*members))
        members.pop(0).close()  # most likely the leader
        eventually("two share", lambda: shared(*members))
        members.append(client(broker, topic, group))
        eventually("three share again", lambda: shared(*members))
    finally:
        for member in members:
            member.close()


@pytest.mark.parametrize("client", [Confluent, KafkaPython])
def test_a_static_member_restarts_without_a_rebalance(broker, topic, client):
    group = unique("static")
    option = "group.instance.id" if client is Confluent else "group_instance_id"

    def member(name: str) -> Consumer:
        made: Consumer = client(broker, topic, group, **{option: name})
        return made

    members = [member("i"), member("j")]
    try:
        eventually("the work is shared", lambda: shared(*members))
        with AdminClient(broker.bootstrap) as admin:
            before = {row.group_instance_id: row.member_id for row in admin.describe_groups([group])[group].members}
            owned = members[1].partitions()
            members.pop().close()  # a static member does not leave
            members.append(member("j"))
            eventually("it has its partitions back", lambda: shared(*members) and members[1].partitions() == owned)
            after = {row.group_instance_id: row.member_id for row in admin.describe_groups([group])[group].members}
        assert after["i"] == before["i"]
        assert after["j"] != before["j"]
    finally:
        for item in members:
            item.close()


def test_a_zombie_consumer_cannot_commit_in_a_transaction(broker, topic):
    """Another member owns its partitions and would process the same records again (check 18)."""
    group = unique("zombie")
    target = broker.create_topic(unique("target"))
    zombie = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "max.poll.interval.ms": SESSION_MS,
            "session.timeout.ms": SESSION_MS,
            "log_level": 0,
        }
    )
    zombie.subscribe([topic])
    eventually(
        "it has everything", lambda: zombie.poll(POLL_SECONDS) is None and len(zombie.assignment()) == PARTITIONS
    )
    metadata = zombie.consumer_group_metadata()
    producer = librdkafka.transactional(broker.bootstrap, unique("txn"))
    producer.begin_transaction()
    producer.produce(target, b"too late")
    successor = Confluent(broker, topic, group)
    try:
        eventually("it is replaced", lambda: shared(successor))  # because the zombie is not polled
        with pytest.raises(KafkaException) as raised:
            producer.send_offsets_to_transaction([TopicPartition(topic, 0, 2)], metadata, SECONDS)
        error = raised.value.args[0]
        assert error.code() in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID)
        assert error.txn_requires_abort()
        producer.abort_transaction(SECONDS)
        assert librdkafka.consume_to_end(broker.bootstrap, target) == []
    finally:
        # In a thread: librdkafka sometimes never returns from the close of a member that was removed from its group.
        threading.Thread(target=zombie.close, daemon=True).start()
        successor.close()


def test_the_producer_reports_a_zombie_consumer(broker, topic):
    group = unique("zombie")
    member = Confluent(broker, topic, group)
    try:
        eventually("it has everything", lambda: shared(member))
        with AdminClient(broker.bootstrap) as admin:
            (row,) = admin.describe_groups([group])[group].members
        with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("txn")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises((AbortableError, FatalError)):
                producer.send_offsets_to_transaction({(topic, 0): 2}, GroupMetadata(group, 99, row.member_id))
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({(topic, 0): 2}, GroupMetadata(group, 1, row.member_id))
            producer.commit_transaction()
        with AdminClient(broker.bootstrap) as admin:
            offsets = eventually("the offset is there", lambda: admin.list_group_offsets(group))
        assert {tuple(partition): committed.offset for partition, committed in offsets.items()} == {(topic, 0): 2}
    finally:
        member.close()
