"""The parts of the demo that need no Spark and no broker."""

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

from headrace.demo import plots
from headrace.demo.orders import BATCHES_MAX, BATCHES_MIN, FILES_PER_BATCH, batch_count, make_orders, orders, pipeline
from headrace.demo.outcome import BatchTimes, Kill, Outcome, percentile
from headrace.demo.processes import descendants, find, of_ps
from headrace.demo.report import listed, page
from headrace.spark.commit_times import CommitTimes
from headrace.spark.pipeline_spec import LiveView, SparkSettings
from headrace.spark.view_progress import sink_options
from shell import run

COMMIT = CommitTimes(3, rows=25_000, transactions=2, check_ms=1.5, decide_ms=6.0, end_ms=7.25)
EVENT = {"batch": 3, "rows": 25_000, "duration_ms": 500, "write_ms": 300, "commit_ms": 80}
EQUAL = {"equal": True, "topic_rows": 100_000, "lost": 0, "duplicated": 0, "unexpected": 0, "out_of_order": 0}


def outcome(**changes):
    """A run as it is hoped for."""
    made = Outcome(
        100_000,
        "a broker of headrace's",
        EQUAL,
        query_at_s=5.0,
        done_at_s=25.0,
        seconds=31.0,
        samples=[(0.0, 0), (6.0, 25_000), (12.0, 50_000), (25.0, 100_000)],
        batches=[replace(BatchTimes.of(EVENT, COMMIT), batch=number) for number in range(4)],
        commits=[replace(COMMIT, batch=number) for number in range(4)],
        kills=[
            Kill("worker", 11, 7.0, 900, 0.8, "its task of batch 4 was run again"),
            Kill("driver", 12, 13.0, 5_000, 8.1, "started again"),
            Kill("broker", note="left alone: <not> ours"),
        ],
        versions={"Spark": "4", "machine": "2 CPUs"},
    )
    return replace(made, **changes)


# -- orders --------------------------------------------------------------------------------------


def test_orders_are_the_same_every_time_and_however_they_are_cut():
    whole = orders(0, 1000).to_pylist()
    assert whole == orders(0, 400).to_pylist() + orders(400, 1000).to_pylist()
    assert [row["id"] for row in whole] == list(range(1000))
    assert len({row["customer"] for row in whole}) > 500
    assert all(1 <= row["amount"] <= 657 and len(row["customer"]) == 5 for row in whole)


def test_files_hold_every_order_once_in_the_order_of_their_times(tmp_path):
    told: list[int] = []
    make_orders(tmp_path / "in", 5_000, told.append)
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
    assert told[-1] == 5_000


def test_there_are_neither_too_few_batches_to_be_killed_in_nor_too_many_to_wait_for():
    assert batch_count(1_000) == BATCHES_MIN
    assert batch_count(1_000_000) == 40
    assert batch_count(50_000_000) == BATCHES_MAX


# -- numbers -------------------------------------------------------------------------------------


def test_a_view_is_told_of_the_demos_stream_if_it_is_wished(tmp_path):
    options, settings = {"bootstrap.servers": "127.0.0.1:1"}, SparkSettings()
    told = pipeline(tmp_path, tmp_path, options, "t", settings, LiveView("http://127.0.0.1:9080")).spec
    assert sink_options(told) == {"view.url": "http://127.0.0.1:9080", "view.name": "headrace-demo"}
    assert sink_options(pipeline(tmp_path, tmp_path, options, "t", settings).spec) == {}
    done = run("demo", "--view", "nonsense")
    assert done.returncode == 1
    assert b"view.url is 'nonsense'; it may be the address of a live view" in done.stderr


def test_percentiles_are_values_that_were_there():
    assert percentile([], 50) == 0
    assert percentile([7.0], 95) == 7
    assert percentile([4, 1, 3, 2], 50) == 2
    assert percentile(list(range(1, 101)), 95) == 95


def test_the_phases_of_a_batch_make_its_duration():
    times = BatchTimes.of(EVENT, COMMIT)
    assert (times.plan_ms, times.write_ms, times.commit_ms, times.log_ms) == (120, 285.25, 14.75, 80)
    assert times.total_ms == EVENT["duration_ms"]
    assert BatchTimes.of(EVENT, None).write_ms == EVENT["write_ms"]


