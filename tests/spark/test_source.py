"""The source in batches, on Apache Kafka and on headrace's broker; without Spark, then with Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import closing
from typing import cast

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.client.admin import AdminClient
from headrace.client.admin.configs import ConfigResource, ResourceKind
from headrace.errors import BrokerError, ConfigError, TimedOutError
from headrace.spark import reading
from headrace.spark.errors import PlanError
from headrace.spark.planning import DataLossError, OffsetRange
from headrace.spark.read_columns import ReadColumns
from headrace.spark.reading import FETCHERS, KeptFetcher, read_range
from headrace.spark.source import BatchReader, RangePartition
from headrace.spark.source_options import Mode, parse, schema, schema_of
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.samples import large, shifted, small
from tests.support.source_rig import (
    ALL_COLUMNS,
    TIME_MS,
    batch_reader,
    delete_before,
    delete_topic,
    grow_topic,
    numbered,
    options_of,
    ranges_of,
    read_all,
    records,
    recreate_topic,
    rows_of,
    topic_id,
    values_of,
)
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

COMPACTION_SECONDS_MAX = 60


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    FETCHERS.close_idle()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-read-ahead"]


def as_rows(topic, partition, result, time_type=0):
    """Return the rows that Spark's own source returns for these records."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": pa.scalar(record.timestamp * 1000, pa.timestamp("us", tz="UTC")).as_py(),
            "timestampType": time_type,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in result
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_equal_what_another_client_reads(either, codec):
    topic = new_topic(either, f"rows-{codec}", 2)
    for partition, sent in enumerate((small(), large())):
        librdkafka.produce(either.bootstrap, topic, sent, codec=codec, partition=partition)
    expected = [
        row
        for partition, sent in enumerate((small(), large()))
        for row in as_rows(
            topic, partition, librdkafka.consume(either.bootstrap, topic, len(sent), partition=partition)
        )
    ]
    assert read_all(batch_reader(either, topic)) == expected


def test_batches_have_the_types_that_spark_requires(either):
    topic = new_topic(either, "types")
    librdkafka.produce(either.bootstrap, topic, small())
    for columns in (ALL_COLUMNS, ("value",), ("headers", "timestamp", "topic")):
        reader = batch_reader(either, topic, columns)
        (partition,) = reader.partitions()
        (batch,) = reader.read(partition)
        assert to_arrow_schema(schema(columns), timezone="UTC").equals(batch.schema)
        batch.validate(full=True)


def test_rows_have_the_timestamp_type_of_their_batch(either):
    topic = new_topic(either, "times")
    librdkafka.produce(either.bootstrap, topic, records(3))
    with AdminClient(either.bootstrap) as admin:
        resource = ConfigResource(ResourceKind.TOPIC, topic)
        admin.alter_configs({resource: {"message.timestamp.type": "LogAppendTime"}})
    librdkafka.produce(either.bootstrap, topic, records(2, start=3))
    rows = read_all(batch_reader(either, topic))
    assert [row["timestampType"] for row in rows] == [0, 0, 0, 1, 1]
    expected = librdkafka.consume(either.bootstrap, topic, 5)
    assert rows == as_rows(topic, 0, expected[:3]) + as_rows(topic, 0, expected[3:], time_type=1)


def test_many_rows_are_returned_in_batches_of_limited_size(either, monkeypatch):
    monkeypatch.setattr(reading, "BATCH_ROWS", 500)
    topic = new_topic(either, "sizes")
    with Connection(either.bootstrap) as connection:
        for start in range(0, 3000, 200):
            rows = shifted(records(200, start=start), -start)
            assert connection.produce(topic, encode(rows)).error_code == 0
    reader = batch_reader(either, topic)
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    assert [batch.num_rows for batch in batches] == [600] * 5
    assert values_of(rows_of(batches)) == numbered(range(3000))
    # A single record batch with very many rows is split.
    monkeypatch.setattr(reading, "BATCH_ROWS", 40)
    batches = list(reader.read(partition))
    assert [batch.num_rows for batch in batches] == [80, 80, 40] * 15
    assert values_of(rows_of(batches)) == numbered(range(3000))


# -- which offsets -----------------------------------------------------------------------------


