"""Consumer groups on Apache Kafka and on the headrace broker: ours alone, and with clients of Java, C and Python."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import kafka as kafka_python
import pytest

from headrace import (
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    FencedInstanceIdError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from headrace.client.admin import AdminClient
from headrace.wire.api.groups import LeaveGroupRequest, MemberIdentity
from tests.support.peers.connection import Connection
from tests.support.peers.java import SHORT_LIVED, java_command
from tests.support.polling import SECONDS_MAX, Log, fill, poll_until, produce
from tests.support.topics import unique

KAFKA_VERSION = "4.3.0"
STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
Seen = tuple[int, int]


def open_member(broker, group: str, **options) -> Consumer:
    defaults = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, "session_timeout_ms": 6000}
    return Consumer(bootstrap_servers=broker.bootstrap, group_id=group, **{**defaults, **options})


@pytest.mark.behaviour("C02")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_partitions_and_take_over(either, strategy):
    topic, group = fill(either, 600, 6), unique("group")
    log = Log()
    with open_member(either, group, partition_assignment_strategy=strategy) as first:
        first.subscribe([topic], listener=log)
        records: list[ConsumerRecord] = []
        records += poll_until(lambda: len(first.assignment()) == 6, first)
        with open_member(either, group, partition_assignment_strategy=strategy) as second:
            second.subscribe([topic])
            records += poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 3, first, second)
            assert not first.assignment() & second.assignment()
            while len(records) < 600:
                records += poll_until(lambda: True) + first.poll(0.05) + second.poll(0.05)
        records += poll_until(lambda: len(first.assignment()) == 6, first)
    assert max(Counter((record.partition, record.offset) for record in records).values()) == 1
    assert len(records) == 600
    if strategy == "cooperative-sticky":  # only what moves is revoked
        assert [len(partitions) for call, partitions in log.calls if call == "revoked"] == [3, 6]


@pytest.mark.behaviour("C02")
def test_a_pattern_follows_new_topics(either):
    prefix, group = unique("matched"), unique("group")
    either.create_topic(f"{prefix}-a", 1)
    with open_member(either, group, metadata_max_age_ms=300) as consumer:
        consumer.subscribe(pattern=f"{prefix}-.*")
        poll_until(lambda: consumer.assignment() == {(f"{prefix}-a", 0)}, consumer)
        either.create_topic(f"{prefix}-b", 2)
        poll_until(lambda: len(consumer.assignment()) == 3, consumer)
        assert consumer.subscription() == {f"{prefix}-a", f"{prefix}-b"}


@pytest.mark.behaviour("C02")
def test_a_static_member_restarts_without_a_rebalance(either):
    topic, group = fill(either, 10, 2), unique("group")
    with open_member(either, group) as other:
        other.subscribe([topic])
        restarted = open_member(either, group, group_instance_id="one")
        restarted.subscribe([topic])
        poll_until(lambda: len(restarted.assignment()) == len(other.assignment()) == 1, other, restarted)
        generation, assigned = other.group_metadata().generation_id, restarted.assignment()
        restarted.close()
        with open_member(either, group, group_instance_id="one") as again:
            again.subscribe([topic])
            poll_until(lambda: again.assignment() == assigned, other, again)
            assert other.group_metadata().generation_id == generation


@pytest.mark.behaviour("C02")
def test_a_second_static_member_fences_the_first(either):
    topic, group = fill(either, 2, 1), unique("group")
    with (
        open_member(either, group, group_instance_id="one") as first,
        open_member(either, group, group_instance_id="one") as second,
    ):
        first.subscribe([topic])
        poll_until(first.assignment, first)
        second.subscribe([topic])
        poll_until(second.assignment, second)
        with pytest.raises(FencedInstanceIdError):
            poll_until(lambda: False, first)
        assert not first.assignment()


@pytest.mark.behaviour("C02")
def test_commits_of_a_lost_member_do_not_undo_those_of_the_next_owner(either):
    topic, group = fill(either, 10, 1), unique("group")
    name = TopicPartition(topic, 0)
    with open_member(either, group, enable_auto_commit=False) as lost:
        lost.subscribe([topic])
        poll_until(lost.assignment, lost)
        member = MemberIdentity(member_id=lost.group_metadata().member_id)
        with Connection(either.bootstrap) as connection:
            assert not connection.call(LeaveGroupRequest(group_id=group, members=[member]), 5).error_code
        with open_member(either, group, enable_auto_commit=False) as owner:
            owner.subscribe([topic])
            poll_until(owner.assignment, owner)
            owner.commit({name: 8})
        with pytest.raises(CommitFailedError):  # the group has no members, and would accept a commit without one
            lost.commit({name: 3})
        assert lost.committed([name])[name].offset == 8


@pytest.mark.behaviour("C02")
def test_a_cooperative_member_reads_on_while_the_group_rebalances(either, caplog):
    caplog.set_level(logging.INFO, "headrace.consumer")
    topic, group = fill(either, 0, 6), unique("group")
    options = {"partition_assignment_strategy": "cooperative-sticky"}
    with (
        AdminClient(either.bootstrap) as admin,
        open_member(either, group, **options) as reading,
        open_member(either, group, **options) as busy,
        open_member(either, group, **options) as new,
    ):
        reading.subscribe([topic])
        busy.subscribe([topic])
        poll_until(lambda: len(reading.assignment()) == len(busy.assignment()) == 3, reading, busy)
        before = reading.assignment()
        caplog.clear()
        new.subscribe([topic])
        # `busy` does not poll, so it does not join again, and the rebalance cannot end.
        client_id = reading.settings.client_id
        poll_until(lambda: f"client_id={client_id} group_id={group}] the group rebalances" in caplog.text, reading, new)
        produce(either, topic, 60, 6)
        records = poll_until(lambda: sum(reading.positions().values()) == 30, reading, new)
        assert {TopicPartition(record.topic, record.partition) for record in records} == before
        assert admin.describe_groups([group])[group].state == "PreparingRebalance"
        assert not new.assignment()
        poll_until(lambda: all(len(member.assignment()) == 2 for member in (reading, busy, new)), reading, busy, new)
        assert reading.assignment() < before


def test_members_without_a_common_assignor_are_refused(either):
    topic, group = fill(either, 2, 1), unique("group")
    with (
        open_member(either, group, partition_assignment_strategy="range") as first,
        open_member(either, group, partition_assignment_strategy="sticky") as second,
    ):
        first.subscribe([topic])
        poll_until(first.assignment, first)
        second.subscribe([topic])
        with pytest.raises(InconsistentGroupProtocolError):
            poll_until(lambda: False, second)


@pytest.mark.behaviour("C04")
def test_offsets_are_committed_sync_async_and_for_single_partitions(either):
    topic, group = fill(either, 100, 2), unique("group")
    names = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with open_member(either, group, enable_auto_commit=False) as consumer:
        consumer.assign(names)
        assert consumer.committed(names) == {}
        records = poll_until(lambda: consumer.positions().get(names[0]) == 50, consumer)
        assert records
        consumer.commit({names[1]: OffsetAndMetadata(7, "note")})
        assert {tp: row[:2] for tp, row in consumer.committed(names).items()} == {names[1]: (7, "note")}
        poll_until(lambda: consumer.positions() == dict.fromkeys(names, 50), consumer)
        consumer.commit()
        assert {tp: row.offset for tp, row in consumer.committed(names).items()} == dict.fromkeys(names, 50)
        done: list[object] = []
        consumer.commit_async({names[0]: 3}, lambda offsets, error: done.append((dict(offsets), error)))
        poll_until(lambda: done, consumer)
        assert done == [({names[0]: OffsetAndMetadata(3)}, None)]
        assert consumer.committed(names[:1])[names[0]].offset == 3
    with open_member(either, group) as consumer:
        consumer.assign(names[:1])
        assert consumer.position(names[0]) == 3


@pytest.mark.behaviour("C04")
def test_positions_are_committed_automatically_while_polling_and_at_close(either):
    topic, group = fill(either, 100, 1), unique("group")
    tp = TopicPartition(topic, 0)
    with open_member(either, group, auto_commit_interval_ms=100, max_poll_records=10) as consumer:
        consumer.subscribe([topic])
        poll_until(lambda: consumer.positions().get(tp, 0) >= 50, consumer)
        deadline = time.monotonic() + SECONDS_MAX
        with open_member(either, group, enable_auto_commit=False) as watcher:
            while not watcher.committed([tp]):
                assert time.monotonic() < deadline
                consumer.poll(0.05, max_records=1)
        last = consumer.position(tp)
    with open_member(either, group) as consumer:
        assert consumer.committed([tp])[tp].offset == last


@pytest.mark.behaviour("C06")
def test_a_member_that_works_keeps_its_partitions(kafka):
    topic, group = fill(kafka, 10, 1), unique("group")
    with open_member(kafka, group, session_timeout_ms=6000, heartbeat_interval_ms=500) as consumer:
        consumer.subscribe([topic])
        poll_until(consumer.assignment, consumer)
        generation = consumer.group_metadata().generation_id
        threading.Event().wait(7)  # longer than the session
        consumer.commit()
        assert consumer.group_metadata().generation_id == generation


@pytest.mark.behaviour("C06")
def test_a_member_that_does_not_poll_leaves_and_joins_again(either):
    topic, group = fill(either, 10, 1), unique("group")
    log = Log()
    with (
        open_member(either, group, max_poll_interval_ms=1000, enable_auto_commit=False) as stuck,
        open_member(either, group) as other,
    ):
        stuck.subscribe([topic], listener=log)
        poll_until(stuck.assignment, stuck)
        other.subscribe([topic])
        poll_until(other.assignment, other)  # only `other` is polled
        with pytest.raises(CommitFailedError):
            stuck.commit({TopicPartition(topic, 0): 1})
        other.close()
        poll_until(lambda: log.calls == [("assigned", [0]), ("lost", [0]), ("assigned", [0])], stuck)


class _Peer:
    """Another project's consumer in the same group, polled by a thread."""

    def __init__(self, poll: Callable[[], list[Seen]], close: Callable[[], object]) -> None:
        self.seen: list[Seen] = []
        self._poll, self._close = poll, close
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.seen += self._poll()
        self._close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS_MAX)


