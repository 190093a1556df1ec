"""The source as a stream, on Apache Kafka and on headrace's broker; without Spark, then with Spark."""

from __future__ import annotations

import json
import logging
import pickle

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from headrace.client.admin import AdminClient
from headrace.errors import BrokerError
from headrace.spark.lookup import Lookup
from headrace.spark.planning import DataLossError
from headrace.spark.progress import BatchProgress
from headrace.spark.reading import FETCHERS
from headrace.spark.source_progress import SourceProgress
from headrace.types import TopicPartition
from tests.support.peers import librdkafka
from tests.support.source_rig import (
    TIME_MS,
    delete_before,
    delete_topic,
    grow_topic,
    numbered,
    options_of,
    read_between,
    records,
    recreate_topic,
    stream_reader,
    topic_id,
    values_of,
)
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

ALL = ReadAllAvailable()
QUERY_SECONDS_MAX = 90


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    FETCHERS.close_idle()


@pytest.fixture
def reader(either, request):
    """Creates readers, and stops them after the test."""
    made = []

    def make(topic, **options):
        made.append(stream_reader(either, topic, **options))
        return made[-1]

    yield make
    for made_reader in made:
        made_reader.stop()


def send(broker, topic, count, start=0, partition=0):
    librdkafka.produce(broker.bootstrap, topic, records(count, start=start), partition=partition)


def journey(position):
    """As through Spark's log of offsets."""
    return json.loads(json.dumps(position))


def test_micro_batches_follow_one_another_without_a_gap(either, reader):
    topic = new_topic(either, "follow", 2)
    send(either, topic, 10)
    stream = reader(topic, startingOffsets="earliest")
    start = journey(stream.initialOffset())
    ids = {topic: topic_id(either, topic)}
    assert start == {topic: {"0": 0, "1": 0}, "@initial": True, "@topic-ids": ids}
    end = journey(stream.latestOffset(start, ALL))
    assert end == {topic: {"0": 10, "1": 0}, "@begin": {topic: {"0": 0, "1": 0}}, "@topic-ids": ids}
    assert values_of(read_between(stream, start, end)) == numbered(range(10))
    assert journey(stream.latestOffset(end, ALL)) == end  # nothing new: the same text
    send(either, topic, 5, start=10)
    send(either, topic, 3, partition=1)
    later = journey(stream.latestOffset(end, ALL))
    assert later == {topic: {"0": 15, "1": 3}, "@topic-ids": ids}
    assert values_of(read_between(stream, end, later)) == numbered([*range(10, 15), *range(3)])
    assert stream.reportLatestOffset().items() >= later.items()
    assert stream.partitions(later, later) == []


def test_latest_offset_carries_name_lag_and_newest_timestamp(either, reader):
    topic = new_topic(either, "figures", 2)
    send(either, topic, 10)
    stream = reader(topic, startingOffsets="earliest")
    end = journey(stream.latestOffset(journey(stream.initialOffset()), ReadMaxRows(4)))
    figures = journey(stream.reportLatestOffset())
    progress = SourceProgress.of_json({"description": "PythonTable@1", "endOffset": end, "latestOffset": figures})
    assert progress.name == figures["@source"] == f"{topic} at {either.bootstrap}"
    assert (figures["@lag"], progress.lag) == ({topic: 6}, 6)
    newest_ms = records(10)[-1].timestamp
    assert progress.topics() == [(topic, 2, 6, newest_ms)]


def test_timestamp_that_is_no_date_does_not_end_the_query(either, reader):
    topic = new_topic(either, "micros", message_timestamp_after_max_ms=2**63 - 1)
    record = records(1)[0]._replace(timestamp=TIME_MS * 1000)
    librdkafka.produce(either.bootstrap, topic, [record], partition=0)
    stream = reader(topic, startingOffsets="earliest")
    end = journey(stream.latestOffset(journey(stream.initialOffset()), ALL))
    figures = journey(stream.reportLatestOffset())
    assert (figures[topic], figures["@lag"]) == (end[topic], {topic: 0})
    assert "@newest" not in figures


def test_unexpected_error_leaves_the_figures_out_with_one_warning(headrace_broker, monkeypatch, caplog):
    topic = new_topic(headrace_broker, "no-figures")
    stream = stream_reader(headrace_broker, topic)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    monkeypatch.setattr(Lookup, "newest_ms", lambda *_: 1 / 0)
    monkeypatch.setattr("headrace.spark.source.NEWEST_SECONDS", 0.0)
    shown = [journey(stream.reportLatestOffset()) for _ in range(2)]
    stream.stop()
    assert [figures[topic] for figures in shown] == [end[topic]] * 2
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "no lag in the progress of the query" in warning.getMessage()


