"""kill -9 at any moment: what was acknowledged (acks=all) is there afterwards. SIGTERM loses nothing at all.

HEADRACE_KILL_ROUNDS says how often; 6 by default.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time

import pytest

from headrace import HeadraceError, Producer
from headrace.broker import EmbeddedBroker
from tests.support.peers import librdkafka
from tests.support.waiting import eventually

ROUNDS = int(os.environ.get("HEADRACE_KILL_ROUNDS", "6"))
PARTITIONS = 3
UPTIME_SECONDS_MAX = 0.5  # that a round gives the broker, with traffic from the first moment
BUFFER_BYTES = 1_000_000
FLUSH_SECONDS_MAX = 30
SECONDS_MAX = 60 + ROUNDS * 5


class Traffic:
    """Sends numbered records on a separate thread until stopped, and records acknowledgements."""

    def __init__(self, bootstrap, topic, **options):
        self._producer = Producer(bootstrap_servers=bootstrap, buffer_memory=BUFFER_BYTES, **options)
        self._topic = topic
        self._stopping = threading.Event()
        self.acknowledged: dict[int, tuple[int, int]] = {}  # the partition and offset of each number
        self.errors: list[Exception] = []
        self.sent = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            while not self._stopping.is_set():
                number = self.sent
                self._producer.send(
                    self._topic,
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=functools.partial(self._delivered, number),
                )
                self.sent += 1
        except HeadraceError as error:
            self.errors.append(error)

    def _delivered(self, number, metadata, error):
        if error is None:
            self.acknowledged[number] = (metadata.partition, metadata.offset)
        else:
            self.errors.append(error)

    def wait_for_more(self):
        count = len(self.acknowledged)
        eventually("acknowledgements", lambda: len(self.acknowledged) > count or self.errors)
        assert not self.errors, self.errors[:3]

    def end(self):
        """Stop sending, and wait for pending records."""
        self._stopping.set()
        self._thread.join(FLUSH_SECONDS_MAX)
        self._producer.flush(FLUSH_SECONDS_MAX)
        self._producer.close()


def numbers_by_position(bootstrap, topic):
    """Return the number at each (partition, offset) of a topic."""
    return {
        (partition, record.offset): int(record.value or -1)
        for partition in range(PARTITIONS)
        for record in librdkafka.consume_to_end(bootstrap, topic, partition=partition)
    }


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("idempotent", [True, False])
def test_what_was_acknowledged_is_read_after_kills_at_random_moments(idempotent):
    chances = random.Random(int(idempotent))
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("survivors", PARTITIONS)
        traffic = Traffic(broker.bootstrap, topic, acks="all", enable_idempotence=idempotent, retry_backoff_ms=20)
        try:
            for _ in range(ROUNDS):
                traffic.wait_for_more()
                time.sleep(chances.random() * UPTIME_SECONDS_MAX)
                broker.kill()
                broker.start()
            traffic.wait_for_more()
        finally:
            traffic.end()
        assert not traffic.errors, traffic.errors[:3]
        assert len(traffic.acknowledged) == traffic.sent
        stored = numbers_by_position(broker.bootstrap, topic)
    lost = [number for number, position in traffic.acknowledged.items() if stored.get(position) != number]
    assert not lost, (len(lost), len(traffic.acknowledged), lost[:5])
    if idempotent:
        assert sorted(stored.values()) == list(range(traffic.sent))


@pytest.mark.timeout(SECONDS_MAX)
def test_a_stop_in_the_midst_of_traffic_is_clean():
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("orderly", PARTITIONS)
        traffic = Traffic(broker.bootstrap, topic, acks="all", retry_backoff_ms=20)
        try:
            for _ in range(3):
                traffic.wait_for_more()
                broker.stop()
                assert "Traceback" not in broker.log_text
                broker.start()
            traffic.wait_for_more()
        finally:
            traffic.end()
        assert not traffic.errors, traffic.errors[:3]
        assert sorted(numbers_by_position(broker.bootstrap, topic).values()) == list(range(traffic.sent))
