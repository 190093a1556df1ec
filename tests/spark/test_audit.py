"""The audit reports all differences, and nothing else."""

from __future__ import annotations

import pytest

from headrace import Producer
from headrace.errors import ConfigError
from headrace.spark import audit
from headrace.spark.errors import SparkError
from tests.support.topics import new_topic

ORDER = "CAST(CAST(value AS STRING) AS BIGINT)"


@pytest.fixture
def planted(spark, headrace_broker):
    """A function: a topic with these records, of (key, value[, partition]), and its options."""

    def plant(records, partitions=1):
        topic = new_topic(headrace_broker, "audited", partitions)
        with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
            for key, value, *partition in records:
                producer.send(topic, value, key=key, partition=partition[0] if partition else 0)
            producer.flush()
        return topic, {"kafka.bootstrap.servers": headrace_broker.bootstrap}

    return plant


def rows(spark, *pairs):
    return spark.createDataFrame([*pairs], "key STRING, value STRING")


def numbered(count):
    return [(f"k{i % 5}", str(i)) for i in range(count)]


def as_bytes(pairs):
    return [(None if k is None else k.encode(), None if v is None else v.encode()) for k, v in pairs]


@pytest.mark.every_run
@pytest.mark.behaviour("S09")
def test_equal_source_and_topic_have_no_differences(spark, planted):
    topic, options = planted(as_bytes(numbered(500)))
    report = audit(rows(spark, *numbered(500)), topic, options=options, order=ORDER)
    assert report
    assert (report.source_rows, report.topic_rows, report.matched, report.out_of_order) == (500, 500, 500, 0)
    assert not report.examples


@pytest.mark.every_run
@pytest.mark.behaviour("S09")
def test_lost_duplicated_unexpected_and_unordered_rows_are_counted(spark, planted):
    sent = numbered(500)
    held = [pair for pair in sent if pair[1] not in ("7", "8")]  # two lost
    held.insert(100, sent[50])  # a duplicate, and out of order: 50 after 90 and 95 of the same key
    held += [("x", "stranger"), ("x", "stranger")]
    held[200], held[205] = held[205], held[200]
    topic, options = planted(as_bytes(held))
    in_order = "TRY_CAST(CAST(value AS STRING) AS BIGINT)"
    report = audit(rows(spark, *sent), topic, options=options, order=in_order)
    assert not report
    assert (report.lost, report.duplicated, report.unexpected) == (2, 1, 2)
    assert (report.source_rows, report.topic_rows, report.matched) == (500, 501, 498)
    assert report.out_of_order == 2
    assert {example.value for example in report.examples["lost"]} == {"7", "8"}
    (double,) = report.examples["duplicated"]
    assert (double.key, double.value, [record.offset for record in double.records]) == ("k0", "50", [48, 100])
    (stranger,) = report.examples["unexpected"]
    assert [record.offset for record in stranger.records] == [499, 500]
    late = report.examples["out_of_order"]
    assert (late[0].value, late[0].order) == ("50", "50")
    assert {record.topic for example in late for record in example.records} == {topic}


def test_repeated_rows_are_compared_by_their_counts(spark, planted):
    topic, options = planted([(b"k", b"v")] * 3 + [(None, b"v"), (b"v", None)])
    source = rows(spark, ("k", "v"), ("k", "v"), ("k", "v"), (None, "v"), ("v", None))
    assert audit(source, topic, options=options)
    report = audit(source.union(source), topic, options=options)
    assert (report.lost, report.matched, report.duplicated) == (5, 5, 0)
    fewer = rows(spark, ("k", "v"), ("v", None))
    report = audit(fewer, topic, options=options)
    assert (report.lost, report.duplicated, report.unexpected, report.matched) == (0, 2, 1, 2)


def test_null_and_empty_values_are_different(spark, planted):
    topic, options = planted([(b"", b"a"), (None, b"b")])
    report = audit(rows(spark, (None, "a"), ("", "b")), topic, options=options)
    assert (report.lost, report.unexpected) == (2, 2)


def test_aborted_records_are_not_compared(spark, planted, headrace_broker):
    topic, options = planted(as_bytes(numbered(10)))
    with Producer(bootstrap_servers=headrace_broker.bootstrap, transactional_id=f"{topic}-t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never", key=b"k")
        producer.flush()
        producer.abort_transaction()
    assert audit(rows(spark, *numbered(10)), topic, options=options)


def test_rows_are_compared_by_an_id(spark, planted):
    topic, options = planted([(b"k", b'{"id": 1, "at": "noon"}'), (b"k", b'{"id": 2, "at": "night"}')])
    source = spark.createDataFrame([(1,), (2,), (3,)], "id INT")
    of_topic = "get_json_object(CAST(value AS STRING), '$.id')"
    report = audit(source, topic, options=options, id=of_topic, source_id="id")
    assert (report.lost, report.matched, report.unexpected) == (1, 2, 0)
    assert report.examples["lost"][0].value is None


def test_order_by_a_column_of_the_source(spark, planted):
    topic, options = planted([(b"k", b"a"), (b"k", b"c"), (b"k", b"b"), (b"l", b"a")])
    source = spark.createDataFrame(
        [("k", "a", 1), ("k", "b", 2), ("k", "c", 3), ("l", "a", 0)], "key STRING, value STRING, seq INT"
    )
    report = audit(source, topic, options=options, order="seq")
    assert (report.lost, report.out_of_order) == (0, 1)
    assert [(example.key, example.value) for example in report.examples["out_of_order"]] == [("k", "b")]


def test_keys_in_several_partitions_have_an_order_in_each(spark, planted):
    topic, options = planted([(b"k", b"5", 0), (b"k", b"1", 1), (b"k", b"6", 0), (b"k", b"2", 1)], partitions=2)
    source = rows(spark, ("k", "5"), ("k", "1"), ("k", "6"), ("k", "2"))
    assert audit(source, topic, options=options, order=ORDER)


def test_the_number_of_examples_is_limited(spark, planted):
    topic, options = planted([])
    source = rows(spark, *numbered(300))
    assert len(audit(source, topic, options=options, examples=7).examples["lost"]) == 7
    none = audit(source, topic, options=options, examples=0)
    assert (none.lost, none.examples) == (300, {})


def test_data_that_cannot_be_compared_is_refused(spark, planted):
    topic, options = planted([(b"k", b"v")])
    source = rows(spark, ("k", "v"))
    with pytest.raises(ConfigError, match=r"the source has no column value \(it has id\)"):
        audit(spark.range(1), topic, options=options)
    with pytest.raises(ConfigError, match="column value of the source is bigint; it may be binary or string"):
        audit(spark.range(1).toDF("value"), topic, options=options)
    with pytest.raises(ConfigError, match=r"invalid id 'nope' for the source: .*nope"):
        audit(source, topic, options=options, id="value", source_id="nope")
    with pytest.raises(ConfigError, match="order is 'nope'; it may be an expression over the columns of the topic"):
        audit(source, topic, options=options, order="nope")
    with pytest.raises(SparkError, match="no-such-topic"):
        audit(source, "no-such-topic", options=options)
    with pytest.raises(SparkError, match=r"bootstrap\.servers"):
        audit(source, topic)
