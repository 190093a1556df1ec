"""Reports the progress of a pipeline run to a live view, in addition to the reporter on the terminal.

    Pipeline.run → PipelineReporter → the other reporter
                                    ↘ PipelineReport → ReportSender's thread → POST

The view joins it, by name, with the reports of the sink (commit_reporter.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.spark.pipeline_spec import FORMAT, PipelineSpec
from headrace.spark.progress import BatchProgress, Reporter, Started, Tasks, Totals
from headrace.spark.query_view import pipeline_totals, source_reports
from headrace.telemetry.models import PipelineReport
from headrace.telemetry.sender import ReportSender, new_envelope

INTERVAL_SECONDS = 2.0
ERROR_CHARACTERS_MAX = 500


def sink_options(spec: PipelineSpec) -> dict[str, str]:
    """Return the sink options that make the sink report to the same view under the same name."""
    if spec.view.url is None or spec.sink.format != FORMAT:
        return {}
    options = {"view.url": spec.view.url, "view.name": spec.name}
    if spec.view.token is not None:
        options["view.token"] = spec.view.token
    return options


@contextmanager
def reporting(spec: PipelineSpec, reporter: Reporter) -> Iterator[Reporter]:
    """Yield a reporter for the run in this block that also reports to the view, if the pipeline has one."""
    if spec.view.url is None:
        yield reporter
        return
    view_reporter = PipelineReporter(spec.view.url, spec.view.token, spec.name, reporter)
    try:
        yield view_reporter
    except BaseException as error:
        view_reporter.fail(error)
        raise
    finally:
        view_reporter.close()


class PipelineReporter:
    """Reports one run of a pipeline. Called from one thread."""

    def __init__(self, url: str, token: str | None, name: str, reporter: Reporter) -> None:
        self._reporter = reporter
        self.wants_tasks = reporter.wants_tasks
        # Replaced as a whole by the thread of the pipeline, read by the sender's.
        self._report = PipelineReport(**new_envelope(INTERVAL_SECONDS), name=name, state="starting")
        self._sender = ReportSender(url, token, self, INTERVAL_SECONDS)

    # -- the thread of the pipeline --------------------------------------------------------------

    def started(self, what: Started) -> None:
        self._update(replace(self._report, state="running", master=what.master))
        self._reporter.started(what)

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        self._reporter.tasks(tasks, totals)

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._update(replace(self._report, totals=pipeline_totals(totals), sources=source_reports(batch)))
        self._reporter.batch(batch, totals)

    def finished(self, totals: Totals) -> None:
        self._update(replace(self._report, state=totals.stopped or "finished", totals=pipeline_totals(totals)))
        self._reporter.finished(totals)

    def fail(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        self._update(replace(self._report, state="failed", error=text[:ERROR_CHARACTERS_MAX]))

    def close(self) -> None:
        self._sender.close()

    def _update(self, report: PipelineReport) -> None:
        self._report = report
        self._sender.notify()

    # -- sender thread ---------------------------------------------------------------------------

    def create_report(self, *, is_last: bool) -> PipelineReport:
        return replace(self._report, time_ms=SYSTEM_CLOCK.time_ms(), is_closed=is_last)

    def acknowledge(self, report: PipelineReport) -> None:
        """Do nothing: every report is complete."""
