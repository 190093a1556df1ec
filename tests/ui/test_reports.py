"""The store of reports: rates, runs, limits; and the endpoint."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.telemetry.codec import ReportError
from headrace.ui.reports import PRODUCERS_MAX, REPORT_BYTES_MAX, ReportStore, StoreFullError

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


def add(reports: ReportStore, report: Any) -> None:
    reports.add(json.dumps(report).encode())


def test_producer_has_its_last_report_and_rates():
    reports = ReportStore()
    add(reports, PRODUCER)
    add(reports, {**PRODUCER, "totals": {**PRODUCER["totals"], "records": 25}})
    (producer,) = reports.producers()
    assert (producer.report.client_id, producer.report.totals.records, producer.is_live) == ("shop", 25, True)
    assert producer.records.last is not None
    assert producer.records.last > 0
    assert producer.used_percent.last == 40
    assert producer.p99_ms.last == 3


def test_killed_producer_is_silent_and_closed_one_is_not(monkeypatch):
    reports = ReportStore()
    add(reports, PRODUCER)
    add(reports, {**PRODUCER, "id": "p2", "is_closed": True})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    states = {producer.id: (producer.is_live, producer.is_silent) for producer in reports.producers()}
    assert states == {"p1": (False, True), "p2": (False, False)}


def test_commits_and_driver_with_the_same_name_form_a_pipeline():
    reports = ReportStore()
    add(reports, COMMITS)
    add(reports, DRIVER)
    (pipeline,) = reports.pipelines()
    assert (pipeline.name, pipeline.state, pipeline.totals.rows, pipeline.totals.dead, pipeline.totals.redone) == (
        "orders",
        "running",
        10,
        1,
        1,
    )
    assert pipeline.batches[0].mode == "parallel"
    assert pipeline.batches[0].decide_ms == 5
    assert pipeline.driver is not None
    assert pipeline.driver.totals.behind == 7


def test_batch_that_is_reported_again_counts_once():
    reports = ReportStore()
    add(reports, COMMITS)
    add(reports, {**COMMITS, "batches": [BATCH, {**BATCH, "sequence": 2, "batch": 1, "outcome": "failed"}]})
    (pipeline,) = reports.pipelines()
    assert [(batch.batch, batch.outcome) for batch in pipeline.batches] == [(0, "committed"), (1, "failed")]
    assert (pipeline.totals.committed, pipeline.totals.failed) == (1, 1)


def test_run_of_several_processes_shows_the_committing_one():
    """Spark serves each commit in any process; idle processes report as well."""
    reports = ReportStore()
    current = {**BATCH, "batch": 2, "place": "decide.begin", "since_ms": 1}
    add(reports, {**COMMITS, "id": "first", "pid": 1})
    add(reports, {**COMMITS, "id": "second", "pid": 2, "batches": [{**BATCH, "batch": 1}], "now": current})
    add(reports, {**COMMITS, "id": "first", "pid": 1, "batches": []})
    add(reports, {**COMMITS, "id": "third", "pid": 3, "batches": [], "is_closed": True})
    (pipeline,) = reports.pipelines()
    assert pipeline.run is not None
    assert (pipeline.run.report.id, pipeline.state) == ("second", "running")
    assert [batch.batch for batch in pipeline.batches] == [0, 1]
    assert pipeline.totals.committed == 2


def test_killed_driver_is_silent_until_the_next_run(monkeypatch):
    reports = ReportStore()
    add(reports, DRIVER)
    add(reports, COMMITS)
    (pipeline,) = reports.pipelines()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    assert pipeline.state == "silent"
    add(reports, {**DRIVER, "id": "another"})
    add(reports, {**COMMITS, "id": "s~another", "batches": [{**BATCH, "batch": 1}]})
    assert pipeline.state == "running"
    assert [batch.batch for batch in pipeline.batches] == [0, 1]
    assert pipeline.run is not None
    assert pipeline.run.report.id == "s~another"


def test_invalid_report_changes_nothing():
    reports = ReportStore()
    with pytest.raises(ReportError):
        add(reports, {**COMMITS, "batches": [{}]})
    assert not reports.producers()
    assert not reports.pipelines()


def test_new_producers_are_refused_when_full_unless_one_is_silent(monkeypatch):
    reports = ReportStore()
    for number in range(PRODUCERS_MAX):
        add(reports, {**PRODUCER, "id": f"p{number}"})
    with pytest.raises(StoreFullError, match=f"{PRODUCERS_MAX} producers report to this view already"):
        add(reports, {**PRODUCER, "id": "another"})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    add(reports, {**PRODUCER, "id": "another"})
    assert len(reports.producers()) == PRODUCERS_MAX
    monkeypatch.setattr(time, "time", lambda: real() + 2000)
    assert not reports.producers()


def post(url: str, body: bytes) -> tuple[int, str]:
    request = urllib.request.Request(f"{url}/report", body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_report_endpoint(live):
    assert post(live.url, json.dumps({**PRODUCER, "id": "by-http", "is_closed": True}).encode()) == (204, "")
    assert post(live.url, b"no") == (400, "invalid report: not JSON: Expecting value: line 1 column 1 (char 0)\n")
    assert post(live.url, b" " * (REPORT_BYTES_MAX + 1))[0] == 413


def test_sender_killed_during_a_report_leaves_no_traceback(live):
    address = urlsplit(live.url)
    head = f"POST /report HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), 10) as connection:
        connection.sendall(head.encode() + b"{")
    assert post(live.url, json.dumps({**PRODUCER, "id": "after", "is_closed": True}).encode()) == (204, "")
    assert "Traceback" not in live.log_text
