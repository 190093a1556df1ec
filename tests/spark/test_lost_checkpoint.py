"""Exactly once across a lost checkpoint: with source.offsets the sink knows which rows other queries have delivered."""

from __future__ import annotations

import shutil

import pytest

from headrace.spark.errors import explain
from tests.support.crashes import audit, committed, markers, open_transactions
from tests.support.peers import librdkafka
from tests.support.source_rig import records, recreate_topic
from tests.support.spark_driver import SparkDriver
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS_MAX = 120
KILLS_SECONDS_MAX = 420
MODES = ["inline", pytest.param("parallel", marks=pytest.mark.every_run)]
ORIGIN = ["__topic", "__partition", "__offset", "__topic_id"]


class CopiedTopic:
    """A query from one topic to another, which can lose its checkpoint."""

    def __init__(self, spark, broker, folder, mode="auto", partitions=2):
        self.spark, self.broker, self.folder = spark, broker, folder
        self.source, self.target = new_topic(broker, "from", partitions), new_topic(broker, "to", 2)
        self.sent: list[str] = []
        self.sink = {"sink.id": unique("lost"), "source.offsets": "true", "commit.mode": mode}

    def send(self, count, partition=0):
        start = len(self.sent)
        librdkafka.produce(self.broker.bootstrap, self.source, records(count, start=start), partition=partition)
        self.sent += [f"row {n}" for n in range(start, start + count)]

    def source_options(self, **options):
        given = {"kafka.bootstrap.servers": self.broker.bootstrap, "subscribe": self.source, "includeOrigin": "true"}
        return given | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"} | options

    def sink_options(self):
        return self.sink | {"kafka.bootstrap.servers": self.broker.bootstrap, "topic": self.target}

    def start(self, checkpoint="checkpoint", columns=("key", "value", *ORIGIN), **options):
        failpoints = options.pop("failpoints", None)
        rows = self.spark.readStream.format("headrace").options(**self.source_options(**options)).load()
        writer = rows.selectExpr(*columns).writeStream.format("headrace").options(**self.sink_options())
        if failpoints is not None:
            writer = writer.option("headrace.failpoints", failpoints)
        return writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True).start()

    def run(self, checkpoint="checkpoint", **options):
        query = self.start(checkpoint, **options)
        try:
            assert query.awaitTermination(SECONDS_MAX), "the query has not ended in time"
        finally:
            query.stop()

    def lose_checkpoint(self):
        shutil.rmtree(self.folder / "checkpoint")

    def audit(self):
        assert not open_transactions(self.broker.bootstrap, self.target)
        result = audit(self.broker.bootstrap, self.target, self.sent)
        result.out_of_order.clear()  # not checked here: keys come from two partitions
        return str(result)


@pytest.mark.behaviour("S13")
@pytest.mark.parametrize("mode", MODES)
def test_a_deleted_checkpoint_repeats_nothing_and_loses_nothing(spark, headrace_broker, tmp_path, mode):
    copy = CopiedTopic(spark, headrace_broker, tmp_path, mode)
    copy.send(60)
    copy.send(30, partition=1)
    copy.run()
    assert copy.audit() == "clean"
    copy.send(25)  # the new query meets both kinds of rows
    copy.lose_checkpoint()
    copy.run()
    assert copy.audit() == "clean"
    copy.lose_checkpoint()
    copy.run()  # all of it was delivered
    assert copy.audit() == "clean"
    copy.send(20, partition=1)
    copy.run()
    assert copy.audit() == "clean"
    assert {name for _, value in _records(copy) for name in ORIGIN if name in value} == set()


def _records(copy):
    result = committed(copy.broker.bootstrap, copy.target)
    return [(key, (value or b"").decode()) for records in result.values() for key, value in records]


@pytest.mark.behaviour("S13")
@pytest.mark.parametrize(
    ("mode", "failpoint"),
    [
        *(("inline", failpoint) for failpoint in ("decide.begin", "decide.written", "decide.done")),
        *(("parallel", failpoint) for failpoint in ("decide.begin", "decide.written", "decide.done", "end.between")),
    ],
)
def test_a_checkpoint_lost_after_a_crash_repeats_nothing(spark, headrace_broker, tmp_path, mode, failpoint):
    """The next query delivers the rows of a batch that was not decided, and skips those of one that was."""
    copy = CopiedTopic(spark, headrace_broker, tmp_path, mode)
    marks = markers(spark)
    copy.send(50)
    copy.run()
    copy.send(30)
    copy.send(30, partition=1)
    with pytest.raises(Exception, match=r"failpoint|crashed|EOF|connection|Python worker"):
        copy.run(failpoints=f"{failpoint}=kill")
    assert (marks / failpoint).exists()
    copy.lose_checkpoint()
    copy.send(10, partition=1)
    copy.run()
    assert copy.audit() == "clean"


@pytest.mark.slow
@pytest.mark.timeout(KILLS_SECONDS_MAX)
@pytest.mark.behaviour("S13")
def test_a_killed_driver_with_a_lost_checkpoint_loses_nothing(headrace_broker, tmp_path):
    copy = CopiedTopic(None, headrace_broker, tmp_path)
    copy.send(200)
    for number in range(3):
        driver = SparkDriver(tmp_path / f"driver-{number}", "local[4]").open()
        try:
            driver.stream(
                "copy",
                {"format": "headrace", **copy.source_options()},
                ["key", "value", *ORIGIN],
                tmp_path / f"checkpoint-{number}",
                copy.sink_options(),
            )
            copy.send(100, partition=1)
            _wait_for_rows(copy, driver, len(copy.sent) - (0 if number == 2 else 50))
        finally:
            driver.kill()
    assert copy.audit() == "clean"


