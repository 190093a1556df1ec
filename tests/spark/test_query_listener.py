"""The listener for streaming queries: log, Prometheus and live view of a query from topic to topic."""

from __future__ import annotations

import json
import logging

import pytest

pytest.importorskip("pyspark")

from prometheus_client import CollectorRegistry

from headrace.spark import listener
from headrace.spark.commit_feed import is_wanted
from tests.support.crashes import committed, markers
from tests.support.listening_view import ListeningView
from tests.support.peers import librdkafka
from tests.support.source_rig import records
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

ROWS, BATCH_ROWS = 300, 100
QUERY_SECONDS_MAX = 90


@pytest.fixture
def view():
    with ListeningView() as view:
        yield view


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def following(spark, view, registry):
    """A listener of the session."""
    added = listener(registry=registry, view_url=view.url)
    spark.streams.addListener(added)
    yield added
    spark.streams.removeListener(added)
    added.close()


@pytest.fixture
def copy(spark, headrace_broker, tmp_path):
    """Starts a query that copies a topic, and returns it with its sink and the new topic."""

    def start(**options):
        source, target, sink = new_topic(headrace_broker, "from"), new_topic(headrace_broker, "to"), unique("sink")
        librdkafka.produce(headrace_broker.bootstrap, source, records(ROWS), partition=0)
        frame = spark.readStream.format("headrace").option("kafka.bootstrap.servers", headrace_broker.bootstrap)
        frame = frame.option("subscribe", source).option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", BATCH_ROWS).load().select("value")
        writer = frame.writeStream.format("headrace").option("kafka.bootstrap.servers", headrace_broker.bootstrap)
        writer = writer.option("topic", target).option("sink.id", sink).option("checkpointLocation", str(tmp_path))
        writer = writer.options(**options).queryName(sink).trigger(availableNow=True)
        return writer.start(), source, target, sink

    return start


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


@pytest.mark.behaviour("S16")
@pytest.mark.every_run
@pytest.mark.usefixtures("following")
def test_query_from_topic_to_topic_is_shown_with_lag_and_commits(copy, view, registry, headrace_broker, caplog):
    with caplog.at_level(logging.INFO, "headrace.query"):
        query, source, target, sink = copy()
        assert is_wanted(str(query.runId))  # before the first batch ends
        assert query.awaitTermination(QUERY_SECONDS_MAX)
        last = view.until("the end", lambda report: report["kind"] == "pipeline" and report["is_closed"])

    assert sum(map(len, committed(headrace_broker.bootstrap, target).values())) == ROWS
    latest = json.loads(query.recentProgress[0].sources[0].latestOffset)
    assert (latest["@lag"], latest["@source"]) == ({source: 200}, f"{source} at {headrace_broker.bootstrap}")
    assert latest["@newest"][source].startswith("2023-11-14T22:18:19")  # of the last of the records

    lines = [record.getMessage() for record in caplog.records if record.name == "headrace.query"]
    assert [line.partition(" rows in")[0] for line in lines[:3]] == [
        f"query {sink}: batch {number}, 100" for number in range(3)
    ]
    assert f"; lag 200 ({source} 200), newest record " in lines[0]
    assert all(f"; sink {sink}: committed, 100 rows to {target} (" in line for line in lines[:3])
    assert lines[3:] == [f"query {sink} has stopped after batch 2"]

    assert value(registry, "headrace_query_running", query=sink) == 0
    assert value(registry, "headrace_query_input_rows_total", query=sink) == ROWS
    assert value(registry, "headrace_source_offset", query=sink, source="0", topic=source, partition="0") == ROWS
    assert value(registry, "headrace_sink_rows_total", query=sink, sink=sink) == ROWS
    assert value(registry, "headrace_sink_commits_total", query=sink, sink=sink, outcome="committed") == 3
    assert value(registry, "headrace_sink_phase_seconds_sum", query=sink, sink=sink, phase="decide") > 0

    assert (last["name"], last["state"], last["totals"]["rows"]) == (sink, "stopped", ROWS)
    assert last["sources"][0]["topics"][0].items() >= {"topic": source, "partitions": 1, "lag": 0}.items()
    lags = [report["totals"]["behind"] for report in view.reports if report["kind"] == "pipeline"]
    assert lags[0] > 0
    batches = eventually("all commits", lambda: _batches(view, sink) if len(_batches(view, sink)) == 3 else None)
    assert [batch["batch"] for batch in batches] == [0, 1, 2]
    assert not is_wanted(str(query.runId))


def _batches(view, sink):
    """The commits of a sink that were reported, each once."""
    reports = [report for report in list(view.reports) if report["kind"] == "commits" and report["sink"] == sink]
    return list({batch["sequence"]: batch for report in reports for batch in report["batches"]}.values())


@pytest.mark.usefixtures("following")
def test_failed_query_is_shown_with_its_first_cause(spark, copy, view, registry, caplog):
    markers(spark)
    query, _, _, sink = copy(**{"headrace.failpoints": "decide.begin=raise"})
    with pytest.raises(Exception, match="failpoint"):
        query.awaitTermination(QUERY_SECONDS_MAX)
    last = view.until("the end", lambda report: report["kind"] == "pipeline" and report["is_closed"])
    assert (last["state"], last["error"].partition(":")[0]) == ("failed", "failpoint decide.begin")
    assert value(registry, "headrace_sink_commits_total", query=sink, sink=sink, outcome="failed") == 1
    (line,) = [record for record in caplog.records if record.name == "headrace.query"]
    assert line.getMessage().startswith(f"query {sink} has failed before its first batch: failpoint decide.begin")


@pytest.mark.usefixtures("following")
def test_sink_that_reports_itself_is_not_reported_twice(copy, view):
    query, *_ = copy(**{"view.url": view.url, "view.name": "shop"})
    assert query.awaitTermination(QUERY_SECONDS_MAX)
    last = view.until("the end", lambda report: report["kind"] == "pipeline" and report["is_closed"])
    assert last["name"] == "shop"
    names = {(report["name"], report["has_view"]) for report in view.reports if report["kind"] == "commits"}
    assert names == {("shop", True)}