def test_a_stream_begins_at_latest_by_default_also_after_a_crash_in_its_first_batch(either, reader):
    topic = new_topic(either, "pinned")
    send(either, topic, 10)
    stream = reader(topic)
    start = journey(stream.initialOffset())
    send(either, topic, 5, start=10)
    assert journey(stream.initialOffset()) == start
    end = journey(stream.latestOffset(start, ALL))
    assert values_of(read_between(stream, start, end)) == numbered(range(10, 15))
    # The driver is killed; Spark has the end in its log and calls initialOffset again, after more rows were written.
    send(either, topic, 5, start=15)
    again = reader(topic)
    restart = journey(again.initialOffset())
    assert restart[topic] == {"0": 20}
    assert values_of(read_between(again, restart, end)) == numbered(range(10, 15))
    assert journey(again.latestOffset(end, ALL))[topic] == {"0": 20}


def test_spark_40_calls_latest_offset_first_and_without_a_start(either, reader):
    topic = new_topic(either, "old-api")
    send(either, topic, 10)
    stream = reader(topic)
    first = journey(stream.latestOffset())
    send(either, topic, 5, start=10)
    start = journey(stream.initialOffset())
    assert read_between(stream, start, first) == []
    second = journey(stream.latestOffset())
    assert values_of(read_between(stream, first, second)) == numbered(range(10, 15))
    again = reader(topic)  # after a restart: initialOffset of that run is ignored
    send(either, topic, 5, start=15)
    third = journey(again.latestOffset())
    assert values_of(read_between(again, second, third)) == numbered(range(15, 20))


def test_limits_bound_the_size_of_a_micro_batch(either, reader):
    topic = new_topic(either, "limits", 2)
    send(either, topic, 300)
    send(either, topic, 100, partition=1)
    stream = reader(topic, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    assert stream.getDefaultReadLimit() == ReadMaxRows(100)
    position, read = journey(stream.initialOffset()), []
    while (end := journey(stream.latestOffset(position, ReadMaxRows(100)))) != position:
        read.append(len(read_between(stream, position, end)))
        position = end
    assert sum(read) == 400
    assert max(read) <= 101
    assert position[topic] == {"0": 300, "1": 100}
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL)[topic] == {"0": 300, "1": 100}  # ReadAllAvailable has no limit


def test_a_micro_batch_waits_for_enough_offsets_but_not_for_ever(either, reader):
    topic = new_topic(either, "least")
    send(either, topic, 10)
    stream = reader(topic, startingOffsets="earliest", minOffsetsPerTrigger=20, maxTriggerDelay="1h")
    assert stream.getDefaultReadLimit() == ReadMinRows(20)
    start = journey(stream.initialOffset())
    waiting = journey(stream.latestOffset(start, ReadMinRows(20)))
    assert waiting[topic] == {"0": 0}
    assert journey(stream.latestOffset(waiting, ReadMinRows(20))) == waiting
    send(either, topic, 10, start=10)
    assert stream.latestOffset(waiting, ReadMinRows(20))[topic] == {"0": 20}
    soon = reader(topic, startingOffsets="earliest", minOffsetsPerTrigger=50, maxTriggerDelay="0ms")
    assert soon.latestOffset(soon.initialOffset(), ReadMinRows(50))[topic] == {"0": 20}
    both = reader(topic, startingOffsets="earliest", minOffsetsPerTrigger=5, maxOffsetsPerTrigger=7)
    assert both.latestOffset(both.initialOffset(), ReadMaxRows(7))[topic] == {"0": 7}


def test_available_now_ignores_rows_written_after_its_start(either, reader):
    topic = new_topic(either, "now")
    send(either, topic, 10)
    stream = reader(topic, startingOffsets="earliest", minOffsetsPerTrigger=50, maxOffsetsPerTrigger=60)
    stream.prepareForTriggerAvailableNow()
    send(either, topic, 10, start=10)
    grow_topic(either, topic, 2)
    start = journey(stream.initialOffset())
    end = journey(stream.latestOffset(start, ReadMaxRows(60)))
    assert values_of(read_between(stream, start, end)) == numbered(range(10))
    assert journey(stream.latestOffset(end, ReadMaxRows(60))) == end
    # A query that begins at the end reads nothing, even if the end has moved since.
    stream = reader(topic)
    stream.prepareForTriggerAvailableNow()
    send(either, topic, 10, start=20)
    start = journey(stream.initialOffset())
    assert stream.latestOffset(start, ALL)[topic] == start[topic]


