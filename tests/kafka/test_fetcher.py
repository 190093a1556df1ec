"""The fetcher on real brokers, compared with librdkafka's consumer."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace.client import connection as client_connection
from headrace.client import fetcher as fetcher_module
from headrace.client.admin import AdminClient
from headrace.client.fetch_data import FetchedRecord
from headrace.client.fetcher import Fetcher, OutOfRange
from headrace.client.metadata import Cluster
from headrace.client.offsets import EARLIEST, LATEST
from headrace.errors import BrokerError, TimedOutError
from headrace.types import TopicPartition
from headrace.wire import message_sets
from headrace.wire.api.fetch import FetchRequest
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.peers.real_kafka import free_ports
from tests.support.waiting import eventually
from tests.support.writers import records_of

MS_MAX = 20_000.0
TIME = 1_700_000_000_000


def name(what):
    return f"{what}-{uuid.uuid4().hex[:8]}"


def make_records(count, start=0, size=20):
    return [
        Record(
            i, TIME + i, f"k{i}".encode() if i % 3 else None, bytes([i % 251]) * size, (("h", b"x"),) if i % 2 else ()
        )
        for i in range(start, start + count)
    ]


@pytest.fixture(params=["kafka", "kafka39", "headrace_broker"])
def broker(request):
    return request.getfixturevalue(request.param)


def read(fetcher, count, **options):
    """Poll until there are `count` records."""
    out: list[FetchedRecord] = []
    while len(out) < count:
        got = fetcher.poll(MS_MAX, **options)
        assert got, f"{len(out)} of {count} records"
        out += got
    return out


def plain(fetched):
    return [Record(*record[2:]) for record in fetched]


def transactional(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name("txn"), "log_level": 0})
    producer.init_transactions(30)
    return producer


def interleave(broker, topic):
    """Committed, aborted and plain batches, mixed; the last transaction is still open. Returns its producer."""
    producers = [transactional(broker) for _ in range(3)]
    for turn in range(4):
        for producer in producers:
            producer.begin_transaction()
        for part in range(2):
            for number, producer in enumerate(producers):
                values = [f"{turn}.{number}.{part}.{i}".encode() for i in range(3)]
                librdkafka.append(producer, topic, [Record(0, TIME, None, value, ()) for value in values])
        librdkafka.produce(broker.bootstrap, topic, [Record(0, TIME, None, b"plain", ())])
        for number, producer in enumerate(producers):
            if (turn + number) % 2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    last = producers[0]
    last.begin_transaction()
    librdkafka.append(last, topic, [Record(0, TIME, None, b"open", ())])
    librdkafka.produce(broker.bootstrap, topic, [Record(0, TIME, None, b"after", ())])
    return last


def test_records_of_several_partitions_are_those_that_librdkafka_reads(broker):
    topic = broker.create_topic(name("plain"), partitions=3)
    for partition, codec in enumerate(["none", "zstd", "lz4"]):
        librdkafka.produce(broker.bootstrap, topic, make_records(200), codec=codec, partition=partition)
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign([TopicPartition(topic, p) for p in range(3)])
        fetched = read(fetcher, 600, records_max=70)
        for partition in range(3):
            ours = plain([record for record in fetched if record.partition == partition])
            assert ours == librdkafka.consume(broker.bootstrap, topic, 200, partition=partition)
            assert fetcher.position(TopicPartition(topic, partition)) == 200
        assert fetcher.watermarks(TopicPartition(topic, 0)) == (0, 200, 200)
        assert fetcher.poll(50) == []


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_and_open_transactions_are_hidden_from_read_committed_only(broker, isolation):
    topic = broker.create_topic(name("mixed"))
    producer = interleave(broker, topic)
    tp = TopicPartition(topic, 0)
    with Fetcher(broker.bootstrap, isolation=isolation, partition_bytes_max=2000) as fetcher:
        end = fetcher.end_offsets([tp])[tp]
        fetcher.assign({tp: 0}, until={tp: end})
        fetched: list[FetchedRecord] = []
        while not fetcher.is_finished():
            got = fetcher.poll(MS_MAX, records_max=5)
            fetched += got
        expected = librdkafka.consume(broker.bootstrap, topic, len(fetched), isolation=isolation)
        assert plain(fetched) == expected
        values = {record.value for record in fetched}
        assert (b"open" in values) is (isolation == "read_uncommitted")
        assert (b"0.1.0.0" in values) is (isolation == "read_uncommitted")
        assert b"0.0.0.0" in values
        assert len(fetched) == (40 if isolation == "read_committed" else 78)

        fetcher.seek(tp, 0)
        columns: list[pa.RecordBatch] = []
        while not fetcher.is_finished():
            columns += fetcher.poll_arrow(MS_MAX, with_headers=True).values()
        assert [r for batch in columns for r in records_of(batch)] == expected
    producer.abort_transaction(30)


def test_a_fetcher_at_the_end_gets_new_records(either):
    topic = either.create_topic(name("tail"))
    librdkafka.produce(either.bootstrap, topic, make_records(5))
    with Fetcher(either.bootstrap) as fetcher:
        tp = TopicPartition(topic, 0)
        fetcher.assign({tp: LATEST})
        assert fetcher.poll(0) == []  # a fetch is under way
        librdkafka.produce(either.bootstrap, topic, make_records(2, start=5))
        assert [record.offset for record in read(fetcher, 2)] == [5, 6]


def test_positions_by_offset_time_and_ends(broker):
    topic = broker.create_topic(name("seek"))
    librdkafka.produce(broker.bootstrap, topic, make_records(100))
    tp = TopicPartition(topic, 0)
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign({tp: 42})
        assert read(fetcher, 1, records_max=1)[0].offset == 42  # in the middle of a batch
        fetcher.seek(tp, 10)
        assert read(fetcher, 1, records_max=1)[0].offset == 10
        fetcher.seek_to_time(TIME + 77)
        assert read(fetcher, 1, records_max=1)[0].offset == 77
        fetcher.seek_to_time(TIME + 1000)
        assert fetcher.position(tp) == 100
        fetcher.seek(tp, EARLIEST)
        assert fetcher.position(tp) == 0
        assert fetcher.beginning_offsets([tp]) == {tp: 0}
        assert fetcher.end_offsets([tp]) == {tp: 100}
        assert fetcher.offsets_for_times({tp: TIME + 50})[tp][:2] == (50, TIME + 50)
        assert fetcher.offsets_for_times({tp: TIME + 5000})[tp].offset == -1


def test_a_range_is_read_up_to_its_end(either):
    topic = either.create_topic(name("range"))
    librdkafka.produce(either.bootstrap, topic, make_records(300))
    tp = TopicPartition(topic, 0)
    with Fetcher(either.bootstrap) as fetcher:
        fetcher.assign({tp: 20}, until={tp: 130})
        batches: list[pa.RecordBatch] = []
        while not fetcher.is_finished():
            batches += fetcher.poll_arrow(MS_MAX).values()
        table = pa.Table.from_batches(batches)
        assert table["offset"].to_pylist() == list(range(20, 130))
        assert fetcher.position(tp) == 130
        fetcher.assign({tp: 20}, until={tp: 130})
        assert [record.offset for record in read(fetcher, 110)] == list(range(20, 130))
        assert fetcher.poll(MS_MAX) == []  # at once, without waiting for more


def test_an_offset_out_of_range_is_an_error_or_reset_as_configured(broker):
    topic = broker.create_topic(name("range"))
    librdkafka.produce(broker.bootstrap, topic, make_records(10))
    tp = TopicPartition(topic, 0)
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign({tp: 999})
        with pytest.raises(BrokerError, match=r"has no offset 999.*set out_of_range") as caught:
            fetcher.poll(MS_MAX)
        assert caught.value.code == 1
    policies: list[tuple[OutOfRange, int]] = [("earliest", 0), ("latest", 10)]
    for policy, position in policies:
        with Fetcher(broker.bootstrap, out_of_range=policy) as fetcher:
            fetcher.assign({tp: 999})
            fetcher.poll(1000 if policy == "latest" else MS_MAX, records_max=1)
            assert fetcher.position(tp) == position + (policy == "earliest")


def test_a_batch_larger_than_the_fetch_limits_is_returned(either):
    topic = either.create_topic(name("large"))
    with Connection(either.bootstrap) as connection:
        for start in (0, 2):
            batch = [record._replace(offset=i) for i, record in enumerate(make_records(2, start, size=200_000))]
            assert connection.produce(topic, encode(batch)).error_code == 0
    with Fetcher(either.bootstrap, partition_bytes_max=1000, max_bytes=1000) as fetcher:
        fetcher.assign([TopicPartition(topic, 0)])
        assert plain(read(fetcher, 4)) == make_records(4, size=200_000)


def test_a_topic_that_does_not_exist_is_an_error_with_its_name(either):
    with Fetcher(either.bootstrap) as fetcher:
        with pytest.raises(BrokerError, match="no-such-topic-0: the topic does not exist"):
            fetcher.assign([TopicPartition("no-such-topic", 0)])
        topic = either.create_topic(name("one"))
        with pytest.raises(BrokerError, match="the topic has 1 partitions"):
            fetcher.assign([TopicPartition(topic, 5)])


def test_message_sets_of_old_clients_are_read_as_records(kafka39, monkeypatch):
    """Written as magic 1, stored as batches, and fetched with versions that have message sets only."""
    topic = kafka39.create_topic(name("old"))
    records_in = [Record(i, TIME + i, b"k", b"v" * 10, ()) for i in range(20)]
    with Connection(kafka39.bootstrap) as connection:
        assert connection.produce(topic, message_sets.encode(records_in, magic=1, codec=1), version=2).error_code == 0
    with Fetcher(kafka39.bootstrap, isolation="read_uncommitted") as fetcher:
        fetcher.assign({TopicPartition(topic, 0): 3})
        monkeypatch.setattr(Cluster, "topic_id", lambda self, topic: None)
        for versions_max in (1, 3, 12):
            monkeypatch.setattr(fetcher_module, "NEWEST_BY_NAME", versions_max)
            # Version 1 has no timestamps: it returns magic 0.
            expected = [r._replace(timestamp=-1) for r in records_in[3:]] if versions_max < 2 else records_in[3:]
            assert plain(read(fetcher, 17)) == expected
            fetcher.seek(TopicPartition(topic, 0), 3)
            (columns,) = fetcher.poll_arrow(MS_MAX, with_headers=True).values()
            assert records_of(columns) == expected
            fetcher.seek(TopicPartition(topic, 0), 3)


def test_fetches_use_topic_ids_if_they_are_known(broker, monkeypatch):
    versions = []
    send = client_connection.Connection.send

    def spy(self, request, now):
        entry = send(self, request, now)
        versions.extend([entry.version] if request.api_key == FetchRequest.api_key else [])
        return entry

    monkeypatch.setattr(client_connection.Connection, "send", spy)
    topics = [broker.create_topic(name("by-id")) for _ in range(2)]
    for topic in topics:
        librdkafka.produce(broker.bootstrap, topic, make_records(3))
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign([TopicPartition(topic, 0) for topic in topics])
        assert sorted(record.topic for record in read(fetcher, 6)) == sorted(topics * 3)
    assert min(versions) >= 13


def test_a_recreated_topic_is_found(kafka):
    topic = kafka.create_topic(name("anew"))
    librdkafka.produce(kafka.bootstrap, topic, make_records(3))
    with Fetcher(kafka.bootstrap) as fetcher, AdminClient(kafka.bootstrap) as admin:
        fetcher.assign([TopicPartition(topic, 0)])
        read(fetcher, 3)
        admin.delete_topics([topic])
        eventually("it is gone", lambda: topic not in admin.list_topics())
        kafka.create_topic(topic)
        librdkafka.produce(kafka.bootstrap, topic, make_records(5))
        assert plain(read(fetcher, 2)) == make_records(2, start=3)


def test_reading_continues_after_a_broker_restart(kafka39):
    topic = kafka39.create_topic(name("restart"))
    librdkafka.produce(kafka39.bootstrap, topic, make_records(10))
    with Fetcher(kafka39.bootstrap) as fetcher:
        fetcher.assign([TopicPartition(topic, 0)])
        assert len(read(fetcher, 10)) == 10
        kafka39.kill()
        assert fetcher.poll(300) == []
        kafka39.restart()
        librdkafka.produce(kafka39.bootstrap, topic, make_records(5, start=10))
        assert [record.offset for record in read(fetcher, 5)] == [10, 11, 12, 13, 14]


def test_a_fetcher_without_a_broker_raises():
    (port,) = free_ports(1)
    complaint = r"cannot connect to 127.0.0.1.*is a broker running there"
    with Fetcher(f"127.0.0.1:{port}", timeout_ms=300) as fetcher, pytest.raises(TimedOutError, match=complaint):
        fetcher.assign([TopicPartition("t", 0)])
