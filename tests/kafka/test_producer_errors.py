"""Records that cannot be sent fail in time, with what failed and why."""

from __future__ import annotations

import socketserver
import threading
import time

import pyarrow as pa
import pytest

from headrace import (
    BrokerError,
    BufferExhaustedError,
    ClosedError,
    IllegalStateError,
    Producer,
    RecordTooLargeError,
    SerializationError,
    TimedOutError,
)
from tests.support.peers import librdkafka
from tests.support.peers.real_kafka import RealKafka, free_ports
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS = 20


@pytest.fixture(scope="module")
def strict(kafka_jars, tmp_path_factory):
    """A broker without auto-creation of topics."""
    broker = RealKafka(
        kafka_jars("4.3.0"), tmp_path_factory.mktemp("strict") / "kafka", {"auto.create.topics.enable": "false"}
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()


@pytest.mark.behaviour("P08")
def test_a_missing_topic_fails_after_max_block_ms(strict):
    with Producer(bootstrap_servers=strict.bootstrap, max_block_ms=700) as producer:
        started = time.monotonic()
        with pytest.raises(
            TimedOutError, match=r"topic 'nowhere' is not in the metadata after 7\d\d ms \(max.block.ms\)"
        ):
            producer.send("nowhere", b"v").result(0)
        with pytest.raises(TimedOutError, match="topic 'nowhere'"):
            producer.partitions_for("nowhere")
        assert time.monotonic() - started < 3


@pytest.mark.behaviour("P08", "P11")
def test_the_error_for_a_missing_partition_has_the_partition_count(strict):
    topic = new_topic(strict, "few", 2)
    with Producer(bootstrap_servers=strict.bootstrap, max_block_ms=500) as producer:
        with pytest.raises(
            TimedOutError,
            match=rf"partition 5 of topic '{topic}' is not in the metadata .* \(the topic has 2 partitions\)",
        ):
            producer.send(topic, b"v", partition=5).result(0)
        with pytest.raises(TimedOutError, match="partition 7"):
            producer.send_arrow(topic, pa.table({"value": [b"v"], "partition": [7]})).result(0)
        assert producer.send(topic, b"v", partition=1).result(SECONDS).partition == 1


def test_a_send_finds_a_topic_that_is_created_while_it_waits(strict):
    topic = unique("late")
    with Producer(bootstrap_servers=strict.bootstrap) as producer:
        made = threading.Timer(0.5, strict.create_topic, [topic])
        made.start()
        assert producer.send(topic, b"v").result(SECONDS).offset == 0
        made.join()


@pytest.mark.behaviour("P10")
def test_an_invalid_topic_fails_at_once(either):
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        started = time.monotonic()
        with pytest.raises(BrokerError, match=r"INVALID_TOPIC_EXCEPTION \(17\): topic 'no spaces'"):
            producer.send("no spaces", b"v").result(0)
        assert time.monotonic() - started < 5
        with pytest.raises(ValueError, match="expected a non-empty str, got ''"):
            producer.send("", b"v")


@pytest.mark.behaviour("P20")
def test_records_that_are_too_large_are_refused_with_size_and_option(either):
    topic = new_topic(either, "sizes")
    small = {"bootstrap_servers": either.bootstrap, "max_request_size": 10_000}
    with Producer(small, batch_size=1000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"10036 bytes .* max.request.size \(10000\)"):
            producer.send(topic, b"x" * 10_000).result(0)
        with pytest.raises(RecordTooLargeError, match=r"row 1 has 11003 bytes .* max.request.size \(10000\)"):
            producer.send_arrow(topic, pa.table({"value": [b"x", b"x" * 11_000], "key": [b"key", b"key"]})).result(0)
        assert producer.send(topic, b"fits").result(SECONDS).offset == 0
    with (
        Producer(bootstrap_servers=either.bootstrap, buffer_memory=20_000, batch_size=1000) as producer,
        pytest.raises(RecordTooLargeError, match=r"buffer.memory \(20000\)"),
    ):
        producer.send(topic, b"x" * 20_000).result(0)
    assert [record.value for record in librdkafka.consume(either.bootstrap, topic, 1)] == [b"fits"]


@pytest.mark.behaviour("P14")
def test_a_serializer_error_names_type_and_serializer(either):
    topic = new_topic(either, "types")
    with Producer(bootstrap_servers=either.bootstrap, key_serializer="int", value_serializer="str") as producer:
        with pytest.raises(SerializationError, match=r"StrSerializer expected str, got bytes as value .* set another"):
            producer.send(topic, b"bytes")
        with pytest.raises(SerializationError, match="IntSerializer expected int of 32 bits, got str as key"):
            producer.send(topic, "v", "5")
        with pytest.raises(ValueError, match="invalid header: expected"):
            producer.send(topic, "v", headers=[("a", "text")])  # type: ignore[list-item]
        assert producer.send(topic, "v", 5).result(SECONDS).offset == 0


def test_a_partitioner_with_an_invalid_result_is_named(either):
    topic = new_topic(either, "astray")

    def astray(*_):
        return 9

    with (
        Producer(bootstrap_servers=either.bootstrap, partitioner_class=astray) as producer,
        pytest.raises(ValueError, match=rf"astray chose partition 9 of '{topic}', which has 0 to 0"),
    ):
        producer.send(topic, b"v")


@pytest.mark.behaviour("P08", "P22")
def test_a_full_buffer_blocks_and_then_names_the_unreachable_broker(kafka_jars, tmp_path):
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path / "kafka")
    try:
        broker.start()
        topic = new_topic(broker, "full")
        producer = Producer(
            bootstrap_servers=broker.bootstrap, buffer_memory=50_000, batch_size=10_000, max_block_ms=600
        )
        producer.send(topic, b"v").result(SECONDS)
        broker.kill()

        def fill():
            for _ in range(10):
                future = producer.send(topic, b"x" * 9_000)
                if future.done():
                    future.result(0)

        message = (
            r"buffer exhausted: 0.0 of 0.0\d+ MiB in use for 0\.\d+ s.* no connection to broker 1: .*buffer.memory"
        )
        with pytest.raises(BufferExhaustedError, match=message):
            fill()
        with pytest.raises(TimedOutError, match=r"flush timed out after 0\.1 s: \d+ records pending"):
            producer.flush(0.1)

        # A close with little time fails what is left, and is on time itself.
        last = producer._engine.accumulator.incomplete()
        started = time.monotonic()
        producer.close(0.3)
        assert time.monotonic() - started < 5
        assert last
        assert all(isinstance(batch.error, ClosedError) for batch in last)
        with pytest.raises(ClosedError):
            producer.send(topic, b"v")
    finally:
        broker.remove()