def _wait_for_rows(copy, driver, count):
    eventually(f"{count} rows", lambda: len(_records(copy)) >= count or driver.end_of("copy"), SECONDS_MAX)
    assert driver.end_of("copy") is None


@pytest.mark.behaviour("S13")
def test_a_recreated_source_topic_is_distinguished_from_the_old_one(spark, headrace_broker, tmp_path):
    copy = CopiedTopic(spark, headrace_broker, tmp_path, partitions=1)
    copy.send(30)
    copy.run()
    recreate_topic(headrace_broker, copy.source)
    copy.send(30)  # at the same offsets
    copy.lose_checkpoint()
    copy.run()
    assert copy.audit() == "clean"


@pytest.mark.behaviour("S13")
def test_rows_before_a_query_that_began_at_the_end_are_delivered_by_the_next(spark, headrace_broker, tmp_path):
    copy = CopiedTopic(spark, headrace_broker, tmp_path, partitions=1)
    copy.send(30)
    copy.run(startingOffsets="latest")
    copy.send(20)
    copy.run(startingOffsets="latest")
    copy.send(10)
    assert len(_records(copy)) == 20
    copy.lose_checkpoint()
    copy.run()
    assert copy.audit() == "clean"


@pytest.mark.behaviour("S13")
def test_an_older_checkpoint_skips_rows_that_a_newer_one_delivered(spark, headrace_broker, tmp_path):
    copy = CopiedTopic(spark, headrace_broker, tmp_path)
    copy.send(30)
    copy.run("blue")
    copy.send(30)
    copy.run("green")
    copy.send(30)
    copy.run("blue")
    assert copy.audit() == "clean"
    copy.run("green")
    assert copy.audit() == "clean"


@pytest.mark.slow
@pytest.mark.behaviour("S13")
def test_a_join_that_keeps_the_origin_columns_is_stopped_by_its_first_late_row(spark, headrace_broker, tmp_path):
    """Its schema is that of a stateless query: only the order of offsets shows it."""
    copy = CopiedTopic(spark, headrace_broker, tmp_path, partitions=1)
    copy.send(2)
    known = new_topic(headrace_broker, "known")

    def process():
        rows = spark.readStream.format("headrace").options(**copy.source_options()).load()
        keys = spark.readStream.format("headrace").options(**copy.source_options(subscribe=known)).load()
        keys = keys.selectExpr("value AS known")
        joined = rows.join(keys, rows.value == keys.known)
        writer = joined.select("key", "value", *ORIGIN).writeStream.format("headrace").options(**copy.sink_options())
        query = writer.option("checkpointLocation", str(tmp_path / "join")).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS_MAX), "the query has not ended in time"

    librdkafka.produce(headrace_broker.bootstrap, known, records(1, start=1))
    process()  # row 1 is delivered, row 0 waits in the state
    librdkafka.produce(headrace_broker.bootstrap, known, records(1))
    with pytest.raises(
        Exception, match=r"batch 1 has a row from offset 0 of partition 0 of topic .* have rows up to 1"
    ):
        process()
    assert [value for _, value in _records(copy)] == ["row 1"]


def test_queries_without_source_offsets_of_rows_are_refused(spark, headrace_broker, tmp_path):
    copy = CopiedTopic(spark, headrace_broker, tmp_path)
    copy.send(3)

    def failure(frame, mode="append", **options):
        writer = frame.writeStream.format("headrace").options(**copy.sink_options() | options).outputMode(mode)
        with pytest.raises(Exception) as caught:  # noqa: PT011, PT012 - at the start, or with the first batch
            query = writer.option("checkpointLocation", str(tmp_path / unique("checkpoint"))).start()
            query.awaitTermination(SECONDS_MAX)
        return explain(caught.value)

    rows = spark.readStream.format("headrace").options(**copy.source_options(maxOffsetsPerTrigger="9")).load()
    counts = rows.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) value")
    assert "a topic cannot be overwritten" in failure(counts, "complete")
    late = rows.withWatermark("timestamp", "1 second").groupBy("timestamp").count()
    other = rows.selectExpr("key AS other_key", "value AS other_value")
    stateful = {
        "groupBy": late.selectExpr("CAST(count AS STRING) value"),
        "dropDuplicates": rows.select("value").dropDuplicates(),
        "join": rows.join(other, rows.key == other.other_key).selectExpr("other_value AS value"),
    }
    for kind, frame in stateful.items():
        message = failure(frame)
        expected = "source.offsets is set, but there is no column '__topic'; the columns are: value."
        assert message.startswith(expected), kind
        assert "it works for stateless queries only" in message
    del copy.sink["sink.id"]
    assert "source.offsets is set, but sink.id is not" in failure(rows)
    del copy.sink["source.offsets"]
    writer = spark.createDataFrame([("v",)], "value STRING").write.format("headrace").mode("append")
    writer = writer.options(**copy.sink_options(), **{"source.offsets": "true", "sink.id": "s"})
    with pytest.raises(Exception, match=r"source.offsets is for streams"):
        writer.save()