def librdkafka_member(broker, group: str, topic: str, strategy: str) -> _Peer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
        }
    )
    consumer.subscribe([topic])

    def poll() -> list[Seen]:
        messages = consumer.consume(100, 0.1)
        return [(m.partition() or 0, m.offset() or 0) for m in messages if m.error() is None]

    return _Peer(poll, consumer.close)


def kafka_python_member(broker, group: str, topic: str, strategy: str) -> _Peer:
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    assignor = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[strategy]
    consumer = kafka_python.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[assignor],
        session_timeout_ms=6000,
        heartbeat_interval_ms=200,
    )

    def poll() -> list[Seen]:
        polled = consumer.poll(timeout_ms=100)
        return [(record.partition, record.offset) for records in polled.values() for record in records]

    return _Peer(poll, consumer.close)


@pytest.mark.behaviour("C02")
@pytest.mark.parametrize(
    ("join", "strategy"),
    [
        (librdkafka_member, "range"),
        (librdkafka_member, "roundrobin"),
        (librdkafka_member, "cooperative-sticky"),
        (kafka_python_member, "range"),
    ],
    ids=["librdkafka-range", "librdkafka-roundrobin", "librdkafka-cooperative", "kafka-python-range"],
)
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-leads", "theirs-leads"])
def test_one_group_with_other_clients_reads_each_record_once(either, join, strategy, ours_first):
    topic, group = fill(either, 0, 4), unique("group")
    ours: list[Seen] = []
    with open_member(either, group, partition_assignment_strategy=strategy) as consumer:
        peer = None if ours_first else join(either, group, topic, strategy)
        try:
            consumer.subscribe([topic])
            poll_until(lambda: len(consumer.assignment()) == (4 if ours_first else 2), consumer)
            peer = peer or join(either, group, topic, strategy)
            poll_until(lambda: len(consumer.assignment()) == 2, consumer)
            with Producer(bootstrap_servers=either.bootstrap) as producer:
                for i in range(400):
                    producer.send(topic, b"v", partition=i % 4)
            deadline = time.monotonic() + SECONDS_MAX
            while len(ours) + len(peer.seen) < 400:
                assert time.monotonic() < deadline, f"{len(ours)} + {len(peer.seen)} of 400"
                ours += [(record.partition, record.offset) for record in consumer.poll(0.05)]
            assert len(ours) == 200
            assert max(Counter(ours + peer.seen).values()) == 1
        finally:
            if peer is not None:
                peer.stop()
        poll_until(lambda: len(consumer.assignment()) == 4, consumer)