def test_new_partitions_and_topics_are_read_from_their_beginning(either, reader):
    prefix = unique("grows")
    topic = either.create_topic(f"{prefix}-a")
    send(either, topic, 5)
    stream = reader(None, subscribePattern=f"{prefix}-.*")
    start = journey(stream.initialOffset())
    assert start[topic] == {"0": 5}
    grow_topic(either, topic, 2)
    eventually("the new partition", lambda: len(_partitions(either, topic)) == 2)
    send(either, topic, 4, partition=1)
    other = either.create_topic(f"{prefix}-b")
    send(either, other, 3)
    end = journey(stream.latestOffset(start, ALL))
    assert end[topic] == {"0": 5, "1": 4}
    assert end[other] == {"0": 3}
    assert values_of(read_between(stream, start, end)) == numbered([*range(4), *range(3)])
    limited = stream.latestOffset(start, ReadMaxRows(2))
    assert values_of(read_between(stream, start, limited)) == numbered([0, 0])  # none starves


def test_rows_deleted_before_they_were_read_are_data_loss(either, reader, caplog):
    topic = new_topic(either, "deleted")
    send(either, topic, 20)
    strict, lenient = reader(topic, startingOffsets="earliest"), reader(topic, failOnDataLoss=False)
    start = journey(strict.initialOffset())
    end = journey(strict.latestOffset(start, ALL))
    delete_before(either, topic, 8)
    with pytest.raises(DataLossError, match=f"{topic}-0 begins at offset 8; 0 up to 20 were to be read.*failOnData"):
        strict.partitions(start, end)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert values_of(read_between(lenient, start, end)) == numbered(range(8, 20))
    assert f"{topic}-0 begins at offset 8; 0 up to 20 were to be read; failOnDataLoss is false" in caplog.text
    # A numeric starting offset is checked when a query starts.
    with pytest.raises(DataLossError, match=f"startingOffsets is 3 for {topic}-0, which has offsets from 8 up to 20"):
        reader(topic, startingOffsets=f'{{"{topic}":{{"0":3}}}}').initialOffset()


def test_a_new_partition_without_its_beginning_is_data_loss(either, reader):
    topic = new_topic(either, "late")
    stream = reader(topic, startingOffsets="earliest")
    start = journey(stream.initialOffset())
    grow_topic(either, topic, 2)
    eventually("the new partition", lambda: len(_partitions(either, topic)) == 2)
    send(either, topic, 10, partition=1)
    delete_before(either, topic, 4, partition=1)
    end = journey(stream.latestOffset(start, ALL))
    with pytest.raises(DataLossError, match=f"{topic}-1 is new and begins at offset 4 instead of 0"):
        stream.partitions(start, end)


def test_a_deleted_topic_is_data_loss(either, reader):
    topic = new_topic(either, "anew")
    send(either, topic, 20)
    strict, lenient = reader(topic, startingOffsets="earliest"), reader(topic, failOnDataLoss=False)
    start = journey(strict.initialOffset())
    end = journey(strict.latestOffset(start, ALL))
    delete_topic(either, topic)
    eventually("the topic to go", lambda: topic not in _topics(either))
    with pytest.raises(DataLossError, match=f"{topic}-0 does not exist any more; the stream was at offset 20"):
        strict.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match=f"{topic}-0 does not exist any more; offsets 0 up to 20 were to be read"):
        strict.partitions(start, end)
    assert lenient.latestOffset(end, ALL) == {}
    assert lenient.partitions(start, end) == []


