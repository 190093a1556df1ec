"""Produce: results per partition, invalid requests, acks."""

from __future__ import annotations

import zlib

import pytest

from headrace import Producer
from headrace.broker.catalog.topics import PartitionRegistration
from headrace.errors import Code
from headrace.wire import message_sets
from headrace.wire.api.metadata import MetadataRequest
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.api.transactions import InitProducerIdRequest
from headrace.wire.fields import Records
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer as Writer
from headrace.wire.records import encode, read_batches
from tests.support.own_broker import OpenBroker
from tests.support.peers.broker import create_topic
from tests.support.peers.connection import Connection
from tests.support.pipelining import RawConnection, frame
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

METADATA = MetadataRequest(topics=())


def batch(*values: bytes, key: bytes | None = None, writer: Writer | None = None, timestamp: int = 1) -> memoryview:
    records = [Record(index, timestamp, key, value, ()) for index, value in enumerate(values)]
    return encode(records, producer=writer) if writer else encode(records)


def request(*parts: tuple[str, int, Records], acks: int = -1, transactional_id: str | None = None) -> ProduceRequest:
    topics: dict[str, list[PartitionProduceData]] = {}
    for topic, index, data in parts:
        topics.setdefault(topic, []).append(PartitionProduceData(partition_index=index, records=data))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )


def outcomes(response: ProduceResponse) -> dict[tuple[str, int], tuple[int, int]]:
    """Return error code and base offset of each partition."""
    return {
        (topic.name, part.partition_index): (part.error_code, part.base_offset)
        for topic in response.responses
        for part in topic.partition_responses
    }


def values(connection: Connection, topic: str, partition: int = 0) -> list[bytes | None]:
    data = connection.fetch(topic, partition=partition).records
    assert isinstance(data, memoryview)
    return [record.value for each in read_batches(data) for record in each.records()]


@pytest.mark.behaviour("B05")
def test_each_partition_succeeds_or_fails_independently(broker, connection):
    topic, other = new_topic(broker, "mixed", partitions=2), new_topic(broker, "other")
    broken = bytearray(batch(b"broken"))
    broken[-1] ^= 1
    response = connection.call(
        request(
            (topic, 0, batch(b"good")),
            (topic, 1, broken),
            (topic, 2, batch(b"no such partition")),
            ("no-such-topic", 0, batch(b"x")),
            (other, 0, batch(b"good too", b"and this")),
        ),
        9,
    )
    assert outcomes(response) == {
        (topic, 0): (0, 0),
        (topic, 1): (Code.CORRUPT_MESSAGE, -1),
        (topic, 2): (Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("no-such-topic", 0): (Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (other, 0): (0, 0),
    }
    assert values(connection, topic) == [b"good"]
    assert values(connection, other) == [b"good too", b"and this"]
    assert connection.produce(other, batch(b"next")).base_offset == 2


@pytest.mark.behaviour("B07")
@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_acks_must_be_one_of_three(connection, topic, acks):
    response = connection.call(request((topic, 0, batch(b"x")), acks=acks), 9)
    assert outcomes(response) == {(topic, 0): (Code.INVALID_REQUIRED_ACKS, -1)}
    assert values(connection, topic) == []


@pytest.mark.behaviour("B07")
def test_clients_cannot_write_internal_topics(connection):
    connection.call(MetadataRequest(topics=None), 9)
    for name in ("__consumer_offsets", "__transaction_state"):
        response = connection.call(request((name, 0, batch(b"x", key=b"k"))), 9)
        assert outcomes(response)[name, 0][0] == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.behaviour("B05")
def test_acks_0_has_no_response_and_an_error_closes_the_connection(broker, connection, topic):
    with RawConnection(broker.bootstrap) as raw:
        raw.send(frame(request((topic, 0, batch(b"quiet")), acks=0), 9, 1) + frame(METADATA, 9, 2))
        assert raw.correlation_ids(1) == [2]
        raw.send(frame(request(("no-such-topic", 0, batch(b"lost")), acks=0), 9, 3))
        assert raw.is_closed()
    assert values(connection, topic) == [b"quiet"]


@pytest.mark.behaviour("B05")
def test_acks_0_requests_before_a_disconnect_are_stored(broker, connection, topic):
    """Message sets are checked in a thread: when the peer disconnects, most requests are still queued."""
    sent = [b"%d" % number for number in range(100)]
    encoded = [message_sets.encode([Record(0, 1, None, value, ())], magic=1) for value in sent]
    with RawConnection(broker.bootstrap) as raw:
        raw.send(b"".join(frame(request((topic, 0, data), acks=0), 2, at) for at, data in enumerate(encoded)))
    eventually("all are stored", lambda: len(values(connection, topic)) == len(sent))
    assert values(connection, topic) == sent


def test_produce_v13_uses_topic_ids(connection, broker, topic):
    metadata = connection.call(MetadataRequest(topics=None), 12)
    (topic_id,) = (row.topic_id for row in metadata.topics if row.name == topic)

    def write(topic_id: bytes) -> tuple[int, bytes]:
        parts = [PartitionProduceData(partition_index=0, records=batch(b"by id"))]
        message = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=parts)]
        )
        ((response,),) = ([row] for row in connection.call(message, 13).responses)
        return response.partition_responses[0].error_code, response.topic_id

    assert write(topic_id) == (0, topic_id)
    assert write(bytes(range(16))) == (Code.UNKNOWN_TOPIC_ID, bytes(range(16)))
    assert values(connection, topic) == [b"by id"]


