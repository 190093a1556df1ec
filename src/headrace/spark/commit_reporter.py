"""Reports the commits of a sink: every batch phase by phase, and to a live view also the one that is being committed.

    planning, tasks → TaskTimes in their reports ↘
    Committer → CommitListener: CommitReporter → PendingBatches → ReportSender's thread → POST      with view.url
                                               ↘ commit_feed.append → QueryListener                 with a listener

Noting a phase costs a microsecond, the line of a batch 60. What may wait happens on the sender's thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from headrace.config.clock import SYSTEM_CLOCK
from headrace.spark import commit_feed
from headrace.spark.commit_times import TaskPhases, rounded
from headrace.spark.sink_options import SinkOptions
from headrace.spark.worker import PerRun
from headrace.telemetry.listeners import NULL_COMMIT_LISTENER, CommitListener, CommitPhase
from headrace.telemetry.models import BatchOutcome, BatchReport, CommitReport, CurrentBatch
from headrace.telemetry.sender import ReportSender, new_envelope

if TYPE_CHECKING:
    from headrace.spark.task_writer import Report

log = logging.getLogger("headrace.spark")

INTERVAL_SECONDS = 5.0
"""Between reports while nothing happens, so that the view can tell an idle process from a dead one."""
BATCHES_MAX = 64
"""Batches kept for the view while it is unreachable; beyond this the oldest are dropped."""
REPORTERS_MAX = 8
IDLE_SECONDS_MAX = 120.0
"""A run without a commit in this process for this long has ended, or is served by other processes."""
FINAL_SECONDS_MAX = 0.25
"""To reach the view after a batch write: then Spark ends the process with all its threads."""
ERROR_CHARACTERS_MAX = 500


@dataclass(slots=True)
class TaskTimes:
    """When a task did what, by the clock of its host: milliseconds since 1970."""

    planned_ms: int = 0
    """When planning began, on the driver."""
    plan_ms: float = 0.0
    started_ms: int = 0
    ended_ms: int = 0
    sent_bytes: int = 0


def task_phases(reports: Sequence[Report], now_ms: int) -> TaskPhases:
    """Return how long the tasks of a batch took, and Spark around them, if the commit begins now."""
    if not reports:
        return TaskPhases()
    times = [report.times for report in reports]
    plan_ms = max(task.plan_ms for task in times)
    started_ms, ended_ms = min(task.started_ms for task in times), max(task.ended_ms for task in times)
    return TaskPhases(
        plan_ms,
        max(0.0, started_ms - min(task.planned_ms for task in times) - plan_ms),
        max(0, ended_ms - started_ms),
        max(0, now_ms - ended_ms),
    )


def batch_report(number: int, reports: Sequence[Report]) -> BatchReport:
    """Summarize the reports of the tasks of a batch."""
    now_ms = SYSTEM_CLOCK.time_ms()
    batch = BatchReport(
        batch=number,
        tasks=len(reports),
        transactions=sum(report.transaction is not None for report in reports),
        rows=sum(report.row_count for report in reports),
        dead=sum(report.dead_count for report in reports),
        bytes=sum(report.times.sent_bytes for report in reports),
        is_retried=any(report.task.attempt > 0 for report in reports),
        began_ms=now_ms,
    )
    if reports:
        phases = task_phases(reports, now_ms)
        batch.plan_ms, batch.write_ms = phases.plan_ms, phases.write_ms
        batch.began_ms = min(report.times.planned_ms for report in reports) or now_ms
        batch.spark_ms = max(0.0, now_ms - batch.began_ms - batch.plan_ms - batch.write_ms)
    return batch


class PendingBatches:
    """Batches of a run that the view has not acknowledged yet. Added by one thread, removed by the sender's."""

    def __init__(self) -> None:
        self._sequence = 0
        self._batches: deque[BatchReport] = deque(maxlen=BATCHES_MAX)

    def add(self, batch: BatchReport) -> None:
        self._sequence += 1
        batch.sequence = self._sequence
        self._batches.append(batch)

    def report(self, base: CommitReport, current: CurrentBatch | None = None, *, is_last: bool = False) -> CommitReport:
        return replace(
            base,
            time_ms=SYSTEM_CLOCK.time_ms(),
            is_closed=is_last,
            now=current,
            batches=tuple(_rounded(batch) for batch in list(self._batches)),
        )

    def acknowledge(self, report: CommitReport) -> None:
        last = max((batch.sequence for batch in report.batches), default=0)
        while self._batches and self._batches[0].sequence <= last:
            self._batches.popleft()


def _rounded(batch: BatchReport) -> BatchReport:
    return BatchReport(**rounded(asdict(batch)))


