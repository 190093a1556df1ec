"""Partitions that are added to a topic while a query writes to it."""

from __future__ import annotations

import itertools
import time

import pytest
from confluent_kafka import Producer

from headrace.spark.errors import explain
from tests.support.crashes import committed
from tests.support.source_rig import grow_topic
from tests.support.topics import new_topic
from tests.support.waiting import eventually

SECONDS_MAX = 60
MODES = ["inline", pytest.param("parallel", marks=pytest.mark.every_run)]
KEYS = [f"key-{n}" for n in range(40)]


class RunningSink:
    """A stream from files to a topic that runs until it is stopped. Each line is "key value partition"."""

    def __init__(self, spark, folder, broker, topic, columns, **options):
        self._folder, self._numbers = folder, itertools.count()
        self._bootstrap, self._topic = broker.bootstrap, topic
        source = folder / "source"
        source.mkdir()
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        rows = rows.selectExpr("split_part(value, ' ', 1) key", "value", "CAST(split_part(value, ' ', 3) AS INT) p")
        given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic} | options
        writer = rows.repartition(2).selectExpr(*columns).writeStream.format("headrace").options(**given)
        self.query = (
            writer.option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def write(self, keys, partition=""):
        """Add a batch, and return its rows with their partitions when they are committed."""
        number = next(self._numbers)
        lines = [f"{key} batch-{number} {partition}" for key in keys]
        (self._folder / "part").write_text("\n".join(lines) + "\n")
        (self._folder / "part").rename(self._folder / "source" / f"{number}.txt")
        eventually(f"batch {number}", lambda: len(self._found(number)) >= len(lines) or not self.query.isActive, 60)
        if self.query.exception() is not None:
            raise self.query.exception()
        return self._found(number)

    def _found(self, number):
        return {
            (key or b"").decode(): partition
            for partition, records in committed(self._bootstrap, self._topic).items()
            for key, value in records
            if f"batch-{number} " in (value or b"").decode()
        }


def placed_by_librdkafka(broker, topic, keys):
    """Where another client's murmur2 puts these keys."""
    placed = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "log_level": 0})
    for key in keys:
        producer.produce(
            topic, b"", key, on_delivery=lambda _, m: placed.update({(m.key() or b"").decode(): m.partition()})
        )
    assert producer.flush(SECONDS_MAX) == 0
    return placed


@pytest.mark.behaviour("S14")
@pytest.mark.parametrize("mode", MODES)
def test_keyed_rows_reach_a_partition_that_is_added_to_a_running_query(spark, headrace_broker, tmp_path, mode):
    topic = new_topic(headrace_broker, "added", 3)
    options = {"commit.mode": mode, "kafka.metadata.max.age.ms": "500"}
    sink = RunningSink(spark, tmp_path, headrace_broker, topic, ["key", "value"], **options)
    try:
        assert set(sink.write(KEYS).values()) == {0, 1, 2}
        grow_topic(headrace_broker, topic, 4)
        expected = placed_by_librdkafka(headrace_broker, topic, KEYS)
        assert set(expected.values()) == {0, 1, 2, 3}
        eventually("rows where other producers put them", lambda: sink.write(KEYS) == expected, SECONDS_MAX)
        assert sink.write(KEYS) == expected
    finally:
        sink.query.stop()


@pytest.mark.behaviour("S14")
@pytest.mark.parametrize("mode", MODES)
def test_a_row_may_name_a_partition_as_soon_as_it_is_added(spark, headrace_broker, tmp_path, mode):
    """With the default metadata.max.age.ms of five minutes."""
    topic = new_topic(headrace_broker, "named", 3)
    columns = ["key", "value", "p AS partition"]
    sink = RunningSink(spark, tmp_path, headrace_broker, topic, columns, **{"commit.mode": mode})
    try:
        assert set(sink.write(KEYS, 2).values()) == {2}
        grow_topic(headrace_broker, topic, 4)
        assert set(sink.write(KEYS, 3).values()) == {3}
        started = time.monotonic()
        with pytest.raises(Exception, match="its partition is 9, but the topic has partitions 0 to 3") as caught:
            sink.write(KEYS, 9)
        assert "Nothing of the batch is visible" in explain(caught.value)
        assert time.monotonic() - started < SECONDS_MAX / 2
    finally:
        sink.query.stop()
