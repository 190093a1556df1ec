"""kill -9 of any one broker of a cluster: what was acknowledged is read afterwards, once, and all replicas agree."""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import HeadraceError, Producer
from headrace.broker import EmbeddedCluster
from peers import librdkafka
from waiting import eventually

PARTITIONS = 3
TRAFFIC_SECONDS = 0.4  # before and after each kill
TOPIC = "numbers"
OPTIONS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


class Numbers:
    """Sends numbers, each to the partition it falls to, until told to stop; keeps where each was acknowledged."""

    def __init__(self, bootstrap: str, **options: Any) -> None:
        self._producer = Producer(bootstrap_servers=bootstrap, acks="all", buffer_memory=500_000, **options)
        self._stopping = threading.Event()
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.errors: list[HeadraceError] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.is_set():
                told = functools.partial(self._told, number)
                self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
                number += 1
                if number % 100 == 0:
                    time.sleep(0.001)
        except HeadraceError as error:
            self.errors.append(error)

    def _told(self, number, metadata, error) -> None:
        if error is None:
            self.acknowledged[number] = (metadata.partition, metadata.offset)
        else:
            self.errors.append(error)

    def has_more_than(self, count: int) -> bool:
        return len(self.acknowledged) > count

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._producer.close(30)


def all_in_sync(cluster: EmbeddedCluster, topic: str = TOPIC) -> bool:
    return all(len(place["isr"]) == 3 and place["leader"] > 0 for place in cluster.places(topic))


def is_led_by_others(cluster: EmbeddedCluster, victim: int) -> bool:
    return all(place["leader"] not in (-1, victim) for place in cluster.places(TOPIC))


def log_bytes(folder: Path, index: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / f"{TOPIC}-{index}").glob("*.log")))


@pytest.mark.behaviour("B09", "B10", "B11")
@pytest.mark.timeout(180)
def test_checks_1_and_2_whoever_is_killed_what_was_acknowledged_is_there_once_on_all_replicas(tmp_path):
    with EmbeddedCluster(3, OPTIONS, data_dir=tmp_path) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        numbers = Numbers(cluster.bootstrap_servers)
        try:
            for victim in (2, 3, 1):
                time.sleep(TRAFFIC_SECONDS)
                before = len(numbers.acknowledged)
                assert before
                cluster.broker(victim).kill()
                if victim != cluster.controller.node_id:
                    eventually("others lead what it led", functools.partial(is_led_by_others, cluster, victim))
                    known = len(numbers.acknowledged)
                    eventually("writing goes on without it", functools.partial(numbers.has_more_than, known + 100))
                cluster.broker(victim).start()
                eventually("all replicas are in sync again", lambda: all_in_sync(cluster))
            time.sleep(TRAFFIC_SECONDS)
        finally:
            numbers.stop()
        assert numbers.errors == []
        for index in range(PARTITIONS):
            expected = {o: n for n, (p, o) in numbers.acknowledged.items() if p == index}
            found = {
                record.offset: int(record.value or b"")
                for record in librdkafka.consume_to_end(cluster.bootstrap_servers, TOPIC, partition=index)
            }
            assert {offset: found.get(offset) for offset in expected} == expected
            assert len(set(found.values())) == len(found)  # nothing twice
            assert list(found.values()) == sorted(found.values())  # nor out of order
        cluster.stop()
        for index in range(PARTITIONS):
            assert len({log_bytes(tmp_path / f"broker-{node}", index) for node in (1, 2, 3)}) == 1