@pytest.mark.parametrize("version", range(14))
def test_every_version_is_served(connection, topic, version):
    data: Records = batch(b"a", b"b")
    if version < 3:
        data = message_sets.encode(
            [Record(0, 5, None, b"a", ()), Record(1, 5, None, b"b", ())], magic=min(version // 2, 1)
        )
    message = request((topic, 0, data))
    if version == 13:
        metadata = connection.call(MetadataRequest(topics=None), 12)
        ids = {row.name: row.topic_id for row in metadata.topics}
        message = message.replace(topic_data=[message.topic_data[0].replace(topic_id=ids[topic])])
    response = connection.call(message, version)
    part = response.responses[0].partition_responses[0]
    assert (part.error_code, part.base_offset) == (0, 0)
    assert values(connection, topic) == [b"a", b"b"]


def test_error_messages_are_in_the_versions_that_have_them(connection, topic):
    data = bytearray(batch(b"x"))
    data[17:21] = zlib.crc32(b"").to_bytes(4, "big")
    assert "checksum" in (connection.produce(topic, data, version=8).error_message or "")
    assert connection.produce(topic, data, version=7).error_code == Code.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, Code.INVALID_RECORD),
        (b"", Code.INVALID_RECORD),
        (bytes(10), Code.INVALID_RECORD),
        (bytes(batch(b"one")) + bytes(batch(b"two")), Code.INVALID_RECORD),
        (encode([Record(0, 1, b"\0\0\0\1", b"\0\0\0\0\0\0", ())], control=True), Code.INVALID_RECORD),
    ],
    ids=["null", "empty", "too short", "two batches", "control"],
)
def test_invalid_batches_are_rejected(connection, topic, data, code):
    assert connection.produce(topic, data).error_code == code


def test_a_batch_above_max_message_bytes_is_rejected(broker, connection):
    topic = new_topic(broker, "small", max_message_bytes=1000)
    assert connection.produce(topic, batch(bytes(2000))).error_code == Code.MESSAGE_TOO_LARGE
    assert connection.produce(topic, batch(bytes(500))).error_code == 0


def test_log_append_time_is_returned(broker, connection):
    topic = new_topic(broker, "stamped", message_timestamp_type="LogAppendTime")
    response = connection.produce(topic, batch(b"x"))
    assert response.log_append_time_ms > 1_600_000_000_000
    assert response.log_start_offset == 0


@pytest.mark.behaviour("B08")
def test_a_duplicate_batch_gets_its_offset_and_a_gap_is_rejected(connection, topic):
    pid = connection.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert pid.error_code == 0

    def write(sequence: int) -> tuple[int, int]:
        writer = Writer(pid.producer_id, pid.producer_epoch, sequence)
        response = connection.produce(topic, batch(b"x", writer=writer))
        return response.error_code, response.base_offset

    assert [write(sequence) for sequence in range(6)] == [(0, sequence) for sequence in range(6)]
    assert [write(sequence) for sequence in range(1, 6)] == [(0, sequence) for sequence in range(1, 6)]
    assert write(7)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(values(connection, topic)) == 6