class CommitReporter:
    """Reports one run of one sink. A `CommitListener` on the thread that commits."""

    def __init__(self, options: SinkOptions, sink: str, query: str, run: str) -> None:
        self._base = CommitReport(
            **new_envelope(INTERVAL_SECONDS),  # one per process: Spark serves each commit of a run in any process
            name=options.view_name or sink,
            sink=sink,
            query=query,
            run=run,
            topic=options.topic,
            delivery=options.delivery,
            has_view=options.view_url is not None,
        )
        self._current: BatchReport | None = None
        self._phase, self._phase_since_ms = CommitPhase.BEGIN, 0
        self._phase_starts: dict[CommitPhase, float] = {}  # by the monotonic clock
        self._pending = PendingBatches()
        self._sender: ReportSender | None = None
        if options.view_url is not None:
            self._sender = ReportSender(options.view_url, options.view_token, self, INTERVAL_SECONDS)

    @property
    def name(self) -> str:
        return self._base.name

    # -- the thread that commits -----------------------------------------------------------------

    def begin(self, batch: BatchReport) -> None:
        self._current = batch
        self._phase_starts = {}
        self.phase_started(CommitPhase.BEGIN)

    def phase_started(self, phase: CommitPhase) -> None:
        with _suppress_reporting_errors():
            if self._current is None:
                return
            if phase is CommitPhase.BEGIN:
                self._phase_starts.setdefault(phase, time.monotonic())  # a commit may begin again
            elif not (phase is CommitPhase.END and self._phase is CommitPhase.REDO):  # a redo is part of the end
                self._phase_starts[phase] = time.monotonic()
            self._phase, self._phase_since_ms = phase, SYSTEM_CLOCK.time_ms()
            self._notify()

    def transaction_redone(self) -> None:
        if self._current is not None:
            self._current.redone += 1

    def end(self, outcome: BatchOutcome, error: BaseException | None = None) -> None:
        batch, starts, now = self._current, self._phase_starts, time.monotonic()
        if batch is None:
            return
        began = starts[CommitPhase.BEGIN]
        begun = starts.get(CommitPhase.CHECK, began)
        decided = starts.get(CommitPhase.END)
        batch.begin_ms = (begun - began) * 1000
        batch.decide_ms = ((now if decided is None else decided) - begun) * 1000
        batch.end_ms = 0.0 if decided is None else (now - decided) * 1000
        if outcome is BatchOutcome.COMMITTED and decided is None:
            outcome = BatchOutcome.REPLAYED if CommitPhase.REPLAY in starts else BatchOutcome.EMPTY
        batch.outcome = outcome
        batch.error = "" if error is None else str(error)[:ERROR_CHARACTERS_MAX]
        self._pending.add(batch)
        self._current = None
        self._notify()
        if commit_feed.is_wanted(self._base.run):
            commit_feed.append(replace(self._base, time_ms=SYSTEM_CLOCK.time_ms(), batches=(_rounded(batch),)))

    def _notify(self) -> None:
        if self._sender is not None:
            self._sender.notify()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()

    def send_final_report(self) -> None:
        if self._sender is not None:
            self._sender.send_final_report(FINAL_SECONDS_MAX)

    # -- sender thread ---------------------------------------------------------------------------

    def create_report(self, *, is_last: bool) -> CommitReport:
        batch, current = self._current, None
        if batch is not None:
            current = CurrentBatch(**rounded(asdict(batch)), phase=self._phase, since_ms=self._phase_since_ms)
        return self._pending.report(self._base, current, is_last=is_last)

    def acknowledge(self, report: CommitReport) -> None:
        self._pending.acknowledge(report)


# Of this process, in which one thread commits.
_reporters: PerRun[CommitReporter] = PerRun(REPORTERS_MAX, IDLE_SECONDS_MAX)


def commit_reporter(options: SinkOptions, sink: str, query: str, run: str) -> CommitReporter | None:
    """Return the reporter of a run of a sink, created if needed; None if nobody wants reports or it fails."""
    with _suppress_reporting_errors():
        if options.view_url is not None or commit_feed.is_wanted(run):
            view = options.view_url or ""
            return _reporters.get(view, sink, run, lambda: CommitReporter(options, sink, query, run))
    return None


def close_reporter(reporter: CommitReporter | None) -> None:
    """Send the final report of a run: this process will not commit for it again."""
    with _suppress_reporting_errors():
        if reporter is not None and _reporters.discard(reporter):
            reporter.send_final_report()


@contextmanager
def reported(
    reporter: CommitReporter | None,
    number: int,
    reports: Sequence[Report],
    outcome: BatchOutcome = BatchOutcome.COMMITTED,
) -> Iterator[CommitListener]:
    """Report the batch that is committed, or aborted, in this block; yields the listener for the committer."""
    if reporter is None:
        yield NULL_COMMIT_LISTENER
        return
    with _suppress_reporting_errors():
        reporter.begin(batch_report(number, reports))
    try:
        yield reporter
    except BaseException as error:
        with _suppress_reporting_errors():
            reporter.end(BatchOutcome.FAILED, error)
        close_reporter(reporter)  # Spark ends a process in which something was raised
        raise
    with _suppress_reporting_errors():
        reporter.end(outcome)


@contextmanager
def _suppress_reporting_errors() -> Iterator[None]:
    """Keep errors of reporting away from the commit."""
    try:
        yield
    except Exception:
        log.debug("cannot report a commit", exc_info=True)