def test_a_batch_begins_and_ends_at_given_offsets(either):
    topic = new_topic(either, "numbers", 2)
    for partition in range(2):
        librdkafka.produce(either.bootstrap, topic, records(50), partition=partition)

    def read(start, end):
        options = {"startingOffsets": json.dumps({topic: start}), "endingOffsets": json.dumps({topic: end})}
        rows = read_all(batch_reader(either, topic, **options))
        return [[row["offset"] for row in rows if row["partition"] == partition] for partition in range(2)]

    assert read({"0": 7, "1": -2}, {"0": 12, "1": 3}) == [list(range(7, 12)), [0, 1, 2]]
    assert read({"0": 48, "1": 49}, {"0": -1, "1": -1}) == [[48, 49], [49]]
    assert read({"0": 10, "1": 50}, {"0": 10, "1": 50}) == [[], []]


def test_a_batch_begins_and_ends_at_given_times(either):
    topic = new_topic(either, "by-time", 2)
    librdkafka.produce(either.bootstrap, topic, records(50), partition=0)
    librdkafka.produce(either.bootstrap, topic, records(20), partition=1)

    def read(**options):
        rows = read_all(batch_reader(either, topic, **options))
        return [[row["offset"] for row in rows if row["partition"] == partition] for partition in range(2)]

    at = [TIME_MS + n * 1000 for n in range(60)]
    assert read(startingTimestamp=at[10], endingTimestamp=at[12]) == [[10, 11], [10, 11]]
    assert read(startingTimestamp=at[10] - 1, endingTimestamp=at[12] + 1) == [[10, 11, 12], [10, 11, 12]]
    # A partition without a record at that time: it ends at its end, and begins according to the strategy.
    assert read(startingTimestamp=at[18], endingTimestamp=at[30]) == [list(range(18, 30)), [18, 19]]
    with pytest.raises(
        ConfigError, match=rf"startingTimestamp: no record at or after this time in {topic}-1; .*Strategy to latest"
    ):
        read(startingTimestamp=at[45])
    assert read(startingTimestamp=at[45], startingOffsetsByTimestampStrategy="latest") == [list(range(45, 50)), []]
    by_partition = json.dumps({topic: {"0": at[40], "1": at[5]}})
    assert read(startingOffsetsByTimestamp=by_partition, endingTimestamp=at[42]) == [[40, 41], list(range(5, 20))]


def test_partitions_can_be_named_and_topics_matched(either):
    prefix = unique("match")
    names = [either.create_topic(f"{prefix}-{letter}", 2) for letter in "ab"]
    either.create_topic(f"{prefix}-other-b", 1)
    for name in names:
        for partition in range(2):
            sent = [Record(0, TIME_MS, None, f"{name}-{partition}".encode(), ())]
            librdkafka.produce(either.bootstrap, name, sent, partition=partition)
    rows = read_all(batch_reader(either, None, subscribePattern=f"{prefix}-."))
    assert values_of(rows) == [f"{name}-{partition}".encode() for name in names for partition in range(2)]
    rows = read_all(batch_reader(either, None, assign=json.dumps({names[0]: [1], names[1]: [0]})))
    assert values_of(rows) == [f"{names[0]}-1".encode(), f"{names[1]}-0".encode()]
    assert read_all(batch_reader(either, None, subscribePattern=f"no-{prefix}")) == []
    # Internal topics match no pattern.
    result = ranges_of(batch_reader(either, None, subscribePattern=".*"))
    assert result
    assert not [offset_range for offset_range in result if offset_range.topic.startswith("__")]


def test_long_ranges_are_split_between_tasks_without_duplicates(either):
    topic = new_topic(either, "split", 2)
    librdkafka.produce(either.bootstrap, topic, records(900), partition=0)
    librdkafka.produce(either.bootstrap, topic, records(100), partition=1)
    reader = batch_reader(either, topic, minPartitions=10)
    assert [(part.partition, part.size) for part in ranges_of(reader)] == [(0, 100)] * 9 + [(1, 100)]
    assert values_of(read_all(reader)) == numbered(range(900)) + numbered(range(100))
    reader = batch_reader(either, topic, maxRecordsPerPartition=250)
    assert [(part.partition, part.size) for part in ranges_of(reader)] == [(0, 225)] * 4 + [(1, 100)]
    assert values_of(read_all(reader)) == numbered(range(900)) + numbered(range(100))


# -- gaps --------------------------------------------------------------------------------------