@pytest.mark.behaviour("S14")
@pytest.mark.parametrize("count", [6, 50])  # fewer records than before, and more
def test_a_recreated_topic_is_data_loss_for_any_content(either, reader, caplog, count):
    topic = new_topic(either, "anew", 2)
    send(either, topic, 20)
    strict, lenient = reader(topic, startingOffsets="earliest"), reader(topic, failOnDataLoss=False)
    start = journey(strict.initialOffset())
    end = journey(strict.latestOffset(start, ALL))
    old, new = recreate_topic(either, topic)  # with one partition less
    send(either, topic, count, start=100)
    recreated = f"topic '{topic}' was recreated: its id was {old} and is now {new}"
    with pytest.raises(DataLossError, match=f"{recreated}.*read the new topic from its earliest offset, set failOnD"):
        strict.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match=f"{recreated}, after a micro-batch of the deleted topic was planned"):
        strict.partitions(start, end)
    later = journey(lenient.latestOffset(end, ALL))
    assert later == {topic: {"0": count}, "@topic-ids": {topic: new}}
    with pytest.raises(DataLossError, match=recreated):
        strict.partitions(end, later)  # as Spark 4.0 and 4.1 would plan it
    assert values_of(read_between(lenient, end, later)) == numbered(range(100, 100 + count))
    assert recreated in caplog.text
    assert read_between(lenient, start, end) == []  # nothing of the deleted topic is left
    assert journey(lenient.latestOffset(later, ALL)) == later


def test_a_recreated_topic_counts_as_new_for_limits(either, reader):
    topic = new_topic(either, "anew")
    send(either, topic, 20)
    stream = reader(topic, startingOffsets="earliest", failOnDataLoss=False)
    end = journey(stream.latestOffset(stream.initialOffset(), ALL))
    recreate_topic(either, topic)
    send(either, topic, 25, start=100)
    assert journey(stream.latestOffset(end, ReadMinRows(30))) == end
    later = journey(stream.latestOffset(end, ReadMaxRows(10)))
    assert later[topic] == {"0": 10}
    assert values_of(read_between(stream, end, later)) == numbered(range(100, 110))


def test_a_recreated_topic_of_a_pattern_is_data_loss(either, reader):
    prefix = unique("pattern")
    kept, swapped = either.create_topic(f"{prefix}-kept"), either.create_topic(f"{prefix}-swapped")
    send(either, kept, 5)
    send(either, swapped, 5)
    options = {"subscribePattern": f"{prefix}-.*", "startingOffsets": "earliest"}
    strict, lenient = reader(None, **options), reader(None, **options, failOnDataLoss=False)
    end = journey(strict.latestOffset(strict.initialOffset(), ALL))
    recreate_topic(either, swapped)
    send(either, swapped, 7, start=10)
    send(either, either.create_topic(f"{prefix}-new"), 3, start=20)
    with pytest.raises(DataLossError, match=f"topic '{swapped}' was recreated"):
        strict.latestOffset(end, ALL)
    later = journey(lenient.latestOffset(end, ALL))
    assert set(values_of(read_between(lenient, end, later))) == set(numbered([*range(10, 17), *range(20, 23)]))
    delete_topic(either, swapped)
    eventually("the topic to go", lambda: swapped not in _topics(either))
    assert swapped not in lenient.latestOffset(later, ALL)["@topic-ids"]


@pytest.mark.behaviour("S14")
def test_a_checkpoint_without_topic_ids_is_read_and_gets_them(either, reader):
    topic = new_topic(either, "older")
    send(either, topic, 20)
    stream = reader(topic, failOnDataLoss=True)
    old = {topic: {"0": 5}}
    end = journey(stream.latestOffset(old, ALL))
    assert values_of(read_between(stream, old, end)) == numbered(range(5, 20))
    ids = {topic: topic_id(either, topic)}
    assert end == {topic: {"0": 20}, "@topic-ids": ids}
    # Also if there is nothing to read; and a micro-batch that an older version planned is run as it is.
    assert journey(stream.latestOffset({topic: {"0": 20}}, ALL)) == end
    assert values_of(read_between(stream, old, {topic: {"0": 10}})) == numbered(range(5, 10))
    # Without ids, only a topic that has become shorter shows.
    recreate_topic(either, topic)
    send(either, topic, 6, start=100)
    short = journey(stream.latestOffset({topic: {"0": 20}}, ALL))
    with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 6, before 20, where the stream was"):
        stream.partitions({topic: {"0": 20}}, short)


