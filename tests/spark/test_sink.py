"""The batch sink: DataFrames into topics, exactly once."""

from __future__ import annotations

import datetime

import pytest

from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from tests.support.crashes import committed, open_transactions, settle
from tests.support.topics import new_topic, unique

MODES = ["inline", "parallel"]
LARGE = 4000


def write(frame, broker, topic=None, **options):
    writer = frame.write.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap).mode("append")
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def values(broker, topic):
    return sorted((value or b"").decode() for rows in committed(broker.bootstrap, topic).values() for _, value in rows)


def numbers(spark, count, tasks=3):
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id % 10 AS STRING) key", "CAST(id AS STRING) value")


def expected(count):
    return sorted(str(n) for n in range(count))


@pytest.mark.every_run("apache-inline", "headrace-parallel", "headrace-auto")
@pytest.mark.behaviour("S01", "S02")
@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_a_dataframe_is_written_once_and_completely(spark, either, mode):
    topic = new_topic(either, "batch", 3)
    write(numbers(spark, LARGE), either, topic, commit__mode=mode)
    result = committed(either.bootstrap, topic)
    assert sorted((value or b"").decode() for rows in result.values() for _, value in rows) == expected(LARGE)
    by_key = {
        key: {partition for partition, rows in result.items() for k, _ in rows if k == key} for key in (b"0", b"7")
    }
    assert all(len(partitions) == 1 for partitions in by_key.values())  # by key, as every producer does
    settle(either.bootstrap, topic)
    assert not open_transactions(either.bootstrap, topic)


def test_nothing_is_visible_before_the_commit_and_then_everything(spark, kafka):
    """A task fails after others have written: nothing of the batch is ever seen."""
    topic = new_topic(kafka, "whole", 2)
    frame = spark.range(0, 1000, 1, 4).selectExpr("CAST(IF(id = 999, raise_error('broken row'), id) AS STRING) value")
    with pytest.raises(Exception, match="broken row"):
        write(frame, kafka, topic, commit__mode="parallel")
    assert values(kafka, topic) == []
    settle(kafka.bootstrap, topic)
    assert not open_transactions(kafka.bootstrap, topic)