def test_rows_of_aborted_and_open_transactions_need_read_uncommitted(either):
    topic = new_topic(either, "transactions")
    producer = librdkafka.transactional(either.bootstrap, unique("source"))
    for start, ending in ((0, "commit"), (10, "abort"), (20, "commit"), (30, "abort")):
        producer.begin_transaction()
        librdkafka.append(producer, topic, records(10, start=start))
        getattr(producer, f"{ending}_transaction")(librdkafka.SECONDS_MAX)
    producer.begin_transaction()
    librdkafka.append(producer, topic, records(5, start=40))
    committed = numbered([*range(10), *range(20, 30)])
    assert values_of(read_all(batch_reader(either, topic))) == committed
    uncommitted = batch_reader(either, topic, kafka_isolation_level="read_uncommitted")
    assert values_of(read_all(uncommitted)) == numbered(range(45))
    # Offsets: 10 rows and a marker each time. Every range ends, also one without visible rows.
    assert [part[:4] for part in ranges_of(batch_reader(either, topic))] == [(topic, 0, 0, 44)]
    assert values_of(read_all(batch_reader(either, topic, minPartitions=44))) == committed
    bounds = {"startingOffsets": f'{{"{topic}":{{"0":12}}}}', "endingOffsets": f'{{"{topic}":{{"0":21}}}}'}
    assert read_all(batch_reader(either, topic, **bounds)) == []
    producer.abort_transaction(librdkafka.SECONDS_MAX)


@pytest.mark.slow
@pytest.mark.timeout(2 * COMPACTION_SECONDS_MAX)
def test_a_compacted_topic_is_read_to_its_end(either):
    topic = new_topic(either, "compacted", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01)
    librdkafka.produce(either.bootstrap, topic, records(700))
    # A segment is rolled by a record that is so much later than its first, and only what is rolled is compacted.
    librdkafka.produce(either.bootstrap, topic, [Record(0, TIME_MS + 10**7, b"last", b"last", ())])
    reader = batch_reader(either, topic, minPartitions=5)

    def compacted():
        rows = read_all(reader)
        return rows if len(rows) < 700 else None

    rows = eventually("compaction", compacted, COMPACTION_SECONDS_MAX)
    offsets = [row["offset"] for row in rows]
    assert offsets == sorted(set(offsets))
    latest = {row["key"]: row["value"] for row in rows}
    assert {key: value for key, value in latest.items() if key != b"last"} == {
        record.key: record.value for record in records(7, start=693)
    }


# -- errors ------------------------------------------------------------------------------------


def test_missing_topics_and_partitions_are_named(either):
    topic, missing = new_topic(either, "there"), unique("missing")
    with pytest.raises(BrokerError, match=f"UNKNOWN_TOPIC.*{missing}: not on the cluster"):
        batch_reader(either, f"{topic},{missing}").partitions()
    with pytest.raises(BrokerError, match=f"UNKNOWN_TOPIC.*{topic}-7: not on the cluster"):
        batch_reader(either, None, assign=f'{{"{topic}":[0,7]}}').partitions()


def test_offsets_must_name_exactly_the_partitions_read(either):
    topic = new_topic(either, "complete", 2)
    with pytest.raises(
        ConfigError, match=f"startingOffsets has no offset for {topic}-1; it has to name every partition"
    ):
        batch_reader(either, topic, startingOffsets=f'{{"{topic}":{{"0":0}}}}').partitions()
    with pytest.raises(ConfigError, match=f"endingOffsets names {topic}-2, which the query does not read"):
        batch_reader(either, topic, endingOffsets=f'{{"{topic}":{{"0":0,"1":0,"2":0}}}}').partitions()
    librdkafka.produce(either.bootstrap, topic, records(10))
    order = {
        "startingOffsets": json.dumps({topic: {"0": 5, "1": 0}}),
        "endingOffsets": json.dumps({topic: {"0": 3, "1": 0}}),
    }
    with pytest.raises(ConfigError, match=f"endingOffsets is 3 for {topic}-0, which begins at 5; it may be 5 or more"):
        batch_reader(either, topic, **order).partitions()


def test_offsets_out_of_range_fail_unless_data_loss_is_allowed(either):
    topic = new_topic(either, "bounds")
    librdkafka.produce(either.bootstrap, topic, records(20))
    delete_before(either, topic, 8)

    def reader(start, end, **options):
        bounds = {"startingOffsets": f'{{"{topic}":{{"0":{start}}}}}', "endingOffsets": f'{{"{topic}":{{"0":{end}}}}}'}
        return batch_reader(either, topic, **bounds, **options)

    has = f"for {topic}-0, which has offsets from 8 up to 20"
    with pytest.raises(DataLossError, match=f"startingOffsets is 3 {has}.*failOnDataLoss"):
        reader(3, 15).partitions()
    with pytest.raises(DataLossError, match=f"endingOffsets is 25 {has}.*failOnDataLoss"):
        reader(8, 25).partitions()
    assert values_of(read_all(reader(3, 25, failOnDataLoss=False))) == numbered(range(8, 20))
    assert values_of(read_all(batch_reader(either, topic))) == numbered(range(8, 20))