def test_brokers_without_topic_ids_are_read_as_before(either, reader, monkeypatch):
    topic = new_topic(either, "no-ids")
    send(either, topic, 10)
    with_id = reader(topic, startingOffsets="earliest")
    end = journey(with_id.latestOffset(with_id.initialOffset(), ALL))
    partitions = Lookup.partitions
    monkeypatch.setattr(Lookup, "partitions", lambda lookup: partitions(lookup)._replace(topic_ids={}))
    stream = reader(topic, startingOffsets="earliest")
    start = journey(stream.initialOffset())
    assert "@topic-ids" not in start
    assert values_of(read_between(stream, start, stream.latestOffset(start, ALL))) == numbered(range(10))
    assert journey(stream.latestOffset(end, ALL)) == end  # a known id is kept


def test_a_topic_deleted_in_the_first_micro_batch_is_data_loss(either, reader):
    topic, other = new_topic(either, "first"), new_topic(either, "other")
    send(either, topic, 20)
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    running = reader(None, **options)
    start = journey(running.initialOffset())
    end = journey(running.latestOffset(start, ALL))
    delete_topic(either, topic)
    eventually("the topic to go", lambda: topic not in _topics(either))
    assert journey(running.initialOffset()) == start  # Spark calls it twice
    # After a restart Spark calls initialOffset again, and then runs the micro-batch in its log.
    restarted, lenient = reader(None, **options), reader(None, **options, failOnDataLoss=False)
    for stream in (running, restarted):
        with pytest.raises(
            DataLossError, match=f"{topic}-0 does not exist any more; offsets 0 up to 20 were to be read"
        ):
            stream.partitions(journey(stream.initialOffset()), end)
    assert lenient.partitions(journey(lenient.initialOffset()), end) == []
    with pytest.raises(DataLossError, match=f"{topic}-0 does not exist any more; the stream was at offset 0"):
        running.latestOffset(start, ALL)


def test_a_query_needs_its_topics_when_it_starts(either, reader):
    missing = unique("missing")
    stream = reader(missing)
    with pytest.raises(BrokerError, match=f"{missing}: not on the cluster"):
        stream.latestOffset(journey(stream.initialOffset()), ALL)
    assert reader(None, subscribePattern=missing).initialOffset() == {"@initial": True}


def test_finished_offsets_are_committed_to_the_group_for_lag_tools(either, reader, caplog):
    topic, group = new_topic(either, "lag"), unique("lag-group")
    send(either, topic, 10)
    stream = reader(topic, startingOffsets="earliest", commit_offsets_group_id=group)
    stream.commit(journey(stream.latestOffset(stream.initialOffset(), ALL)))
    with AdminClient(either.bootstrap) as admin:
        result = admin.list_group_offsets(group)
    assert {tp: committed.offset for tp, committed in result.items()} == {TopicPartition(topic, 0): 10}
    reader(topic).commit({topic: {"0": 10}})  # without the option nothing is done
    # A failed commit does not stop the query.
    with caplog.at_level(logging.WARNING, "headrace"):
        reader(topic, commit_offsets_group_id=group).commit({"no-such-topic": {"0": 10}})


def test_a_reader_in_use_can_be_pickled(either, reader):
    topic = new_topic(either, "travels")
    send(either, topic, 3)
    stream = reader(topic, startingOffsets="earliest")
    start = stream.initialOffset()
    (partition,) = stream.partitions(start, stream.latestOffset(start, ALL))
    copy, partition = pickle.loads(cloudpickle.dumps((stream, partition)))  # as Spark does
    assert sum(batch.num_rows for batch in copy.read(partition)) == 3


def _partitions(broker, topic):
    with AdminClient(broker.bootstrap) as admin:
        return admin.describe_topics([topic])[topic].partitions


def _topics(broker):
    with AdminClient(broker.bootstrap) as admin:
        return admin.list_topics()


# -- in Spark ----------------------------------------------------------------------------------


