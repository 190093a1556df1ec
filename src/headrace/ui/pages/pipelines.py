"""Pipelines page: Spark batches by phase, and the state of the commit protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nicegui import ui

from headrace.telemetry.models import BatchReport, SourceReport, TopicLag
from headrace.ui import formatting
from headrace.ui.charts import LineChart, StackedBars
from headrace.ui.commit_diagram import create_commit_diagram, draw_commit, phase_time
from headrace.ui.elements import DefinitionList, EmptyNote, Problem, Tile, section, tiles
from headrace.ui.frame import Page, frame, pipeline_url, topic_url, view_url
from headrace.ui.reports import ReportedPipeline, last_report_text
from headrace.ui.tables import Column, Row, ServerTable, item_rows
from headrace.ui.view import View

PIPELINE_ROWS = 10
BATCH_ROWS = 10
SOURCE_ROWS = 10
BARS_MAX = 40
LAG = "lag"
PLAN, WRITE, DECIDE, END, SPARK = "plan", "write", "decide", "end", "Spark scheduling"
_STATES = {
    "starting": ("…", ""),
    "running": ("●", "good"),
    "finished": ("✓", "good"),
    "stopped": ("■", ""),
    "closed": ("■", ""),
    "cancelled": ("■", "warn"),
    "failed": ("✗", "bad"),
    "silent": ("?", "warn"),
}
_OUTCOMES = {
    "committed": ("✓", "good"),
    "written": ("✓", ""),
    "replayed": ("↺", ""),
    "empty": ("○", ""),
    "aborted": ("■", "warn"),
    "failed": ("✗", "bad"),
}


def build(view: View) -> None:
    @ui.page("/pipelines")
    def pipelines(name: str = "") -> None:
        with frame(view, "Pipelines", "/pipelines") as page:
            with section("Reporting pipelines"):
                table = ServerTable(
                    "Pipelines",
                    [
                        Column("name", "Name", "link", sortable=True),
                        Column("state", "State", "state"),
                        Column("topic", "Topic"),
                        Column("last", "Last batch", "number"),
                        Column("rows", "Rows delivered", "number"),
                        Column("behind", "Source lag", "number"),
                        Column("reported", "Last report", "number", sortable=True),
                    ],
                    item_rows(
                        view.reports.pipelines,
                        _pipeline_row,
                        keys={
                            "name": lambda pipeline: pipeline.name,
                            "reported": lambda pipeline: -pipeline.last_report_s,
                        },
                        text=lambda pipeline: pipeline.name,
                    ),
                    row_key="name",
                    empty=f"No pipeline reports to this view yet. Start one with headrace pipeline run FILE --view "
                    f"{view_url()}, set the sink option view.url={view_url()}, or add "
                    f'headrace.spark.listener(view_url="{view_url()}") to spark.streams.',
                    search="pipelines",
                    page_rows=PIPELINE_ROWS,
                )
            page.live(table.refresh)
            _PipelineDetail(view, page, name)


def _pipeline_row(pipeline: ReportedPipeline) -> Row:
    run, driver = pipeline.run, pipeline.driver
    mark, tone = _STATES.get(pipeline.state, ("", ""))
    behind = None if driver is None else driver.totals.behind
    return {
        "name": pipeline.name,
        "name_href": pipeline_url(pipeline.name),
        "state": pipeline.state,
        "state_mark": mark,
        "state_tone": tone,
        "topic": (run.report.topic or "per row") if run else formatting.UNKNOWN,
        "last": str(pipeline.batches[-1].batch) if pipeline.batches else formatting.UNKNOWN,
        "rows": formatting.count(pipeline.totals.rows, "rows"),
        "behind": formatting.count(behind, "records"),
        "reported": last_report_text(pipeline.last_report_s),
    }


class _PipelineDetail:
    """The selected pipeline: figures, sources, diagram, durations, batches."""

    def __init__(self, view: View, page: Page, name: str) -> None:
        self._view = view
        self._selected = name
        self._missing = EmptyNote(
            "Unknown pipeline: it never reported to this view, or was silent for 15 minutes. Select one above."
        )
        with ui.element("div") as self._body:
            self._problem = Problem()
            self._figures = _Figures()
            with ui.element("div") as self._sources_body:
                with section("Sources"):
                    self._sources = _sources_table(self._pipeline)
                with section("Source lag, last 15 minutes"):
                    self._lag = LineChart("Source lag, last 15 minutes", [LAG], "records")
            with section("Commit protocol") as diagram_section:
                diagram_section.props('id="protocol"')
                self._diagram = create_commit_diagram()
            with section(f"Duration of the last {BARS_MAX} batches by phase"):
                self._bars = StackedBars("Batches by phase", [PLAN, WRITE, DECIDE, END, SPARK], "ms", hidden=[SPARK])
            with section("Batches"):
                self._batches = _batches_table(self._pipeline)
            with section("Processes"):
                self._processes = DefinitionList(
                    ("Driver", "Spark master", "Sink", "Query", "Delivery", "Committing process")
                )
        page.live(self.refresh)

    def _pipeline(self) -> ReportedPipeline | None:
        if not self._selected:
            known = self._view.reports.pipelines()
            self._selected = known[0].name if known else ""
        return self._view.reports.pipeline(self._selected)

    def refresh(self) -> None:
        pipeline = self._pipeline()
        self._missing.set_visibility(pipeline is None and bool(self._selected))
        self._body.set_visibility(pipeline is not None)
        if pipeline is None:
            return
        self._problem.set(_problem_of(pipeline))
        self._figures.show(pipeline)
        self._sources_body.set_visibility(pipeline.driver is not None and bool(pipeline.driver.sources))
        self._sources.refresh()
        self._lag.show({LAG: pipeline.lag.points()})
        draw_commit(self._diagram, pipeline)
        self._bars.show([(f"{batch.batch}", _durations(batch)) for batch in list(pipeline.batches)[-BARS_MAX:]])
        self._batches.refresh()
        self._show_processes(pipeline)

    def _show_processes(self, pipeline: ReportedPipeline) -> None:
        run, driver = pipeline.run, pipeline.driver
        if driver is not None:
            self._processes.show("Driver", driver.process)
            self._processes.show("Spark master", driver.master or formatting.UNKNOWN)
        if run is not None:
            report = run.report
            self._processes.show("Sink", report.sink)
            self._processes.show("Query", report.query)
            self._processes.show("Delivery", report.delivery)
            self._processes.show(
                "Committing process", f"{report.process}; last report {last_report_text(run.last_report_s)}"
            )


def _problem_of(pipeline: ReportedPipeline) -> str | None:
    if pipeline.state == "failed" and pipeline.driver is not None:
        return f"{pipeline.name} has failed: {pipeline.driver.error}"
    if pipeline.state == "silent":
        return (
            f"{pipeline.name} has not reported since {formatting.clock(pipeline.last_report_s)}: it was killed, or "
            "cannot reach this view. Batches that were decided are completed when it is started again."
        )
    last = pipeline.batches[-1] if pipeline.batches else None
    return None if last is None or not last.error else f"Batch {last.batch}: {last.error}"


class _Figures:
    def __init__(self) -> None:
        with tiles():
            self._state = Tile("State")
            self._lag = Tile("Source lag", "records not read yet")
            self._rows = Tile("Rows delivered")
            self._bytes = Tile("Bytes delivered")
            self._committed = Tile("Batches committed")
            self._failed = Tile("Failed commits")
            self._replayed = Tile("Replays", "not sent twice")
            self._redone = Tile("Redos", "transactions written again")
            self._dead = Tile("Dead letters", "invalid rows")

    def show(self, pipeline: ReportedPipeline) -> None:
        totals, driver = pipeline.totals, pipeline.driver
        self._state.show(pipeline.state, f"last report {last_report_text(pipeline.last_report_s)}")
        self._lag.show(formatting.count(None if driver is None else driver.totals.behind))
        rate = "" if driver is None else f"{formatting.rate(driver.totals.rows_per_second, 'rows')} on average"
        self._rows.show(formatting.count(totals.rows, "rows"), rate)
        self._bytes.show(formatting.size(totals.bytes), "keys and values")
        self._committed.show(formatting.count(totals.committed))
        self._failed.show(formatting.count(totals.failed), f"{formatting.count(totals.aborted)} aborted")
        self._replayed.show(formatting.count(totals.replayed))
        self._redone.show(formatting.count(totals.redone))
        self._dead.show(formatting.count(totals.dead))


def _sources_table(pipeline: Callable[[], ReportedPipeline | None]) -> ServerTable:
    def topics() -> Iterable[tuple[int, SourceReport, TopicLag | None]]:
        selected = pipeline()
        driver = None if selected is None else selected.driver
        for number, source in enumerate(() if driver is None else driver.sources):
            yield from ((number, source, topic) for topic in source.topics or (None,))

    return ServerTable(
        "Sources",
        [
            Column("source", "Source", "mono"),
            Column("topic", "Topic", "link"),
            Column("partitions", "Partitions", "number"),
            Column("lag", "Lag", "number", sortable=True),
            Column("newest", "Newest record", "number"),
        ],
        item_rows(
            topics,
            _source_row,
            keys={"lag": lambda item: 0 if item[2] is None else item[2].lag or 0},
            text=lambda item: f"{item[1].name} {'' if item[2] is None else item[2].topic}",
        ),
        row_key="key",
        empty="No batch yet: sources are reported with the first one.",
        page_rows=SOURCE_ROWS,
    )


def _source_row(item: tuple[int, SourceReport, TopicLag | None]) -> Row:
    number, source, topic = item
    if topic is None:  # not a source with topics
        return {"key": f"{number}", "source": source.name, "topic": formatting.UNKNOWN, "lag": formatting.UNKNOWN}
    newest = formatting.UNKNOWN if topic.newest_ms is None else formatting.moment_ms(topic.newest_ms)
    return {
        "key": f"{number} {topic.topic}",
        "source": source.name,
        "topic": topic.topic,
        "topic_href": topic_url(topic.topic),
        "partitions": formatting.count(topic.partitions),
        "lag": formatting.count(topic.lag, "records"),
        "newest": newest,
    }


def _durations(batch: BatchReport) -> dict[str, float]:
    return {
        PLAN: batch.plan_ms,
        WRITE: batch.write_ms,
        DECIDE: batch.begin_ms + batch.decide_ms,
        END: batch.end_ms,
        SPARK: batch.spark_ms,
    }


def _batches_table(pipeline: Callable[[], ReportedPipeline | None]) -> ServerTable:
    def newest_first() -> Iterable[tuple[int, BatchReport]]:
        selected = pipeline()
        return enumerate(list(selected.batches)[::-1] if selected is not None else [])

    return ServerTable(
        "Batches",
        [
            Column("batch", "Batch", "number"),
            Column("began", "Planned at", "number"),
            Column("outcome", "Outcome", "state"),
            Column("mode", "Mode"),
            Column("tasks", "Tasks", "number"),
            Column("rows", "Rows", "number"),
            Column("size", "Bytes", "number"),
            Column("plan", "Plan", "number"),
            Column("write", "Write", "number"),
            Column("decide", "Decide", "number"),
            Column("end", "End", "number"),
            Column("notes", "Notes"),
        ],
        item_rows(newest_first, _batch_row),
        row_key="key",
        empty="No batch reported yet. A batch is reported when its commit ends.",
        page_rows=BATCH_ROWS,
    )


def _batch_row(numbered: tuple[int, BatchReport]) -> Row:
    number, batch = numbered
    mark, tone = _OUTCOMES.get(batch.outcome, ("", ""))
    notes = [
        f"{formatting.count(batch.redone)} redone" if batch.redone else "",
        formatting.plural(batch.dead, "dead letter") if batch.dead else "",
        "tasks retried" if batch.is_retried else "",
        f"took over in {formatting.milliseconds(batch.begin_ms)}" if batch.begin_ms >= 1 else "",
        batch.error,
    ]
    return {
        "key": f"{number} {batch.began_ms}",
        "batch": str(batch.batch),
        "began": formatting.clock(batch.began_ms / 1000),
        "outcome": batch.outcome,
        "outcome_mark": mark,
        "outcome_tone": tone,
        "mode": batch.mode,
        "tasks": formatting.count(batch.tasks),
        "rows": formatting.count(batch.rows),
        "size": formatting.size(batch.bytes),
        "plan": phase_time(batch.plan_ms),
        "write": phase_time(batch.write_ms),
        "decide": phase_time(batch.decide_ms),
        "end": phase_time(batch.end_ms),
        "notes": "; ".join(filter(None, notes)),
    }