def test_rows_deleted_between_planning_and_reading_are_data_loss(either, caplog):
    topic = new_topic(either, "loss")
    librdkafka.produce(either.bootstrap, topic, records(20))
    strict, lenient = batch_reader(either, topic), batch_reader(either, topic, failOnDataLoss=False)
    (partition,) = strict.partitions()
    delete_before(either, topic, 15)
    with pytest.raises(DataLossError, match=f"{topic}-0 has offsets from 15 up to 20; 0 up to 20 were to be read"):
        list(strict.read(partition))
    assert values_of(rows_of(lenient.read(partition))) == numbered(range(15, 20))
    assert "the query will continue with the remaining records" in caplog.text
    # A whole range may be deleted.
    assert list(lenient.read(RangePartition(OffsetRange(topic, 0, 2, 9)))) == []


def test_a_topic_deleted_between_planning_and_reading_is_data_loss(either):
    topic = new_topic(either, "gone")
    librdkafka.produce(either.bootstrap, topic, records(20))
    strict = batch_reader(either, topic, kafka_default_api_timeout_ms=1000)
    lenient = batch_reader(either, topic, kafka_default_api_timeout_ms=1000, failOnDataLoss=False)
    (partition,) = strict.partitions()
    delete_topic(either, topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 does not exist any more; offsets 0 up to 20 were to be read"):
        list(strict.read(partition))
    assert list(lenient.read(partition)) == []


@pytest.mark.behaviour("S13")
def test_rows_can_have_origin_columns(either):
    topic = new_topic(either, "origin", 2)
    librdkafka.produce(either.bootstrap, topic, records(3), partition=1)
    names = ("value", "__topic", "__partition", "__offset", "__topic_id")
    rows = read_all(batch_reader(either, topic, names, includeOrigin=True))
    assert [row["__offset"] for row in rows] == [0, 1, 2]
    assert {(row["__topic"], row["__partition"], row["__topic_id"]) for row in rows} == {
        (topic, 1, topic_id(either, topic))
    }
    result = schema_of(parse(options_of(either, topic, includeOrigin=True), Mode.ANY)).names
    assert result == [name for name in ALL_COLUMNS if name != "headers"] + list(names[1:])
    without = schema_of(parse(options_of(either, topic), Mode.ANY)).names
    assert without == [name for name in ALL_COLUMNS if name != "headers"]


@pytest.mark.behaviour("S14")
def test_a_topic_recreated_between_planning_and_reading_is_data_loss(either, caplog):
    topic = new_topic(either, "swapped")
    librdkafka.produce(either.bootstrap, topic, records(20))
    strict = batch_reader(either, topic)
    lenient = batch_reader(either, topic, failOnDataLoss=False)
    (partition,) = strict.partitions()
    old, new = recreate_topic(either, topic)
    librdkafka.produce(either.bootstrap, topic, records(30, start=100))
    complaint = f"topic '{topic}' was recreated: its id was {old} and is now {new}, after {topic}-0 from 0 to 20"
    with pytest.raises(DataLossError, match=complaint):
        list(strict.read(partition))
    assert list(lenient.read(partition)) == []
    assert complaint in caplog.text
    assert values_of(read_all(strict)) == numbered(range(100, 130))


def test_a_range_without_records_times_out(either):
    topic = new_topic(either, "endless")
    librdkafka.produce(either.bootstrap, topic, records(5))
    options = parse(options_of(either, topic, kafkaConsumer_pollTimeoutMs=300), Mode.BATCH)
    complaint = rf"{topic}-0 from 0 to 9: timed out after 300 ms \(.*\) waiting for records at offset 5"
    with pytest.raises(TimedOutError, match=complaint):
        list(read_range(options, ReadColumns(ALL_COLUMNS), OffsetRange(topic, 0, 0, 9)))


def test_a_missing_broker_fails_at_once():
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "kafka.default.api.timeout.ms": "300"}
    with pytest.raises(PlanError, match="is a broker running there"):
        BatchReader(options, schema(ALL_COLUMNS)).partitions()


# -- what a worker keeps -----------------------------------------------------------------------


