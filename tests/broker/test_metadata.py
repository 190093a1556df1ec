"""Metadata and DescribeTopicPartitions, with auto-creation of topics."""

from __future__ import annotations

import pytest

from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicCursor,
    TopicRequest,
)
from tests.support.peers.connection import Connection
from tests.support.topics import new_topic, unique

NO_OPERATIONS = -(2**31)


def metadata_request(*names: str, **changes: object) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(14))
def test_every_version_returns_broker_and_topic(broker, connection, version):
    topic = new_topic(broker, "advertised", partitions=3)
    response = connection.call(metadata_request(topic), version)
    (node,) = response.brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap
    (row,) = response.topics
    assert (row.error_code, row.name, row.is_internal) == (0, topic, False)
    assert [(part.partition_index, part.leader_id) for part in row.partitions] == [(n, node.node_id) for n in range(3)]
    assert all(tuple(part.replica_nodes) == tuple(part.isr_nodes) == (node.node_id,) for part in row.partitions)
    if version >= 1:
        assert response.controller_id == node.node_id
    if version >= 2:
        assert len(response.cluster_id) == 22
    if version >= 7:
        assert [part.leader_epoch for part in row.partitions] == [0] * 3
    if version >= 10:
        assert len(row.topic_id.strip(b"\0")) > 8


def test_all_topics_or_none(broker, connection):
    topic = new_topic(broker, "one-of-all")
    assert connection.call(metadata_request(), 1).topics == ()
    everything = {row.name for row in connection.call(MetadataRequest(topics=None), 9).topics}
    assert topic in everything
    assert {row.name for row in connection.call(metadata_request(), 0).topics} >= {topic}


def test_a_requested_topic_is_created_unless_auto_creation_is_disabled(connection):
    name = unique("auto")
    refused = connection.call(metadata_request(name, allow_auto_topic_creation=False), 9)
    assert refused.topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    made = connection.call(metadata_request(name), 9)
    assert (made.topics[0].error_code, len(made.topics[0].partitions)) == (0, 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250])
def test_a_topic_with_an_invalid_name_is_not_created(connection, name):
    (row,) = connection.call(metadata_request(name), 9).topics
    assert (row.name, row.error_code) == (name, Code.INVALID_TOPIC_EXCEPTION)


def test_topics_are_found_by_id(broker, connection):
    topic = new_topic(broker, "by-id")
    topic_id = connection.call(metadata_request(topic), 12).topics[0].topic_id
    request = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)])
    (row,) = connection.call(request, 12).topics
    assert (row.name, row.error_code) == (topic, 0)
    unknown = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=bytes(range(16)))])
    (row,) = connection.call(unknown, 12).topics
    assert (row.name, row.error_code) == (None, Code.UNKNOWN_TOPIC_ID)


def test_authorized_operations_are_returned_on_request(connection, topic):
    plain = connection.call(metadata_request(topic), 8)
    assert (plain.cluster_authorized_operations, plain.topics[0].topic_authorized_operations) == (
        NO_OPERATIONS,
        NO_OPERATIONS,
    )
    request = metadata_request(
        topic, include_cluster_authorized_operations=True, include_topic_authorized_operations=True
    )
    full = connection.call(request, 8)
    bits = full.topics[0].topic_authorized_operations
    assert {number for number in range(32) if bits >> number & 1} == {3, 4, 5, 6, 7, 8, 10, 11}
    bits = full.cluster_authorized_operations
    assert {number for number in range(32) if bits >> number & 1} == {5, 7, 8, 9, 10, 11, 12}


def test_internal_topics_are_marked(connection):
    (row,) = connection.call(metadata_request("__consumer_offsets"), 9).topics
    assert (row.error_code, row.is_internal) == (0, True)


def test_each_listener_advertises_its_address(tmp_path):
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
        "advertised.listeners": "OTHER://localhost:19099",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        "auto.create.topics.enable": "false",
        "broker.rack": "here",
    }
    with EmbeddedBroker(options, data_dir=tmp_path) as own:
        addresses = own.status()["listeners"]
        for name, advertised in (("PLAINTEXT", own.bootstrap), ("OTHER", "localhost:19099")):
            with Connection(addresses[name]) as connection:
                response = connection.call(metadata_request("x"), 9)
                (node,) = response.brokers
                assert (f"{node.host}:{node.port}", node.rack) == (advertised, "here")
                assert response.topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_are_returned_in_pages(broker, connection):
    name = unique("pages")
    topics = [broker.create_topic(f"{name}-{letter}", partitions=3) for letter in "abc"]
    seen = []
    cursor = None
    for _ in range(5):
        requested = [TopicRequest(name=topic) for topic in reversed(topics)]
        request = DescribeTopicPartitionsRequest(topics=requested, response_partition_limit=2, cursor=cursor)
        response = connection.call(request, 0)
        assert all(part.eligible_leader_replicas == () for row in response.topics for part in row.partitions)
        page = [(row.name, part.partition_index) for row in response.topics for part in row.partitions]
        assert 0 < len(page) <= 2
        seen += page
        if response.next_cursor is None:
            break
        cursor = TopicCursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )
    assert seen == [(topic, number) for topic in topics for number in range(3)]


def test_an_unknown_topic_is_reported_in_the_pages(connection):
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="no-such-topic")])
    (row,) = connection.call(request, 0).topics
    assert row.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
