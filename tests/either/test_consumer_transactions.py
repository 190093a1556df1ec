"""Consume, transform, produce with offsets in the transaction, while workers are killed and paused.

HEADRACE_FAULT_ROUNDS is the number of kills, 8 by default.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from headrace import Consumer, FatalError, GroupMetadata, HeadraceError, Producer, TopicPartition
from tests.support.copying_process import Copying, CopyingProcess
from tests.support.copying_worker import PREFIX
from tests.support.topics import new_topic, unique

PARTITIONS = 4
RECORDS = 4000
ROUNDS = int(os.environ.get("HEADRACE_FAULT_ROUNDS", "8"))
SEED = 17
SECONDS_MAX = 60.0
ROUND_SECONDS_MAX = 10


class Feeder(threading.Thread):
    """Writes the numbers from 0 on, slowly, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._topic = topic
        self._producer = Producer(bootstrap_servers=bootstrap)
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(0.02):
            for _ in range(20):
                self._producer.send(self._topic, b"%d" % self.count, partition=self.count % PARTITIONS)
                self.count += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join(SECONDS_MAX)
        self._producer.close(SECONDS_MAX)


def read_copies(broker, topic: str, count: int, seconds_max: float) -> dict[int, list[bytes]]:
    """Return the committed values by partition, once there are `count` of them, and what follows in half a second."""
    values: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    deadline = time.monotonic() + seconds_max
    with Consumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign({TopicPartition(topic, number): 0 for number in values})
        while (total := sum(map(len, values.values()))) < count:
            assert time.monotonic() < deadline, f"{total} of {count}"
            for record in consumer.poll(0.5):
                values[record.partition].append(record.value)
        for record in consumer.poll(0.5):
            values[record.partition].append(record.value)
    return values


def check_copies(copies: dict[int, list[bytes]], count: int) -> None:
    """Each number once, and those of a partition in their order."""
    counts = Counter(value for values in copies.values() for value in values)
    doubled = [value for value, number in counts.items() if number > 1]
    missing = [number for number in range(count) if PREFIX + b"%d" % number not in counts]
    assert not doubled, doubled[:10]
    assert not missing, missing[:10]
    for partition, values in copies.items():
        assert values == [PREFIX + b"%d" % number for number in range(partition, count, PARTITIONS)], partition


def kill_all(workers: dict[str, CopyingProcess]) -> None:
    for worker in workers.values():
        worker.kill()


@pytest.mark.behaviour("C04", "C11")
@pytest.mark.timeout(2 * SECONDS_MAX + ROUNDS * ROUND_SECONDS_MAX)
@pytest.mark.every_run("apache-classic", "headrace-consumer")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_copies_are_exactly_once_although_workers_are_killed(quick, protocol):
    chance = random.Random(SEED)
    source, target = new_topic(quick, "source", PARTITIONS), new_topic(quick, "target", PARTITIONS)
    copying = Copying(quick.bootstrap, unique("copiers"), source, target, protocol)
    # With the consumer protocol, the broker keeps the instance id of a killed static member until its session ends.
    flags = ["--static"] if protocol == "classic" else []
    feeder = Feeder(quick.bootstrap, source)
    workers: dict[str, CopyingProcess] = {}
    copied = killed_at_work = 0
    with ExitStack() as stack:
        stack.callback(kill_all, workers)
        stack.callback(feeder.stop)
        feeder.start()
        for name in ("one", "two"):
            workers[name] = copying.start(name, *flags)
        for _ in range(ROUNDS):
            victim = workers[chance.choice(sorted(workers))]
            if chance.random() < 0.8:
                victim.wait_for("copied", SECONDS_MAX)
                time.sleep(chance.uniform(0, 0.3))
            else:
                time.sleep(chance.uniform(0, 1.0))
            victim.kill()
            killed_at_work += bool(victim.count("copied"))
            copied += victim.count("copied")
            workers[victim.name] = copying.start(victim.name, *flags)
        feeder.stop()
        copies = read_copies(quick, target, feeder.count, SECONDS_MAX)
    check_copies(copies, feeder.count)
    assert killed_at_work
    assert copied


@pytest.mark.behaviour("C04", "C11")
@pytest.mark.timeout(3 * SECONDS_MAX)
@pytest.mark.every_run("apache-consumer", "headrace-classic")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_transaction_of_a_worker_that_was_removed_is_refused(quick, protocol):
    source, target = new_topic(quick, "source", PARTITIONS), new_topic(quick, "target", PARTITIONS)
    copying = Copying(quick.bootstrap, unique("zombies"), source, target, protocol)
    with Producer(bootstrap_servers=quick.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(source, b"%d" % number, partition=number % PARTITIONS)
    zombie = copying.start("zombie", "--hold")
    other: CopyingProcess | None = None
    try:
        zombie.wait_for("holding", SECONDS_MAX)  # it has sent records, but no offsets
        zombie.pause()
        other = copying.start("other")
        other.wait_for(f"assigned {PARTITIONS}", SECONDS_MAX)  # the group has removed the first
        other.wait_for("copied", SECONDS_MAX)
        zombie.resume()
        zombie.send_line()
        zombie.wait_for("aborted", SECONDS_MAX)
        copies = read_copies(quick, target, RECORDS, SECONDS_MAX)
    finally:
        zombie.kill()
        if other is not None:
            other.kill()
    check_copies(copies, RECORDS)


@pytest.mark.behaviour("C04")
def test_offsets_of_an_old_generation_are_refused_in_a_transaction(either):
    topic, group = new_topic(either, "fenced"), unique("group")
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


def test_offsets_of_a_transaction_need_the_group(either):
    with Producer(bootstrap_servers=either.bootstrap, transactional_id=unique("txn")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(TypeError, match="without a group: pass the consumer"):
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 5})
        with Consumer(bootstrap_servers=either.bootstrap, group_id="g") as consumer:
            with pytest.raises(TypeError, match="pass only the consumer"):
                producer.send_offsets_to_transaction(consumer, consumer)
            producer.send_offsets_to_transaction(consumer)  # it has no positions
        producer.abort_transaction()
