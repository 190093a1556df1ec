"""The consumer without a group, on Apache Kafka and on the headrace broker."""

from __future__ import annotations

import time
import uuid

import pyarrow as pa
import pytest

from headrace import (
    Consumer,
    ConsumerRecord,
    DeserializationError,
    NoOffsetError,
    OffsetOutOfRangeError,
    Producer,
    TopicPartition,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from headrace.client.network import NetworkClient
from headrace.wire.api import ApiKey

SECONDS_MAX = 20.0
TIME = 1_700_000_000_000


def unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def fill(broker, count: int, partitions: int = 1, **options) -> str:
    """Return a new topic with `count` records in turn in its partitions."""
    topic = unique("consumed")
    broker.create_topic(topic, partitions)
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        for i in range(count):
            producer.send(
                topic,
                f"value {i}".encode(),
                None if i % 3 else f"key {i}".encode(),
                partition=i % partitions,
                timestamp_ms=TIME + i,
                headers=[("n", str(i).encode())] if i % 2 else None,
            )
    return topic


def open_consumer(broker, **options) -> Consumer:
    return Consumer(bootstrap_servers=broker.bootstrap, **{"auto_offset_reset": "earliest", **options})


def read(consumer: Consumer, count: int, **options) -> list[ConsumerRecord]:
    """Poll until there are `count` records."""
    out: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(out) < count:
        assert time.monotonic() < deadline, f"{len(out)} of {count} records"
        out += consumer.poll(1, **options)
    return out


@pytest.mark.behaviour("C01")
def test_assigned_partitions_are_read_with_all_fields(either):
    topic = fill(either, 10, 2)
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        records = sorted(read(consumer, 10), key=lambda record: record.timestamp)
        assert [record.value for record in records] == [f"value {i}".encode() for i in range(10)]
        assert records[3] == ConsumerRecord(
            topic, 1, 1, TIME + 3, 0, b"key 3", b"value 3", (("n", b"3"),), records[3].leader_epoch
        )
        assert records[4].headers == ()
        assert records[4].key is None
        assert consumer.positions() == {(topic, 0): 5, (topic, 1): 5}
        assert consumer.lag(TopicPartition(topic, 0)) == 0


@pytest.mark.behaviour("C01")
def test_poll_arrow_returns_the_columns_of_all_partitions(either):
    topic = fill(either, 1000, 3, compression_type="zstd")
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(3)])
        batches: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in batches) < 1000:
            batch = consumer.poll_arrow(SECONDS_MAX)
            assert batch is not None
            batches.append(batch)
        rows = sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda row: row["timestamp"])
    assert [row["value"] for row in rows] == [f"value {i}".encode() for i in range(1000)]
    assert rows[5] == {
        "topic": topic,
        "partition": 2,
        "offset": 1,
        "timestamp": rows[5]["timestamp"],
        "timestampType": 0,
        "key": None,
        "value": b"value 5",
        "headers": [{"key": "n", "value": b"5"}],
    }
    assert rows[5]["timestamp"].timestamp() * 1000 == TIME + 5


@pytest.mark.behaviour("C01")
def test_a_consumer_is_a_finite_arrow_stream(either):
    topic = fill(either, 500, 2)
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(2)])
        assert pa.table(consumer).num_rows == 500
        assert pa.table(consumer).num_rows == 0  # from the positions on
        consumer.seek(TopicPartition(topic, 1), 240)
        assert pa.table(consumer)["offset"].to_pylist() == list(range(240, 250))
        assert consumer.paused() == set()


