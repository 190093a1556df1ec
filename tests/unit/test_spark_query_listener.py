"""The listener for streaming queries, with Spark's events but without Spark."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import urllib.request
import uuid
from typing import Any

import pytest

pytest.importorskip("pyspark")

from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from headrace.errors import ConfigError
from headrace.spark import listener, query_listener
from headrace.spark.commit_feed import append, is_wanted
from headrace.telemetry.models import BatchReport, CommitReport
from headrace.telemetry.sender import Envelope

TIME = "2026-11-17T23:31:05.123Z"


class Query:
    """The events of a query."""

    def __init__(self, following, name="orders"):
        self.following, self.name = following, name
        self.id, self.run = uuid.uuid4(), uuid.uuid4()

    def start(self):
        self.run = uuid.uuid4()
        self.following.onQueryStarted(QueryStartedEvent(self.id, self.run, self.name, TIME, set()))

    def progress(self, batch, rows=10):
        ids = {"id": str(self.id), "runId": str(self.run), "name": self.name, "timestamp": TIME}
        figures = {"batchId": batch, "batchDuration": 0, "numInputRows": rows, "stateOperators": [], "sources": []}
        progress = {**ids, **figures, "sink": {"description": "PythonTable@1", "numOutputRows": rows}}
        self.following.onQueryProgress(QueryProgressEvent(StreamingQueryProgress.fromJson(progress)))

    def commit(self, batch, rows=10):
        """As a process of Spark that commits."""
        batches = (BatchReport(batch=batch, rows=rows, outcome="committed", decide_ms=8.0),)
        envelope: Envelope = {"id": "p", "host": "h", "pid": 1, "started_ms": 0, "interval_ms": 1}
        names: dict[str, Any] = {
            "name": "s",
            "sink": "s",
            "query": "q",
            "run": str(self.run),
            "delivery": "exactly-once",
        }
        append(CommitReport(**envelope, **names, batches=batches))

    def end(self, exception=None):
        self.following.onQueryTerminated(QueryTerminatedEvent(self.id, self.run, exception, None))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"headrace-{os.getuid()}"


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def following(registry):
    following = listener(registry=registry)
    yield following
    following.close()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "headrace.query")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "headrace.query"]


def test_progress_and_commit_of_a_batch_are_logged_together(following, lines):
    query = Query(following)
    query.start()
    assert is_wanted(str(query.run))
    query.commit(0)
    query.commit(1, rows=20)  # Spark's events come late
    query.progress(0)
    query.progress(1, rows=20)
    query.end()
    assert lines() == [
        "query orders: batch 0, 10 rows in 0 ms (0 rows/s); sink s: committed, 10 rows to topics by row (decide 8 ms)",
        "query orders: batch 1, 20 rows in 0 ms (0 rows/s); sink s: committed, 20 rows to topics by row (decide 8 ms)",
        "query orders has stopped after batch 1",
    ]
    assert not is_wanted(str(query.run))


def test_restarted_query_continues_its_totals(following, registry):
    query = Query(following)
    for run in range(3):
        query.start()
        query.commit(run)
        query.progress(run)
        query.end()
    assert registry.get_sample_value("headrace_query_batches_total", {"query": "orders"}) == 3
    assert registry.get_sample_value("headrace_sink_rows_total", {"query": "orders", "sink": "s"}) == 30
    (figures,) = following.queries()
    assert figures.run == str(query.run)


def test_query_without_a_name_has_the_beginning_of_its_id(following):
    query = Query(following, name=None)
    query.start()
    (figures,) = following.queries()
    assert figures.name == str(query.id)[:8]


def test_query_that_was_started_before_the_listener_is_followed(following):
    query = Query(following)
    query.progress(7)
    query.commit(8)
    query.progress(8)
    (figures,) = following.queries()
    assert (figures.totals.batches, figures.commits.committed) == (2, 1)


def test_failure_is_logged_with_its_first_cause(following, lines):
    query = Query(following)
    query.start()
    query.end("org.apache.spark.SparkException: Job aborted.\nCaused by: java.io.IOException: disk full\n\tat x.Y")
    assert lines() == ["query orders has failed before its first batch: java.io.IOException: disk full"]


def test_commits_are_left_out_if_their_file_cannot_be_created(following, folder, lines):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    query = Query(following)
    query.start()
    query.progress(0)
    assert lines()[0].startswith("query orders: no figures of its commits: ")
    assert lines()[1].startswith("query orders: batch 0, 10 rows")


def test_commits_are_left_out_after_their_file_cannot_be_read(following, folder, lines):
    query = Query(following)
    query.start()
    folder.rename(folder.with_name("elsewhere"))
    query.progress(0)
    query.progress(1)
    query.end()
    assert lines()[0].startswith("query orders: no more figures of its commits: ")
    assert [line.partition(",")[0] for line in lines()[1:]] == [
        "query orders: batch 0",
        "query orders: batch 1",
        "query orders has stopped after batch 1",
    ]


def test_event_that_is_not_understood_is_logged_once_and_does_not_reach_spark(following, lines):
    for _ in range(3):
        Query(following).progress("seven")
    assert lines() == ["cannot follow a streaming query; the query itself is not affected"]


def test_end_of_a_run_that_comes_after_the_next_start_removes_its_file(following, folder):
    query = Query(following)
    query.start()
    first = query.run
    query.start()
    following.onQueryTerminated(QueryTerminatedEvent(query.id, first, None, None))
    (figures,) = following.queries()
    assert (figures.run, figures.state) == (str(query.run), "running")
    assert not is_wanted(str(first))
    assert is_wanted(str(query.run))


def test_number_of_queries_is_bounded(following, monkeypatch):
    monkeypatch.setattr(query_listener, "QUERIES_MAX", 3)
    for number in range(5):
        query = Query(following, name=f"q{number}")
        query.start()
        query.end()
    assert [figures.name for figures in following.queries()] == ["q2", "q3", "q4"]


def test_closed_listener_leaves_nothing_behind(following, registry, folder):
    query = Query(following)
    query.start()
    following.close()
    assert list(folder.iterdir()) == []
    assert registry.get_sample_value("headrace_query_running", {"query": "orders"}) is None


def test_metrics_are_served_on_a_port_of_the_loopback_address(registry):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    following = listener(log_batches=False, registry=registry, prometheus_port=port)
    Query(following).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        assert b'headrace_query_running{query="orders"} 1.0' in response.read()
    with pytest.raises(ConnectionRefusedError):  # 127.0.0.2 is this host too, but only 127.0.0.1 is served
        socket.create_connection(("127.0.0.2", port), 10)
    with pytest.raises(ConfigError, match=f"prometheus_port {port}: .*; choose another port"):
        listener(registry=registry, prometheus_port=port)
    following.close()


def test_invalid_url_of_a_view_is_refused():
    with pytest.raises(ConfigError, match=r"invalid view\.url"):
        listener(view_url="127.0.0.1:9080")
