"""The consumer on a cluster whose brokers are killed."""

from __future__ import annotations

import time

import pytest

from headrace import Consumer, Producer, TopicPartition
from headrace.broker import EmbeddedCluster

PARTITIONS, ROUNDS, RECORDS = 4, 4, 100
SECONDS_MAX = 40.0


@pytest.mark.behaviour("C05")
@pytest.mark.parametrize("in_group", [False, True], ids=["assigned", "group"])
def test_records_are_read_in_order_while_leaders_and_coordinator_are_killed(in_group):
    with EmbeddedCluster(3) as cluster:
        cluster.create_topic("t", PARTITIONS)
        with (
            Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
            Consumer(
                bootstrap_servers=cluster.bootstrap_servers,
                auto_offset_reset="earliest",
                group_id="g" if in_group else None,
                heartbeat_interval_ms=300,
            ) as consumer,
        ):
            if in_group:
                consumer.subscribe(["t"])
            else:
                consumer.assign([TopicPartition("t", i) for i in range(PARTITIONS)])
            values: dict[int, list[int]] = {i: [] for i in range(PARTITIONS)}
            deadline = time.monotonic() + SECONDS_MAX
            for number in range(ROUNDS):
                futures = [
                    producer.send("t", b"%d" % (number * RECORDS + i), partition=p)
                    for i in range(RECORDS)
                    for p in range(PARTITIONS)
                ]
                producer.flush(SECONDS_MAX)
                assert all(future.exception(1) is None for future in futures)
                while any(len(row) < (number + 1) * RECORDS for row in values.values()):
                    assert time.monotonic() < deadline, {p: len(row) for p, row in values.items()}
                    for record in consumer.poll(0.5):
                        values[record.partition].append(int(record.value))
                if number < ROUNDS - 1:
                    broker = cluster.brokers[number % 3]
                    broker.kill()
                    if number:
                        cluster.brokers[number - 1].start()
            assert set(map(tuple, values.values())) == {tuple(range(ROUNDS * RECORDS))}
