"""Cluster administration of a standalone broker."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec  # type: ignore[attr-defined]

from headrace import Producer
from headrace.broker.handlers import SUPPORTED
from headrace.errors import Code
from headrace.wire.api import request_class
from headrace.wire.api.cluster_admin import (
    AlterPartitionReassignmentsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    FeatureUpdateKey,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from headrace.wire.api.metadata import DescribeClusterRequest
from headrace.wire.api.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.support.topics import unique

SECONDS = 20
ADMIN_KEYS = (17, 21, 29, 30, 31, 32, 33, 35, 36, 37, 43, 44, 45, 46, 48, 49, 50, 51, 57, 60, 64, 74)


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key in ADMIN_KEYS for version in range(SUPPORTED[key].first, SUPPORTED[key].last + 1)],
)
def test_every_advertised_version_gets_a_response(connection, key, version):
    connection.call(request_class(key)(), version)


def fill(broker, topic, count):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def delete(connection, topic, offset, partition=0):
    row = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[row])], timeout_ms=1000)
    ((response,),) = (topic.partitions for topic in connection.call(request, 2).topics)
    return response.error_code, response.low_watermark


def test_records_are_deleted_up_to_an_offset_or_to_the_high_watermark(broker, connection, topic):
    fill(broker, topic, 10)
    assert delete(connection, topic, 4) == (Code.NONE, 4)
    assert delete(connection, topic, 2) == (Code.NONE, 4), "what is gone stays gone"
    assert delete(connection, topic, 11) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert delete(connection, topic, -2) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert delete(connection, topic, -1) == (Code.NONE, 10)
    assert delete(connection, topic, 0, partition=1) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    where = TopicPartition(topic, 0)
    earliest = admin.list_offsets({where: OffsetSpec.earliest()})[where].result(SECONDS)
    assert earliest.offset == 10


def test_records_of_a_compacted_topic_are_not_deleted(broker, connection):
    topic = broker.create_topic(unique("compacted"), 1, {"cleanup.policy": "compact"})
    assert delete(connection, topic, 0) == (Code.POLICY_VIOLATION, -1)
    topic = broker.create_topic(unique("both"), 1, {"cleanup.policy": "compact,delete"})
    assert delete(connection, topic, 0) == (Code.NONE, 0)


def grow(connection, topic, count, assignments=None, *, validate_only=False, times=1):
    rows = None
    if assignments is not None:
        rows = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    requested = CreatePartitionsTopic(name=topic, partition_count=count, assignments=rows)
    request = CreatePartitionsRequest(topics=[requested] * times, timeout_ms=1000, validate_only=validate_only)
    (result,) = connection.call(request, 3).results
    assert bool(result.error_message) == bool(result.error_code)
    return result.error_code


def test_partitions_are_added_to_topics(broker, connection, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    assert grow(connection, topic, 4, validate_only=True) == Code.NONE
    assert len(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions) == 3
    assert grow(connection, topic, 5, [[1], [1]]) == Code.NONE
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        assert producer.send(topic, b"x", partition=4).result(SECONDS).offset == 0


def test_invalid_partition_counts_are_rejected(connection, topic):
    assert grow(connection, topic, 1) == Code.INVALID_PARTITIONS
    assert grow(connection, topic, 2, [[9]]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert grow(connection, topic, 2, [[1], [1]]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert grow(connection, topic, 2, times=2) == Code.INVALID_REQUEST
    assert grow(connection, "no-such-topic", 2) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(connection, "__transaction_state", 100) in (
        Code.INVALID_TOPIC_EXCEPTION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    )


def test_log_dirs_are_described(broker, connection, topic):
    def partitions(**options):
        (result,) = connection.call(DescribeLogDirsRequest(**options), 4).results
        assert result.error_code == 0
        assert result.log_dir == str(broker.data_dir)
        assert result.total_bytes > result.usable_bytes > 0
        return {
            (each.name, row.partition_index): row.partition_size for each in result.topics for row in each.partitions
        }

    assert partitions(topics=None)[topic, 0] == 0
    fill(broker, topic, 10)
    size = partitions(topics=None)[topic, 0]
    on_disk = sum(file.stat().st_size for file in (broker.data_dir / f"{topic}-0").glob("*.log"))
    assert size == on_disk > 0
    requested = [
        TopicPartitions(topic=topic, partitions=[0, 7]),
        TopicPartitions(topic="no", partitions=[0]),
    ]
    assert partitions(topics=requested) == {(topic, 0): size}


def test_a_standalone_broker_needs_no_election(connection, topic):
    def elect(topics, **options):
        response = connection.call(ElectLeadersRequest(topic_partitions=topics, **options), 2)
        rows = [row.error_code for each in response.replica_election_results for row in each.partition_result]
        return response.error_code, rows

    requested = [TopicPartitions(topic=topic, partitions=[0, 5])]
    assert elect(requested) == (Code.NONE, [Code.ELECTION_NOT_NEEDED, Code.UNKNOWN_TOPIC_OR_PARTITION])
    assert elect(None) == (Code.NONE, [])
    assert elect(requested, election_type=7)[0] == Code.INVALID_REQUEST


def test_a_standalone_broker_keeps_its_partitions(connection, topic):
    def move(replicas, index=0, name=topic):
        row = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[row])])
        ((response,),) = (each.partitions for each in connection.call(request, 1).responses)
        return response.error_code

    assert move([1]) == Code.NONE
    assert move([2]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert move([1, 2]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert move([1, 1]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert move([]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert move(None) == Code.NO_REASSIGNMENT_IN_PROGRESS
    assert move([1], index=9) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert move([1], name="no-such-topic") == Code.UNKNOWN_TOPIC_OR_PARTITION
    response = connection.call(ListPartitionReassignmentsRequest(), 0)
    assert (response.error_code, response.topics) == (Code.NONE, ())


def test_feature_levels_are_fixed(connection):
    def update(name, level, version=1):
        request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=name, max_version_level=level)])
        response = connection.call(request, version)
        return response.error_code or next((row.error_code for row in response.results), Code.NONE)

    assert update("transaction.version", 2) == Code.NONE
    assert update("transaction.version", 2, version=2) == Code.NONE
    assert update("transaction.version", 1) == Code.FEATURE_UPDATE_FAILED
    assert update("transaction.version", 1, version=2) == Code.FEATURE_UPDATE_FAILED
    assert update("transaction.version", 9) == Code.INVALID_UPDATE_VERSION
    assert update("time.travel", 1) == Code.INVALID_UPDATE_VERSION


def test_the_cluster_is_one_broker(broker, connection):
    response = connection.call(DescribeClusterRequest(include_cluster_authorized_operations=True), 2)
    assert response.controller_id == 1
    (node,) = response.brokers
    assert f"{node.host}:{node.port}" == broker.bootstrap
    assert response.cluster_id
    assert response.cluster_authorized_operations > 0
    assert connection.call(DescribeClusterRequest(), 0).cluster_authorized_operations == -0x80000000
    assert connection.call(DescribeClusterRequest(endpoint_type=2), 1).error_code == Code.MISMATCHED_ENDPOINT_TYPE
    assert connection.call(DescribeClusterRequest(endpoint_type=3), 1).error_code == Code.UNSUPPORTED_ENDPOINT_TYPE


def test_a_standalone_broker_cannot_be_unregistered(connection):
    for node_id, code in ((1, Code.INVALID_REQUEST), (2, Code.BROKER_ID_NOT_REGISTERED)):
        response = connection.call(UnregisterBrokerRequest(broker_id=node_id), 0)
        assert response.error_code == code
        assert response.error_message
