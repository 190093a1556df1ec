"""Details of produce and admin responses that other projects' test suites check, on both brokers."""

from __future__ import annotations

import time

import pytest

from headrace.broker.configs import ResourceType
from headrace.errors import Code
from headrace.wire.api.cluster_admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    QuorumPartition,
    QuorumTopic,
)
from headrace.wire.api.configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers.connection import Connection
from tests.support.topics import unique

HOUR_MS = 3_600_000
METADATA_LOG = "__cluster_metadata"


@pytest.fixture
def connection(either):
    with Connection(either.bootstrap) as made:
        yield made


def record(index: int, *, key: bytes | None = b"key", time_ms: int | None = None) -> Record:
    return Record(index, int(time.time() * 1000) if time_ms is None else time_ms, key, b"value", ())


@pytest.mark.parametrize("codec", [0, 2])
def test_records_without_a_key_are_named_when_a_compacted_topic_rejects_them(either, connection, codec):
    topic = unique("compacted")
    either.create_topic(topic, 1, {"cleanup.policy": "compact"})
    batch = encode([record(0, key=None), record(1), record(2, key=None)], codec=codec)
    response = connection.produce(topic, batch)
    assert response.error_code == Code.INVALID_RECORD
    assert [row.batch_index for row in response.record_errors] == [0, 2]
    assert all("key" in (row.batch_index_error_message or "") for row in response.record_errors)
    assert response.error_message


def test_records_with_timestamps_out_of_range_are_named(either, connection):
    topic = unique("timed")
    options = {"message.timestamp.after.max.ms": str(HOUR_MS), "message.timestamp.before.max.ms": str(HOUR_MS)}
    either.create_topic(topic, 1, options)
    now_ms = int(time.time() * 1000)
    batch = encode([record(0), record(1, time_ms=now_ms + 2 * HOUR_MS), record(2, time_ms=now_ms + 3 * HOUR_MS)])
    response = connection.produce(topic, batch)
    assert response.error_code == Code.INVALID_TIMESTAMP
    assert [row.batch_index for row in response.record_errors] == [1, 2]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_has_one_leader(connection, version):
    rows = [
        QuorumTopic(topic_name=name, partitions=[QuorumPartition(partition_index=0)])
        for name in ("__cluster_metadata",)
    ]
    response = connection.call(DescribeQuorumRequest(topics=rows), version)
    assert response.error_code == Code.NONE
    (quorum,) = response.topics[0].partitions
    assert quorum.error_code == Code.NONE
    assert quorum.leader_id in [voter.replica_id for voter in quorum.current_voters]
    assert quorum.leader_epoch > 0
    assert quorum.high_watermark > 0
    if version >= 2:
        assert quorum.leader_id in [node.node_id for node in response.nodes]


def test_another_log_of_the_quorum_is_unknown(connection):
    rows = [QuorumTopic(topic_name="other", partitions=[QuorumPartition(partition_index=0)])]
    response = connection.call(DescribeQuorumRequest(topics=rows), 1)
    codes = [row.error_code for topic in response.topics for row in topic.partitions]
    assert Code.UNKNOWN_TOPIC_OR_PARTITION in (response.error_code, *codes)


def test_replicas_stay_in_the_only_folder(either, connection):
    topic = unique("folder")
    either.create_topic(topic, 1)
    (described,) = connection.call(DescribeLogDirsRequest(topics=None), 4).results

    def alter(path: str, name: str = topic) -> int:
        rows = [AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=[0])])]
        (result,) = connection.call(AlterReplicaLogDirsRequest(dirs=rows), 2).results
        return int(result.partitions[0].error_code)

    assert alter("/nowhere") == Code.LOG_DIR_NOT_FOUND
    assert alter(described.log_dir) == Code.NONE
    assert alter(described.log_dir, "missing") == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_kafkas_tool_shows_the_quorum(either, java_client):
    shown = java_client.tool(
        "MetadataQuorumCommand", "--bootstrap-server", either.bootstrap, "describe", "--status"
    ).out
    assert "LeaderId:" in shown
    assert "HighWatermark:" in shown


def is_of_listeners(option: str) -> bool:
    """Whether an option belongs to listeners and their security, which headrace sets up at its start."""
    return option.startswith(("listener", "ssl.", "sasl."))


def test_the_same_options_of_a_broker_can_be_changed(kafka, headrace_broker):
    row = DescribeConfigsResource(resource_type=ResourceType.BROKER, resource_name="1", configuration_keys=None)
    dynamic = []
    for broker in (kafka, headrace_broker):
        with Connection(broker.bootstrap) as connection:
            (result,) = connection.call(DescribeConfigsRequest(resources=[row]), 4).results
        dynamic.append({entry.name for entry in result.configs if not entry.read_only})
    theirs, ours = dynamic
    assert ours - theirs == set()
    # There is one folder for data in headrace, so it cannot be cordoned off.
    assert {name for name in theirs - ours if not is_of_listeners(name)} == {"cordoned.log.dirs"}
