"""Pipelines page: reported commits, and a real run of Spark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

pytest.importorskip("pyspark")

from headrace.client.admin import AdminClient, NewTopic
from headrace.spark.commit_reporter import CommitReporter, TaskTimes, reported
from headrace.spark.query_figures import QueryFigures
from headrace.spark.query_view import QueryReporter
from headrace.spark.sink_options import SinkOptions
from headrace.telemetry.listeners import CommitPhase
from headrace.ui import formatting
from tests.support.small_pipeline import add_files, small_pipeline
from tests.support.topics import unique

RUN_SECONDS_MAX = 150
INLINE = [CommitPhase.CHECK, CommitPhase.DECIDE, CommitPhase.END]


@pytest.fixture
def reporter(live) -> Iterator[CommitReporter]:
    """The reporter of a committing process, without Spark."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}
    name = unique("orders")
    reporter = CommitReporter(
        SinkOptions.parse({**options, "view.url": live.url, "view.name": name}, is_stream=True), name, "q", "run-1"
    )
    yield reporter
    reporter.close()


def reports(rows: int, *, transactions: int = 0, dead: int = 0) -> Any:
    now_ms = time.time_ns() // 1_000_000
    times = {"planned_ms": now_ms - 300, "plan_ms": 12, "started_ms": now_ms - 250, "ended_ms": now_ms - 50}
    return [
        SimpleNamespace(
            row_count=rows,
            dead_count=dead,
            transaction=object() if number < transactions else None,
            task=SimpleNamespace(attempt=0),
            times=TaskTimes(**times, sent_bytes=rows * 100),
        )
        for number in range(max(1, transactions))
    ]


def commit(reporter: CommitReporter, number: int, phases: list[CommitPhase], task_reports: Any) -> None:
    with reported(reporter, number, task_reports) as listener:
        for phase in phases:
            listener.phase_started(phase)
            if phase is CommitPhase.REDO:
                listener.transaction_redone()


def batch_rows(page: Page) -> Locator:
    """The newest first, after the header."""
    return page.locator('.hr-table[aria-label="Batches"]').get_by_role("row")


def test_batches_are_shown_with_phases_and_outcome(page: Page, reporter, shot):
    commit(reporter, 0, INLINE, reports(1_000))
    commit(
        reporter,
        1,
        [*INLINE, CommitPhase.REDO, CommitPhase.END, CommitPhase.FINISH],
        reports(2_000, transactions=2, dead=3),
    )
    commit(reporter, 1, [CommitPhase.CHECK, CommitPhase.REPLAY], reports(2_000, transactions=2))
    with pytest.raises(RuntimeError), reported(reporter, 2, reports(5)):
        raise RuntimeError("the broker has gone")
    page.goto(f"/pipelines?name={reporter.name}")
    rows = batch_rows(page)
    expect(rows.nth(4)).to_contain_text("✓ committed")
    expect(rows.nth(4)).to_contain_text("inline")
    second = rows.nth(3)
    for text in ("parallel", "4,000", "391 KiB", "1 redone", "6 dead letters"):
        expect(second).to_contain_text(text)
    expect(rows.nth(2)).to_contain_text("↺ replayed")
    expect(rows.nth(1)).to_contain_text("✗ failed")
    expect(page.get_by_role("alert").filter(has_text="Batch 2: the broker has gone")).to_be_visible()
    for tile, figure in {
        **{
            "Rows delivered": "5,000 rows",
            "Batches committed": "2",
            "Failed commits": "1",
            "Replays": "1",
            "Redos": "1",
        },
        **{"Dead letters": "6", "State": "running"},
    }.items():
        expect(page.locator(f'[data-tile="{tile}"] .hr-tile-figure')).to_have_text(figure)
    expect(page.get_by_role("img", name="Batches by phase").locator("svg")).to_be_visible()
    for phase in ("plan", "write", "decide", "end"):
        expect(page.get_by_role("img", name="Batches by phase").get_by_text(phase, exact=True)).to_be_visible()
    shot(page, "pipelines")


