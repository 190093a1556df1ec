"""Other clients while leaders are killed: they continue without loss, duplicates or reordering."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.broker import EmbeddedCluster
from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from tests.support.peers.clients import RIDE_SECONDS_MAX, Ride, Rider
from tests.support.peers.franz_go import make_franz_go
from tests.support.peers.of_confluent import Confluent
from tests.support.topics import unique
from tests.support.waiting import eventually

PARTITIONS = 3  # each broker leads one
DOWN_SECONDS = 1.0
"""How long the controller is away; nobody takes over from what it leads."""
MORE = 30
"""Records that make a difference: in each partition there are some of them."""
OPTIONS = {"offsets.topic.num.partitions": 3, "broker.heartbeat.interval.ms": 200}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Three brokers, three replicas, min.insync.replicas=2; the first broker is the controller."""
    with EmbeddedCluster(3, OPTIONS, separate_controller=False) as running:
        yield running


@pytest.fixture(scope="module", params=["java", "librdkafka", "franz-go"])
def rider(request: pytest.FixtureRequest) -> Iterator[Rider]:
    if request.param == "java":
        yield request.getfixturevalue("java_client")
        return
    client = Confluent() if request.param == "librdkafka" else make_franz_go()
    yield client
    client.close()


@pytest.mark.behaviour("B09", "B11")
@pytest.mark.timeout(RIDE_SECONDS_MAX + 60)
def test_a_client_rides_through_the_loss_of_leaders_and_of_the_controller(
    cluster: EmbeddedCluster, rider: Rider, tmp_path: Path
) -> None:
    topic, stop = cluster.create_topic(unique("ride"), PARTITIONS, 3), tmp_path / "stop"
    leaders = [partition["leader"] for partition in cluster.describe_topic(topic)]
    assert sorted(leaders) == [1, 2, 3]
    victim = cluster.broker(next(leader for leader in leaders if leader != cluster.controller.node_id))
    with ThreadPoolExecutor(1) as pool:
        riding = pool.submit(rider.ride, cluster.bootstrap_servers, topic, unique("group"), PARTITIONS, stop)
        try:
            wait_for_more(cluster, topic)
            victim.kill()
            wait_for_more(cluster, topic)  # the others take over
            victim.start()
            wait_until_whole(cluster, topic)

            cluster.controller.kill()
            time.sleep(DOWN_SECONDS)
            cluster.controller.start()
            wait_until_whole(cluster, topic)
            wait_for_more(cluster, topic)
        finally:
            stop.touch()
            ride = riding.result(RIDE_SECONDS_MAX)
    judge(cluster, topic, ride)


def wait_for_more(cluster: EmbeddedCluster, topic: str) -> None:
    """Wait until more records of each partition are readable."""
    before = ends(cluster, topic)
    eventually(
        "more of everything",
        lambda: all(end >= before[tp] + MORE / PARTITIONS for tp, end in ends(cluster, topic).items()),
    )


def ends(cluster: EmbeddedCluster, topic: str) -> dict[TopicPartition, int]:
    with Fetcher(cluster.bootstrap_servers, isolation="read_uncommitted") as fetcher:
        return fetcher.end_offsets([TopicPartition(topic, index) for index in range(PARTITIONS)])


def wait_until_whole(cluster: EmbeddedCluster, topic: str) -> None:
    eventually(
        "all replicas in sync", lambda: all(len(partition["isr"]) == 3 for partition in cluster.describe_topic(topic))
    )


def everything(cluster: EmbeddedCluster, topic: str) -> dict[tuple[int, int], int]:
    """Return the numbers by partition and offset, in the order of offsets."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    records: dict[tuple[int, int], int] = {}
    with Fetcher(cluster.bootstrap_servers) as fetcher:
        fetcher.assign(partitions, until=fetcher.end_offsets(partitions))
        while not fetcher.is_finished():
            for record in fetcher.poll(1000, records_max=100_000):
                records[record.partition, record.offset] = int(record.value or b"")
    return records


def judge(cluster: EmbeddedCluster, topic: str, ride: Ride) -> None:
    """What was acknowledged is there, at the acknowledged offset, once and in order; its reader saw the same."""
    assert ride.errors == []
    assert [*sorted(row.number for row in ride.acknowledged)] == [*range(len(ride.acknowledged))]
    there = everything(cluster, topic)
    for index in range(PARTITIONS):
        numbers = [number for (partition, _), number in there.items() if partition == index]
        assert numbers == [*range(index, len(ride.acknowledged), PARTITIONS)]
    for row in ride.acknowledged:
        assert row.offset < 0 or there[row.partition, row.offset] == row.number
    for row in ride.consumed:
        assert there[row.partition, row.offset] == row.number
    assert {row.number for row in ride.consumed} == {*there.values()}
