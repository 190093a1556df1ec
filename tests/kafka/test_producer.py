"""What the producer sends is what other clients of a real broker see."""

from __future__ import annotations

import itertools
import re
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from headrace import MetricName, Producer, ProducerInterceptor, ProducerRecord, RecordMetadata
from headrace.wire.layout import NO_PRODUCER_ID
from tests.support import samples
from tests.support.peers import librdkafka
from tests.support.stored import stored_batches
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS = 20


def values_of(broker, topic, count, **options):
    return [record.value for record in librdkafka.consume(broker.bootstrap, topic, count, **options)]


def send_all(producer, topic, records):
    return [
        producer.send(topic, value, key, timestamp_ms=timestamp, headers=headers, partition=0)
        for _, timestamp, key, value, headers in records
    ]


def batches_of(broker, topic, partition=0):
    """The batches that DumpLogSegments prints: a dict of its words for each."""
    lines = [line for line in broker.dump_log(topic, partition).splitlines() if line.startswith("baseOffset:")]
    return [dict(re.findall(r"(\w+): (\S+)", line)) for line in lines]


# -- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.behaviour("P28", "P38")
def test_another_client_reads_what_was_sent_with_every_codec(either, codec):
    topic = new_topic(either, "codec")
    sent = samples.small()
    with Producer(bootstrap_servers=either.bootstrap, compression_type=codec) as producer:
        futures = send_all(producer, topic, sent)
    assert librdkafka.consume(either.bootstrap, topic, len(sent)) == sent
    assert [future.result() for future in futures] == [
        RecordMetadata(
            topic,
            0,
            offset,
            timestamp,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
        )
        for offset, timestamp, key, value, _ in sent
    ]


@pytest.mark.behaviour("P45")
def test_the_console_consumer_and_the_log_show_headers_nulls_timestamps_and_codecs(kafka):
    topic = new_topic(kafka, "java-reads")
    for codec in CODECS:
        with Producer(bootstrap_servers=kafka.bootstrap, compression_type=codec) as producer:
            producer.send(topic, f"{codec} value".encode(), b"key", timestamp_ms=1_700_000_000_000)
            producer.send(topic, None, None, timestamp_ms=1_700_000_000_001, headers={"a": b"1", "null": None})
    printed = kafka.console_consume(topic, records_max=2 * len(CODECS), properties=["null.literal=NULL"])
    expected = []
    for n, codec in enumerate(CODECS):
        expected.append(f"CreateTime:1700000000000\tPartition:0\tOffset:{2 * n}\tNO_HEADERS\tkey\t{codec} value")
        expected.append(f"CreateTime:1700000000001\tPartition:0\tOffset:{2 * n + 1}\ta:1,null:NULL\tNULL\tNULL")
    assert printed == expected

    # The log also shows that each producer had its own id, and sequences from 0.
    batches = batches_of(kafka, topic)
    assert [batch["compresscodec"].lower() for batch in batches] == list(CODECS)
    assert all(
        (batch["isvalid"], batch["producerEpoch"], batch["baseSequence"]) == ("true", "0", "0") for batch in batches
    )
    assert len({batch["producerId"] for batch in batches}) == len(CODECS)


@pytest.mark.behaviour("P45")
def test_sequence_numbers_continue_from_batch_to_batch(either):
    topic = new_topic(either, "sequences")
    with Producer(bootstrap_servers=either.bootstrap, batch_size=200) as producer:
        for n in range(50):
            producer.send(topic, b"%040d" % n)
    batches = stored_batches(either, topic)
    assert len(batches) > 10
    assert {batch.producer_id for batch in batches} == {batches[0].producer_id} != {NO_PRODUCER_ID}
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]


def test_columns_arrive_as_rows_with_their_offsets(either):
    topic = new_topic(either, "arrow", 3)
    table = pa.table(
        {
            "key": pa.array([None if n % 3 == 0 else b"%d" % n for n in range(3000)], pa.binary()),
            "value": pa.array([b"value %d" % n for n in range(3000)], pa.binary()),
            "partition": pa.array([n % 3 if n % 2 else None for n in range(3000)], pa.int32()),
            "timestamp": pa.array([samples.TIME_MS + n for n in range(3000)], pa.int64()),
        }
    )
    with Producer(bootstrap_servers=either.bootstrap, compression_type="lz4") as producer:
        offsets = producer.send_arrow(topic, table).result(SECONDS)
    counts = {partition: ranges[-1].last + 1 for partition, ranges in offsets.items()}
    assert sum(counts.values()) == 3000
    seen = {}
    for partition, count in counts.items():
        read = librdkafka.consume(either.bootstrap, topic, count, partition=partition)
        numbers = [record.timestamp - samples.TIME_MS for record in read]
        # In order, but for the runs in which rows without key and partition were dealt out.
        assert all(record.value == b"value %d" % n for record, n in zip(read, numbers, strict=True))
        assert all(n % 3 == partition for n in numbers if n % 2)
        seen.update(dict.fromkeys(numbers))
    assert len(seen) == 3000