@pytest.mark.behaviour("C01")
def test_seek_moves_to_offsets_ends_and_times(either):
    topic = fill(either, 100)
    tp = TopicPartition(topic, 0)
    with open_consumer(either, auto_offset_reset="latest") as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 100
        consumer.seek_to_beginning()
        assert consumer.position(tp) == 0
        consumer.seek(tp, 42)
        assert read(consumer, 1, max_records=1)[0].offset == 42
        assert consumer.position(tp) == 43
        consumer.seek_to_time(TIME + 70)
        assert read(consumer, 1)[0].offset == 70
        consumer.seek_to_time(TIME + 1000)
        assert consumer.position(tp) == 100
        consumer.seek_to_end([tp])
        assert consumer.position(tp) == 100
        assert consumer.beginning_offsets([tp]) == {tp: 0}
        assert consumer.end_offsets([tp]) == {tp: 100}
        times = consumer.offsets_for_times({tp: TIME + 10})
        first = times[tp]
        assert first is not None
        assert first[:2] == (10, TIME + 10)
        assert consumer.offsets_for_times({tp: TIME + 1000}) == {tp: None}


@pytest.mark.behaviour("C01")
def test_paused_partitions_return_nothing_until_resumed(either):
    topic = fill(either, 100, 2)
    names = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with open_consumer(either) as consumer:
        consumer.assign(names)
        consumer.pause(names[:1])
        assert {record.partition for record in read(consumer, 50)} == {1}
        assert consumer.poll(0.2) == []
        consumer.resume(names[:1])
        assert [record.offset for record in read(consumer, 50)] == list(range(50))


@pytest.mark.behaviour("C01")
def test_a_partition_paused_amid_a_batch_continues_there(either):
    topic = fill(either, 100)
    tp = TopicPartition(topic, 0)
    with open_consumer(either) as consumer:
        consumer.assign([tp])
        first = read(consumer, 7, max_records=7)
        consumer.pause([tp])
        assert consumer.poll(0.2) == []
        consumer.resume([tp])
        assert [record.offset for record in first + read(consumer, 93)] == list(range(100))


@pytest.mark.behaviour("C01")
def test_reset_policies_choose_the_first_offset(either):
    topic = fill(either, 10)
    tp = TopicPartition(topic, 0)
    starts = {}
    for policy in ("earliest", "latest", "by_duration:PT1H", "by_duration:P100000D"):
        with open_consumer(either, auto_offset_reset=policy) as consumer:
            consumer.assign([tp])
            starts[policy] = consumer.position(tp)
    assert list(starts.values()) == [0, 10, 10, 0]


