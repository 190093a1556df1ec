"""The 0.8 producer with brokers that accept message sets (Apache Kafka 3.9, headrace), and with Kafka 4."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter

import pytest

from headrace.errors import UnsupportedVersionError
from headrace.legacy import FailedToSendMessageError, KeyedMessage, Producer
from headrace.legacy.partitioner import DefaultPartitioner
from tests.support.peers import java, librdkafka
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

MODERN = "4.3.0"
CODECS = ("none", "gzip", "snappy", "lz4")
ACKS = (0, 1, -1)
TYPES = ("sync", "async")
VERSIONS = (0, 1, 2)
PARTITIONS = 3
MESSAGES = 12
RETURN_SECONDS_MAX = 60
PATIENT = {"message_send_max_retries": RETURN_SECONDS_MAX * 10, "retry_backoff_ms": 100, "request_timeout_ms": 5000}


@pytest.fixture(params=["kafka39", "headrace_broker"])
def broker(request):
    """A broker that accepts message sets."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def consume(kafka_jars):
    """Read (partition, key, value) of all records of a topic with a current consumer."""

    def run(broker, topic, *, records_max=None, idle_seconds=5):
        command = ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap]
        command += ["--topic", topic, "--from-beginning", "--timeout-ms", str(idle_seconds * 1000)]
        for name in ("partition", "key", "value"):
            command += ["--formatter-property", f"print.{name}=true"]
        if records_max is not None:
            command += ["--max-messages", str(records_max)]
        printed = java.run(java.java_command(kafka_jars(MODERN), *command, options=java.SHORT_LIVED))
        rows = [line.split("\t") for line in printed.splitlines()]
        return [(int(partition.removeprefix("Partition:")), key, value) for partition, key, value in rows]

    return run


def legacy_producer(broker, **options):
    return Producer(metadata_broker_list=broker.bootstrap, **options)


@pytest.mark.behaviour("L01", "L06", "L07", "L09")
@pytest.mark.timeout(120)
def test_a_modern_java_consumer_reads_every_message(broker, consume):
    topic = new_topic(broker, "legacy", PARTITIONS)
    sent: list[tuple[str, str]] = []
    for kind, codec, acks, version in itertools.product(TYPES, CODECS, ACKS, VERSIONS):
        options = {"producer_type": kind, "compression_codec": codec, "request_required_acks": acks}
        with legacy_producer(broker, **options, produce_request_version=version) as producer:
            rows = [(f"key-{number}", f"{kind} {codec} {acks} {version} {number}") for number in range(MESSAGES)]
            producer.send([KeyedMessage(topic, value.encode(), key.encode()) for key, value in rows[2:]])
            producer.send(KeyedMessage(topic, rows[0][1].encode(), rows[0][0].encode()))
            producer.send(KeyedMessage(topic, rows[1][1].encode()))
        assert set(producer.metrics().values()) == {0}
        sent += [*rows[2:], rows[0], ("null", rows[1][1])]
    records = consume(broker, topic, records_max=len(sent))
    assert Counter((key, value) for _, key, value in records) == Counter(sent)
    partition_of = DefaultPartitioner().partition
    assert all(partition == partition_of(key.encode(), PARTITIONS) for partition, key, _ in records if key != "null")


@pytest.mark.every_run("kafka39-async", "headrace_broker-sync")
@pytest.mark.behaviour("L04", "L05", "L09")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", TYPES)
def test_a_leader_restart_loses_no_acknowledged_message(broker, kind, consume):
    topic = new_topic(broker, "legacy-gone", 1)
    options = {"producer_type": kind, "request_required_acks": -1, "batch_num_messages": 10, **PATIENT}
    values = [f"message {number}" for number in range(60)]
    with legacy_producer(broker, **options) as producer:
        for value in values[:20]:
            producer.send(KeyedMessage(topic, value.encode()))
        broker.kill()
        back = threading.Thread(target=broker.restart)
        back.start()
        try:
            for value in values[20:]:
                producer.send(KeyedMessage(topic, value.encode()))
        finally:
            back.join(RETURN_SECONDS_MAX)
    assert producer.metrics()["FailedSends"] == 0
    assert producer.metrics()["Resends"] > 0
    values_read = [value for _, _, value in consume(broker, topic)]
    assert list(dict.fromkeys(values_read)) == values  # complete and in order; duplicates are allowed


