"""The consumer on a cluster whose brokers are killed."""

from __future__ import annotations

import time

import pytest

from headrace import Consumer, LogTruncationError, Producer, TopicPartition
from headrace.broker import EmbeddedCluster
from headrace.client.network import NetworkClient
from headrace.wire.api import ApiKey
from headrace.wire.api.cluster_admin import ElectLeadersRequest, TopicPartitions
from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.polling import poll_until
from tests.support.waiting import eventually

PARTITIONS, ROUNDS, RECORDS = 4, 4, 100
SECONDS_MAX = 40.0


GROUPS: dict[str, dict[str, object]] = {
    "assigned": {},
    "classic": {"group.id": "g", "heartbeat.interval.ms": 300},
    "consumer": {"group.id": "g", "group.protocol": "consumer"},
}
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.mark.behaviour("C05")
@pytest.mark.parametrize("kind", GROUPS)
def test_records_are_read_in_order_while_leaders_and_coordinator_are_killed(kind):
    with EmbeddedCluster(3) as cluster:
        cluster.create_topic("t", PARTITIONS)
        with (
            Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
            Consumer(
                GROUPS[kind], bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
            ) as consumer,
        ):
            if kind != "assigned":
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


def produce(cluster: EmbeddedCluster, count: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send("t", b"v", partition=0)


def leader(cluster: EmbeddedCluster) -> int:
    return int(cluster.describe_topic("t")[0]["leader"])


@pytest.mark.behaviour("C05")
def test_a_follower_on_the_consumers_rack_is_read_until_it_is_killed(monkeypatch):
    nodes: list[int] = []
    send = NetworkClient.send

    def spy(self, node_id, request, now):
        if request.api_key == ApiKey.FETCH:
            nodes.append(node_id)
        send(self, node_id, request, now)

    monkeypatch.setattr(NetworkClient, "send", spy)
    with EmbeddedCluster(3, {"replica.selector.class": RACK_AWARE}, racks=["rack-1", "rack-2", "rack-3"]) as cluster:
        cluster.create_topic("t")
        produce(cluster, 10)
        near = 1 + leader(cluster) % 3
        name = TopicPartition("t", 0)
        with Consumer(
            bootstrap_servers=cluster.bootstrap_servers, client_rack=f"rack-{near}", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([name])
            poll_until(lambda: consumer.positions() == {name: 10}, consumer)
            assert nodes[0] == leader(cluster)
            assert set(nodes[1:]) == {near}
            cluster.broker(near).kill()
            produce(cluster, 10)
            poll_until(lambda: consumer.positions() == {name: 20}, consumer)


@pytest.mark.behaviour("C05")
def test_the_leader_that_a_broker_names_is_read_without_new_metadata(monkeypatch):
    send = NetworkClient.send
    is_cut = False

    def spy(self, node_id, request, now):
        if not (is_cut and request.api_key == ApiKey.METADATA):
            send(self, node_id, request, now)

    monkeypatch.setattr(NetworkClient, "send", spy)
    name = TopicPartition("t", 0)
    with EmbeddedCluster(3) as cluster:
        cluster.create_topic("t")
        preferred = leader(cluster)
        cluster.broker(preferred).kill()
        eventually("another leader", lambda: leader(cluster) not in (preferred, -1))
        produce(cluster, 10)
        cluster.broker(preferred).start()
        eventually("all replicas in sync", lambda: len(cluster.describe_topic("t")[0]["isr"]) == 3)
        with (
            Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
            Connection(cluster.broker(preferred).bootstrap) as connection,
        ):
            consumer.assign([name])
            poll_until(lambda: consumer.positions() == {name: 10}, consumer)
            is_cut = True
            rows = [TopicPartitions(topic="t", partitions=[0])]
            connection.call(ElectLeadersRequest(topic_partitions=rows), 2)
            eventually("the preferred leader", lambda: leader(cluster) == preferred)
            librdkafka.produce(cluster.bootstrap_servers, "t", [Record(0, 0, None, b"v", ())])
            poll_until(lambda: consumer.positions() == {name: 11}, consumer)


@pytest.mark.behaviour("C05")
@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_log_that_lost_records_in_an_unclean_election_is_a_truncation(policy):
    with EmbeddedCluster(3) as cluster:
        configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        cluster.create_topic("t", replication_factor=2, configs=configs)
        produce(cluster, 10)
        first = leader(cluster)
        (other,) = set(cluster.describe_topic("t")[0]["replicas"]) - {first}
        cluster.broker(other).kill()
        eventually("one in-sync replica", lambda: cluster.describe_topic("t")[0]["isr"] == [first])
        produce(cluster, 10)
        name = TopicPartition("t", 0)
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset=policy) as consumer:
            consumer.assign({name: 0})
            poll_until(lambda: consumer.positions() == {name: 20}, consumer)
            cluster.broker(first).kill()
            cluster.broker(other).start()
            eventually("an unclean leader", lambda: leader(cluster) == other)
            if policy == "none":
                with pytest.raises(LogTruncationError, match="ends at 10, read up to 20"):
                    poll_until(lambda: False, consumer)
                return
            poll_until(lambda: consumer.positions() == {name: 10}, consumer)
            produce(cluster, 5)
            records = poll_until(lambda: consumer.positions() == {name: 15}, consumer)
            assert [record.offset for record in records] == list(range(10, 15))