class _JavaMember:
    """Java's VerifiableConsumer in the same group; `seen` has what it has read."""

    def __init__(self, jars: Path, arguments: list[str]) -> None:
        command = java_command(jars, "org.apache.kafka.tools.VerifiableConsumer", *arguments, options=SHORT_LIVED)
        self.seen: list[Seen] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # It may be killed while it prints.
            event = json.loads(line) if line.startswith("{") and line.endswith("\n") else {}
            if event.get("name") == "record_data":
                self.seen.append((event["partition"], event["offset"]))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS_MAX)
        self._thread.join(SECONDS_MAX)


@pytest.mark.behaviour("C02")
def test_a_group_with_java_reads_each_record_once_and_survives_its_kill(either, kafka_jars):
    topic, group = fill(either, 0, 4), unique("group")
    ours: list[Seen] = []
    assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    arguments = ["--bootstrap-server", either.bootstrap, "--topic", topic, "--group-id", group, "--verbose"]
    arguments += ["--session-timeout", "6000", "--reset-policy", "earliest", "--assignment-strategy", assignor]
    with open_member(either, group, partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe([topic])
        poll_until(lambda: len(consumer.assignment()) == 4, consumer)
        peer = _JavaMember(kafka_jars(KAFKA_VERSION), arguments)
        try:
            poll_until(lambda: len(consumer.assignment()) == 2, consumer)
            with Producer(bootstrap_servers=either.bootstrap) as producer:
                for i in range(400):
                    producer.send(topic, b"v", partition=i % 4)
            deadline = time.monotonic() + SECONDS_MAX
            while len(ours) + len(peer.seen) < 400:
                assert time.monotonic() < deadline, f"{len(ours)} + {len(peer.seen)} of 400"
                ours += [(record.partition, record.offset) for record in consumer.poll(0.05)]
            assert len(ours) == 200
            assert max(Counter(ours + peer.seen).values()) == 1
        finally:
            peer.kill()
        poll_until(lambda: len(consumer.assignment()) == 4, consumer)  # after the session timeout


def test_calls_that_contradict_the_subscription_are_errors(either):
    with Consumer(bootstrap_servers=either.bootstrap) as consumer:
        with pytest.raises(IllegalStateError, match="needs a group"):
            consumer.subscribe(["t"])
        with pytest.raises(IllegalStateError, match="needs a group"):
            consumer.commit()
    with open_member(either, unique("group")) as consumer:
        consumer.subscribe([unique("t")])
        with pytest.raises(IllegalStateError, match="call unsubscribe"):
            consumer.assign([TopicPartition("t", 0)])
