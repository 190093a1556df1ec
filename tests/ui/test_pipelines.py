"""The page of pipelines: what a sink tells of its commits, and one real run of Spark."""

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
from headrace.spark.commit_watch import CommitWatch, TaskTimes, WatchedPlaces, watched
from headrace.spark.sink_options import SinkOptions
from small_pipeline import add_files, small_pipeline
from topics import unique

RUN_SECONDS_MAX = 150
INLINE = ["begin.done", "decide.begin", "decide.written", "decide.done"]


@pytest.fixture
def watch(live) -> Iterator[CommitWatch]:
    """What a committing process has, without Spark around it."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}
    name = unique("orders")
    made = CommitWatch(
        SinkOptions.parse({**given, "view.url": live.url, "view.name": name}, is_stream=True), name, "q", "run-1"
    )
    yield made
    made.close()


def name_of(watch: CommitWatch) -> str:
    return str(watch._about["name"])


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


def commit(watch: CommitWatch, number: int, places: list[str], told: Any) -> None:
    with watched(watch, number, told):
        for place in places:
            WatchedPlaces("").reach(place)


def batch_rows(page: Page) -> Locator:
    """The newest first, after the header."""
    return page.locator('.hr-table[aria-label="Batches"]').get_by_role("row")


def test_batches_are_shown_by_phase_with_what_became_of_them(page: Page, watch, shot):
    commit(watch, 0, INLINE, reports(1_000))
    commit(watch, 1, [*INLINE, "redo.done", "end.done"], reports(2_000, transactions=2, dead=3))
    commit(watch, 1, ["replay.abort"], reports(2_000, transactions=2))
    with pytest.raises(RuntimeError), watched(watch, 2, reports(5)):
        raise RuntimeError("the broker has gone")
    page.goto(f"/pipelines?name={name_of(watch)}")
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
        **{"Rows delivered": "5,000 rows", "Decisions": "2", "Failed commits": "1", "Replays": "1", "Redos": "1"},
        **{"Dead letters": "6", "State": "running"},
    }.items():
        expect(page.locator(f'[data-tile="{tile}"] .hr-tile-figure')).to_have_text(figure)
    expect(page.get_by_role("img", name="Batches by phase").locator("svg")).to_be_visible()
    for phase in ("plan", "write", "decide", "end"):
        expect(page.get_by_role("img", name="Batches by phase").get_by_text(phase, exact=True)).to_be_visible()
    shot(page, "pipelines")


def test_the_protocol_shows_where_the_batch_at_hand_is(page: Page, watch):
    page.goto("/pipelines")
    drawn = page.locator("#protocol svg")
    with watched(watch, 7, reports(123)):
        WatchedPlaces("").reach("decide.done")
        page.get_by_label("Search pipelines").fill(name_of(watch))
        page.get_by_role("link", name=name_of(watch), exact=True).click()
        expect(drawn).to_contain_text("Batch 7 with 123 rows is being committed")
        expect(drawn.locator("g").filter(has_text="commit every")).to_contain_text("now")
    expect(drawn).to_contain_text("Between two commits")
    expect(drawn.locator("g").filter(has_text="seen by readers")).to_contain_text("last")


@pytest.mark.slow
@pytest.mark.timeout(RUN_SECONDS_MAX + 30)
def test_a_real_run_of_spark_is_seen_from_its_start_to_its_end(page: Page, broker, live, tmp_path: Path, shot):
    topic, name = unique("spark"), unique("pipeline")
    with AdminClient(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions=2)])
    add_files(tmp_path, files=4, rows=1000)
    file = tmp_path / "pipeline.toml"
    file.write_text(small_pipeline(tmp_path, broker.bootstrap, topic))
    arguments = [str(file), "--view", live.url, "--master", "local[2]", "-X", f"pipeline.name={name}"]
    page.goto(f"/pipelines?name={name}")
    expect(page.get_by_text("This pipeline is not known here")).to_be_visible()
    command = [sys.executable, "-m", "headrace", "pipeline", "run", *arguments]
    subprocess.run(command, timeout=RUN_SECONDS_MAX, check=True, cwd=tmp_path)
    expect(page.locator('[data-tile="State"] .hr-tile-figure')).to_have_text("finished")
    expect(page.locator('[data-tile="Rows delivered"] .hr-tile-figure')).to_have_text("4,000 rows")
    expect(page.locator('[data-tile="Decisions"] .hr-tile-figure')).to_have_text("4")
    expect(batch_rows(page)).to_have_count(5)
    shot(page, "pipelines-spark")
