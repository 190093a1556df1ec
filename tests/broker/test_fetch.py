"""Fetch: batches, limits, long polls and versions."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from headrace import Producer
from headrace.errors import Code
from headrace.wire import message_sets
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from headrace.wire.api.metadata import MetadataRequest
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.compression import ZSTD
from headrace.wire.layout import Record
from headrace.wire.records import encode, read_batches
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.pipelining import RawConnection, frame
from tests.support.topics import new_topic, unique


def batch(*values: bytes, timestamp: int = 1) -> memoryview:
    return encode([Record(index, timestamp, None, value, ()) for index, value in enumerate(values)])


def fetch_request(
    *partitions: tuple[str, int, int], partition_bytes: int = 1 << 20, epoch: int = -1, **changes: int
) -> FetchRequest:
    topics: dict[str, list[FetchPartition]] = {}
    for topic, index, offset in partitions:
        topics.setdefault(topic, []).append(
            FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes, current_leader_epoch=epoch
            )
        )
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, **changes}
    return FetchRequest(topics=[FetchTopic(topic=name, partitions=rows) for name, rows in topics.items()], **values)


def rows(response: FetchResponse):
    return {(topic.topic, part.partition_index): part for topic in response.responses for part in topic.partitions}


def values(part) -> list[bytes | None]:
    return [record.value for each in read_batches(part.records) for record in each.records()]


def ids(connection: Connection) -> dict[str | None, bytes]:
    return {row.name: row.topic_id for row in connection.call(MetadataRequest(topics=None), 12).topics}


def test_a_fetch_inside_a_batch_returns_the_whole_batch(connection, topic):
    connection.produce(topic, batch(b"a", b"b", b"c"))
    connection.produce(topic, batch(b"d"))
    assert values(connection.fetch(topic, offset=2)) == [b"a", b"b", b"c", b"d"]
    assert values(connection.fetch(topic, offset=3)) == [b"d"]


def test_the_first_batch_is_returned_whole_whatever_the_limits(broker, connection):
    topic = new_topic(broker, "limits", partitions=2)
    for partition in (0, 1):
        for _ in range(2):
            connection.produce(topic, batch(bytes(1000)), partition=partition)
    for version in (4, 11, 12):
        response = rows(connection.call(fetch_request((topic, 0, 0), (topic, 1, 0), partition_bytes=10), version))
        assert sorted(len(values(part)) for part in response.values()) == [0, 1]
        response = rows(connection.call(fetch_request((topic, 0, 0), (topic, 1, 0), max_bytes=10), version))
        assert sorted(len(values(part)) for part in response.values()) == [0, 1]
        response = rows(connection.call(fetch_request((topic, 0, 0), (topic, 1, 0), max_bytes=3500), version))
        assert sum(len(values(part)) for part in response.values()) == 3


def test_partitions_take_turns_when_the_limit_is_small(broker, connection):
    topic = new_topic(broker, "turns", partitions=4)
    for partition in range(4):
        connection.produce(topic, batch(bytes(1000)), partition=partition)
    seen = set()
    for _ in range(100):
        response = rows(connection.call(fetch_request(*((topic, number, 0) for number in range(4)), max_bytes=10), 12))
        seen |= {key for key, part in response.items() if len(part.records)}
    assert len(seen) == 4


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
def test_an_offset_out_of_range_fails_at_once(connection, topic, offset):
    connection.produce(topic, batch(b"a"))
    began = time.monotonic()
    part = rows(connection.call(fetch_request((topic, 0, offset), max_wait_ms=10_000), 12))[topic, 0]
    assert part.error_code == Code.OFFSET_OUT_OF_RANGE
    assert time.monotonic() - began < 5


def test_a_fetch_at_the_log_end_waits(connection, topic):
    connection.produce(topic, batch(b"a"))
    part = rows(connection.call(fetch_request((topic, 0, 1)), 12))[topic, 0]
    assert (part.error_code, part.high_watermark, len(part.records)) == (0, 1, 0)


def assert_no_response(raw):
    """Wait until the previous request has reached the broker; others would respond well within this time."""
    raw.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        raw.frames(1)
    raw.socket.settimeout(20)


@pytest.mark.behaviour("B12")
def test_a_long_poll_returns_when_records_arrive(broker, connection, topic):
    with RawConnection(broker.bootstrap) as raw:
        request = fetch_request((topic, 0, 0), max_wait_ms=20_000)
        began = time.monotonic()
        raw.send(frame(request, 12))
        assert_no_response(raw)
        connection.produce(topic, batch(b"late"))
        response = raw.response(request, 12)
        assert time.monotonic() - began < 15, "its time was up"
        assert values(rows(response)[topic, 0]) == [b"late"]


def test_a_long_poll_waits_for_min_bytes(broker, connection, topic):
    with RawConnection(broker.bootstrap) as raw:
        connection.produce(topic, batch(bytes(1000)))
        request = fetch_request((topic, 0, 0), max_wait_ms=20_000, min_bytes=2500)
        raw.send(frame(request, 12))
        connection.produce(topic, batch(bytes(1000)))
        assert_no_response(raw)
        connection.produce(topic, batch(bytes(1000)))
        assert len(values(rows(raw.response(request, 12))[topic, 0])) == 3


def test_a_long_poll_counts_what_is_written_right_after_it(broker, topic):
    """The broker gets both requests at once: it reads for the fetch, writes, and only then starts to wait."""
    fetch = fetch_request((topic, 0, 0), max_wait_ms=20_000)
    data = [PartitionProduceData(partition_index=0, records=batch(b"late"))]
    produce = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    with RawConnection(broker.bootstrap) as reader, RawConnection(broker.bootstrap) as writer:
        reader.send(frame(fetch_request((topic, 0, 0)), 12))  # the broker has accepted both connections
        reader.frames(1)
        writer.send(frame(fetch_request((topic, 0, 0)), 12))
        writer.frames(1)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            reader.send(frame(fetch, 12))
            writer.send(frame(produce, 9))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        began = time.monotonic()
        assert values(rows(reader.response(fetch, 12))[topic, 0]) == [b"late"]
        assert time.monotonic() - began < 10


def test_a_long_poll_ends_after_max_wait(connection, topic):
    began = time.monotonic()
    part = rows(connection.call(fetch_request((topic, 0, 0), max_wait_ms=300), 12))[topic, 0]
    assert 0.25 < time.monotonic() - began < 3
    assert (part.error_code, len(part.records)) == (0, 0)


@pytest.mark.parametrize(("version", "code"), [(12, Code.UNKNOWN_TOPIC_OR_PARTITION), (13, Code.UNKNOWN_TOPIC_ID)])
def test_deleting_a_topic_ends_its_long_polls(broker, connection, version, code):
    topic = new_topic(broker, "gone")
    request = fetch_request((topic, 0, 0), max_wait_ms=20_000)
    request = request.replace(topics=[request.topics[0].replace(topic_id=ids(connection)[topic])])
    with RawConnection(broker.bootstrap) as raw:
        raw.send(frame(request, version))
        assert_no_response(raw)
        broker.delete_topic(topic)
        ((part,),) = ([*row.partitions] for row in raw.response(request, version).responses)
        assert part.error_code == code


@pytest.mark.behaviour("B12")
def test_read_committed_stops_at_the_lso_and_lists_aborted_transactions(broker, connection, topic):
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"committed").result(20)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"aborted").result(20)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open").result(20)

        part = connection.fetch(topic, committed=True)
        batches = list(read_batches(part.records))
        assert [each.header.is_control for each in batches] == [False, True, False, True]
        assert part.last_stable_offset == 4
        assert part.high_watermark == 5
        assert [row.first_offset for row in part.aborted_transactions] == [2]
        assert connection.fetch(topic, offset=4, committed=True).aborted_transactions == ()
        loose = connection.fetch(topic)
        assert loose.aborted_transactions is None
        assert values_of_data(loose) == [b"committed", b"aborted", b"open"]
        producer.commit_transaction()
    seen = [record.value for record in librdkafka.consume_to_end(broker.bootstrap, topic)]
    assert seen == [b"committed", b"open"]


def values_of_data(part):
    return [r.value for each in read_batches(part.records) if not each.header.is_control for r in each.records()]


def test_a_commit_wakes_a_read_committed_long_poll(broker, connection, topic):
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").result(20)
        request = fetch_request((topic, 0, 0), max_wait_ms=20_000, isolation_level=1)
        with RawConnection(broker.bootstrap) as raw:
            raw.send(frame(request, 12))
            raw.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                raw.frames(1)
            raw.socket.settimeout(20)
            producer.commit_transaction()
            assert values_of_data(rows(raw.response(request, 12))[topic, 0]) == [b"x"]


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, Code.NONE), (0, Code.NONE), (1, Code.UNKNOWN_LEADER_EPOCH), (7, Code.UNKNOWN_LEADER_EPOCH)]
)
def test_another_leader_epoch_is_rejected(connection, topic, epoch, code):
    part = rows(connection.call(fetch_request((topic, 0, 0), epoch=epoch), 12))[topic, 0]
    assert part.error_code == code


def test_fetch_v13_uses_topic_ids(connection, topic):
    connection.produce(topic, batch(b"x"))
    request = fetch_request((topic, 0, 0))
    topic_id = ids(connection)[topic]
    for version in range(13, 19):
        response = connection.call(request.replace(topics=[request.topics[0].replace(topic_id=topic_id)]), version)
        ((part,),) = ([*row.partitions] for row in response.responses)
        assert (response.responses[0].topic_id, values(part)) == (topic_id, [b"x"])
        response = connection.call(
            request.replace(topics=[request.topics[0].replace(topic_id=bytes(range(16)))]), version
        )
        assert response.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(13))
def test_every_older_version_is_served(connection, topic, version):
    connection.produce(topic, batch(b"a", b"b", timestamp=1_700_000_000_000))
    part = rows(connection.call(fetch_request((topic, 0, 1)), version))[topic, 0]
    assert (part.error_code, part.high_watermark) == (0, 2)
    if version >= 4:
        assert values(part) == [b"a", b"b"]
    else:
        records = message_sets.decode(part.records)
        assert [(record.offset, record.value) for record in records] == [(1, b"b")]
        assert records[0].timestamp == (1_700_000_000_000 if version >= 2 else -1)


@pytest.mark.parametrize("version", range(4))
def test_a_zstd_batch_is_not_converted_for_old_clients(connection, topic, version):
    connection.produce(topic, batch(b"plain"))
    connection.produce(topic, bytes(encode([Record(0, 1, None, b"packed", ())], codec=ZSTD)))
    part = rows(connection.call(fetch_request((topic, 0, 0)), version))[topic, 0]
    assert (part.error_code, [each.value for each in message_sets.decode(part.records)]) == (0, [b"plain"])
    part = rows(connection.call(fetch_request((topic, 0, 1)), version))[topic, 0]
    assert (part.error_code, len(part.records)) == (Code.UNSUPPORTED_COMPRESSION_TYPE, 0)


@pytest.mark.parametrize("version", range(4, 12))
def test_a_topic_that_is_compressed_with_zstd_is_not_for_clients_before_version_10(broker, connection, version):
    topic = new_topic(broker, f"zstd-{version}", compression_type="zstd")
    connection.produce(topic, batch(b"packed"))
    part = rows(connection.call(fetch_request((topic, 0, 0)), version))[topic, 0]
    if version < 10:
        assert (part.error_code, len(part.records)) == (Code.UNSUPPORTED_COMPRESSION_TYPE, 0)
    else:
        assert (part.error_code, values(part)) == (0, [b"packed"])


def test_fetching_as_an_unknown_replica_is_rejected(connection, topic):
    connection.produce(topic, batch(b"x"))
    request = fetch_request((topic, 0, 0))
    part = rows(connection.call(request.replace(replica_id=2), 12))[topic, 0]
    assert part.error_code == Code.UNKNOWN_LEADER_EPOCH
    request = request.replace(
        replica_state=ReplicaState(replica_id=2),
        topics=[request.topics[0].replace(topic_id=ids(connection)[topic])],
    )
    assert connection.call(request, 15).responses[0].partitions[0].error_code == Code.UNKNOWN_LEADER_EPOCH


def test_unknown_partitions_do_not_affect_the_others(connection, topic):
    connection.produce(topic, batch(b"x"))
    response = rows(connection.call(fetch_request((topic, 0, 0), (topic, 9, 0), ("no-such-topic", 0, 0)), 12))
    assert {key: part.error_code for key, part in response.items()} == {
        (topic, 0): 0,
        (topic, 9): Code.UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_fetch_without_partitions_returns_at_once(connection):
    began = time.monotonic()
    assert connection.call(fetch_request(max_wait_ms=20_000), 12).responses == ()
    assert time.monotonic() - began < 5


def test_librdkafka_reads_our_records(broker, topic):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
    read = [record.value for record in librdkafka.consume_to_end(broker.bootstrap, topic)]
    assert read == [b"%d" % number for number in range(100)]