@pytest.mark.behaviour("L01", "L09")
@pytest.mark.timeout(120)
def test_without_a_leader_sync_raises_and_async_counts(broker, consume):
    topic = new_topic(broker, "legacy-lost", 1)
    options = {"request_required_acks": 1, "message_send_max_retries": 1, "retry_backoff_ms": 10}
    with (
        legacy_producer(broker, **options) as sync,
        legacy_producer(broker, **options, producer_type="async", batch_num_messages=1) as asynchronous,
    ):
        for producer in (sync, asynchronous):
            producer.send(KeyedMessage(topic, b"before"))
        librdkafka.consume(broker.bootstrap, topic, 2)
        broker.stop()
        try:
            with pytest.raises(FailedToSendMessageError, match="after 2 attempts"):
                sync.send(KeyedMessage(topic, b"lost"))
            asynchronous.send(KeyedMessage(topic, b"lost"))
            eventually("a failed batch", lambda: asynchronous.metrics()["FailedSends"] == 1)
        finally:
            broker.restart()
        eventually("a send that is not lost", lambda: sends(sync, topic))
        asynchronous.send(KeyedMessage(topic, b"after"))  # now that there is a leader again
    assert sync.metrics()["FailedSends"] >= 1
    counts = Counter(value for _, _, value in consume(broker, topic))
    assert counts == {"before": 2, "after": 2}


def sends(producer, topic):
    try:
        producer.send(KeyedMessage(topic, b"after"))
    except FailedToSendMessageError:
        return False
    return True


@pytest.mark.behaviour("L04")
def test_a_metadata_request_creates_the_topic(broker):
    topic = unique("legacy-made")
    with legacy_producer(broker, request_required_acks=1, message_send_max_retries=50) as producer:
        producer.send(KeyedMessage(topic, b"first"))
    assert producer.metrics()["FailedSends"] == 0


@pytest.mark.behaviour("L02", "L09")
def test_async_sends_a_message_at_its_maximum_age(broker, consume):
    topic = new_topic(broker, "legacy-old", 1)
    with legacy_producer(
        broker, producer_type="async", request_required_acks=1, queue_buffering_max_ms=200
    ) as producer:
        producer.send(KeyedMessage(topic, b"old"))
        assert [value for _, _, value in consume(broker, topic, records_max=1)] == ["old"]


def test_a_broker_error_is_raised_with_its_name(broker):
    topic = new_topic(broker, "legacy-small", 1, max_message_bytes=1000)
    with legacy_producer(broker, request_required_acks=1, message_send_max_retries=0) as producer:
        with pytest.raises(FailedToSendMessageError, match=rf"{topic}-0: (MESSAGE_TOO_LARGE|RECORD_LIST_TOO_LARGE)"):
            producer.send(KeyedMessage(topic, b"x" * 2000))
        producer.send(KeyedMessage(topic, b"x"))


@pytest.mark.behaviour("L09")
@pytest.mark.parametrize("acks", ACKS)
def test_kafka_4_is_refused_with_a_remedy(kafka, acks):
    topic = new_topic(kafka, "legacy-4", 1)
    started = time.monotonic()
    with legacy_producer(kafka, request_required_acks=acks) as producer:
        with pytest.raises(UnsupportedVersionError) as caught:
            producer.send(KeyedMessage(topic, b"a"))
        assert producer.metrics() == {"DroppedMessages": 0, "SerializationErrors": 0, "Resends": 0, "FailedSends": 1}
    assert time.monotonic() - started < 5
    assert "does not accept message sets (magic 0 and 1, Produce v0 to v2)" in str(caught.value)
    assert "use headrace.Producer" in str(caught.value)


@pytest.mark.behaviour("L09")
def test_kafka_4_is_logged_by_an_async_producer(kafka, caplog):
    topic = new_topic(kafka, "legacy-4", 1)
    with legacy_producer(kafka, producer_type="async") as producer:
        producer.send([KeyedMessage(topic, b"a"), KeyedMessage(topic, b"b")])
    assert producer.metrics()["FailedSends"] == 1
    assert "sending a batch of 2 messages failed" in caplog.text
    assert "use headrace.Producer" in caplog.text