def test_diagram_shows_the_phase_of_the_current_batch(page: Page, reporter):
    page.goto("/pipelines")
    diagram = page.locator("#protocol svg")
    with reported(reporter, 7, reports(123)) as listener:
        listener.phase_started(CommitPhase.END)
        page.get_by_label("Search pipelines").fill(reporter.name)
        page.get_by_role("link", name=reporter.name, exact=True).click()
        expect(diagram).to_contain_text("Committing batch 7 (123 rows)")
        expect(diagram.locator("g").filter(has_text="commit the tasks")).to_contain_text("now")
    expect(diagram).to_contain_text("Between commits")
    expect(diagram.locator("g").filter(has_text="rows visible to")).to_contain_text("last")


def test_lag_of_a_query_is_shown_by_topic(page: Page, live, shot):
    name, newest_ms = unique("copy"), 1_700_000_000_123
    latest = {"orders": {"0": 1000, "1": 1000}, "refunds": {"0": 12}}
    figures = {"@source": "orders, refunds at kafka:9092", "@newest": {"orders": "2023-11-14T22:13:20.123Z"}}
    query = QueryFigures("id", "run", name)
    reporter = QueryReporter(live.url, None)
    for batch, at in enumerate((100, 600)):
        end = {"orders": {"0": at, "1": at}, "refunds": {"0": 10}}
        source = {"endOffset": end, "latestOffset": {**latest, **figures}}
        query.add_progress({"batchId": batch, "numInputRows": 1000, "sources": [source]})
        reporter.update(query, [])
    page.goto(f"/pipelines?name={name}")
    rows = page.locator('.hr-table[aria-label="Sources"]').get_by_role("row")
    for text in ("orders, refunds at kafka:9092", "800 records", formatting.moment_ms(newest_ms)):
        expect(rows.nth(1)).to_contain_text(text)
    expect(rows.nth(2)).to_contain_text("2 records")
    expect(rows.get_by_role("link", name="orders", exact=True)).to_have_attribute("href", "/topics/orders")
    expect(page.locator('[data-tile="Source lag"] .hr-tile-figure')).to_have_text("802")
    expect(page.get_by_role("img", name="Source lag, last 15 minutes").locator("svg")).to_be_visible()
    shot(page, "pipelines-lag")
    query.end(None)
    reporter.update(query, [])
    reporter.close()
    expect(page.locator('[data-tile="State"] .hr-tile-figure')).to_have_text("stopped")


@pytest.mark.slow
@pytest.mark.timeout(RUN_SECONDS_MAX + 30)
def test_real_spark_run_is_shown_from_start_to_end(page: Page, broker, live, tmp_path: Path, shot):
    topic, name = unique("spark"), unique("pipeline")
    with AdminClient(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions=2)])
    add_files(tmp_path, files=4, rows=1000)
    file = tmp_path / "pipeline.toml"
    file.write_text(small_pipeline(tmp_path, broker.bootstrap, topic))
    arguments = [str(file), "--view", live.url, "--master", "local[2]", "-X", f"pipeline.name={name}"]
    page.goto(f"/pipelines?name={name}")
    expect(page.get_by_text("Unknown pipeline")).to_be_visible()
    command = [sys.executable, "-m", "headrace", "pipeline", "run", *arguments]
    subprocess.run(command, timeout=RUN_SECONDS_MAX, check=True, cwd=tmp_path)
    expect(page.locator('[data-tile="State"] .hr-tile-figure')).to_have_text("finished")
    expect(page.locator('[data-tile="Rows delivered"] .hr-tile-figure')).to_have_text("4,000 rows")
    expect(page.locator('[data-tile="Batches committed"] .hr-tile-figure')).to_have_text("4")
    expect(batch_rows(page)).to_have_count(5)
    shot(page, "pipelines-spark")
