"""kill -9 of the broker under load: an idempotent producer loses, duplicates and reorders nothing.

HEADRACE_FAULT_RECORDS is the number of records, 200,000 by default.
"""

from __future__ import annotations

import os
import threading
import time

import pytest

from headrace import Producer
from tests.support.peers import librdkafka
from tests.support.peers.real_kafka import RealKafka
from tests.support.topics import new_topic
from tests.support.waiting import eventually

RECORDS = int(os.environ.get("HEADRACE_FAULT_RECORDS", "200000"))
PARTITIONS = 4
KILLS = max(2, RECORDS // 200_000)
SECONDS_MAX = 60 + RECORDS // 5_000


@pytest.fixture
def own_kafka(kafka_jars, tmp_path):
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path / "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()


class Load:
    """Sends numbered records at full speed in a thread, and counts the acknowledged ones."""

    def __init__(self, producer, topic):
        self._producer = producer
        self._topic = topic
        self.acknowledged = 0
        self.errors = []
        self.sent = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def wait_for(self, acknowledged):
        eventually("progress", lambda: self.acknowledged > acknowledged, SECONDS_MAX)

    def _run(self):
        for number in range(RECORDS):
            self._producer.send(self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            self.sent = number + 1

    def _delivered(self, metadata, error):
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.behaviour("P31", "P33")
def test_records_survive_a_broker_kill_once_and_in_order(own_kafka):
    topic = new_topic(own_kafka, "survivors", PARTITIONS)
    # Little memory, so that sends continue during the kill. One request in flight: of the batches of a producer, Kafka
    # remembers only the last one after a kill. If an earlier one is sent again, Kafka returns
    # OUT_OF_ORDER_SEQUENCE_NUMBER as for a gap, and all clients write it twice (docs/producer.md).
    with Producer(
        bootstrap_servers=own_kafka.bootstrap,
        buffer_memory=1_000_000,
        batch_size=4_000,
        max_in_flight_requests_per_connection=1,
    ) as producer:
        load = Load(producer, topic)
        for kill in range(KILLS):
            load.wait_for(RECORDS * (kill + 1) // (KILLS + 2))
            own_kafka.kill()
            time.sleep(0.2)
            own_kafka.restart()
        load.thread.join(SECONDS_MAX)
        producer.flush(SECONDS_MAX)
    assert not load.errors, load.errors[:3]
    assert (load.sent, load.acknowledged) == (RECORDS, RECORDS)
    for partition in range(PARTITIONS):
        read = librdkafka.consume_to_end(own_kafka.bootstrap, topic, partition=partition)
        assert [record.value for record in read] == [b"%d" % n for n in range(partition, RECORDS, PARTITIONS)]


@pytest.mark.behaviour("P11")
def test_a_broker_that_is_restarted_cleanly_is_found_again(own_kafka):
    topic = new_topic(own_kafka, "again")
    with Producer(bootstrap_servers=own_kafka.bootstrap) as producer:
        producer.send(topic, b"before").result(20)
        own_kafka.restart()
        assert producer.send(topic, b"after").result(30).offset == 1
