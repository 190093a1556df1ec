"""Reports of a sink and a pipeline to a live view; delivery does not depend on them."""

from __future__ import annotations

import pytest

from headrace.spark import Pipeline
from headrace.spark.errors import SparkError
from tests.support.crashes import StreamInSession, committed, markers
from tests.support.listening_view import ListeningView
from tests.support.small_pipeline import add_files, small_pipeline
from tests.support.topics import new_topic, unique

ROWS = 600


@pytest.fixture
def view():
    with ListeningView() as view:
        yield view


def write(spark, broker, topic, **options):
    frame = spark.range(0, ROWS, 1, 3).selectExpr("CAST(id AS STRING) value")
    writer = frame.write.format("headrace").mode("append").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**{name.replace("__", "."): value for name, value in options.items()}).save()


def count(broker, topic):
    return sum(map(len, committed(broker.bootstrap, topic).values()))


def batches(view, name):
    return [
        batch
        for report in list(view.reports)
        if report["kind"] == "commits" and report["name"] == name
        for batch in report["batches"]
    ]


@pytest.mark.every_run
@pytest.mark.parametrize(("mode", "transactions"), [("inline", 0), ("parallel", 3)])
def test_batch_is_reported_with_the_time_of_every_phase(spark, headrace_broker, view, mode, transactions):
    topic = new_topic(headrace_broker, "reported", 3)
    write(spark, headrace_broker, topic, commit__mode=mode, view__url=view.url, view__name=mode)
    last = view.until("the batch", lambda report: report["kind"] == "commits" and report["batches"])
    (batch,) = last["batches"]
    assert (last["name"], last["topic"], last["delivery"]) == (mode, topic, "exactly-once")
    assert (batch["outcome"], batch["rows"], batch["tasks"]) == ("committed", ROWS, 3)
    assert batch["transactions"] == transactions
    assert batch["bytes"] > ROWS
    assert all(batch[phase] > 0 for phase in ("write_ms", "begin_ms", "decide_ms", "end_ms"))
    assert count(headrace_broker, topic) == ROWS
    if mode == "parallel":
        producer = view.until("a task's producer", lambda report: report["kind"] == "producer")
        assert producer["client_id"] == "headrace-spark"


def test_second_write_with_the_same_id_is_reported_as_a_replay(spark, headrace_broker, view):
    topic, write_id = new_topic(headrace_broker, "replayed", 1), unique("write")
    for name in ("first", "second"):
        write(spark, headrace_broker, topic, write__id=write_id, view__url=view.url, view__name=name)
        view.until(name, lambda report, name=name: batches(view, name))
    assert [batches(view, name)[0]["outcome"] for name in ("first", "second")] == ["committed", "replayed"]
    assert count(headrace_broker, topic) == ROWS


def test_failed_commit_is_reported_with_its_error(spark, headrace_broker, view):
    markers(spark)
    topic = new_topic(headrace_broker, "failed", 1)
    with pytest.raises(Exception, match="failpoint"):
        write(
            spark, headrace_broker, topic, view__url=view.url, view__name="f", headrace__failpoints="decide.begin=raise"
        )
    view.until("the failure", lambda report: any(batch["outcome"] == "failed" for batch in batches(view, "f")))
    failed = next(batch for batch in batches(view, "f") if batch["outcome"] == "failed")
    assert failed["error"].startswith("failpoint decide.begin")
    assert count(headrace_broker, topic) == 0


def test_phase_of_a_delayed_commit_is_reported_during_it(spark, headrace_broker, view, tmp_path):
    stream = StreamInSession(spark, tmp_path, headrace_broker, new_topic(headrace_broker, "held", 2))
    markers(spark)
    stream.add_file(100)
    stream.process("decide.done=sleep:1", commit__mode="parallel", view__url=view.url, view__name="held")
    held = view.until("the phase", lambda report: (report.get("now") or {}).get("phase") == "end")
    assert (held["now"]["batch"], held["now"]["rows"]) == (0, 100)
    view.until("the batch", lambda report: batches(view, "held"))
    assert batches(view, "held")[0]["end_ms"] > 1000
    assert str(stream.audit()) == "clean"


def test_batch_repeated_after_a_failure_is_reported_as_a_replay(spark, headrace_broker, view, tmp_path):
    stream = StreamInSession(spark, tmp_path, headrace_broker, new_topic(headrace_broker, "again", 2))
    markers(spark)
    reporting = {"commit__mode": "parallel", "view__url": view.url, "view__name": "again"}
    stream.add_file(100)
    with pytest.raises(Exception, match="failpoint"):
        stream.process("decide.done=raise", **reporting)
    stream.process(**reporting)
    view.until("the replay", lambda report: any(batch["outcome"] == "replayed" for batch in batches(view, "again")))
    assert [batch["outcome"] for batch in batches(view, "again")] == ["failed", "aborted", "replayed"]
    assert str(stream.audit()) == "clean"


def test_at_least_once_batch_is_reported(spark, headrace_broker, view):
    topic = new_topic(headrace_broker, "plain", 1)
    write(spark, headrace_broker, topic, delivery="at-least-once", view__url=view.url, view__name="plain")
    view.until("the batch", lambda report: batches(view, "plain"))
    assert batches(view, "plain")[0]["outcome"] == "written"


@pytest.mark.parametrize("failure", ["unreachable", "refuses", "never responds"])
def test_failing_view_does_not_affect_delivery(spark, headrace_broker, view, failure):
    topic = new_topic(headrace_broker, "failing", 2)
    url = view.url if failure != "unreachable" else "http://127.0.0.1:1"
    view.status = 500 if failure == "refuses" else 204
    if failure == "never responds":
        view.may_respond.clear()
    write(spark, headrace_broker, topic, commit__mode="parallel", view__url=url)
    assert count(headrace_broker, topic) == ROWS


def test_pipeline_and_its_sink_report_under_one_name(spark, headrace_broker, view, tmp_path):
    topic = new_topic(headrace_broker, "pipeline", 2)
    add_files(tmp_path, files=3, rows=10)
    given = ["pipeline.name=orders", f"view.url={view.url}", "view.token=a-secret"]
    pipeline = Pipeline.from_toml(small_pipeline(tmp_path, headrace_broker.bootstrap, topic), given)
    assert "a-secret" not in repr(pipeline)
    assert pipeline.run(spark).rows == 30
    last = view.until("the end", lambda report: report["kind"] == "pipeline" and report["is_closed"])
    assert (last["name"], last["state"], last["totals"]["batches"], last["totals"]["rows"]) == (
        "orders",
        "finished",
        3,
        30,
    )
    view.until("all batches", lambda report: len(batches(view, "orders")) == 3)
    assert [batch["batch"] for batch in batches(view, "orders")] == [0, 1, 2]
    assert set(view.tokens) == {"Bearer a-secret"}


def test_failed_pipeline_is_reported_with_its_error(spark, headrace_broker, view, tmp_path):
    text = small_pipeline(tmp_path, headrace_broker.bootstrap, "not-there")
    with pytest.raises(SparkError):
        Pipeline.from_toml(text, [f"view.url={view.url}"]).run(spark)
    last = view.until("the failure", lambda report: report.get("state") == "failed")
    assert "cannot read the source (json)" in last["error"]
