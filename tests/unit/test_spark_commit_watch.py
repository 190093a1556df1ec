"""What a live view is told of commits: phases, outcomes, the batch at hand; and that a commit never waits for it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from headrace.errors import ConfigError
from headrace.spark.commit_watch import (
    BATCHES_MAX,
    CommitWatch,
    TaskTimes,
    WatchedBatch,
    WatchedPlaces,
    forget,
    watch_of,
    watched,
)
from headrace.spark.failpoints import FAILPOINTS, FailpointError
from headrace.spark.sink_options import SinkOptions
from listening_view import ListeningView
from waiting import eventually

KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}
INLINE = ["begin.fence", "begin.read", "begin.done", "decide.begin", "decide.written", "decide.done"]
PARALLEL = [*INLINE[:3], "check.done", *INLINE[3:], "end.done", "finish.done"]


@pytest.fixture
def view():
    with ListeningView() as view:
        yield view


@pytest.fixture
def watch(view):
    made = CommitWatch(options(view.url), "sink", "query", "run")
    yield made
    made.close()


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
    return [batch for one in list(view.reports) for batch in one["batches"]]


def commit(watch, number, places, reports=(), **arguments):
    with watched(watch, number, list(reports), **arguments):
        for place in places:
            WatchedPlaces("").reach(place)


def test_every_phase_of_a_commit_has_its_time(watch, view):
    now_ms = time.time_ns() // 1_000_000
    reports = [
        report(planned_ms=now_ms - 900, plan_ms=50, started_ms=now_ms - 600, ended_ms=now_ms - 400, sent_bytes=10),
        report(planned_ms=now_ms - 900, plan_ms=50, started_ms=now_ms - 500, ended_ms=now_ms - 300, sent_bytes=20),
    ]
    with watched(watch, 7, reports):
        places = WatchedPlaces("")
        places.reach("begin.done")
        time.sleep(0.02)
        places.reach("decide.done")
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
    ("places", "arguments", "outcome"),
    [
        (INLINE, {}, "committed"),
        (PARALLEL, {}, "committed"),
        (["replay.abort"], {}, "replayed"),
        ([], {}, "empty"),
        ([], {"outcome": "written"}, "written"),
        (["abort.begin"], {"outcome": "aborted"}, "aborted"),
    ],
)
def test_how_a_batch_ended(watch, view, places, arguments, outcome):
    commit(watch, 1, places, **arguments)
    eventually("the batch", lambda: batches(view))
    assert batches(view)[0]["outcome"] == outcome


def test_parts_that_were_written_again_are_counted(watch, view):
    commit(watch, 1, [*PARALLEL[:-2], "redo.begin", "redo.written", "redo.done", "redo.done", "end.done"])
    eventually("the batch", lambda: batches(view))
    assert batches(view)[0]["redone"] == 2


def test_the_batch_at_hand_is_told_with_the_place_it_has_reached(watch, view):
    with watched(watch, 3, [report(transaction=object(), attempt=1)]):
        WatchedPlaces("").reach("decide.done")
        found = view.until("the place", lambda report: report["now"] and report["now"]["place"] == "decide.done")
    now = found["now"]
    assert (now["batch"], now["transactions"], now["is_retried"], now["outcome"]) == (3, 1, True, "")
    view.until("the end", lambda report: report["now"] is None and report["batches"])


def test_an_error_goes_on_as_it_was_and_is_told(watch, view, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_FAILPOINTS", "1")
    monkeypatch.setenv("HEADRACE_FAILPOINTS_DIR", str(tmp_path))
    with pytest.raises(FailpointError), watched(watch, 4, []):
        WatchedPlaces("decide.begin=raise").reach("decide.begin")
    eventually("the batch", lambda: batches(view))
    assert (batches(view)[0]["outcome"], batches(view)[0]["error"][:23]) == ("failed", "failpoint decide.begin:")


def test_a_watch_that_is_broken_does_not_break_the_commit(watch, monkeypatch):
    def broken(*_):
        raise RuntimeError("of the watch")

    for method in ("begin", "passed", "end", "close_in_person"):
        monkeypatch.setattr(watch, method, broken)
    commit(watch, 5, FAILPOINTS)  # or it would raise


def test_a_watch_that_cannot_be_made_is_none(view, monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert watch_of(options(view.url), "sink", "query", "no thread") is None


def test_a_view_that_never_answers_costs_a_commit_nothing(view):
    view.may_answer.clear()
    watch = CommitWatch(options(view.url), "sink", "query", "run")
    commit(watch, 0, PARALLEL)
    eventually("a post under way", lambda: watch._link._connection is not None)
    began = time.perf_counter()
    for number in range(1, 101):
        commit(watch, number, PARALLEL)
    took_ms = (time.perf_counter() - began) * 1000
    watch.close()
    assert took_ms < 500  # a hundred commits of a dozen places each


def test_what_the_view_has_missed_is_told_when_it_is_back_as_far_as_it_is_kept():
    with ListeningView() as gone:
        port = gone.port
    watch = CommitWatch(options(f"http://127.0.0.1:{port}"), "sink", "query", "run")
    for number in range(BATCHES_MAX + 10):
        commit(watch, number, INLINE)
    with ListeningView(port) as back:
        eventually("the batches", lambda: batches(back))
        watch.close()
        told = [batch["batch"] for batch in batches(back)]
    assert told == list(range(10, BATCHES_MAX + 10))


def test_a_batch_is_told_once(watch, view):
    for number in range(3):
        commit(watch, number, INLINE)
        eventually("all batches so far", lambda: len(batches(view)) > number)  # noqa: B023 - asked at once
    assert [batch["sequence"] for batch in batches(view)] == [1, 2, 3]


def test_one_watch_for_each_run_of_a_sink(view):
    given = options(view.url)
    first = watch_of(given, "sink", "query", "one")
    assert watch_of(given, "sink", "query", "one") is first
    second = watch_of(given, "sink", "query", "two")
    assert second is not first
    view.until("the end of the first", lambda report: report["run"] == "one" and report["is_closed"])
    forget(second)
    view.until("the end of the second", lambda report: report["run"] == "two" and report["is_closed"])


def test_without_a_view_nothing_is_watched():
    assert watch_of(SinkOptions.parse(KAFKA, is_stream=True), "sink", "query", "run") is None
    with watched(None, 0, []):
        WatchedPlaces("").reach("decide.begin")
    assert WatchedBatch.of(0, []).rows == 0


def test_the_sinks_options_reach_the_producers_of_its_tasks():
    given = options("http://here:1", **{"view.token": "secret"})
    config = given.producer_config()
    assert (config["metric.reporters"], config["view.url"], config["view.token"]) == ("view", "http://here:1", "secret")
    assert "secret" not in repr(given)
    own = options("http://here:1", **{"kafka.metric.reporters": "log"}).producer_config()
    assert (own["metric.reporters"], "view.url" in own) == ("log", False)
    with pytest.raises(ConfigError, match=r"view.url is 'here'"):
        options("here")
