"""Creating and deleting topics: valid and invalid requests, and restarts."""

from __future__ import annotations

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, NewTopic
from headrace.errors import Code
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers.connection import Connection
from tests.support.topics import unique


def creation(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def create(connection: Connection, *topics: CreatableTopic, version: int = 7, validate_only: bool = False):
    return connection.call(
        CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only), version
    ).topics


def exists(connection: Connection, name: str):
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return connection.call(request, 9).topics[0].error_code == 0


@pytest.mark.parametrize("version", range(8))
def test_every_version_creates_topics(connection, version):
    name = unique("made")
    (row,) = create(connection, creation(name, 2, retention_ms="1000"), version=version)
    assert (row.name, row.error_code) == (name, 0)
    if version >= 5:
        assert (row.num_partitions, row.replication_factor) == (2, 1)
        configs = {config.name: (config.value, config.config_source) for config in row.configs}
        assert configs["retention.ms"] == ("1000", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert row.topic_id != bytes(16)
    assert exists(connection, name)


def test_partition_and_replica_counts_have_defaults(connection):
    (row,) = create(connection, creation(unique("default"), -1, -1))
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 1, 1)


def test_validate_only_creates_nothing(connection):
    name = unique("checked")
    (row,) = create(connection, creation(name, 3), validate_only=True)
    assert (row.error_code, row.num_partitions) == (0, 3)
    assert not exists(connection, name)
    (row,) = create(connection, creation(name, 0), validate_only=True)
    assert row.error_code == Code.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creation("", 1), Code.INVALID_TOPIC_EXCEPTION),
        (creation("..", 1), Code.INVALID_TOPIC_EXCEPTION),
        (creation("../../etc/x", 1), Code.INVALID_TOPIC_EXCEPTION),
        (creation("x" * 250, 1), Code.INVALID_TOPIC_EXCEPTION),
        (creation("__consumer_offsets", 1), None),
        (creation("bad-a", 0), Code.INVALID_PARTITIONS),
        (creation("bad-b", -2), Code.INVALID_PARTITIONS),
        (creation("bad-c", 1_000_000), Code.POLICY_VIOLATION),
        (creation("bad-d", 1, 0), Code.INVALID_REPLICATION_FACTOR),
        (creation("bad-e", 1, 2), Code.INVALID_REPLICATION_FACTOR),
        (creation("bad-f", 1, no_such_option="1"), Code.INVALID_CONFIG),
        (creation("bad-g", 1, retention_ms="soon"), Code.INVALID_CONFIG),
        (creation("bad-h", 1, cleanup_policy="burn"), Code.INVALID_CONFIG),
    ],
)
def test_invalid_topics_are_rejected_with_kafkas_code_and_a_reason(connection, topic, code):
    (row,) = create(connection, topic)
    if code is None:
        assert row.error_code in (Code.INVALID_TOPIC_EXCEPTION, Code.TOPIC_ALREADY_EXISTS)
    else:
        assert row.error_code == code
    assert row.error_message


def test_duplicate_and_colliding_topic_names_are_rejected(connection):
    name = unique("twice")
    dotted = f"{name}.x"
    assert create(connection, creation(name))[0].error_code == 0
    assert create(connection, creation(name))[0].error_code == Code.TOPIC_ALREADY_EXISTS
    assert create(connection, creation(dotted))[0].error_code == 0
    assert create(connection, creation(f"{name}_x"))[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    (row,) = create(connection, creation(other := unique("same")), creation(other))
    assert row.error_code == Code.INVALID_REQUEST


def assigned(name: str, *brokers: tuple[int, ...], first: int = 0) -> CreatableTopic:
    rows = [
        CreatableReplicaAssignment(partition_index=first + number, broker_ids=ids) for number, ids in enumerate(brokers)
    ]
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows)


