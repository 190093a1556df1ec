"""Pipelines on a real Spark: files, SQL and topics; resuming, stopping, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark import Pipeline
from headrace.spark.auditing import audit, read_topic
from headrace.spark.errors import SparkError
from headrace.spark.progress import SilentReporter
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

PROCESS_SECONDS_MAX = 120
FILES = """
[source]
format = "json"
path = "{folder}/in"
schema = "id BIGINT, name STRING"
options.maxFilesPerTrigger = 1

[[steps]]
name = "even"
sql = "SELECT * FROM source WHERE id % 2 = 0"

[[steps]]
name = "records"
sql = "SELECT name AS key, to_json(struct(id, name)) AS value FROM even"

[sink]
format = "headrace"
checkpoint = "{folder}/checkpoint"

[sink.options]
kafka.bootstrap.servers = "{bootstrap}"
topic = "{topic}"
"""


class Notes(SilentReporter):
    """A reporter that remembers."""

    wants_tasks = True

    def __init__(self):
        self.start: Any = None
        self.batches: list[Any] = []
        self.seen_tasks: list[Any] = []
        self.totals = None

    def started(self, what):
        self.start = what

    def tasks(self, tasks, totals):
        self.seen_tasks.append(tasks)

    def batch(self, batch, totals):
        self.batches.append(batch)

    def finished(self, totals):
        self.totals = totals


def write_file(folder, number, rows=100):
    folder.joinpath("in").mkdir(exist_ok=True)
    lines = [json.dumps({"id": number * rows + i, "name": f"n{i % 7}"}) for i in range(rows)]
    folder.joinpath("in", f"{number}.json").write_text("\n".join(lines))


@pytest.fixture
def filled(tmp_path, headrace_broker):
    """Three files, an empty topic, and the pipeline between them."""
    for number in range(3):
        write_file(tmp_path, number)
    topic = new_topic(headrace_broker, "pipeline", 2)
    return FILES.format(folder=tmp_path, bootstrap=headrace_broker.bootstrap, topic=topic), topic


def values(spark, broker, topic):
    rows = read_topic(spark, topic, {"kafka.bootstrap.servers": broker.bootstrap}).selectExpr("CAST(value AS STRING)")
    return sorted(row[0] for row in rows.collect())


@pytest.mark.every_run
@pytest.mark.behaviour("S08")
def test_files_are_written_once_through_sql_and_the_stream_resumes(spark, filled, headrace_broker, tmp_path):
    text, topic = filled
    first, second = Notes(), Notes()
    pipeline = Pipeline.from_toml(text)
    totals = pipeline.run(spark, reporter=first)
    assert (totals.rows, totals.batches, totals.stopped) == (300, 3, None)
    assert (first.start.resumes_after, [batch.batch for batch in first.batches]) == (None, [0, 1, 2])
    assert all(batch.write_ms > 0 and batch.commit_ms > 0 for batch in first.batches)
    assert first.seen_tasks
    write_file(tmp_path, 3)
    totals = Pipeline.from_toml(text).run(spark, reporter=second)
    assert (totals.rows, totals.batches) == (100, 1)
    assert (second.start.resumes_after, second.batches[0].batch) == (2, 3)
    assert len(values(spark, headrace_broker, topic)) == 200
    sent = pipeline.dataframe(spark, stream=False)
    assert audit(sent, topic, options={"kafka.bootstrap.servers": headrace_broker.bootstrap}).is_equal


@pytest.mark.every_run
def test_a_topic_to_topic_pipeline_reports_lag_and_progress(spark, filled, headrace_broker, tmp_path):
    text, topic = filled
    Pipeline.from_toml(text).run(spark)
    target = new_topic(headrace_broker, "target", 1)
    onward = f"""
    [source]
    format = "headrace"
    options = {{ "kafka.bootstrap.servers" = "{headrace_broker.bootstrap}", subscribe = "{topic}",
                 startingOffsets = "earliest", maxOffsetsPerTrigger = 100 }}
    [sink]
    format = "headrace"
    checkpoint = "{tmp_path}/onward"
    options = {{ "kafka.bootstrap.servers" = "{headrace_broker.bootstrap}", topic = "{target}" }}
    [[steps]]
    name = "copy"
    sql = "SELECT key, value FROM source"
    """.replace("\n                 ", " ")
    notes = Notes()
    totals = Pipeline.from_toml(onward).run(spark, reporter=notes)
    assert totals.rows == 150
    assert len(notes.batches) >= 2
    behind = [batch.behind for batch in notes.batches]
    assert all(count is not None for count in behind)
    assert behind == sorted(behind, reverse=True)
    assert (behind[-1], totals.fraction) == (0, 1.0)
    assert values(spark, headrace_broker, target) == values(spark, headrace_broker, topic)


def test_a_batch_repeated_with_its_write_id_delivers_nothing(spark, filled, headrace_broker, tmp_path):
    text, topic = filled
    overrides = (
        "trigger.mode=batch",
        f"sink.options.write.id={unique('write')}",
        f"sink.options.sink.id={unique('s')}",
    )
    text = text.replace(f'checkpoint = "{tmp_path}/checkpoint"', "")
    notes = Notes()
    for _ in range(2):
        totals = Pipeline.from_toml(text, overrides).run(spark, reporter=notes)
        assert totals.rows == 150
    assert not notes.start.is_stream
    assert len(values(spark, headrace_broker, topic)) == 150


def test_other_formats_of_spark_can_be_used(spark, tmp_path):
    write_file(tmp_path, 0)
    text = f"""
    source = {{ format = "json", path = "{tmp_path}/in", schema = "id BIGINT, name STRING" }}
    [sink]
    format = "parquet"
    path = "{tmp_path}/out"
    checkpoint = "{tmp_path}/checkpoint"
    partition_by = ["name"]
    """
    assert Pipeline.from_toml(text).run(spark).rows == 100
    assert sorted(path.name for path in (tmp_path / "out").glob("name=*")) == [f"name=n{i}" for i in range(7)]
    assert spark.read.parquet(str(tmp_path / "out")).count() == 100


def test_an_endless_stream_is_stopped_after_a_batch(spark):
    class StopAtOnce(Notes):
        def batch(self, batch, totals):
            super().batch(batch, totals)
            stop.set()

    stop = threading.Event()
    text = """
    source = { format = "rate", options = { rowsPerSecond = 100 } }
    sink = { format = "noop" }
    trigger = { mode = "interval", interval = "100 milliseconds" }
    """
    notes = StopAtOnce()
    totals = Pipeline.from_toml(text).run(spark, reporter=notes, stop=stop)
    assert totals.stopped == "stopped"
    assert totals.batches == len(notes.batches) >= 1
    assert not spark.streams.active


def test_a_batch_is_cancelled_by_stop(spark, tmp_path):
    class StopAtTasks(Notes):
        def tasks(self, tasks, totals):
            if tasks.all:
                stop.set()

    stop = threading.Event()
    write_file(tmp_path, 0, rows=1)
    text = f"""
    source = {{ format = "json", path = "{tmp_path}/in", schema = "id BIGINT" }}
    sink = {{ format = "noop" }}
    trigger = {{ mode = "batch" }}
    [[steps]]
    name = "slow"
    sql = "SELECT reflect('java.lang.Thread', 'sleep', 60000L) AS a FROM source"
    """
    pipeline = Pipeline.from_toml(text)
    totals = pipeline.run(spark, reporter=StopAtTasks(), stop=stop)
    assert (totals.stopped, totals.batches) == ("cancelled", 0)
    assert totals.seconds < 30


# -- what is wrong -------------------------------------------------------------------------------


def test_a_check_names_every_view_and_its_columns(spark, filled):
    views = Pipeline.from_toml(filled[0]).check(spark)
    assert [str(view) for view in views] == [
        "source(id bigint, name string)",
        "even(id bigint, name string)",
        "records(key string, value string)",
    ]
    assert not spark.catalog.listTables()


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (
            "steps.even.sql=SELECT idd FROM source",
            r"^pipeline, line \d+|-X.*: step 'even' is invalid: .*`idd`.*`id`",
        ),
        ("steps.even.sql=SELECT * FROM nowhere", r"step 'even' is invalid: .*`nowhere`.*it can use source\(id bigint"),
        ("steps.even.sql=SELEC 1", r"step 'even' is invalid: Syntax error"),
        ("steps.records.sql=SELECT id FROM even", r"the sink cannot write these columns: .*value"),
        ("source.format=nonsense", r"cannot read the source \(nonsense\): .*nonsense"),
        ("source.schema=id BIGNT", r"cannot read the source \(json\)"),
    ],
)
def test_a_check_reports_problems_with_their_positions(spark, filled, override, error):
    with pytest.raises((SparkError, ConfigError), match=error) as caught:
        Pipeline.from_toml(filled[0], (override,)).check(spark)
    assert "Traceback" not in str(caught.value)
    assert not spark.catalog.listTables()


def test_the_error_of_a_file_stream_without_a_schema_says_to_set_one(spark, filled):
    text = filled[0].replace('schema = "id BIGINT, name STRING"', "")
    with pytest.raises(SparkError, match=r"set schema in \[source\]"):
        Pipeline.from_toml(text).check(spark)


def test_an_existing_view_of_the_session_is_not_overwritten(spark, filled):
    spark.range(1).createTempView("even")
    try:
        with pytest.raises(ConfigError, match="a table or view 'even' already"):
            Pipeline.from_toml(filled[0]).check(spark)
        assert [table.name for table in spark.catalog.listTables()] == ["even"]
    finally:
        spark.catalog.dropTempView("even")


def test_the_error_of_a_failed_stream_is_one_paragraph(spark, filled):
    with pytest.raises(SparkError) as caught:
        Pipeline.from_toml(filled[0], ("sink.options.topic=no-such-topic",)).run(spark)
    assert "no-such-topic" in str(caught.value)
    for noise in ("Traceback", "\n", "SQLSTATE", "org.apache"):
        assert noise not in str(caught.value)


def test_a_batch_pipeline_cannot_be_started_as_a_stream(spark, filled):
    pipeline = Pipeline.from_toml(filled[0])
    pipeline.spec = replace(pipeline.spec, trigger=replace(pipeline.spec.trigger, mode="batch"))
    with pytest.raises(ConfigError, match="which is not a stream"):
        pipeline.start(spark)


# -- as a user types it --------------------------------------------------------------------------


class Running:
    """`headrace pipeline run` in a separate process, which can be interrupted as by a terminal."""

    def __init__(self, file, *arguments):
        command = [sys.executable, "-m", "headrace", "pipeline", "run", str(file), "--format", "json", *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PROCESS_SECONDS_MAX)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def first_event(self):
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def interrupt(self):
        """What Ctrl-C does: a signal for everybody in the foreground."""
        if not self.has_ended:
            os.killpg(self._process.pid, signal.SIGINT)

    @property
    def has_ended(self):
        return self._process.poll() is not None

    def result(self):
        out, err = self._process.communicate(timeout=PROCESS_SECONDS_MAX)
        return self._process.returncode, [json.loads(line) for line in out.splitlines()], err


@pytest.mark.slow
@pytest.mark.timeout(4 * PROCESS_SECONDS_MAX)
@pytest.mark.behaviour("S08")
def test_ctrl_c_ends_a_stream_after_its_batch_and_a_second_one_at_once(filled, headrace_broker, tmp_path):
    text, _ = filled
    once = "id % 100 > 0 OR coalesce(reflect('java.lang.Thread', 'sleep', 4000L), '') <> 'x'"
    slow = f"SELECT * FROM source WHERE id % 2 = 0 AND ({once})"
    file = tmp_path / "slow.toml"
    file.write_text(text)
    arguments = ("-X", f"steps.even.sql={slow}", "--master", "local[1]")

    def has_begun(batch, running):
        offsets = tmp_path / "checkpoint" / "offsets" / str(batch)
        eventually(f"batch {batch}", lambda: offsets.exists() or running.has_ended, PROCESS_SECONDS_MAX)

    with Running(file, *arguments) as running:
        has_begun(1, running)
        running.interrupt()
        code, events, err = running.result()
        assert (code, [event["event"] for event in events]) == (0, ["started", "batch", "batch", "finished"]), err
        assert (events[-1]["stopped"], events[-1]["rows"]) == ("stopped", 200)
        assert "stopping after this batch" in err
        assert "Traceback" not in err
    with Running(file, *arguments) as running:
        assert running.first_event()["resumes_after"] == 1
        has_begun(2, running)
        eventually("the second signal", lambda: running.interrupt() or running.has_ended, PROCESS_SECONDS_MAX)
        code, events, err = running.result()
        assert (code, events) == (130, []), err
    with Running(file, "--master", "local[1]") as running:
        code, events, err = running.result()
        assert (code, events[-1]["event"]) == (0, "finished"), err
        assert events[0]["resumes_after"] == 1
    code, report = audited("--pipeline", str(file), "--master", "local[1]")
    assert (code, report["matched"], report["topic_rows"]) == (0, 150, 150)


def audited(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "audit", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(2 * PROCESS_SECONDS_MAX)
def test_check_and_errors_from_the_command_line(filled, tmp_path):
    text, _ = filled
    file = tmp_path / "p.toml"
    file.write_text(text + 'kafka.ssl.key.password = "hush"\n')

    def check(*arguments):
        command = [sys.executable, "-m", "headrace", "pipeline", "check", str(file), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX)

    good = check()
    assert good.returncode == 0, good.stderr
    assert "records(key string, value string)" in good.stdout
    assert "hush" not in good.stdout
    assert "[hidden]" in good.stdout
    bad = check("-X", "source.formt=json")  # known before Spark is started
    assert bad.returncode == 1
    assert "did you mean 'format'?" in bad.stderr
    assert "Traceback" not in bad.stderr
