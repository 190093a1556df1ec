"""Figures of streaming queries: from Spark's progress and the commits of the sink to the log and to Prometheus."""

from __future__ import annotations

import json
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headrace.spark.planning import Position
from headrace.spark.query_figures import RECENT_MAX, QueryFigures
from headrace.spark.query_metrics import QueryCollector
from headrace.spark.query_view import source_reports
from headrace.spark.source_progress import SourceProgress, TopicProgress, with_figures
from headrace.telemetry.models import BatchReport, CommitReport, TopicLag
from headrace.types import TopicPartition

NEWEST_MS = 1_700_000_000_123
ORDERS = [TopicPartition("orders", number) for number in range(2)]
REFUNDS = TopicPartition("refunds", 0)


def progress(batch=7, rows=1500):
    end = {"orders": {"0": 900, "1": 600}, "refunds": {"0": 10}}
    latest = Position({ORDERS[0]: 1000, ORDERS[1]: 1000, REFUNDS: 12})
    ends = Position.of_json(end).offsets
    figures = with_figures(latest, "orders, refunds at kafka:9092", ends, {"orders": NEWEST_MS})
    return {
        "id": "11111111-2222-3333-4444-555555555555",
        "runId": "66666666-2222-3333-4444-555555555555",
        "name": "copy",
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 6493.5,
        "durationMs": {"addBatch": 118, "triggerExecution": 231, "walCommit": 20},
        "sources": [
            {
                "description": "org.apache.spark.PythonMicroBatchStreamWithTriggerAvailableNow@7dd793cd",
                "startOffset": json.dumps({"orders": {"0": 0, "1": 0}, "refunds": {"0": 0}}),
                "endOffset": json.dumps(end),
                "latestOffset": json.dumps(figures),
            }
        ],
        "sink": {"description": "org.apache.spark.PythonTable@1", "numOutputRows": -1},
    }


def commits(*outcomes, batch=7, **fields):
    return [
        CommitReport(
            id="p",
            host="h",
            pid=1,
            interval_ms=5000,
            name="copy",
            sink="orders-copy",
            query="q",
            topic="out",
            delivery="exactly-once",
            batches=(
                BatchReport(
                    batch=batch,
                    sequence=number,
                    outcome=outcome,
                    rows=1500,
                    bytes=3000,
                    plan_ms=2,
                    write_ms=40,
                    decide_ms=8,
                    end_ms=11,
                    **fields,
                ),
            ),
        )
        for number, outcome in enumerate(outcomes, 1)
    ]


@pytest.fixture
def figures():
    figures = QueryFigures("11111111-2222-3333-4444-555555555555", "run", "copy")
    figures.add_progress(progress())
    figures.add_commits(commits("committed"))
    return figures


def test_source_in_spark_s_progress_has_name_lag_and_newest_timestamp():
    source = SourceProgress.of_json(progress()["sources"][0])
    assert source.name == "orders, refunds at kafka:9092"
    assert (source.lag, source.offset_count) == (502, 1510)
    assert source.lags == {ORDERS[0]: 100, ORDERS[1]: 400, REFUNDS: 2}
    assert source.topics() == [TopicProgress("orders", 2, 500, NEWEST_MS), TopicProgress("refunds", 1, 2, None)]


def test_latest_offset_is_readable_and_still_a_position():
    latest = Position({ORDERS[0]: 10})
    shown = with_figures(latest, "orders at kafka:9092", {ORDERS[0]: 4}, {"orders": NEWEST_MS})
    assert shown == {
        "orders": {"0": 10},
        "@source": "orders at kafka:9092",
        "@lag": {"orders": 6},
        "@newest": {"orders": "2023-11-14T22:13:20.123Z"},
    }
    assert Position.of_json(json.loads(json.dumps(shown))) == latest


@pytest.mark.parametrize("ms", [NEWEST_MS * 1000, NEWEST_MS * 1_000_000, 2**63 - 1, -(2**63)])
def test_timestamp_outside_the_years_1_to_9999_is_left_out(ms):
    latest = Position({ORDERS[0]: 10, REFUNDS: 3})
    shown = with_figures(latest, "orders", {ORDERS[0]: 4, REFUNDS: 3}, {"orders": ms, "refunds": NEWEST_MS})
    assert shown["@lag"] == {"orders": 6, "refunds": 0}
    assert shown["@newest"] == {"refunds": "2023-11-14T22:13:20.123Z"}
    assert "@newest" not in with_figures(latest, "orders", {}, {"orders": ms})


@pytest.mark.parametrize(
    "newest", [None, 7, {"orders": "yesterday"}, {"orders": None}, {"orders": 3}, {"orders": "0001-01-01T00:00:00"}]
)
def test_unknown_form_of_newest_timestamps_is_no_error(newest):
    latest = {"orders": {"0": 10}, "@newest": newest}
    source = SourceProgress.of_json({"endOffset": {"orders": {"0": 4}}, "latestOffset": latest})
    assert (source.lag, source.newest_ms) == (6, {})


