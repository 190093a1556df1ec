"""Consume, transform, produce with offsets in the transaction, while workers are killed."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import Counter

import pytest

from headrace import Consumer, FatalError, GroupMetadata, HeadraceError, Producer, TopicPartition

RECORDS = 2000
SECONDS_MAX = 45.0


def unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def start(broker, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.copying_worker", broker.bootstrap, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.behaviour("C04")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_copies_are_exactly_once_although_workers_are_killed(quick, protocol):
    source, target, group = unique("source"), unique("target"), unique("group")
    quick.create_topic(source, 2)
    quick.create_topic(target, 2)
    with Producer(bootstrap_servers=quick.bootstrap) as producer:
        for i in range(RECORDS):
            producer.send(source, str(i).encode(), partition=i % 2)
    names = [TopicPartition(target, 0), TopicPartition(target, 1)]
    transactional_id = unique("txn")
    values: list[bytes] = []
    workers: list[subprocess.Popen[str]] = []
    deadline = time.monotonic() + SECONDS_MAX
    try:
        for _ in range(3):  # each is killed amid its work
            workers.append(start(quick, group, source, target, transactional_id, protocol))
            assert workers[-1].stdout is not None
            for _ in range(3):
                assert workers[-1].stdout.readline()
            workers[-1].kill()
            workers[-1].wait()
        workers.append(start(quick, group, source, target, transactional_id, protocol))
        with Consumer(
            bootstrap_servers=quick.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign(names)
            while len(values) < RECORDS:
                assert time.monotonic() < deadline, f"{len(values)} of {RECORDS}"
                values += [record.value for record in consumer.poll(0.5)]
            values += [record.value for record in consumer.poll(0.5)]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert Counter(values) == Counter(b"copy of %d" % i for i in range(RECORDS))


@pytest.mark.behaviour("C04")
def test_offsets_of_an_old_generation_are_refused_in_a_transaction(either):
    topic, group = unique("fenced"), unique("group")
    either.create_topic(topic, 1)
    with (
        Consumer(
            bootstrap_servers=either.bootstrap,
            group_id=group,
            heartbeat_interval_ms=200,
            isolation_level="read_committed",  # waits for offsets of transactions that are being completed
        ) as consumer,
        Producer(bootstrap_servers=either.bootstrap, transactional_id=unique("txn")) as producer,
    ):
        consumer.subscribe([topic])
        deadline = time.monotonic() + SECONDS_MAX
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        producer.init_transactions()
        current = consumer.group_metadata()
        tp = TopicPartition(topic, 0)
        with producer.transaction():
            producer.send_offsets_to_transaction({tp: 5}, consumer)
        assert consumer.committed([tp])[tp].offset == 5
        producer.begin_transaction()
        stale = GroupMetadata(group, current.generation_id + 7, current.member_id)
        with pytest.raises(HeadraceError, match="ILLEGAL_GENERATION") as raised:
            producer.send_offsets_to_transaction({tp: 6}, stale)
        assert not isinstance(raised.value, FatalError)
        producer.abort_transaction()