class Query:
    """A stream from a topic to files, which can be run again and again with its checkpoint."""

    def __init__(self, spark, broker, topic, folder, **options):
        self._spark = spark
        self._output, self._checkpoint = str(folder / "output"), str(folder / "checkpoint")
        self._options = options_of(broker, topic, **options)

    def start(self, **trigger):
        frame = self._spark.readStream.format("headrace").options(**self._options).load()
        writing = frame.selectExpr("CAST(value AS STRING) value", "partition", "offset").writeStream
        writing = writing.format("json").option("checkpointLocation", self._checkpoint)
        return writing.trigger(**(trigger or {"availableNow": True})).start(self._output)

    def run(self):
        """Everything there is now; the progress of every micro-batch that had rows."""
        query = self.start()
        try:
            assert query.awaitTermination(QUERY_SECONDS_MAX)
            return [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def values(self):
        rows = self._spark.read.schema("value STRING, partition INT, offset LONG").json(self._output).collect()
        return sorted((row.partition, row.offset, row.value) for row in rows)


def rows(*runs):
    return sorted((partition, n, f"row {n}") for partition, numbers in runs for n in numbers)


@pytest.mark.every_run
@pytest.mark.behaviour("S03")
def test_a_restarted_query_continues_exactly_where_it_was(spark, either, tmp_path):
    topic, group = new_topic(either, "restart", 2), unique("restart-group")
    send(either, topic, 100)
    query = Query(
        spark,
        either,
        topic,
        tmp_path,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
        commit_offsets_group_id=group,
    )
    progress = query.run()
    assert [batch["numInputRows"] for batch in progress] == [40, 40, 20]
    assert progress[0]["sources"][0]["endOffset"][topic] == {"0": 40, "1": 0}
    assert BatchProgress.of_json(progress[1]).behind == 20
    assert query.values() == rows((0, range(100)))
    assert query.run() == []
    send(either, topic, 30, start=100)
    grow_topic(either, topic, 3)
    eventually("the new partition", lambda: len(_partitions(either, topic)) == 3)
    send(either, topic, 5, partition=2)
    query.run()
    assert query.values() == rows((0, range(130)), (2, range(5)))
    with AdminClient(either.bootstrap) as admin:
        committed = admin.list_group_offsets(group)
    assert {tp.partition: result.offset for tp, result in committed.items()} == {0: 130, 1: 0, 2: 5}


def test_a_running_query_reads_new_rows(spark, either, tmp_path):
    topic = new_topic(either, "running")
    send(either, topic, 10)
    query = Query(spark, either, topic, tmp_path, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    running = query.start(processingTime="100 milliseconds")
    try:
        # By default it begins at the end; and it waits until there is enough.
        eventually("the first batch", lambda: running.lastProgress, QUERY_SECONDS_MAX)
        send(either, topic, 3, start=10)
        send(either, topic, 4, start=13)
        eventually("the rows", lambda: len(query.values()) >= 7, QUERY_SECONDS_MAX)
        assert running.exception() is None
    finally:
        running.stop()
    assert query.values() == rows((0, range(10, 17)))


def test_an_invalid_stream_stops_with_the_reason(spark, either, tmp_path):
    query = Query(spark, either, new_topic(either, "senseless"), tmp_path, endingOffsets="latest")
    with pytest.raises(Exception, match="endingOffsets is 'latest', but a stream has no end") as caught:
        query.run()
    assert "UnboundLocalError" not in str(caught.value)


def test_lost_rows_stop_a_query_and_are_named(spark, either, tmp_path):
    topic = new_topic(either, "lost")
    send(either, topic, 10)
    query = Query(spark, either, topic, tmp_path, startingOffsets="earliest")
    query.run()
    send(either, topic, 10, start=10)
    delete_before(either, topic, 15)
    with pytest.raises(Exception, match=f"{topic}-0 begins at offset 15; 10 up to 20 were to be read"):
        query.run()
    lenient = Query(spark, either, topic, tmp_path, startingOffsets="earliest", failOnDataLoss=False)
    lenient.run()
    assert lenient.values() == rows((0, [*range(10), *range(15, 20)]))


@pytest.mark.every_run
@pytest.mark.behaviour("S14")
def test_a_recreated_topic_with_more_records_stops_a_query(spark, headrace_broker, tmp_path):
    topic = new_topic(headrace_broker, "recreated")
    send(headrace_broker, topic, 20)
    Query(spark, headrace_broker, topic, tmp_path, startingOffsets="earliest").run()
    old, new = recreate_topic(headrace_broker, topic)
    send(headrace_broker, topic, 30, start=100)
    strict = Query(spark, headrace_broker, topic, tmp_path)
    for _ in range(2):  # and again after a restart
        with pytest.raises(Exception, match=f"topic '{topic}' was recreated: its id was {old} and is now {new}"):
            strict.run()
    lenient = Query(spark, headrace_broker, topic, tmp_path, failOnDataLoss=False)
    lenient.run()
    expected = [(0, n, f"row {n}") for n in range(20)] + [(0, n - 100, f"row {n}") for n in range(100, 130)]
    assert lenient.values() == sorted(expected)
    strict.run()
    assert lenient.values() == sorted(expected)
