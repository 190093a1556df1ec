"""The parts of the demo that work without Spark and without a broker."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from headrace.demo import report
from headrace.demo.driver_process import descendants, find_process, parse_ps_line
from headrace.demo.orders import (
    BATCHES_MAX,
    BATCHES_MIN,
    FILES_PER_BATCH,
    batch_count,
    make_orders,
    pipeline,
    write_orders,
)
from headrace.demo.outcome import BatchTimes, DemoOutcome, Kill, percentile
from headrace.spark.commit_times import CommitTimes
from headrace.spark.pipeline_reporter import sink_options
from headrace.spark.pipeline_spec import LiveView, SparkSettings
from tests.support.shell import run

COMMIT = CommitTimes(3, rows=25_000, transactions=2, check_ms=1.5, decide_ms=6.0, end_ms=7.25)
EVENT = {"batch": 3, "rows": 25_000, "duration_ms": 500, "write_ms": 300, "commit_ms": 80}
EQUAL = {"equal": True, "topic_rows": 100_000, "lost": 0, "duplicated": 0, "unexpected": 0, "out_of_order": 0}


def outcome(**changes):
    """A successful run."""
    successful = DemoOutcome(
        100_000,
        "a headrace broker",
        EQUAL,
        query_at_s=5.0,
        done_at_s=25.0,
        seconds=31.0,
        samples=[(0.0, 0), (6.0, 25_000), (12.0, 50_000), (25.0, 100_000)],
        batches=[replace(BatchTimes.of(EVENT, COMMIT), batch=number) for number in range(4)],
        commits=[replace(COMMIT, batch=number) for number in range(4)],
        kills=[
            Kill("worker", 11, 7.0, 900, 0.8, "its task of batch 4 was repeated"),
            Kill("driver", 12, 13.0, 5_000, 8.1, "restarted"),
            Kill("broker", note="not killed: <not> ours"),
        ],
        versions={"Spark": "4", "machine": "2 CPUs"},
    )
    return replace(successful, **changes)


# -- orders --------------------------------------------------------------------------------------


def test_orders_do_not_depend_on_the_range_they_are_made_in():
    whole = make_orders(0, 1000).to_pylist()
    assert whole == make_orders(0, 400).to_pylist() + make_orders(400, 1000).to_pylist()
    assert [row["id"] for row in whole] == list(range(1000))
    assert len({row["customer"] for row in whole}) > 500
    assert all(1 <= row["amount"] <= 657 and len(row["customer"]) == 5 for row in whole)


def test_files_hold_every_order_once_ordered_by_modification_time(tmp_path):
    written: list[int] = []
    write_orders(tmp_path / "in", 5_000, written.append)
    files = sorted((tmp_path / "in").iterdir(), key=lambda path: path.stat().st_mtime)
    assert len({path.stat().st_mtime for path in files}) == len(files) == BATCHES_MIN * FILES_PER_BATCH
    tables = [pq.read_table(path) for path in files]
    assert sorted(number for table in tables for number in table["id"].to_pylist()) == list(range(5_000))
    last: dict[str, int] = {}
    for table in tables:
        for row in table.to_pylist():
            assert row["id"] > last.get(row["customer"], -1)
            last[row["customer"]] = row["id"]
    even, odd = (set(table["customer"].to_pylist()) for table in tables[:FILES_PER_BATCH])
    assert not even & odd
    assert written[-1] == 5_000


def test_the_number_of_batches_is_within_limits():
    assert batch_count(1_000) == BATCHES_MIN
    assert batch_count(1_000_000) == 40
    assert batch_count(50_000_000) == BATCHES_MAX


# -- numbers -------------------------------------------------------------------------------------


def test_the_stream_reports_to_a_live_view_if_there_is_one(tmp_path):
    arguments, spark = (tmp_path, tmp_path, {"bootstrap.servers": "127.0.0.1:1"}), SparkSettings()
    with_view = pipeline(*arguments, topic="t", spark=spark, view=LiveView("http://127.0.0.1:9080")).spec
    assert sink_options(with_view) == {"view.url": "http://127.0.0.1:9080", "view.name": "headrace-demo"}
    assert sink_options(pipeline(*arguments, topic="t", spark=spark).spec) == {}
    done = run("demo", "--view", "nonsense")
    assert done.returncode == 1
    assert b"invalid view.url: expected the URL of a live view" in done.stderr


def test_percentiles_are_existing_values():
    assert percentile([], 50) == 0
    assert percentile([7.0], 95) == 7
    assert percentile([4, 1, 3, 2], 50) == 2
    assert percentile(list(range(1, 101)), 95) == 95


def test_the_phases_of_a_batch_add_up_to_its_duration():
    times = BatchTimes.of(EVENT, COMMIT)
    assert (times.plan_ms, times.write_ms, times.commit_ms, times.log_ms) == (120, 285.25, 14.75, 80)
    assert times.total_ms == EVENT["duration_ms"]
    assert BatchTimes.of(EVENT, None).write_ms == EVENT["write_ms"]


def test_an_outcome_as_json():
    facts = outcome().to_json()
    assert (facts["equal"], facts["rows_per_second"], facts["batch_rows_per_second"]) == (True, 5_000, 50_000)
    assert (facts["batches"], facts["commit_ms"]) == (4, {"p50": 14.75, "p95": 14.75})
    assert [kill["pid"] for kill in facts["kills"]] == [11, 12, None]
    wrong = outcome(audit={**EQUAL, "equal": False, "duplicated": 2, "unexpected": 3})
    assert (wrong.is_equal, wrong.duplicated) == (False, 5)


# -- the commit's log line ---------------------------------------------------------------------------


def test_a_logged_commit_can_be_parsed(caplog):
    with caplog.at_level(logging.INFO, "headrace.spark"):
        COMMIT.log("sink-1")
    assert CommitTimes.of_line(f"2026-01-01 INFO {caplog.messages[0]}") == COMMIT
    assert COMMIT.total_ms == 14.75
    cut = caplog.messages[0][:-10]
    assert [CommitTimes.of_line(line) for line in (cut, "", "batch 3 is committed {}")] == [None] * 3


def test_commits_are_logged_at_info_level_only(caplog):
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        COMMIT.log("sink-1")
    assert not caplog.messages


# -- processes -----------------------------------------------------------------------------------


def test_a_process_is_found_with_its_parent_until_it_ends():
    program = [sys.executable, "-c", "input(print(flush=True))"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # just after exec a process has no command line yet
        process = find_process(child.pid)
        assert process is not None
        assert (process.parent, "input(" in process.command) == (os.getpid(), True)
        assert child.pid in [process.pid for process in descendants(os.getpid())]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # now it is a zombie
        assert find_process(child.pid) is None


def test_lines_of_ps_are_parsed():
    assert parse_ps_line("  123     1 Ss   /bin/sh -c x y") == (123, 1, "S", "/bin/sh -c x y")
    assert parse_ps_line(" 9 2 Z ") == (9, 2, "Z", "")


# -- the report ----------------------------------------------------------------------------------


def test_the_page_is_self_contained():
    text = report.render_page(outcome())
    assert not re.search(r"""(src|href)=|url\(|@import|<script|https?://""", text)
    for expected in (
        "Every row once: 100,000 of 100,000",
        "prefers-color-scheme: dark",
        "not killed: &lt;not&gt; ours",
    ):
        assert expected in text
    assert "a worker and the driver were killed with SIGKILL" in text


def test_the_page_of_a_failed_run_says_so():
    text = report.render_page(outcome(audit={**EQUAL, "equal": False, "lost": 17}))
    assert "Source and topic differ" in text
    assert "<dt>lost</dt><dd>17</dd>" in text
    assert "Every row once" not in text


@pytest.mark.parametrize(
    "plot",
    [
        report.rows_plot(outcome().samples, outcome().kills, 100_000),
        report.rows_plot([], [], 1),
        report.batches_plot(outcome().batches),
        report.batches_plot([]),
        report.commits_plot([5.0] * 50 + [900.0]),
        report.commits_plot([]),
    ],
)
def test_plots_are_valid_svg_for_any_data(plot):
    root = ElementTree.fromstring(plot)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    numbers = [float(value) for part in root.iter() for name, value in part.items() if name in ("x", "y", "width")]
    assert all(-1 <= number <= report.WIDTH + 1 for number in numbers)


def test_a_slow_batch_does_not_flatten_the_others():
    fast = BatchTimes.of(EVENT, COMMIT)
    plot = report.batches_plot([replace(fast, write_ms=60_000), *[fast] * 9])
    assert "60.2 s" in plot
    bars = [part for part in ElementTree.fromstring(plot).iter("rect") if part.get("class") == "fill-write"]
    assert float(bars[1].get("height", 0)) > 30


def test_ticks_are_round_and_short():
    assert report.ticks(1_040_000, 5) == [0, 250_000, 500_000, 750_000, 1_000_000]
    assert report.ticks(37, 4) == [0, 10, 20, 30]
    assert [report.short(value) for value in (0, 0.5, 2_000, 250_000, 1_500_000)] == [
        "0",
        "0.5",
        "2,000",
        "250k",
        "1.5M",
    ]


def test_labels_of_close_kills_are_in_two_rows():
    close = [Kill("worker", 1, 10.0, 0, 0.5), Kill("driver", 2, 11.0, 0, 8.0)]
    root = ElementTree.fromstring(report.rows_plot([(0.0, 0), (60.0, 100)], close, 100))
    labels = [part for part in root.iter("text") if "kill-text" in part.get("class", "")]
    assert len({part.get("y") for part in labels}) == 2


def test_words_are_joined():
    assert [report.joined(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