def test_an_outcome_in_numbers():
    facts = outcome().to_json()
    assert (facts["equal"], facts["rows_per_second"], facts["batch_rows_per_second"]) == (True, 5_000, 50_000)
    assert (facts["batches"], facts["commit_ms"]) == (4, {"p50": 14.75, "p95": 14.75})
    assert [kill["pid"] for kill in facts["kills"]] == [11, 12, None]
    wrong = outcome(audit={**EQUAL, "equal": False, "duplicated": 2, "unexpected": 3})
    assert (wrong.is_equal, wrong.duplicated) == (False, 5)


# -- the commit's line ---------------------------------------------------------------------------


def test_what_a_commit_logs_can_be_read_again(caplog):
    with caplog.at_level(logging.INFO, "headrace.spark"):
        COMMIT.log("sink-1")
    assert CommitTimes.of_line(f"2026-01-01 INFO {caplog.messages[0]}") == COMMIT
    assert COMMIT.total_ms == 14.75
    cut = caplog.messages[0][:-10]
    assert [CommitTimes.of_line(line) for line in (cut, "", "batch 3 is committed {}")] == [None] * 3


def test_nothing_is_logged_unless_somebody_wants_it(caplog):
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        COMMIT.log("sink-1")
    assert not caplog.messages


# -- processes -----------------------------------------------------------------------------------


def test_a_process_is_found_with_its_parent_and_not_once_it_has_ended():
    program = [sys.executable, "-c", "input(print(flush=True))"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: just after exec a process has no command line yet
        found = find(child.pid)
        assert found is not None
        assert (found.parent, "input(" in found.command) == (os.getpid(), True)
        assert child.pid in [process.pid for process in descendants(os.getpid())]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still to be fetched
        assert find(child.pid) is None


def test_lines_of_ps_are_understood():
    assert of_ps("  123     1 Ss   /bin/sh -c x y") == (123, 1, "S", "/bin/sh -c x y")
    assert of_ps(" 9 2 Z ") == (9, 2, "Z", "")


# -- the report ----------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself():
    text = page(outcome())
    assert not re.search(r"""(src|href)=|url\(|@import|<script|https?://""", text)
    for said in ("Every row once: 100,000 of 100,000", "prefers-color-scheme: dark", "left alone: &lt;not&gt; ours"):
        assert said in text
    assert "a worker and the driver were killed" in text


def test_a_page_of_a_run_that_went_wrong_says_so():
    text = page(outcome(audit={**EQUAL, "equal": False, "lost": 17}))
    assert "Source and topic differ" in text
    assert "<dt>lost</dt><dd>17</dd>" in text
    assert "Every row once" not in text


@pytest.mark.parametrize(
    "drawn",
    [
        plots.rows_plot(outcome().samples, outcome().kills, 100_000),
        plots.rows_plot([], [], 1),
        plots.batches_plot(outcome().batches),
        plots.batches_plot([]),
        plots.commits_plot([5.0] * 50 + [900.0]),
        plots.commits_plot([]),
    ],
)
def test_plots_are_pictures_whatever_there_is_to_draw(drawn):
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    numbers = [float(value) for part in root.iter() for name, value in part.items() if name in ("x", "y", "width")]
    assert all(-1 <= number <= plots.WIDTH + 1 for number in numbers)


def test_a_slow_batch_does_not_flatten_the_others():
    fast = BatchTimes.of(EVENT, COMMIT)
    drawn = plots.batches_plot([replace(fast, write_ms=60_000), *[fast] * 9])
    assert "60.2 s" in drawn
    bars = [part for part in ElementTree.fromstring(drawn).iter("rect") if part.get("class") == "fill-write"]
    assert float(bars[1].get("height", 0)) > 30


def test_ticks_are_round_and_short():
    assert plots.ticks(1_040_000, 5) == [0, 250_000, 500_000, 750_000, 1_000_000]
    assert plots.ticks(37, 4) == [0, 10, 20, 30]
    assert [plots.short(value) for value in (0, 0.5, 2_000, 250_000, 1_500_000)] == [
        "0",
        "0.5",
        "2,000",
        "250k",
        "1.5M",
    ]


def test_labels_of_kills_that_are_close_stand_in_two_rows():
    close = [Kill("worker", 1, 10.0, 0, 0.5), Kill("driver", 2, 11.0, 0, 8.0)]
    root = ElementTree.fromstring(plots.rows_plot([(0.0, 0), (60.0, 100)], close, 100))
    labels = [part for part in root.iter("text") if "kill-text" in part.get("class", "")]
    assert len({part.get("y") for part in labels}) == 2


def test_lists_of_words():
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