def test_transactional_records_need_a_transactional_id(connection, topic):
    data = batch(b"x", writer=Writer(5, 0, 0, transactional=True))
    response = connection.call(request((topic, 0, data)), 9)
    assert outcomes(response) == {(topic, 0): (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)}


@pytest.mark.parametrize(
    ("version", "code"), [(9, Code.INVALID_TXN_STATE), (11, Code.TRANSACTION_ABORTABLE), (12, Code.NONE)]
)
def test_a_write_outside_a_transaction_is_rejected_before_v12(connection, topic, version, code):
    name = unique("tx")
    pid = connection.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000), 4)
    data = batch(b"x", writer=Writer(pid.producer_id, pid.producer_epoch, 0, transactional=True))
    response = connection.produce(topic, data, version=version, transactional_id=name)
    assert response.error_code == code


def test_with_flush_messages_1_the_response_waits_for_the_disk(broker, connection):
    topic = new_topic(broker, "synced", flush_messages=1)
    for number in range(5):
        assert connection.produce(topic, batch(b"x")).base_offset == number


def test_acks_all_waits_for_in_sync_replicas_or_times_out(tmp_path):
    """With one broker the other replica exists in the catalog only."""
    with OpenBroker(tmp_path) as own:
        own.do(lambda inner: inner.topic_manager.create("replicated", 1, 1, {"min.insync.replicas": "1"}))

        def pretend(inner, replicas, isr):
            topic = inner.catalog.topics.by_name["replicated"]
            index = topic.partitions[0]
            index.isr, index.replicas = isr, replicas
            inner.catalog.record(inner.catalog.topics.partition_change(topic, 0, index))

        own.do(lambda inner: pretend(inner, (1, 2), (1, 2)))
        with Connection(own.bootstrap) as connection:
            message = request(("replicated", 0, batch(b"x"))).replace(timeout_ms=200)
            assert outcomes(connection.call(message, 9)) == {("replicated", 0): (Code.REQUEST_TIMED_OUT, -1)}
            assert outcomes(connection.call(message.replace(acks=1), 9)) == {("replicated", 0): (0, 1)}
            assert connection.fetch("replicated").high_watermark == 0

            connection.send(request(("replicated", 0, batch(b"x"))), 9)
            own.do(lambda inner: pretend(inner, (1,), (1,)))
        with Connection(own.bootstrap) as connection:
            assert connection.fetch("replicated").high_watermark == 3
            own.do(
                lambda inner: inner.catalog.record(
                    inner.catalog.configs.change("topic", "replicated", {"min.insync.replicas": "2"})
                )
            )
            # It has one replica, so min.insync.replicas is capped.
            assert outcomes(connection.call(message, 9)) == {("replicated", 0): (0, 3)}
            own.do(lambda inner: pretend(inner, (1, 2), (1,)))
            assert outcomes(connection.call(message, 9)) == {("replicated", 0): (Code.NOT_ENOUGH_REPLICAS, -1)}


def test_records_of_the_headrace_producer_are_stored(broker, connection, topic):
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(1000)]
        assert [future.result(20).offset for future in futures] == list(range(1000))
    assert values(connection, topic) == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_kept_as_they_are(broker, connection, topic, codec):
    with Producer(bootstrap_servers=broker.bootstrap, compression_type=codec) as producer:
        producer.send(topic, bytes(10_000)).result(20)
    assert values(connection, topic) == [bytes(10_000)]


@pytest.mark.behaviour("B07")
def test_a_partition_led_by_another_broker_is_rejected(tmp_path):
    with OpenBroker(tmp_path) as own, Connection(own.bootstrap) as connection:
        topic = create_topic(own.bootstrap, "led-elsewhere", 1, None)
        assert connection.produce(topic, batch(b"ours")).error_code == 0

        def move(broker):
            known = broker.catalog.topics.by_name[topic]
            broker.catalog.record(
                broker.catalog.topics.partition_change(known, 0, PartitionRegistration((1, 2), (2,), 2, 1))
            )

        own.do(move)
        assert connection.produce(topic, batch(b"theirs")).error_code == Code.NOT_LEADER_OR_FOLLOWER