def test_other_source_keeps_the_description_of_spark():
    source = SourceProgress.of_json({"description": "FileStreamSource[file:/in]", "endOffset": {"logOffset": 3}})
    assert (source.name, source.lag, source.topics()) == ("FileStreamSource[file:/in]", None, [])


def test_batch_is_one_readable_line(figures):
    assert figures.summary(NEWEST_MS + 1200) == (
        "query copy: batch 7, 1,500 rows in 231 ms (6,494 rows/s); "
        "lag 502 (orders 500, refunds 2), newest record 1.2 s old; "
        "sink orders-copy: committed, 1,500 rows to out (plan 2 ms, write 40 ms, decide 8 ms, end 11 ms)"
    )


def test_line_says_what_was_not_delivered(figures):
    figures.add_commits(commits("replayed", redone=1))
    assert figures.summary(NEWEST_MS).split("; ")[-1].startswith("sink orders-copy: replayed, 1 redone (")


def test_line_has_the_commit_of_its_own_batch(figures):
    figures.add_commits(
        [commit for number in range(8, 8 + RECENT_MAX) for commit in commits("committed", batch=number)]
    )
    assert "sink" not in figures.summary(NEWEST_MS)  # too long ago
    assert len(figures.recent) == RECENT_MAX
    figures.add_progress(progress(batch=9))
    figures.add_commits(commits("failed", batch=10))
    assert "sink orders-copy: committed" in figures.summary(NEWEST_MS)


def test_totals_continue_over_runs(figures):
    figures.end("the broker has gone")
    assert (figures.state, figures.error) == ("failed", "the broker has gone")
    figures.restart("other", "run-2")
    figures.add_progress(progress(batch=8))
    figures.add_commits(commits("replayed", "committed"))
    assert (figures.state, figures.totals.batches, figures.totals.rows) == ("running", 2, 3000)
    assert (figures.outcomes, figures.commits.rows) == ({"committed": 2, "replayed": 1}, 3000)


def test_restarted_query_shows_nothing_of_the_run_before(figures):
    figures.end(None)
    figures.restart("other", "run-2")
    assert figures.summary(NEWEST_MS) == "query copy: no batch yet"
    assert not any("lag" in line or "source_offset" in line for line in scrape(lambda: [figures]))
    assert figures.totals.behind is None
    figures.add_progress(progress())  # the same number of batch, whose commit is not known yet
    assert "sink" not in figures.summary(NEWEST_MS)


def test_running_time_is_the_sum_of_the_runs(figures, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: figures.totals.started_at + 10)
    figures.end(None)
    restarted_at = figures.totals.started_at + 1000
    monkeypatch.setattr(time, "monotonic", lambda: restarted_at)
    figures.restart("id", "run-2")
    assert figures.totals.seconds == pytest.approx(10)
    monkeypatch.setattr(time, "monotonic", lambda: restarted_at + 5)
    assert figures.totals.seconds == pytest.approx(15)
    assert figures.totals.rows_per_second == pytest.approx(100)


def test_live_view_gets_lag_by_topic(figures):
    (source,) = source_reports(figures.progress)
    assert (source.name, source.lag) == ("orders, refunds at kafka:9092", 502)
    assert source.topics == (TopicLag("orders", 2, 500, NEWEST_MS), TopicLag("refunds", 1, 2, None))


def scrape(*sources):
    registry = CollectorRegistry()
    for source in sources:
        QueryCollector.of(registry).add(source)
    return generate_latest(registry).decode().splitlines()


def test_prometheus_has_lag_commits_and_phases(figures):
    lines = scrape(lambda: [figures])
    for line in (
        'headrace_source_lag_records{partition="1",query="copy",source="0",topic="orders"} 400.0',
        'headrace_source_newest_timestamp_seconds{query="copy",source="0",topic="orders"} 1.700000000123e+09',
        'headrace_source_offset{partition="0",query="copy",source="0",topic="refunds"} 10.0',
        'headrace_query_running{query="copy"} 1.0',
        'headrace_query_batches_total{query="copy"} 1.0',
        'headrace_query_input_rows_total{query="copy"} 1500.0',
        'headrace_query_phase_seconds_sum{phase="triggerExecution",query="copy"} 0.231',
        'headrace_sink_commits_total{outcome="committed",query="copy",sink="orders-copy"} 1.0',
        'headrace_sink_rows_total{query="copy",sink="orders-copy"} 1500.0',
        'headrace_sink_phase_seconds_sum{phase="decide",query="copy",sink="orders-copy"} 0.008',
        'headrace_sink_phase_seconds_count{phase="decide",query="copy",sink="orders-copy"} 1.0',
    ):
        assert line in lines
    assert any(line.startswith("headrace_query_info{") and 'topic="out"' in line for line in lines)


def test_query_of_two_listeners_is_exported_once(figures):
    once, twice = scrape(lambda: [figures]), scrape(lambda: [figures], lambda: [figures])
    assert twice == once


def test_query_without_a_batch_is_exported():
    lines = scrape(lambda: [QueryFigures("id", "run", "new")])
    assert 'headrace_query_running{query="new"} 1.0' in lines
    assert not any("lag" in line or "sink_rows" in line for line in lines)
