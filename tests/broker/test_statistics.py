"""Statistics of a broker: by type of request and by topic, in the status and for Prometheus."""

from __future__ import annotations

import urllib.request

import pytest
from confluent_kafka import Consumer, Producer

from headrace import AcknowledgeType, ShareConsumer
from headrace.broker import EmbeddedBroker, EmbeddedCluster
from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.group_admin import ListGroupsRequest
from headrace.wire.api.groups import HeartbeatRequest
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.waiting import eventually

SECONDS_MAX = 20
WAIT_MS = 300
LEADER, ALL = 1, -1


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker({"headrace.metrics.listener": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture
def topic(broker):
    return broker.create_topic(unique("served"), 1, {"max.message.bytes": "1000"})


def batch(*sizes):
    return bytes(encode([Record(n, 1, None, bytes(size), ()) for n, size in enumerate(sizes)]))


def produce(connection, topic, *batches, acks=LEADER, version=9):
    parts = [PartitionProduceData(partition_index=index, records=records) for index, records in enumerate(batches)]
    data = [TopicProduceData(name=topic, partition_data=parts)]
    return connection.call(ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=data), version)


def row(broker, kind, key, name):
    rows = [row for row in broker.status()[f"{kind}_statistics"] if row[key] == name]
    return rows[0] if rows else None


def api(broker, name):
    return row(broker, "request", "api", name) or {"requests": 0, "failed": 0, "errors": {}, "seconds": 0.0}


def scraped(broker):
    with urllib.request.urlopen(broker.status()["metrics"], timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.mark.behaviour("B16")
@pytest.mark.parametrize("acks", [LEADER, ALL])
def test_produce_requests_of_the_short_cut_and_of_the_handler_are_counted(broker, topic, acks):
    before, records = api(broker, "Produce"), batch(10, 20)
    with Connection(broker.bootstrap) as connection:
        produce(connection, topic, records, acks=acks)  # the short cut
        produce(connection, topic, records, b"", acks=acks)  # the handler; the topic has one partition
    after, traffic = api(broker, "Produce"), row(broker, "topic", "topic", topic)
    assert after["requests"] - before["requests"] == 2
    assert after["failed"] - before["failed"] == 1
    assert after["errors"]["UNKNOWN_TOPIC_OR_PARTITION"] >= 1
    assert (traffic["records_in"], traffic["bytes_in"], traffic["failed_produces"]) == (4, 2 * len(records), 1)
    assert traffic["records_in_per_s"] > 0
    assert after["requests_per_s"] > 0


@pytest.mark.behaviour("B16")
def test_a_refused_batch_and_a_repeated_one_add_no_records(broker, topic):
    with Connection(broker.bootstrap) as connection:
        produce(connection, topic, batch(2_000))
        assert row(broker, "topic", "topic", topic)["failed_produces"] == 1
        repeated = bytes(encode([Record(0, 1, None, b"x", ())], producer=BatchProducer(7, 0, 0)))
        produce(connection, topic, repeated)
        produce(connection, topic, repeated)
    assert row(broker, "topic", "topic", topic)["records_in"] == 1


@pytest.mark.behaviour("B16")
def test_the_time_of_a_request_includes_waiting(broker, topic):
    before = api(broker, "Fetch")
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    request = FetchRequest(
        max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=1_000, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    with Connection(broker.bootstrap) as connection:
        connection.call(request, 11)
        produce(connection, topic, batch(10))
        connection.call(request, 11)
    after = api(broker, "Fetch")
    assert after["requests"] - before["requests"] == 2
    assert after["seconds"] - before["seconds"] >= WAIT_MS / 1000
    assert after["max_ms"] >= WAIT_MS
    assert row(broker, "topic", "topic", topic)["bytes_out"] == len(batch(10))


@pytest.mark.behaviour("B16")
def test_errors_are_counted_by_code(broker):
    before = api(broker, "Heartbeat")
    with Connection(broker.bootstrap) as connection:
        connection.call(HeartbeatRequest(group_id="absent", member_id="nobody"), 4)
        connection.call(ListGroupsRequest(), 3)
    after = api(broker, "Heartbeat")
    assert after["failed"] - before["failed"] == 1
    assert sum(after["errors"].values()) - sum(before["errors"].values()) == 1
    assert api(broker, "ListGroups")["failed"] == 0


@pytest.mark.behaviour("B16")
def test_unknown_topics_get_no_statistics_and_deleted_ones_lose_them(broker, topic):
    with Connection(broker.bootstrap) as connection:
        produce(connection, "absent", batch(10))
        produce(connection, topic, batch(10))
    assert row(broker, "topic", "topic", "absent") is None
    assert row(broker, "topic", "topic", topic) is not None
    broker.delete_topic(topic)
    eventually("no row", lambda: row(broker, "topic", "topic", topic) is None)


@pytest.mark.behaviour("B16")
def test_prometheus_gets_the_same_counters_for_a_client_of_another_project(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(5):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(SECONDS_MAX) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": unique("group"), "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        eventually("a record", lambda: consumer.poll(0.1) is not None)
    finally:
        consumer.close()
    values, traffic = scraped(broker), row(broker, "topic", "topic", topic)
    assert values[f'headrace_broker_topic_records_in_total{{topic="{topic}"}}'] == 5
    assert values[f'headrace_broker_topic_bytes_out_total{{topic="{topic}"}}'] == traffic["bytes_out"] > 0
    assert values['headrace_broker_api_requests_total{api="JoinGroup"}'] == api(broker, "JoinGroup")["requests"] > 0
    errors = {name: value for name, value in values.items() if "errors_total" in name and "JoinGroup" in name}
    assert sum(errors.values()) == sum(api(broker, "JoinGroup")["errors"].values()) > 0  # MEMBER_ID_REQUIRED


@pytest.mark.behaviour("B16")
def test_copies_to_followers_are_no_bytes_out():
    with EmbeddedCluster(2, {"default.replication.factor": "2", "min.insync.replicas": "2"}) as cluster:
        topic = cluster.create_topic("copied", 1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        producer.produce(topic, b"value")
        assert producer.flush(SECONDS_MAX) == 0
        rows = [row(broker, "topic", "topic", topic) for broker in cluster.brokers]
    (traffic,) = filter(None, rows)  # the leader's
    assert (traffic["records_in"], traffic["bytes_out"]) == (1, 0)


@pytest.mark.behaviour("B16")
def test_the_records_of_share_groups_are_counted(broker, topic):
    group = unique("workers")
    with AdminClient(broker.bootstrap) as admin:
        admin.alter_configs({ConfigResource(ResourceKind.GROUP, group): {"share.auto.offset.reset": "earliest"}})
    with Connection(broker.bootstrap) as connection:
        produce(connection, topic, batch(10, 20, 30))
    members = {"bootstrap_servers": broker.bootstrap, "share_acknowledgement_mode": "explicit"}
    with ShareConsumer(group_id=group, **members) as consumer:
        consumer.subscribe([topic])
        records = []

        def has_all():
            records.extend(consumer.poll(0.5))
            return len(records) == 3

        eventually("three records", has_all)
        facts = row(broker, "share_group", "group", group)
        assert (facts["partitions"], facts["in_flight"], facts["acquired"], facts["accepted"]) == (1, 3, 3, 0)
        kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
        for record, kind in zip(records, kinds, strict=True):
            consumer.acknowledge(record, kind)
        assert not any(consumer.commit_sync(SECONDS_MAX).values())
        facts = row(broker, "share_group", "group", group)
        assert (facts["in_flight"], facts["accepted"], facts["rejected"], facts["released"]) == (0, 2, 1, 0)
    label = f'{{group="{group}"}}'
    assert scraped(broker)[f"headrace_broker_share_group_accepted_records_total{label}"] == 2