@pytest.mark.behaviour("C01")
def test_without_a_reset_policy_missing_offsets_are_errors(either):
    topic = fill(either, 10)
    tp = TopicPartition(topic, 0)
    with open_consumer(either, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        with pytest.raises(NoOffsetError, match="has no committed offset"):
            consumer.poll(SECONDS_MAX)
        consumer.seek(tp, 1000)
        with pytest.raises(OffsetOutOfRangeError, match="has no offset 1000"):
            consumer.poll(SECONDS_MAX)
        consumer.seek(tp, 9)
        assert read(consumer, 1)[0].offset == 9


@pytest.mark.behaviour("C01")
def test_an_offset_out_of_range_is_reset(either):
    topic = fill(either, 10)
    with open_consumer(either) as consumer:
        consumer.assign({TopicPartition(topic, 0): 1000})
        assert read(consumer, 10)[0].offset == 0


def test_a_missing_topic_is_a_named_error(either):
    with open_consumer(either, allow_auto_create_topics=False, default_api_timeout_ms=1000) as consumer:
        consumer.assign([TopicPartition(unique("missing"), 0)])
        with pytest.raises(UnknownTopicOrPartitionError, match="does not exist"):
            consumer.poll(SECONDS_MAX)


@pytest.mark.behaviour("C01")
def test_wakeup_interrupts_a_poll(either):
    topic = fill(either, 0)
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(SECONDS_MAX)
        assert consumer.poll(0) == []


def test_deserializers_apply_and_name_the_record_they_refuse(either):
    topic = unique("json")
    either.create_topic(topic, 1)
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for value in (b'{"a": 1}', None, b"{", b"[2]"):
            producer.send(topic, value, b"k")
    tp = TopicPartition(topic, 0)
    with open_consumer(either, key_deserializer="str", value_deserializer="json") as consumer:
        consumer.assign([tp])
        assert [(record.key, record.value) for record in read(consumer, 2)] == [("k", {"a": 1}), ("k", None)]
        for _ in range(2):
            with pytest.raises(DeserializationError, match="JsonDeserializer does not accept the value at offset 2"):
                consumer.poll(SECONDS_MAX)
        assert consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert [record.value for record in read(consumer, 1)] == [[2]]


@pytest.mark.behaviour("C05")
def test_read_committed_skips_open_and_aborted_transactions(either):
    topic = unique("transactions")
    either.create_topic(topic, 1)
    options = {"bootstrap_servers": either.bootstrap, "transactional_id": unique("txn")}
    with Producer(**options) as producer:
        producer.init_transactions()
        for turn in range(4):
            producer.begin_transaction()
            for i in range(5):
                producer.send(topic, f"{turn}.{i}".encode())
            producer.flush()
            if turn == 3:
                break
            producer.commit_transaction() if turn % 2 == 0 else producer.abort_transaction()
        tp = TopicPartition(topic, 0)
        with open_consumer(either, isolation_level="read_committed") as consumer:
            consumer.assign([tp])
            values = [record.value.decode() for record in read(consumer, 10)]
            assert values == [f"{turn}.{i}" for turn in (0, 2) for i in range(5)]
            assert consumer.poll(0.3) == []
        with open_consumer(either) as consumer:
            consumer.assign([tp])
            assert len(read(consumer, 20)) == 20
        producer.abort_transaction()


@pytest.mark.behaviour("C06")
@pytest.mark.parametrize("paused", [False, True], ids=["stalled", "paused"])
def test_memory_is_bounded_while_the_application_does_not_poll(either, paused):
    topic = unique("large")
    either.create_topic(topic, 4)
    with Producer(bootstrap_servers=either.bootstrap, batch_size=50_000) as producer:
        for i in range(400):
            producer.send(topic, bytes(20_000), partition=i % 4)
    names = [TopicPartition(topic, i) for i in range(4)]
    with open_consumer(either, fetch_max_bytes=500_000, max_partition_fetch_bytes=100_000) as consumer:
        consumer.assign(names)
        count = len(consumer.poll(SECONDS_MAX, max_records=1))
        if paused:
            consumer.pause(names[:2])
            count += len(consumer.poll(0.3))
        buffer = consumer._engine.buffer
        sizes = []
        for _ in range(20):
            sizes.append(buffer.size)
            time.sleep(0.02)
        assert max(sizes) <= 500_000 + 50_100  # the limit, and a batch that is sent even if it is larger
        assert sizes[-1] > 0
        consumer.resume(names)
        count += len(read(consumer, 400 - count))
        assert count == 400
        assert buffer.size == 0


@pytest.mark.behaviour("C05")
def test_an_incremental_fetch_names_what_has_changed_only(either, monkeypatch):
    requests = []
    send = NetworkClient.send

    def spy(self, node_id, request, now):
        if request.api_key == ApiKey.FETCH:
            requests.append(request.build(12))
        send(self, node_id, request, now)

    monkeypatch.setattr(NetworkClient, "send", spy)
    topic = fill(either, 0, 3)
    with open_consumer(either, fetch_max_wait_ms=50) as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(3)])
        for i in range(3):
            consumer.position(TopicPartition(topic, i))
        consumer.poll(0.3)
        idle = len(requests)
        with Producer(bootstrap_servers=either.bootstrap) as producer:
            producer.send(topic, b"v", partition=1)
        read(consumer, 1)
        consumer.poll(0.3)
    named = [[p.partition for t in request.topics for p in t.partitions] for request in requests]
    assert {number for numbers in named[:idle] for number in numbers} == {0, 1, 2}
    assert [] in named[:idle]  # nothing has changed
    assert [1] in named[idle:]
    assert all(numbers in ([], [1]) for numbers in named[idle:])
