"""Reports of commits to a live view: phases, outcomes, the current batch; and commits never wait for it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from headrace.errors import ConfigError, TimedOutError
from headrace.spark.commit_reporter import (
    BATCHES_MAX,
    CommitReporter,
    TaskTimes,
    batch_report,
    close_reporter,
    commit_reporter,
    reported,
    task_phases,
)
from headrace.spark.commit_times import TaskPhases
from headrace.spark.sink_options import SinkOptions
from headrace.spark.task_writer import Report, TaskAttempt
from headrace.telemetry.listeners import CommitPhase
from headrace.telemetry.models import BatchOutcome
from tests.support.listening_view import ListeningView
from tests.support.waiting import eventually

KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}
INLINE = [CommitPhase.BEGIN, CommitPhase.CHECK, CommitPhase.DECIDE, CommitPhase.END]
PARALLEL = [*INLINE, CommitPhase.FINISH]
REDO = object()


@pytest.fixture
def view():
    with ListeningView() as view:
        yield view


@pytest.fixture
def reporter(view):
    reporter = CommitReporter(options(view.url), "sink", "query", "run")
    yield reporter
    reporter.close()


def options(url, **more):
    return SinkOptions.parse({**KAFKA, "view.url": url, **more}, is_stream=True)


def report(rows=100, *, transaction=None, attempt=0, **times):
    return SimpleNamespace(
        row_count=rows,
        dead_count=1,
        transaction=transaction,
        task=SimpleNamespace(attempt=attempt),
        times=TaskTimes(**times),
    )


def batches(view):
    return [batch for report in list(view.reports) for batch in report["batches"]]


def commit(reporter, number, phases, reports=(), **arguments):
    with reported(reporter, number, list(reports), **arguments) as listener:
        for phase in phases:
            if phase is REDO:
                listener.phase_started(CommitPhase.REDO)
                listener.transaction_redone()
                listener.phase_started(CommitPhase.END)
            else:
                listener.phase_started(phase)


def test_every_phase_of_a_commit_is_timed(reporter, view):
    now_ms = time.time_ns() // 1_000_000
    reports = [
        report(planned_ms=now_ms - 900, plan_ms=50, started_ms=now_ms - 600, ended_ms=now_ms - 400, sent_bytes=10),
        report(planned_ms=now_ms - 900, plan_ms=50, started_ms=now_ms - 500, ended_ms=now_ms - 300, sent_bytes=20),
    ]
    with reported(reporter, 7, reports) as listener:
        listener.phase_started(CommitPhase.CHECK)
        time.sleep(0.02)
        listener.phase_started(CommitPhase.END)
        time.sleep(0.01)
    eventually("the batch", lambda: batches(view))
    (batch,) = batches(view)
    assert (batch["batch"], batch["outcome"], batch["rows"], batch["bytes"], batch["dead"]) == (
        7,
        "committed",
        200,
        30,
        2,
    )
    assert (batch["plan_ms"], batch["write_ms"]) == (50, 300)
    assert 549 <= batch["spark_ms"] < 2000
    assert 20 <= batch["decide_ms"] < 1000
    assert 10 <= batch["end_ms"] < 1000


@pytest.mark.parametrize(
    ("phases", "arguments", "outcome"),
    [
        (INLINE, {}, "committed"),
        (PARALLEL, {}, "committed"),
        ([CommitPhase.CHECK, CommitPhase.REPLAY], {}, "replayed"),
        ([], {}, "empty"),
        ([], {"outcome": BatchOutcome.WRITTEN}, "written"),
        ([CommitPhase.ABORT], {"outcome": BatchOutcome.ABORTED}, "aborted"),
    ],
)
def test_outcome_of_a_batch(reporter, view, phases, arguments, outcome):
    commit(reporter, 1, phases, **arguments)
    eventually("the batch", lambda: batches(view))
    assert batches(view)[0]["outcome"] == outcome


def test_redone_transactions_are_counted(reporter, view):
    commit(reporter, 1, [*INLINE, REDO, REDO, CommitPhase.FINISH])
    eventually("the batch", lambda: batches(view))
    assert batches(view)[0]["redone"] == 2


def test_redo_of_an_earlier_decision_is_part_of_begin(reporter, view):
    commit(reporter, 1, [CommitPhase.BEGIN, REDO, CommitPhase.FINISH, CommitPhase.CHECK, CommitPhase.REPLAY])
    eventually("the batch", lambda: batches(view))
    assert (batches(view)[0]["outcome"], batches(view)[0]["redone"], batches(view)[0]["end_ms"]) == ("replayed", 1, 0)


def test_current_batch_is_reported_with_its_phase(reporter, view):
    with reported(reporter, 3, [report(transaction=object(), attempt=1)]) as listener:
        listener.phase_started(CommitPhase.END)
        current = view.until("the phase", lambda report: report["now"] and report["now"]["phase"] == "end")
    now = current["now"]
    assert (now["batch"], now["transactions"], now["is_retried"], now["outcome"]) == (3, 1, True, "")
    view.until("the end", lambda report: report["now"] is None and report["batches"])


def test_error_is_raised_unchanged_and_reported(reporter, view):
    with pytest.raises(TimedOutError), reported(reporter, 4, []):
        raise TimedOutError("no response")
    eventually("the batch", lambda: batches(view))
    assert (batches(view)[0]["outcome"], batches(view)[0]["error"]) == ("failed", "no response")


def test_broken_reporter_does_not_break_the_commit(reporter, monkeypatch):
    def broken(*_):
        raise RuntimeError("of the reporter")

    monkeypatch.setattr(reporter._sender, "notify", broken)
    for method in ("begin", "end", "send_final_report"):
        monkeypatch.setattr(reporter, method, broken)
    commit(reporter, 5, list(CommitPhase))  # must not raise


def test_reporter_that_cannot_be_created_is_none(view, monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert commit_reporter(options(view.url), "sink", "query", "no thread") is None


def test_view_that_never_responds_does_not_delay_commits(view):
    view.may_respond.clear()
    reporter = CommitReporter(options(view.url), "sink", "query", "run")
    commit(reporter, 0, PARALLEL)
    eventually("a post in progress", lambda: view.request_count)
    began = time.perf_counter()
    for number in range(1, 101):
        commit(reporter, number, PARALLEL)
    took_ms = (time.perf_counter() - began) * 1000
    reporter.close()
    assert took_ms < 500  # a hundred commits


def test_batches_are_kept_while_the_view_is_unreachable_up_to_a_bound():
    with ListeningView() as gone:
        port = gone.port
    reporter = CommitReporter(options(f"http://127.0.0.1:{port}"), "sink", "query", "run")
    for number in range(BATCHES_MAX + 10):
        commit(reporter, number, INLINE)
    with ListeningView(port) as back:
        eventually("the batches", lambda: batches(back))
        reporter.close()
        reported_batches = [batch["batch"] for batch in batches(back)]
    assert reported_batches == list(range(10, BATCHES_MAX + 10))


def test_batch_is_reported_once(reporter, view):
    for number in range(3):
        commit(reporter, number, INLINE)
        eventually("all batches so far", lambda: len(batches(view)) > number)  # noqa: B023 - called at once
    assert [batch["sequence"] for batch in batches(view)] == [1, 2, 3]


def test_one_reporter_per_run_of_a_sink(view):
    given = options(view.url)
    first = commit_reporter(given, "sink", "query", "first")
    assert commit_reporter(given, "sink", "query", "first") is first
    second = commit_reporter(given, "sink", "query", "second")
    assert second is not first
    view.until("the end of the first", lambda report: report["run"] == "first" and report["is_closed"])
    close_reporter(second)
    view.until("the end of the second", lambda report: report["run"] == "second" and report["is_closed"])


def test_without_a_view_nothing_is_reported():
    assert commit_reporter(SinkOptions.parse(KAFKA, is_stream=True), "sink", "query", "run") is None
    commit(None, 0, list(CommitPhase))
    assert batch_report(0, []).rows == 0


def test_phases_of_a_batch_before_its_commit():
    def report(started_ms: int, ended_ms: int) -> Report:
        times = TaskTimes(planned_ms=1000, plan_ms=4.0, started_ms=started_ms, ended_ms=ended_ms)
        return Report(TaskAttempt("sink", "query", "run", 0, 0, 0), times=times)

    phases = task_phases([report(1030, 1040), report(1020, 1035)], now_ms=1047)
    assert phases == TaskPhases(plan_ms=4.0, launch_ms=16.0, write_ms=20, collect_ms=7)
    assert task_phases([report(990, 980)], now_ms=970) == TaskPhases(plan_ms=4.0)  # clocks of several hosts
    assert task_phases([], now_ms=0) == TaskPhases()


def test_sink_options_apply_to_the_producers_of_tasks():
    given = options("http://here:1", **{"view.token": "secret"})
    config = given.producer_config()
    assert (config["metric.reporters"], config["view.url"], config["view.token"]) == ("view", "http://here:1", "secret")
    assert "secret" not in repr(given)
    own = options("http://here:1", **{"kafka.metric.reporters": "log"}).producer_config()
    assert (own["metric.reporters"], "view.url" in own) == ("log", False)
    with pytest.raises(ConfigError, match=r"invalid view.url: .*, got 'here'"):
        options("here")
