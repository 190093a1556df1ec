"""topic.create with Spark: batches and streams, topics of options and topics that rows name."""

from __future__ import annotations

import time

import pytest

from headrace.broker.ports import free_port
from headrace.client.admin import AdminClient
from headrace.spark.errors import explain
from tests.support.crashes import committed
from tests.support.topics import new_topic, unique

SECONDS_MAX = 60
CREATE = {"topic.create": "true", "topic.partitions": "2"}


def values_in(broker, topic):
    return sorted(
        (value or b"").decode() for records in committed(broker.bootstrap, topic).values() for _, value in records
    )


def partitions_of(broker, topic):
    with AdminClient(broker.bootstrap) as admin:
        return len(admin.describe_topics([topic])[topic].partitions)


@pytest.mark.every_run
def test_a_batch_and_a_stream_create_their_topics(spark, headrace_broker, tmp_path):
    """The batch creates the topic of an option, the stream those that rows name, in transactions of its tasks."""
    fixed, even, odd = unique("fixed"), unique("even"), unique("odd")
    options = {"kafka.bootstrap.servers": headrace_broker.bootstrap, **CREATE}
    frame = spark.range(0, 4, 1, 2).selectExpr("CAST(id AS STRING) value")
    frame.write.format("headrace").options(topic=fixed, **options).mode("append").save()
    assert values_in(headrace_broker, fixed) == ["0", "1", "2", "3"]
    source = tmp_path / "source"
    source.mkdir()
    (source / "rows.txt").write_text("0\n1\n2\n3\n")
    rows = spark.readStream.text(str(source)).selectExpr("value", f"IF(value % 2 = 0, '{even}', '{odd}') topic")
    writer = rows.writeStream.format("headrace").options(**options, **{"commit.mode": "parallel"})
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(SECONDS_MAX)
    assert (values_in(headrace_broker, even), values_in(headrace_broker, odd)) == (["0", "2"], ["1", "3"])
    assert [partitions_of(headrace_broker, topic) for topic in (fixed, even, odd)] == [2, 2, 2]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("mode", ["inline", "parallel"])
def test_rows_of_several_tasks_create_one_topic(spark, either, delivery, mode):
    topic = unique("shared")
    options = {"kafka.bootstrap.servers": either.bootstrap, "delivery": delivery, "commit.mode": mode, **CREATE}
    frame = spark.range(0, 8, 1, 4).selectExpr("CAST(id AS STRING) value", f"'{topic}' topic")
    frame.write.format("headrace").options(**options).mode("append").save()
    assert values_in(either, topic) == [*"01234567"]
    assert partitions_of(either, topic) == 2


@pytest.mark.every_run
def test_a_misspelt_kafka_option_is_refused_with_the_nearest_name(spark, headrace_broker):
    options = {"kafka.bootstrap.servers": headrace_broker.bootstrap, "kafka.linger.m": "5", "topic": "t"}
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's kind says nothing
        spark.range(3).selectExpr("CAST(id AS STRING) value").write.format("headrace").options(**options).mode(
            "append"
        ).save()
    assert explain(caught.value) == "there is no option 'kafka.linger.m'; did you mean 'kafka.linger.ms'?"
    source = spark.read.format("headrace").options(**{**options, "subscribe": "t"})
    with pytest.raises(Exception, match=r"there is no option 'kafka\.linger\.m'; did you mean 'kafka\.linger\.ms'"):
        source.load()


@pytest.mark.parametrize("is_source", [True, False], ids=["source", "sink"])
def test_a_refused_connection_fails_a_query_within_ten_seconds(spark, headrace_broker, is_source):
    def run(address, topic):
        options = {"kafka.bootstrap.servers": address, "topic": topic, "subscribe": topic}
        if is_source:
            spark.read.format("headrace").options(**options).load().collect()
        else:
            rows = spark.range(3).selectExpr("CAST(id AS STRING) value")
            rows.write.format("headrace").options(**options).mode("append").save()

    run(headrace_broker.bootstrap, new_topic(headrace_broker, "reached"))  # starts Spark's Python processes
    started = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's kind says nothing
        run(f"127.0.0.1:{free_port()}", "t")
    assert time.monotonic() - started < 10
    assert "Connection refused; is a broker running there?" in explain(caught.value)
