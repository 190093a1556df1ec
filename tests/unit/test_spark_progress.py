"""Progress of a pipeline, computed from Spark's query progress. Without Spark."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from headrace.cli.pipeline import (
    JsonReporter,
    LiveReporter,
    PlainReporter,
    finished_text,
    reporter_for,
    started_text,
)
from headrace.spark.progress import BatchProgress, ProgressWatch, Started, Tasks, Totals, running_tasks


def entry(batch=3, rows=1000, *, start=None, end=None, latest=None, executed=True):
    durations = {"addBatch": 80, "commitOffsets": 5, "walCommit": 7, "triggerExecution": 100, "getBatch": 1}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": rows * 10.0,
        "durationMs": durations if executed else {"triggerExecution": 3, "latestOffset": 3},
        "sources": [{"startOffset": start, "endOffset": end, "latestOffset": latest}],
        "sink": {"description": "x", "numOutputRows": rows},
    }


def test_the_figures_of_a_batch():
    progress = BatchProgress.of_json(entry())
    assert progress == BatchProgress(3, 1000, 10_000.0, 100, 80, 12, rows_out=1000)
    assert "behind" not in progress.to_json()


def test_offsets_are_counted_where_the_source_has_them():
    progress = BatchProgress.of_json(
        entry(
            start={"t": {"0": 10, "1": 0}},
            end={"t": {"0": 15, "1": 2}},
            latest={"t": {"0": 15, "1": 9}},
        )
    )
    assert (progress.offsets, progress.behind) == (7, 7)


def test_the_first_batch_begins_where_its_end_says():
    end = {"t": {"0": 15}, "@begin": {"t": {"0": 5}}}
    assert BatchProgress.of_json(entry(start=None, end=end, latest={"t": {"0": 15}})).offsets == 10
    initial = {"t": {"0": 9}, "@initial": True}
    assert BatchProgress.of_json(entry(start=initial, end=end, latest=None)).offsets == 10


@pytest.mark.parametrize("offset", [7, "7", "no json", {"logOffset": 3}, None, {"t": {"0": "x"}}, [1]])
def test_offsets_of_other_sources_are_no_error(offset):
    progress = BatchProgress.of_json(entry(start=offset, end=offset, latest=offset))
    assert progress.behind in (None, 0)


def test_totals():
    assert Totals().fraction is None
    totals = Totals()
    totals.add(BatchProgress(0, 10, 1.0, 5, 4, 1, offsets=10, behind=30))
    fractions = [totals.fraction]
    totals.add(BatchProgress(1, 20, 1.0, 5, 4, 1, offsets=30, behind=0))
    assert [*fractions, totals.fraction] == [0.25, 1.0]
    assert (totals.rows, totals.batches, totals.last_batch) == (30, 2, 1)
    totals.end()
    assert totals.to_json().items() >= {"rows": 30, "batches": 2, "write_ms": 8, "commit_ms": 2, "behind": 0}.items()
    empty = Totals(offsets=0, behind=0)
    assert empty.fraction == 1.0


class Entry(dict):
    @property
    def json(self):
        return json.dumps(self)


class FakeQuery:
    """A query that remembers its progress, as Spark's does."""

    def __init__(self):
        self.recentProgress: list[Entry] = []

    @property
    def lastProgress(self):  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None


def test_each_batch_is_handed_out_once_and_none_is_missed():
    query: Any = FakeQuery()
    watch = ProgressWatch(query)
    assert [*watch.new()] == []
    query.recentProgress += [Entry(entry(5)), Entry(entry(6)), Entry(entry(7))]  # resumed, and faster than the polls
    assert [progress.batch for progress in watch.new()] == [5, 6, 7]
    assert [*watch.new()] == []
    query.recentProgress.append(Entry(entry(8, executed=False)))  # a trigger without new data
    assert [*watch.new()] == []
    query.recentProgress.append(Entry(entry(8)))
    assert [progress.batch for progress in watch.new()] == [8]


class FakeTracker:
    def getActiveJobsIds(self):  # noqa: N802
        return [1, 2]

    def getJobInfo(self, job):  # noqa: N802
        return type("Job", (), {"stageIds": [10, 11]}) if job == 1 else None

    def getStageInfo(self, stage):  # noqa: N802
        return type("Stage", (), {"numTasks": 8, "numCompletedTasks": 3}) if stage == 10 else None


def test_tasks_of_vanished_jobs_are_ignored():
    context = type("Context", (), {"statusTracker": lambda self: FakeTracker()})()
    assert running_tasks(context) == Tasks(3, 8)


# -- on the terminal -------------------------------------------------------------------------------

STARTED = Started("orders", True, "local[2]", "/c", 7)


def tell(reporter):
    totals = Totals()
    reporter.started(STARTED)
    reporter.tasks(Tasks(1, 2), totals)
    batch = BatchProgress(8, 12_000, 45_000.0, 300, 210, 40, offsets=12_000, behind=3)
    totals.add(batch)
    reporter.batch(batch, totals)
    totals.end()
    reporter.finished(totals)


def test_plain_lines(capsys):
    tell(PlainReporter())
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "orders: resuming after batch 7 on local[2], checkpoint /c",
        "batch 8: 12,000 rows, 45,000 rows/s, write 210 ms, commit 40 ms, 3 behind (total 12,000 rows)",
    ]
    assert lines[2].startswith("finished: 12,000 rows in 1 batch, ")


def test_json_lines(capsys):
    tell(JsonReporter())
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["started", "batch", "finished"]
    assert events[0]["resumes_after"] == 7
    assert events[1]["behind"] == 3
    assert events[2]["rows"] == 12_000


def test_the_live_line_leaves_the_last_batch_and_the_summary(capsys):
    reporter = LiveReporter()
    tell(reporter)
    reporter.close()
    out = capsys.readouterr().out
    assert "batch 8: 12,000 rows" in out
    assert "finished: 12,000 rows" in out


def test_the_reporter_depends_on_format_and_terminal(monkeypatch):
    assert isinstance(reporter_for("json"), JsonReporter)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(reporter_for("text"), LiveReporter)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert isinstance(reporter_for("text"), PlainReporter)


def test_texts_of_starts_and_ends():
    assert started_text(Started("p", False, "m")) == "p: one batch on m"
    assert started_text(Started("p", True, "m")) == "p: stream on m, without a checkpoint"
    assert started_text(Started("p", True, "m", "/c")) == "p: new stream on m, checkpoint /c"
    assert "resuming at its first batch" in started_text(Started("p", True, "m", "/c", -1))
    assert finished_text(Totals(stopped="cancelled")) == "cancelled during the batch"
    assert finished_text(Totals(stopped="stopped", behind=4)).startswith("stopped: 0 rows in 0 batches")
