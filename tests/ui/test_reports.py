"""What the view makes of reports: taken, refused, forgotten."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from headrace.ui.report_fields import ReportError
from headrace.ui.reports import PRODUCERS_MAX, REPORT_BYTES_MAX, FullError, Reports

PRODUCER: dict[str, Any] = {
    **{"kind": "producer", "id": "p1", "client_id": "shop", "host": "h", "pid": 1, "started_ms": 1, "time_ms": 1},
    **{"interval_ms": 1000, "is_closed": False, "transaction": None},
    "steps": {
        **{"interceptors": ["Stamp"], "interceptor_errors": 0, "partitioner": None},
        **{"key_serializer": "BytesSerializer", "value_serializer": "BytesSerializer"},
    },
    "pool": {"total_bytes": 100, "used_bytes": 40, "waiting_threads": 0, "waited_ms": 0, "exhausted": 0},
    "batches": {"batch_bytes": 16384, "linger_ms": 5, "partitions": 0, "queued": 0, "oldest": []},
    "brokers": [],
    "topics": [],
    "totals": {"records": 5, "retries": 0, "errors": 0, "splits": 0, "sent_bytes": 500, "throttled_ms": 0},
    "latency": {"queue": None, "request": None, "delivery": {"p50": 1, "p95": 2, "p99": 3, "max": 4}},
    "errors": [],
}
BATCH: dict[str, Any] = {
    **{"batch": 0, "sequence": 1, "tasks": 2, "transactions": 2, "rows": 10, "dead": 1, "bytes": 100},
    **{"is_retried": False, "began_ms": 1, "plan_ms": 1, "write_ms": 2, "spark_ms": 3, "begin_ms": 4, "decide_ms": 5},
    **{"end_ms": 6, "redone": 1, "outcome": "committed", "error": ""},
}
COMMITS: dict[str, Any] = {
    **{"kind": "commits", "id": "s~r", "name": "orders", "sink": "s", "query": "q", "run": "r", "topic": "t"},
    **{"delivery": "exactly-once", "host": "h", "pid": 1, "interval_ms": 5000, "is_closed": False, "now": None},
    "batches": [BATCH],
}
DRIVER: dict[str, Any] = {
    **{"kind": "pipeline", "id": "d", "name": "orders", "host": "h", "pid": 1, "interval_ms": 2000},
    **{"is_closed": False, "state": "running", "master": "local[2]"},
    "totals": {"batches": 1, "rows": 10, "rows_per_second": 5.0, "seconds": 2.0, "behind": 7},
}


def take(reports: Reports, report: Any) -> None:
    reports.take(json.dumps(report).encode())


def test_a_producer_is_known_by_what_it_told_last_and_has_rates():
    reports = Reports()
    take(reports, PRODUCER)
    take(reports, {**PRODUCER, "totals": {**PRODUCER["totals"], "records": 25}})
    (told,) = reports.producers()
    assert (told.last.client_id, told.last.records, told.is_live) == ("shop", 25, True)
    assert told.records.last is not None
    assert told.records.last > 0
    assert told.used_share.last == 40
    assert told.p99_ms.last == 3


def test_a_producer_that_was_killed_is_silent_and_one_that_said_farewell_is_not(monkeypatch):
    reports = Reports()
    take(reports, PRODUCER)
    take(reports, {**PRODUCER, "id": "p2", "is_closed": True})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    found = {told.id: (told.is_live, told.is_silent) for told in reports.producers()}
    assert found == {"p1": (False, True), "p2": (False, False)}


def test_commits_and_driver_of_a_name_belong_together():
    reports = Reports()
    take(reports, COMMITS)
    take(reports, DRIVER)
    (told,) = reports.pipelines()
    assert (told.name, told.state, told.totals.rows, told.totals.dead, told.totals.redone) == (
        "orders",
        "running",
        10,
        1,
        1,
    )
    assert told.batches[0].mode == "parallel"
    assert told.batches[0].total_ms == 21
    assert told.driver is not None
    assert told.driver.behind == 7


def test_a_batch_that_is_told_again_counts_once():
    reports = Reports()
    take(reports, COMMITS)
    take(reports, {**COMMITS, "batches": [BATCH, {**BATCH, "sequence": 2, "batch": 1, "outcome": "failed"}]})
    (told,) = reports.pipelines()
    assert [(one.batch, one.outcome) for one in told.batches] == [(0, "committed"), (1, "failed")]
    assert (told.totals.committed, told.totals.failed) == (1, 1)


def test_a_run_whose_commits_come_from_several_processes_is_shown_by_the_one_at_work():
    """Spark serves each commit in any process; those that are idle tell that they are, and one is ended at times."""
    reports = Reports()
    at_hand = {**BATCH, "batch": 2, "place": "decide.begin", "since_ms": 1}
    take(reports, {**COMMITS, "id": "one", "pid": 1})
    take(reports, {**COMMITS, "id": "two", "pid": 2, "batches": [{**BATCH, "batch": 1}], "now": at_hand})
    take(reports, {**COMMITS, "id": "one", "pid": 1, "batches": []})
    take(reports, {**COMMITS, "id": "three", "pid": 3, "batches": [], "is_closed": True})
    (told,) = reports.pipelines()
    assert told.run is not None
    assert (told.run.id, told.state) == ("two", "running")
    assert [one.batch for one in told.batches] == [0, 1]
    assert told.totals.committed == 2


def test_a_driver_that_was_killed_is_silent_and_the_next_run_goes_on(monkeypatch):
    reports = Reports()
    take(reports, DRIVER)
    take(reports, COMMITS)
    (told,) = reports.pipelines()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    assert told.state == "silent"
    take(reports, {**DRIVER, "id": "another"})
    take(reports, {**COMMITS, "id": "s~another", "batches": [{**BATCH, "batch": 1}]})
    assert told.state == "running"
    assert [one.batch for one in told.batches] == [0, 1]
    assert told.run is not None
    assert told.run.id == "s~another"


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is no object"),
        (b"[" * 100_000, "is not JSON"),
        (json.dumps({"kind": "gossip", "id": "x"}).encode(), "it may be producer, commits or pipeline"),
        (json.dumps({**PRODUCER, "pid": "one"}).encode(), "'pid' in the report is not a number"),
        (json.dumps({**PRODUCER, "pid": True}).encode(), "'pid' in the report is not a number"),
        (json.dumps({**PRODUCER, "started_ms": 1e300}).encode(), "is not a number of this world"),
        (json.dumps({**PRODUCER, "started_ms": float("nan")}).encode(), "is not a number of this world"),
        (json.dumps({**PRODUCER, "brokers": [{}] * 1000}).encode(), "is not a list of 200 items at most"),
        (json.dumps({**PRODUCER, "pool": None}).encode(), "'pool' in the report is no object"),
        (json.dumps({**COMMITS, "batches": [{}]}).encode(), "an item of 'batches' in the report is not"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(report, said):
    reports = Reports()
    with pytest.raises(ReportError, match=said):
        reports.take(report)
    assert not reports.producers()
    assert not reports.pipelines()


def test_texts_are_cut():
    reports = Reports()
    take(reports, {**PRODUCER, "client_id": "x" * 10_000})
    assert len(reports.producers()[0].last.client_id) < 1000


def test_no_more_producers_are_followed_than_there_is_room_for_and_the_silent_make_room(monkeypatch):
    reports = Reports()
    for number in range(PRODUCERS_MAX):
        take(reports, {**PRODUCER, "id": f"p{number}"})
    with pytest.raises(FullError, match=f"follows {PRODUCERS_MAX} producers already"):
        take(reports, {**PRODUCER, "id": "one more"})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    take(reports, {**PRODUCER, "id": "one more"})
    assert len(reports.producers()) == PRODUCERS_MAX
    monkeypatch.setattr(time, "time", lambda: real() + 2000)
    assert not reports.producers()


def post(url: str, body: bytes) -> tuple[int, str]:
    request = urllib.request.Request(f"{url}/report", body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_reports_come_by_http(live):
    assert post(live.url, json.dumps({**PRODUCER, "id": "by-http", "is_closed": True}).encode()) == (204, "")
    assert post(live.url, b"no") == (400, "the report is not JSON: Expecting value: line 1 column 1 (char 0)\n")
    assert post(live.url, b" " * (REPORT_BYTES_MAX + 1))[0] == 413