@pytest.mark.behaviour("S02")
@pytest.mark.parametrize("mode", MODES)
def test_all_columns_arrive(spark, either, mode):
    topics = [new_topic(either, name, 2) for name in ("left", "right")]
    stamp = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000)
    rows = [
        (b"k1", b"v1", [("h", b"1"), ("h", None)], topics[0], 1, stamp),
        (None, None, None, topics[1], None, None),
        (b"k3", b"v3", [], topics[0], 0, stamp),
    ]
    kinds = "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, partition INT"
    write(spark.createDataFrame(rows, f"{kinds}, timestamp TIMESTAMP"), either, commit__mode=mode)
    for topic in topics:
        settle(either.bootstrap, topic)
    with Fetcher(either.bootstrap) as fetcher:
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(2)]
        fetcher.assign(partitions, until=fetcher.end_offsets(partitions))
        result = []
        while not fetcher.is_finished():
            result += fetcher.poll(1000)
    left = {record.partition: record for record in result if record.topic == topics[0]}
    (right,) = [record for record in result if record.topic == topics[1]]
    assert (left[1].key, left[1].value, left[1].headers) == (b"k1", b"v1", (("h", b"1"), ("h", None)))
    assert left[1].timestamp == int(stamp.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    assert (left[0].key, left[0].headers) == (b"k3", ())
    assert (right.key, right.value, right.headers) == (None, None, ())


@pytest.mark.every_run("apache-parallel", "headrace-inline")
@pytest.mark.parametrize("mode", MODES)
def test_a_second_write_with_the_same_id_delivers_nothing(spark, either, mode):
    topic, write_id = new_topic(either, "again", 2), unique("job")
    for _ in range(2):
        write(numbers(spark, 300), either, topic, commit__mode=mode, write__id=write_id)
    write(numbers(spark, 10), either, topic, commit__mode=mode, write__id=write_id + "-other")
    assert values(either, topic) == sorted(expected(300) + expected(10))
    settle(either.bootstrap, topic)
    assert not open_transactions(either.bootstrap, topic)


@pytest.mark.every_run
@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("mode", MODES)
def test_a_write_id_that_was_used_for_other_rows_is_refused(spark, headrace_broker, mode):
    topic, write_id = new_topic(headrace_broker, "reused", 2), unique("job")
    write(numbers(spark, 300), headrace_broker, topic, commit__mode=mode, write__id=write_id)
    refused = (
        rf"write\.id '{write_id}' was used before for other rows: now 200 rows with hash [0-9a-f]{{16}}; then 300 "
        r"rows with hash [0-9a-f]{16}, decided by run write-[0-9a-f]{32} \(host \S+, process \d+, started "
        r"\S+ \S+ UTC\) at \S+ \S+ UTC\. Nothing of this write is visible\. Use a new write\.id for new rows; to "
        r"repeat a write, give it the rows that it had"
    )
    with pytest.raises(Exception, match=refused):
        write(numbers(spark, 200), headrace_broker, topic, commit__mode=mode, write__id=write_id)
    assert values(headrace_broker, topic) == expected(300)
    settle(headrace_broker.bootstrap, topic)
    assert not open_transactions(headrace_broker.bootstrap, topic)


def test_the_next_write_finishes_a_decided_write_that_crashed(spark, either, tmp_path):
    """Without write.id it is not recognised, but sink.id is enough to carry out its decision."""
    topic, sink = new_topic(either, "half", 2), unique("sink")
    died = f"markers={tmp_path}, end.between=kill, abort.begin=kill"
    with pytest.raises(Exception, match=r"crashed|EOF|connection|Python worker"):
        write(numbers(spark, 300), either, topic, commit__mode="parallel", sink__id=sink, headrace__failpoints=died)
    assert open_transactions(either.bootstrap, topic)
    assert len(values(either, topic)) < 300
    write(numbers(spark, 10), either, topic, sink__id=sink)
    assert values(either, topic) == sorted(expected(300) + expected(10))
    assert not open_transactions(either.bootstrap, topic)


def test_at_least_once_writes_without_transactions(spark, either):
    topic = new_topic(either, "plain", 2)
    write(numbers(spark, 1000), either, topic, delivery="at-least-once")
    assert values(either, topic) == expected(1000)


@pytest.mark.every_run("apache-inline", "headrace-parallel")
@pytest.mark.behaviour("S07")
@pytest.mark.parametrize("mode", MODES)
def test_bad_rows_go_to_the_dead_letter_topic_in_the_same_commit(spark, either, mode):
    topic, dead = new_topic(either, "letters"), new_topic(either, "dead")
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "IF(id % 5 = 0, repeat('x', 5000), CAST(id AS STRING)) value", f"IF(id = 7, NULL, '{topic}') topic"
    )
    options = {"on__bad__row": "dead-letter", "dead__letter__topic": dead, "kafka__max__request__size": 4000}
    write(frame, either, commit__mode=mode, **options)
    assert values(either, topic) == sorted(str(n) for n in range(20) if n % 5 and n != 7)
    assert len(values(either, dead)) == 5
    with pytest.raises(Exception, match=r"kafka\.max\.request\.size is 4000"):
        write(frame, either, topic, commit__mode=mode, kafka__max__request__size=4000)
    assert len(values(either, topic)) == 15


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id"], {}, "there is no column 'value'"),
        (["id AS value"], {}, "column 'value' is bigint; it may be string or binary"),
        (["CAST(id AS STRING) value"], {"topic": "there-is-no-such-topic"}, "set topic.create=true"),
        (["CAST(id AS STRING) value"], {"topic": "not a name!"}, "INVALID_TOPIC_EXCEPTION"),
        (["CAST(id AS STRING) value"], {"topic": None}, "set the option 'topic', or add a column"),
        (["CAST(id AS STRING) value"], {"delivery": "twice"}, "it may be exactly-once, at-least-once"),
        (["CAST(id AS STRING) value"], {"kafka.acks": "0"}, "acks is 0"),
        (
            ["CAST(id AS STRING) value"],
            {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "700"},
            "cannot connect to 127.0.0.1:1",
        ),
    ],
)
def test_invalid_writes_fail_when_they_are_planned(spark, kafka, columns, options, message):
    topic = new_topic(kafka, "wrong")
    given = {"topic": topic, **options}
    frame = spark.range(3).selectExpr(*columns)
    writer = frame.write.format("headrace").option("kafka.bootstrap.servers", kafka.bootstrap).mode("append")
    for name, value in given.items():
        writer = writer if value is None else writer.option(name, value)
    with pytest.raises(Exception, match=message):
        writer.save()
    assert values(kafka, topic) == []


def test_a_null_topic_fails_the_write_and_names_the_row(spark, kafka):
    topic = new_topic(kafka, "null")
    frame = spark.range(0, 10, 1, 1).selectExpr("CAST(id AS STRING) value", f"IF(id = 4, NULL, '{topic}') topic")
    with pytest.raises(Exception, match="row 4: its topic is null"):
        write(frame, kafka)
    assert values(kafka, topic) == []


def test_a_topic_cannot_be_overwritten(spark, kafka):
    topic = new_topic(kafka, "over")
    frame = spark.range(3).selectExpr("CAST(id AS STRING) value")
    with pytest.raises(Exception, match=r"append|overwrite|truncate"):
        frame.write.format("headrace").options(**{"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}).mode(
            "overwrite"
        ).save()