class Http(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_an_http_port_gets_another_error_than_a_closed_port():
    with socketserver.TCPServer(("127.0.0.1", 0), Http) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with (
            Producer(bootstrap_servers=f"127.0.0.1:{server.server_address[1]}", max_block_ms=600) as producer,
            pytest.raises(TimedOutError, match=r"no connection to a broker: .*HTTP"),
        ):
            producer.send("t", b"v").result(0)
        server.shutdown()
    (port,) = free_ports(1)
    with (
        Producer(bootstrap_servers=f"127.0.0.1:{port}", max_block_ms=600) as producer,
        pytest.raises(TimedOutError, match=rf"no connection to a broker: .*{port}.*refused"),
    ):
        producer.send("t", b"v").result(0)


def test_waiting_is_refused_in_a_callback_and_closing_there_ends_the_producer(either):
    topic, errors = new_topic(either, "from-callback"), []
    producer = Producer(bootstrap_servers=either.bootstrap)

    def delivered(metadata, error):
        for wait in (producer.flush, lambda: producer.send(unique("unknown"), b"v")):
            with pytest.raises(IllegalStateError, match="in a callback"):
                wait()
        producer.send(topic, b"this can be sent")
        producer.close()
        errors.append(error)

    producer.send(topic, b"v", on_delivery=delivered)
    eventually("the callback", lambda: errors)
    eventually("the end of the I/O thread", lambda: producer._engine.thread and not producer._engine.thread.is_alive())
    assert errors == [None]
    with pytest.raises(ClosedError):
        producer.send(topic, b"v")


@pytest.mark.behaviour("P36")
def test_close_without_time_fails_pending_records_at_once(either):
    topic = new_topic(either, "no-time")
    producer = Producer(bootstrap_servers=either.bootstrap, linger_ms=60_000)
    futures = [producer.send(topic, b"v") for _ in range(10)]
    started = time.monotonic()
    producer.close(timeout=0)
    assert time.monotonic() - started < 2
    assert all(future.done() for future in futures)


def test_closing_a_producer_releases_a_thread_that_waits_for_metadata(strict):
    producer = Producer(bootstrap_servers=strict.bootstrap)
    errors = []

    def send():
        try:
            producer.send("nowhere-either", b"v")
        except ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually("threads that wait", lambda: "nowhere-either" in producer._engine.metadata._topics)
    producer.close()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3