@pytest.mark.behaviour("P19")
def test_a_topic_with_log_append_time_gives_the_brokers_timestamp(either):
    topic = new_topic(either, "append-time", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    delivered = []
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        future = producer.send(
            topic, b"v", timestamp_ms=1234, on_delivery=lambda metadata, _: delivered.append(metadata)
        )
        metadata = future.result(SECONDS)
    assert before - 1000 <= metadata.timestamp_ms <= int(time.time() * 1000) + 1000
    assert delivered == [metadata]
    (record,) = librdkafka.consume(either.bootstrap, topic, 1)
    assert record.timestamp == metadata.timestamp_ms


@pytest.mark.behaviour("P19")
def test_a_record_without_a_timestamp_gets_the_time_of_sending(either):
    topic = new_topic(either, "now")
    before = int(time.time() * 1000)
    with Producer(bootstrap_servers=either.bootstrap, value_serializer="json") as producer:
        metadata = producer.send(topic, {"a": [1, None]}).result(SECONDS)
    (record,) = librdkafka.consume(either.bootstrap, topic, 1)
    assert before <= record.timestamp == metadata.timestamp_ms <= int(time.time() * 1000)
    assert record.value == b'{"a":[1,null]}'


# -- partitions --------------------------------------------------------------------------------


@pytest.mark.behaviour("P15")
def test_keys_map_to_kafkas_partitions_unless_a_partition_is_given(either):
    topic = new_topic(either, "keys", 7)
    keys = [b"key-%d" % n for n in range(200)]
    theirs: dict[bytes, int] = {}
    other = confluent_kafka.Producer({"bootstrap.servers": either.bootstrap, "partitioner": "murmur2", "log_level": 0})

    def delivered(error, message):
        theirs[message.key()] = message.partition()

    for key in keys:
        other.produce(topic, b"", key, on_delivery=delivered)
    assert other.flush(SECONDS) == 0
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        futures = {key: producer.send(topic, b"", key) for key in keys}
        explicit = producer.send(topic, b"", keys[0], partition=(theirs[keys[0]] + 1) % 7)
        ours = {key: future.result(SECONDS).partition for key, future in futures.items()}
    assert ours == theirs
    assert explicit.result().partition == (theirs[keys[0]] + 1) % 7


@pytest.mark.parametrize("profile", [None, "2.4"])
@pytest.mark.behaviour("P16")
def test_records_without_a_key_fill_batches_and_reach_all_partitions(either, profile):
    topic = new_topic(either, "sticky", 4)
    with Producer(bootstrap_servers=either.bootstrap, profile=profile, batch_size=1000) as producer:
        futures = [producer.send(topic, b"%0100d" % n) for n in range(1500)]
        producer.flush()
        partitions = [future.result().partition for future in futures]
    assert set(partitions) == {0, 1, 2, 3}
    moves = sum(a != b for a, b in itertools.pairwise(partitions))
    assert moves < 350, "a batch holds eight of them"


@pytest.mark.behaviour("P17", "P18")
def test_round_robin_and_custom_partitioners_choose_partitions(either):
    topic = new_topic(either, "chosen", 3)
    with Producer(bootstrap_servers=either.bootstrap, partitioner_class="round-robin") as producer:
        partitions = [producer.send(topic, b"", b"same key").result(SECONDS).partition for _ in range(6)]
    assert sorted(partitions) == [0, 0, 1, 1, 2, 2]

    seen = []

    def by_length(topic, key, key_bytes, value, value_bytes, cluster):
        seen.append((topic, key, key_bytes, value, value_bytes, list(cluster.partitions_for(topic))))
        return len(value_bytes) % 3

    with Producer(
        bootstrap_servers=either.bootstrap, partitioner_class=by_length, key_serializer="int", value_serializer="str"
    ) as producer:
        assert producer.send(topic, "äb", 5).result(SECONDS).partition == 0
    assert seen[0] == (topic, 5, b"\0\0\0\5", "äb", "äb".encode(), [0, 1, 2])


@pytest.mark.behaviour("P09")
def test_a_send_finds_a_partition_that_is_added_while_it_waits(either):
    topic = new_topic(either, "growing", 1)
    with Producer(bootstrap_servers=either.bootstrap, metadata_max_age_ms=200) as producer:
        producer.send(topic, b"old").result(SECONDS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: producer.send(topic, b"new", partition=2).result(SECONDS))
            admin = AdminClient({"bootstrap.servers": either.bootstrap, "log_level": 0})
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
            assert waiting.result(SECONDS).partition == 2
        assert len(producer.partitions_for(topic)) == 3

        def reaches_the_new_ones():
            keys = {producer.send(topic, b"", b"%d" % n).result(SECONDS).partition for n in range(20)}
            return keys == {0, 1, 2}

        eventually("keys on the new partitions", reaches_the_new_ones)


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.behaviour("P30")
def test_records_are_delivered_with_every_acks_value(either, acks):
    topic = new_topic(either, "acks")
    with Producer(bootstrap_servers=either.bootstrap, acks=acks) as producer:
        results = [producer.send(topic, b"%d" % n) for n in range(100)]
        producer.flush(SECONDS)
        offsets = [future.result(0).offset for future in results]
    assert offsets == ([None] * 100 if acks == "0" else list(range(100)))
    assert values_of(either, topic, 100) == [b"%d" % n for n in range(100)]


@pytest.mark.behaviour("P27")
def test_a_batch_too_large_for_the_topic_is_split_and_futures_stay_correct(either):
    topic = new_topic(either, "split", max_message_bytes=4000)
    delivered = []
    with Producer(bootstrap_servers=either.bootstrap, batch_size=60_000, linger_ms=200) as producer:
        futures = [
            producer.send(topic, b"%0200d" % n, on_delivery=lambda metadata, error: delivered.append((metadata, error)))
            for n in range(150)
        ]
        tiny = producer.send(topic, b"x" * 5000)
        producer.flush(SECONDS)
        assert [future.result(0).offset for future in futures] == list(range(150))
        error = tiny.exception(0)
    assert "MESSAGE_TOO_LARGE" in str(error)
    assert [(metadata and metadata.offset, error) for metadata, error in delivered] == [(n, None) for n in range(150)]
    assert values_of(either, topic, 150) == [b"%0200d" % n for n in range(150)]


@pytest.mark.behaviour("P01")
def test_the_four_ways_to_configure_a_producer_are_equivalent(either, tmp_path):
    topic = new_topic(either, "ways")
    file = tmp_path / "producer.properties"
    file.write_text(
        f"bootstrap.servers={either.bootstrap}\n"
        "value.serializer=org.apache.kafka.common.serialization.StringSerializer\n"
        "linger.ms = 7\n"
    )
    mapping = {"bootstrap.servers": either.bootstrap, "value.serializer": "str", "linger.ms": 7}
    ways = (
        lambda: Producer(mapping),
        lambda: Producer(bootstrap_servers=either.bootstrap, value_serializer="str", linger_ms=7),
        lambda: Producer.from_properties(file),
        lambda: Producer(file),
        lambda: Producer(mapping, value_serializer=lambda value: value.upper().encode()),  # an object wins
        lambda: Producer.from_properties(file, value_serializer=lambda value: value.upper().encode()),
    )
    for make in ways:
        with make() as producer:
            assert producer.settings.linger_ms == 7
            producer.send(topic, "text").result(SECONDS)
    assert values_of(either, topic, len(ways)) == [b"text"] * 4 + [b"TEXT"] * 2


@pytest.mark.parametrize("name", ["kafka", "kafka39", "headrace_broker"])
def test_profile_2_4_sends_without_idempotence(request, name):
    broker = request.getfixturevalue(name)
    topic = new_topic(broker, "profile")
    with Producer(bootstrap_servers=broker.bootstrap, profile="2.4") as producer:
        assert producer.send(topic, b"v").result(SECONDS).offset == 0
    assert stored_batches(broker, topic)[0].producer_id == NO_PRODUCER_ID


# -- together ----------------------------------------------------------------------------------


def test_threads_share_a_producer_and_each_keeps_its_order(either):
    topic = new_topic(either, "threads", 1)
    with Producer(bootstrap_servers=either.bootstrap, batch_size=2000) as producer, ThreadPoolExecutor(8) as pool:

        def send(thread):
            return [producer.send(topic, b"%d" % n, b"%d" % thread) for n in range(2000)]

        futures = [future for sent in pool.map(send, range(8)) for future in sent]
        producer.flush(SECONDS)
        assert sorted(future.result(0).offset for future in futures) == list(range(16_000))
    read = librdkafka.consume(either.bootstrap, topic, 16_000)
    for thread in range(8):
        assert [record.value for record in read if record.key == b"%d" % thread] == [b"%d" % n for n in range(2000)]


@pytest.mark.behaviour("P36")
def test_flush_waits_for_earlier_records_and_close_for_all(either):
    topic = new_topic(either, "flush")
    producer = Producer(bootstrap_servers=either.bootstrap, linger_ms=60_000)
    futures = [producer.send(topic, b"%d" % n) for n in range(1000)]
    assert not futures[-1].done()
    started = time.monotonic()
    producer.flush(SECONDS)
    assert all(future.done() for future in futures)
    late = producer.send(topic, b"late")
    producer.close(SECONDS)
    assert time.monotonic() - started < 10, "nothing lingered"
    assert late.result(0).offset == 1000
    producer.close()  # once more does no harm


@pytest.mark.behaviour("P37")
def test_callbacks_run_once_in_order_and_may_fail(either, caplog):
    topic = new_topic(either, "callbacks")
    offsets = []

    def delivered(metadata, error):
        offsets.append(metadata.offset)
        if metadata.offset == 5:
            raise RuntimeError("mine")

    with Producer(bootstrap_servers=either.bootstrap, batch_size=300) as producer:
        for _ in range(100):
            producer.send(topic, b"v" * 50, on_delivery=delivered)
    assert offsets == list(range(100))
    assert "delivery callback" in caplog.text


@pytest.mark.behaviour("P12", "P13")
def test_interceptors_change_records_and_get_every_acknowledgement(either):
    topic, heard = new_topic(either, "intercepted"), []

    class Stamp(ProducerInterceptor):
        def on_send(self, record):
            headers = (*record.headers, ("by", b"stamp"))
            return ProducerRecord(record.topic, record.value, record.key, headers=headers)

        def on_acknowledgement(self, metadata, error):
            heard.append((metadata.topic, metadata.partition, metadata.offset, type(error).__name__))

    class Broken(ProducerInterceptor):
        def on_send(self, record):
            raise RuntimeError("broken")

    with Producer(bootstrap_servers=either.bootstrap, interceptor_classes=[Broken, Stamp()]) as producer:
        producer.send(topic, b"good").result(SECONDS)
        with pytest.raises(Exception, match="BytesSerializer expected bytes, got int"):
            producer.send(topic, 5)
    (record,) = librdkafka.consume(either.bootstrap, topic, 1)
    assert record.headers == (("by", b"stamp"),)
    assert heard == [(topic, 0, 0, "NoneType"), (topic, -1, None, "SerializationError")]


@pytest.mark.behaviour("P06")
def test_metrics_count_sent_records(either):
    topic = new_topic(either, "metrics")

    class Reporter:
        def __init__(self):
            self.there, self.closed = set(), False

        def init(self, metrics):
            self.there |= {metric.name for metric in metrics}

        def metric_change(self, metric):
            self.there.add(metric.name)

        def metric_removal(self, metric):
            self.there.discard(metric.name)

        def close(self):
            assert not self.there, "metrics go before the reporter does"
            self.closed = True

    reporter = Reporter()
    with Producer(bootstrap_servers=either.bootstrap, client_id="counted", metric_reporters=[reporter]) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n)
        producer.flush(SECONDS)
        with pytest.raises(Exception, match="BytesSerializer"):
            producer.send(topic, 5)
        metrics = producer.metrics()
        assert reporter.there == set(metrics)
        mine = (("client-id", "counted"),)

        def value(name, group="producer-metrics", *tags):
            return metrics[MetricName(name, group, (*mine, *tags))]

        assert value("record-send-total") == 100
        assert value("record-error-total") == 1
        assert value("record-send-total", "producer-topic-metrics", ("topic", topic)) == 100
        assert value("request-total", "producer-node-metrics", ("node-id", "node-1")) >= 1
        assert 0 < value("request-latency-avg") < 5000
        assert value("connection-count") == 2  # bootstrap, and the broker
        assert value("buffer-available-bytes") == value("buffer-total-bytes") == 32 * 1024 * 1024
        assert value("metadata-age") < SECONDS
        assert value("flush-time-ns-total") > 0 < value("metadata-wait-time-ns-total")
        assert value("records-per-request-avg") > 1
        assert value("requests-in-flight") == 0
    assert reporter.closed


@pytest.mark.behaviour("P35")
def test_an_idle_producer_takes_no_cpu(kafka):
    topic = new_topic(kafka, "idle")
    with Producer(bootstrap_servers=kafka.bootstrap) as producer:
        producer.send(topic, b"v").result(SECONDS)
        (io_thread,) = [
            thread for thread in threading.enumerate() if thread.name == f"headrace-{producer.settings.client_id}"
        ]
        assert io_thread.is_alive()

        def used():
            return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])

        before = used()
        time.sleep(3)
        assert used() - before < 0.005 * 3


def test_the_first_record_creates_its_topic(either):
    topic = unique("auto-made")
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        assert producer.send(topic, b"v").result(SECONDS).offset == 0
    assert values_of(either, topic, 1) == [b"v"]


@pytest.mark.behaviour("P23")
def test_records_larger_than_a_batch_travel_alone(either):
    topic = new_topic(either, "large")
    values = [b"s" * 10, b"L" * 100_000, b"s" * 10]
    with Producer(bootstrap_servers=either.bootstrap, batch_size=1000) as producer:
        for value in values:
            producer.send(topic, value)
    assert values_of(either, topic, 3) == values