def test_replicas_can_be_assigned_manually(connection):
    assert create(connection, assigned(unique("assigned"), (1,), (1,)))[0].num_partitions == 2
    for bad in (
        assigned("bad", (2,)),
        assigned("bad", (1, 1)),
        assigned("bad", (1, 2)),
        assigned("bad", ()),
        assigned("bad", (1,), first=1),
    ):
        assert create(connection, bad)[0].error_code == Code.INVALID_REPLICA_ASSIGNMENT
    both = assigned("bad", (1,)).replace(num_partitions=1)
    assert create(connection, both)[0].error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(7))
def test_every_version_deletes_topics(broker, connection, version):
    name = broker.create_topic(unique("deleted"))
    request = DeleteTopicsRequest(timeout_ms=1000, topic_names=[name, "no-such-topic"])
    if version == 6:
        request = DeleteTopicsRequest(
            timeout_ms=1000, topics=[DeleteTopicState(name=name), DeleteTopicState(name="no-such-topic")]
        )
    rows = connection.call(request, version).responses
    assert {row.name: row.error_code for row in rows} == {name: 0, "no-such-topic": Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert not exists(connection, name)


def test_a_topic_deleted_by_id_can_be_recreated(broker, connection):
    name = unique("anew")
    (first,) = create(connection, creation(name))
    connection.produce(name, encode([Record(0, 1, None, b"old", ())]))
    request = DeleteTopicsRequest(timeout_ms=1000, topics=[DeleteTopicState(topic_id=first.topic_id)])
    (row,) = connection.call(request, 6).responses
    assert (row.name, row.error_code) == (name, 0)
    (row,) = connection.call(request, 6).responses
    assert (row.name, row.error_code) == (None, Code.UNKNOWN_TOPIC_ID)
    (second,) = create(connection, creation(name))
    assert second.topic_id != first.topic_id
    assert connection.fetch(name).high_watermark == 0


def test_deletion_can_be_disabled_and_internal_topics_stay(tmp_path):
    with (
        EmbeddedBroker({"delete.topic.enable": "false"}, data_dir=tmp_path) as own,
        Connection(own.bootstrap) as connection,
    ):
        own.create_topic("kept")
        connection.call(MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")]), 9)
        request = DeleteTopicsRequest(timeout_ms=1000, topic_names=["kept", "__consumer_offsets"])
        rows = {row.name: row.error_code for row in connection.call(request, 5).responses}
        assert rows == {"kept": Code.TOPIC_DELETION_DISABLED, "__consumer_offsets": Code.INVALID_REQUEST}


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_topics_options_and_records_survive_a_restart(tmp_path, ending):
    with EmbeddedBroker(data_dir=tmp_path) as own:
        own.create_topic("kept", partitions=2, configs={"max.message.bytes": "1000"})
        own.create_topic("gone")
        with Connection(own.bootstrap) as connection:
            before = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name="kept")]), 12).topics[0]
            connection.produce("kept", encode([Record(0, 1, None, b"x", ())]), partition=1)
        own.delete_topic("gone")
        getattr(own, ending)()
        own.start()
        with Connection(own.bootstrap) as connection:
            assert connection.call(MetadataRequest(topics=[MetadataRequestTopic(name="kept")]), 12).topics[0] == before
            assert not exists(connection, "gone")
            assert connection.fetch("kept", partition=1).high_watermark == 1
            large = encode([Record(0, 1, None, bytes(2000), ())])
            assert connection.produce("kept", large).error_code == Code.MESSAGE_TOO_LARGE


def test_the_headrace_admin_client_creates_and_deletes_topics(broker):
    name = unique("ours")
    with AdminClient(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2)])
        assert name in admin.list_topics()
        admin.delete_topics([name])
        assert name not in admin.list_topics()


def test_two_thousand_partitions_are_supported(broker, connection):
    name = broker.create_topic(unique("many"), partitions=2000)
    assert connection.produce(name, encode([Record(0, 1, None, b"x", ())]), partition=1999).error_code == 0
    assert connection.fetch(name, partition=1999).high_watermark == 1
    broker.delete_topic(name)
