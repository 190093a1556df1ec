"""Reports a streaming query to a live view: its progress with the lag of its sources, and the commits of its sink.

    QueryListener → QueryReporter → PipelineReport, CommitReport → threads of two ReportSenders → POST

A sink with `view.url` reports its commits itself; then the query reports its progress under the name of the sink.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.config.clock import SYSTEM_CLOCK
from headrace.spark.commit_reporter import PendingBatches
from headrace.spark.progress import BatchProgress, Totals
from headrace.spark.query_figures import QueryFigures
from headrace.telemetry.models import (
    BatchReport,
    CommitReport,
    PipelineReport,
    PipelineTotals,
    SourceReport,
    TopicLag,
)
from headrace.telemetry.sender import ReportSender, new_envelope

INTERVAL_SECONDS = 2.0
ERROR_CHARACTERS_MAX = 500
SOURCES_MAX = 20
TOPICS_MAX = 100
"""Topics of a source that are reported: those with the greatest lag."""


def pipeline_totals(totals: Totals) -> PipelineTotals:
    return PipelineTotals(
        batches=totals.batches,
        rows=totals.rows,
        rows_per_second=round(totals.rows_per_second, 1),
        seconds=round(totals.seconds, 3),
        behind=totals.behind,
    )


def source_reports(progress: BatchProgress) -> tuple[SourceReport, ...]:
    return tuple(
        SourceReport(source.name, source.lag, tuple(TopicLag(*topic) for topic in source.topics()[:TOPICS_MAX]))
        for source in progress.sources[:SOURCES_MAX]
    )


class QueryReporter:
    """Reports one query. Called from one thread."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url, self._token = url, token
        # Replaced as a whole by the thread of the listener, read by the sender's.
        self._report = PipelineReport(**new_envelope(INTERVAL_SECONDS), name="", state="running")
        self._sender: ReportSender | None = None  # after the first batch: the sink may determine the name
        self._commits: _CommitForwarder | None = None

    def update(self, figures: QueryFigures, commits: list[BatchReport]) -> None:
        """Report the figures, and commits that are new."""
        sink = figures.sink
        if sink is not None and not sink.has_view:
            if self._commits is None:
                self._commits = _CommitForwarder(self._url, self._token)
            self._commits.add(replace(sink, name=figures.name), commits)
        self._report = replace(
            self._report,
            name=sink.name if sink is not None and sink.has_view else figures.name,
            state=figures.state,
            error=figures.error[:ERROR_CHARACTERS_MAX],
            totals=pipeline_totals(figures.totals),
            sources=() if figures.progress is None else source_reports(figures.progress),
        )
        if self._sender is None:
            self._sender = ReportSender(self._url, self._token, self, INTERVAL_SECONDS)
        self._sender.notify()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        if self._commits is not None:
            self._commits.close()

    # -- sender thread ---------------------------------------------------------------------------

    def create_report(self, *, is_last: bool) -> PipelineReport:
        return replace(self._report, time_ms=SYSTEM_CLOCK.time_ms(), is_closed=is_last)

    def acknowledge(self, report: PipelineReport) -> None:
        """Do nothing: every report is complete."""


class _CommitForwarder:
    """Reports the commits of a sink that does not report itself."""

    def __init__(self, url: str, token: str | None) -> None:
        self._envelope = new_envelope(INTERVAL_SECONDS)
        self._pending = PendingBatches()
        self._base: CommitReport | None = None  # Replaced as a whole by the thread of the listener.
        self._sender = ReportSender(url, token, self, INTERVAL_SECONDS)

    def add(self, sink: CommitReport, batches: list[BatchReport]) -> None:
        # The process is the one that has committed last; the id stays, so that the view counts each batch once.
        interval_ms = self._envelope["interval_ms"]
        self._base = replace(sink, id=self._envelope["id"], interval_ms=interval_ms, batches=())
        for batch in batches:
            self._pending.add(batch)
        self._sender.notify()

    def close(self) -> None:
        self._sender.close()

    def create_report(self, *, is_last: bool) -> CommitReport:
        assert self._base is not None, "nothing was added"
        return self._pending.report(self._base, is_last=is_last)

    def acknowledge(self, report: CommitReport) -> None:
        self._pending.acknowledge(report)
