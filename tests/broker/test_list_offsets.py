"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest

from headrace import Producer
from headrace.errors import Code
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.topics import unique

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
CONSUMER = -1


def looked_up(connection, topic, timestamp, *, version=11, committed=False, epoch=-1, partition=0):
    part = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=int(committed), topics=[ListOffsetsTopic(name=topic, partitions=[part])]
    )
    if version < 2:
        request = request.replace(isolation_level=0)
    ((response,),) = ([*row.partitions] for row in connection.call(request, version).topics)
    return response


@pytest.fixture
def filled(connection, topic):
    """Write timestamps 1000 to 1009 in batches of two records, with the highest in the middle."""
    for number in range(5):
        times = [1000 + 2 * number, 1001 + 2 * number]
        if number == 2:
            times[1] = 5000
        connection.produce(topic, encode([Record(index, time, None, b"x", ()) for index, time in enumerate(times)]))
    return topic


@pytest.mark.parametrize("version", range(12))
def test_every_version_returns_earliest_and_latest(connection, filled, version):
    first = looked_up(connection, filled, EARLIEST, version=version)
    last = looked_up(connection, filled, LATEST, version=version)
    if version == 0:
        assert (tuple(first.old_style_offsets), tuple(last.old_style_offsets)) == ((0,), (10,))
    else:
        assert (first.offset, last.offset) == (0, 10)
    if version >= 4:
        assert (first.leader_epoch, last.leader_epoch) == (0, 0)


@pytest.mark.parametrize(
    ("time", "expected"), [(0, 0), (1001, 1), (1003, 3), (1005, 5), (1006, 5), (5000, 5), (5001, -1)]
)
def test_a_timestamp_returns_the_first_record_at_or_after_it(connection, filled, time, expected):
    response = looked_up(connection, filled, time)
    assert (response.error_code, response.offset) == (0, expected)


def test_max_timestamp_and_tiered_storage_offsets(connection, filled):
    highest = looked_up(connection, filled, MAX_TIMESTAMP)
    assert (highest.offset, highest.timestamp) == (5, 5000)
    assert looked_up(connection, filled, EARLIEST_LOCAL).offset == 0
    assert looked_up(connection, filled, LATEST_TIERED).offset == -1


@pytest.mark.parametrize(
    ("timestamp", "version"), [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (-9, 11)]
)
def test_timestamps_unknown_to_a_version_are_rejected(connection, filled, timestamp, version):
    assert looked_up(connection, filled, timestamp, version=version).error_code == Code.UNSUPPORTED_VERSION


def test_an_empty_partition_has_no_timestamp(connection, topic):
    assert looked_up(connection, topic, MAX_TIMESTAMP).offset == -1
    assert looked_up(connection, topic, 0).offset == -1
    assert (looked_up(connection, topic, EARLIEST).offset, looked_up(connection, topic, LATEST).offset) == (0, 0)


def test_read_committed_is_bounded_by_the_last_stable_offset(broker, connection, topic):
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"done", timestamp_ms=1000).result(20)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open", timestamp_ms=2000).result(20)
        assert looked_up(connection, topic, LATEST).offset == 3
        assert looked_up(connection, topic, LATEST, committed=True).offset == 2
        assert looked_up(connection, topic, 1500, committed=True, version=2).offset in (-1, 1)
        assert looked_up(connection, topic, 2000, committed=False).offset in (1, 2)
        producer.abort_transaction()
        assert looked_up(connection, topic, LATEST, committed=True).offset == 4


def test_another_leader_epoch_or_an_unknown_partition_is_rejected(connection, filled):
    assert looked_up(connection, filled, LATEST, epoch=0).error_code == 0
    assert looked_up(connection, filled, LATEST, epoch=3).error_code == Code.UNKNOWN_LEADER_EPOCH
    assert looked_up(connection, filled, LATEST, partition=5).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert looked_up(connection, "no-such-topic", LATEST).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(5))
def test_the_end_offset_of_an_epoch_is_returned(connection, filled, version):
    def end_of(epoch, known=-1, topic=filled):
        part = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=known)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[part])])
        ((response,),) = ([*row.partitions] for row in connection.call(request, version).topics)
        return response.error_code, response.end_offset

    assert end_of(0) == (0, 10)
    assert end_of(5) == (0, -1)
    assert end_of(0, topic="no-such-topic") == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
    if version >= 2:
        assert end_of(0, known=4) == (Code.UNKNOWN_LEADER_EPOCH, -1)
