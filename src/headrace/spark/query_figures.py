"""The figures of a streaming query: what Spark's progress has, and what only the commits of the sink know.

    StreamingQueryProgress → QueryFigures.add_progress      rows, durations, offsets, lag
    CommitReport           → QueryFigures.add_commits       delivered rows, replays, phases of the commit

Without Spark, so that parsing and arithmetic can be tested; `summary` is the line of the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.text_formats import format_duration
from headrace.spark.progress import BatchProgress, Totals
from headrace.telemetry.models import BatchOutcome, BatchReport, BatchTotals, CommitReport

RUNNING, STOPPED, FAILED = "running", "stopped", "failed"
COMMIT_PHASES = ("plan", "write", "spark", "begin", "decide", "end")
"""The phases of a `BatchReport`, in order."""
_SHOWN_PHASES = ("plan", "write", "begin", "decide", "end")
_SHOWN_MS_MIN = 0.5
TOPICS_SHOWN_MAX = 3
RECENT_MAX = 64


@dataclass(slots=True)
class PhaseTimes:
    """How often a phase was run, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, ms: float) -> None:
        self.count += 1
        self.seconds += ms / 1000


@dataclass(slots=True)
class QueryFigures:
    """One query: its last batch, and the totals of its runs in this driver."""

    id: str
    run: str
    name: str
    state: str = RUNNING
    error: str = ""
    progress: BatchProgress | None = None
    progress_ms: int | None = None
    """When the last batch ended, since 1970."""
    totals: Totals = field(default_factory=Totals)
    phases: dict[str, PhaseTimes] = field(default_factory=dict)
    """By Spark's names: `addBatch`, `walCommit`, …"""
    sink: CommitReport | None = None
    """The last report of the sink; None if it is not headrace, or has not committed yet."""
    recent: dict[int, BatchReport] = field(default_factory=dict)
    """The last commits by batch: Spark reports the progress of a batch late, often after the next commit."""
    commits: BatchTotals = field(default_factory=BatchTotals)
    outcomes: dict[str, int] = field(default_factory=dict)
    """How many commits ended in which `BatchOutcome`."""
    commit_phases: dict[str, PhaseTimes] = field(default_factory=dict)

    def restart(self, id: str, run: str) -> None:
        """Follow another run of the query, or a query with its name; the totals continue."""
        self.id, self.run, self.state, self.error = id, run, RUNNING, ""
        self.progress, self.sink = None, None
        self.recent.clear()
        self.totals.restart()

    def add_progress(self, progress: Mapping[str, Any]) -> None:
        """Add the progress of a batch, as Spark's JSON."""
        batch = BatchProgress.of_json(progress)
        self.progress, self.progress_ms = batch, time.time_ns() // 1_000_000
        self.totals.add(batch)
        for phase, ms in (progress.get("durationMs") or {}).items():
            self.phases.setdefault(phase, PhaseTimes()).add(float(ms))

    def add_commits(self, reports: Iterable[CommitReport]) -> list[BatchReport]:
        """Add the commits that the sink has reported, and return them."""
        batches = []
        for report in reports:
            self.sink = report
            for batch in report.batches:
                batches.append(batch)
                self.recent.pop(batch.batch, None)
                self.recent[batch.batch] = batch
                self.commits.add(batch)
                self.outcomes[batch.outcome] = self.outcomes.get(batch.outcome, 0) + 1
                for phase in COMMIT_PHASES:
                    self.commit_phases.setdefault(phase, PhaseTimes()).add(getattr(batch, f"{phase}_ms"))
        for number in [*self.recent][:-RECENT_MAX]:
            del self.recent[number]
        return batches

    def end(self, error: str | None) -> None:
        self.state, self.error = (STOPPED, "") if error is None else (FAILED, error)
        self.totals.end()

    def summary(self, now_ms: int) -> str:
        """Return the last batch in one line."""
        parts = [f"query {self.name}: {_batch_text(self.progress)}"]
        if self.progress is not None:
            parts += [_source_text(self.progress, now_ms)]
            if self.sink is not None and (commit := self.recent.get(self.progress.batch)) is not None:
                parts += [_commit_text(self.sink, commit)]
        return "; ".join(filter(None, parts))


def _batch_text(progress: BatchProgress | None) -> str:
    if progress is None:
        return "no batch yet"
    return (
        f"batch {progress.batch}, {progress.rows:,} rows in {format_duration(progress.duration_ms / 1000)} "
        f"({progress.rows_per_second:,.0f} rows/s)"
    )


def _source_text(progress: BatchProgress, now_ms: int) -> str:
    """lag 512 (orders 500, refunds 12), newest record 1.2 s old"""
    if progress.behind is None:
        return ""
    topics = sorted((topic for source in progress.sources for topic in source.topics()), key=lambda t: -(t.lag or 0))
    late = [f"{topic.topic} {topic.lag:,}" for topic in topics if topic.lag]
    more = [] if len(late) <= TOPICS_SHOWN_MAX else [f"{len(late) - TOPICS_SHOWN_MAX} more topics"]
    by_topic = f" ({', '.join([*late[:TOPICS_SHOWN_MAX], *more])})" if late else ""
    newest = max((topic.newest_ms for topic in topics if topic.newest_ms is not None), default=None)
    age = "" if newest is None else f", newest record {format_duration(max(0, now_ms - newest) / 1000)} old"
    return f"lag {progress.behind:,}{by_topic}{age}"


def _commit_text(sink: CommitReport, batch: BatchReport) -> str:
    """sink s: committed, 5,000 rows to orders (plan 2 ms, write 40 ms, decide 8 ms, end 11 ms)"""
    times = {phase: getattr(batch, f"{phase}_ms") for phase in _SHOWN_PHASES}
    shown = [f"{phase} {format_duration(ms / 1000)}" for phase, ms in times.items() if ms >= _SHOWN_MS_MIN]
    notes = [f"{batch.redone} redone"] if batch.redone else []
    notes += [f"{batch.dead:,} dead letters"] if batch.dead else []
    is_delivered = batch.outcome in (BatchOutcome.COMMITTED, BatchOutcome.WRITTEN)
    rows = f"{batch.rows:,} rows to {sink.topic or 'topics by row'}" if is_delivered else ""
    details = ", ".join(filter(None, [batch.outcome, rows, *notes]))
    return f"sink {sink.sink}: {details}" + (f" ({', '.join(shown)})" if shown else "")