def test_tasks_of_a_worker_reuse_a_fetcher(either, monkeypatch):
    topic = new_topic(either, "kept", 4)
    for partition in range(4):
        librdkafka.produce(either.bootstrap, topic, records(10), partition=partition)
    made = []

    def make(options):
        made.append(KeptFetcher(options))
        return made[-1]

    monkeypatch.setattr(reading, "KeptFetcher", make)
    assert len(read_all(batch_reader(either, topic))) == 40
    assert len(made) == 1
    FETCHERS.close_idle()
    assert len(read_all(batch_reader(either, topic))) == 40
    assert len(made) == 2


def test_a_reader_that_stops_early_releases_its_fetcher(either):
    topic = new_topic(either, "early")
    for start in range(0, 5000, 500):
        librdkafka.produce(either.bootstrap, topic, records(500, start=start))
    reader = batch_reader(either, topic, kafka_max_partition_fetch_bytes=1000)
    (partition,) = reader.partitions()
    with closing(cast("Generator[pa.RecordBatch]", reader.read(partition))) as rows:
        next(rows)


def test_a_task_without_a_range_has_no_rows(either):
    topic = new_topic(either, "empty")
    reader = batch_reader(either, topic)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_partitions_of_a_grown_topic_are_read(either):
    topic = new_topic(either, "grown")
    librdkafka.produce(either.bootstrap, topic, records(5))
    assert len(read_all(batch_reader(either, topic))) == 5
    grow_topic(either, topic, 3)
    eventually("the new partition", lambda: len(_partitions(either, topic)) == 3)
    librdkafka.produce(either.bootstrap, topic, records(5, start=5), partition=2)
    assert values_of(read_all(batch_reader(either, topic))) == numbered(range(10))


def _partitions(broker, topic):
    with AdminClient(broker.bootstrap) as admin:
        return admin.describe_topics([topic])[topic].partitions


# -- in Spark ----------------------------------------------------------------------------------


def load(spark, broker, topic, **options):
    return spark.read.format("headrace").options(**options_of(broker, topic, **options)).load()


@pytest.mark.every_run
@pytest.mark.behaviour("S03")
def test_spark_finds_the_source_and_reads_every_row(spark, either):
    topic = new_topic(either, "in-spark", 3)
    for partition, (sent, codec) in enumerate(((small(), "none"), (large(), "zstd"), ([], "none"))):
        librdkafka.produce(either.bootstrap, topic, sent, codec=codec, partition=partition)
    frame = load(spark, either, topic, includeHeaders=True, minPartitions=6)
    assert frame.schema == schema(ALL_COLUMNS)
    assert frame.rdd.getNumPartitions() >= 6
    rows = {(row.partition, row.offset): row.asDict(recursive=True) for row in frame.collect()}
    expected = as_rows(topic, 0, librdkafka.consume(either.bootstrap, topic, len(small())))
    expected += as_rows(topic, 1, librdkafka.consume(either.bootstrap, topic, len(large()), partition=1))
    assert len(rows) == len(expected)
    for row in expected:
        # Spark's rows have times without a zone, in that of the process.
        row["timestamp"] = row["timestamp"].astimezone().replace(tzinfo=None)
        assert rows[row["partition"], row["offset"]] == row


def test_spark_may_stop_reading_early(spark, either):
    topic = new_topic(either, "some", 2)
    for partition in range(2):
        for start in range(0, 2000, 500):
            librdkafka.produce(either.bootstrap, topic, records(500, start=start), partition=partition)
    assert load(spark, either, topic).count() == 4000
    assert len(load(spark, either, topic).limit(5).collect()) == 5
    assert load(spark, either, topic).where("offset >= 1990").count() == 20
    assert load(spark, either, new_topic(either, "nothing")).count() == 0
    some = spark.read.format("headrace").schema(schema(["value", "offset"])).options(**options_of(either, topic)).load()
    assert some.columns == ["value", "offset"]
    assert some.where("offset = 7").first().value == b"row 7"


def test_spark_shows_the_error_of_an_option(spark, either):
    with pytest.raises(Exception, match="startingOffsets is 'first'; it may be earliest, latest, or JSON"):
        load(spark, either, "t", startingOffsets="first")
    wrong = spark.read.format("headrace").schema("value STRING").options(**options_of(either, "t")).load()
    with pytest.raises(Exception, match="column value as string; the source gives binary"):
        wrong.collect()
    missing = unique("missing")
    with pytest.raises(Exception, match=f"{missing}: not on the cluster"):
        load(spark, either, missing).collect()
