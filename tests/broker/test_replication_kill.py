"""Killed brokers and reassigned partitions: acknowledged records exist exactly once on all replicas."""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import HeadraceError, Producer
from headrace.broker import EmbeddedCluster
from headrace.wire.api.cluster_admin import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually

PARTITIONS = 3
TRAFFIC_SECONDS = 0.4  # before and after each kill
TOPIC = "numbers"
OPTIONS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


class Numbers:
    """Sends numbers round robin until stopped; records the acknowledged position of each."""

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
                acknowledged = functools.partial(self._told, number)
                self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=acknowledged)
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
    return all(len(partition["isr"]) == 3 and partition["leader"] > 0 for partition in cluster.describe_topic(topic))


def is_led_by_others(cluster: EmbeddedCluster, victim: int) -> bool:
    return all(partition["leader"] not in (-1, victim) for partition in cluster.describe_topic(TOPIC))


def log_bytes(folder: Path, index: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / f"{TOPIC}-{index}").glob("*.log")))


@pytest.mark.behaviour("B09", "B10", "B11")
@pytest.mark.timeout(180)
def test_checks_1_and_2_kills_neither_lose_nor_duplicate_acknowledged_records(tmp_path):
    with EmbeddedCluster(3, OPTIONS, data_dir=tmp_path, separate_controller=False) as cluster:
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
        judge(cluster, numbers, tmp_path)


def judge(cluster: EmbeddedCluster, numbers: Numbers, folder: Path) -> None:
    """What was acknowledged is there, at the acknowledged offset, once and in order; replicas have the same bytes."""
    assert numbers.errors == []
    for index in range(PARTITIONS):
        expected = {o: n for n, (p, o) in numbers.acknowledged.items() if p == index}
        records = {
            record.offset: int(record.value or b"")
            for record in librdkafka.consume_to_end(cluster.bootstrap_servers, TOPIC, partition=index)
        }
        assert {offset: records.get(offset) for offset in expected} == expected
        assert len(set(records.values())) == len(records)  # nothing twice
        assert list(records.values()) == sorted(records.values())  # nor out of order
    replicas = [partition["replicas"] for partition in cluster.describe_topic(TOPIC)]
    cluster.stop()
    for index, nodes in enumerate(replicas):
        assert len({log_bytes(folder / f"broker-{node}", index) for node in nodes}) == 1


@pytest.mark.behaviour("B10", "B11")
@pytest.mark.timeout(180)
def test_partitions_are_reassigned_under_load_while_a_new_replica_is_killed(tmp_path):
    """Reassign all replicas of each partition, leaders included; kill one new replica meanwhile."""
    with EmbeddedCluster(4, OPTIONS, data_dir=tmp_path) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        numbers = Numbers(cluster.bootstrap_servers)
        try:
            time.sleep(TRAFFIC_SECONDS)
            for index in range(PARTITIONS):
                before = cluster.describe_topic(TOPIC)[index]["replicas"]
                (new,) = {1, 2, 3, 4} - {*before}
                after = [new, *before[:0:-1]]  # who led goes
                if index == 1:
                    cluster.broker(new).pause()
                move(cluster, index, after)
                if index == 1:
                    cluster.broker(new).kill()
                    assert cluster.describe_topic(TOPIC)[index]["adding"] == [new]
                    cluster.broker(new).start()
                eventually("it has moved", functools.partial(has_moved, cluster, index, after))
                known = len(numbers.acknowledged)
                eventually("writing goes on", functools.partial(numbers.has_more_than, known + 100))
                old = tmp_path / f"broker-{before[0]}" / f"{TOPIC}-{index}"
                eventually("the old replica is gone", functools.partial(is_gone, old))
        finally:
            numbers.stop()
        judge(cluster, numbers, tmp_path)


def move(cluster: EmbeddedCluster, index: int, replicas: list[int]) -> None:
    row = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=TOPIC, partitions=[row])])
    with Connection(cluster.controller.bootstrap) as connection:
        response = connection.call(request, 1)
    assert (response.error_code, response.responses[0].partitions[0].error_code) == (0, 0)


def has_moved(cluster: EmbeddedCluster, index: int, replicas: list[int]) -> bool:
    partition = cluster.describe_topic(TOPIC)[index]
    return partition["replicas"] == replicas and len(partition["isr"]) == len(replicas) and not partition["adding"]


def is_gone(folder: Path) -> bool:
    return not folder.exists()
