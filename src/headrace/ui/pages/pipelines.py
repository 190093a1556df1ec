"""Pipelines: Spark's batches phase by phase, and where the commit protocol is."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from headrace.ui import formatting
from headrace.ui.charts import StackedBars
from headrace.ui.commit_diagram import commit_drawing, show_commit, took
from headrace.ui.elements import Empty, Facts, Problem, Tile, section, tiles
from headrace.ui.frame import Page, frame, own_url, pipeline_address
from headrace.ui.pipeline_reports import ToldBatch, ToldPipeline
from headrace.ui.producer_reports import heard_of
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

PIPELINE_ROWS = 10
BATCH_ROWS = 10
BARS_MAX = 40
PLAN, WRITE, DECIDE, END, SPARK = "plan", "write", "decide", "end", "Spark between"
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
            with section("Those that report"):
                table = ServerTable(
                    "Pipelines",
                    [
                        Column("name", "Name", "link", sortable=True),
                        Column("state", "State", "state"),
                        Column("topic", "To topic"),
                        Column("last", "Last batch", "number"),
                        Column("rows", "Rows delivered", "number"),
                        Column("behind", "Behind", "number"),
                        Column("heard", "Heard of", "number", sortable=True),
                    ],
                    lambda query: _rows(view, query),
                    row_key="name",
                    empty=f"No pipeline reports to this view yet. Start one with headrace pipeline run FILE --view "
                    f"{own_url()}, or give a sink of your own the option view.url={own_url()}.",
                    search="pipelines",
                    page_rows=PIPELINE_ROWS,
                )
            page.live(table.refresh)
            _One(view, page, name)


def _rows(view: View, query: Query) -> Rows:
    def row(told: ToldPipeline) -> Row:
        run, driver = told.run, told.driver
        mark, tone = _STATES.get(told.state, ("", ""))
        behind = None if driver is None else driver.behind
        return {
            "name": told.name,
            "name_href": pipeline_address(told.name),
            "state": told.state,
            "state_mark": mark,
            "state_tone": tone,
            "topic": (run.topic or "of each row") if run else formatting.UNKNOWN,
            "last": str(told.batches[-1].batch) if told.batches else formatting.UNKNOWN,
            "rows": formatting.count(told.totals.rows, "rows"),
            "behind": formatting.UNKNOWN if behind is None else formatting.count(behind, "offsets"),
            "heard": heard_of(told.heard_s),
        }

    return paged(
        query,
        view.reports.pipelines(),
        row,
        keys={"name": lambda told: told.name, "heard": lambda told: -told.heard_s},
        text=lambda told: told.name,
    )


class _One:
    """One pipeline: figures, the drawing, the bars, the batches."""

    def __init__(self, view: View, page: Page, name: str) -> None:
        self._view = view
        self._chosen = name
        self._missing = Empty(
            "This pipeline is not known here: it has never reported, or was silent for 15 minutes. Choose one above."
        )
        with ui.element("div") as self._body:
            self._problem = Problem()
            self._figures = _Figures()
            with section("The commit protocol") as drawn:
                drawn.props('id="protocol"')
                self._drawing = commit_drawing()
            with section(f"Time of the last {BARS_MAX} batches, by phase"):
                self._bars = StackedBars("Batches by phase", [PLAN, WRITE, DECIDE, END, SPARK], "ms", hidden=[SPARK])
            with section("Batches"):
                self._batches = _batches_table(self._told)
            with section("Where it runs"):
                self._facts = Facts(("Driver", "Master", "Sink", "Query", "Delivery", "Committing process"))
        page.live(self.refresh)

    def _told(self) -> ToldPipeline | None:
        if not self._chosen:
            known = self._view.reports.pipelines()
            self._chosen = known[0].name if known else ""
        return self._view.reports.pipeline(self._chosen)

    def refresh(self) -> None:
        told = self._told()
        self._missing.set_visibility(told is None and bool(self._chosen))
        self._body.set_visibility(told is not None)
        if told is None:
            return
        self._problem.tell(_trouble(told))
        self._figures.show(told)
        show_commit(self._drawing, told)
        self._bars.show([(f"{one.batch}", _phases(one)) for one in list(told.batches)[-BARS_MAX:]])
        self._batches.refresh()
        self._show_facts(told)

    def _show_facts(self, told: ToldPipeline) -> None:
        run, driver = told.run, told.driver
        if driver is not None:
            self._facts.show("Driver", driver.place)
            self._facts.show("Master", driver.master or formatting.UNKNOWN)
        if run is not None:
            self._facts.show("Sink", run.sink)
            self._facts.show("Query", run.query)
            self._facts.show("Delivery", run.delivery)
            self._facts.show("Committing process", f"{run.place}; heard of {heard_of(run.heard_s)}")


def _trouble(told: ToldPipeline) -> str | None:
    """What somebody has to know before anything else."""
    if told.state == "failed" and told.driver is not None:
        return f"{told.name} has failed: {told.driver.error}"
    if told.state == "silent":
        return (
            f"{told.name} has not been heard of since {formatting.clock(told.heard_s)}: it was killed, or cannot reach "
            "this view. What it had decided is carried out when it is started again."
        )
    last = told.batches[-1] if told.batches else None
    return None if last is None or not last.error else f"Batch {last.batch}: {last.error}"


class _Figures:
    """The tiles."""

    def __init__(self) -> None:
        with tiles():
            self._state = Tile("State")
            self._rows = Tile("Rows delivered")
            self._bytes = Tile("Bytes delivered")
            self._decided = Tile("Decisions", "batches committed")
            self._failed = Tile("Failed commits")
            self._replayed = Tile("Replays", "not sent twice")
            self._redone = Tile("Redos", "parts written again")
            self._dead = Tile("Dead letters", "rows that cannot be sent")

    def show(self, told: ToldPipeline) -> None:
        totals, driver = told.totals, told.driver
        note = f"heard of {heard_of(told.heard_s)}"
        if driver is not None and driver.behind is not None:
            note = f"{formatting.count(driver.behind, 'offsets')} behind"
        self._state.show(told.state, note)
        rate = formatting.UNKNOWN if driver is None else formatting.rate(driver.rows_per_second, "rows")
        self._rows.show(formatting.count(totals.rows, "rows"), f"{rate} on average")
        self._bytes.show(formatting.size(totals.bytes), "of keys and values")
        self._decided.show(formatting.count(totals.committed))
        self._failed.show(formatting.count(totals.failed), f"{formatting.count(totals.aborted)} aborted")
        self._replayed.show(formatting.count(totals.replayed))
        self._redone.show(formatting.count(totals.redone))
        self._dead.show(formatting.count(totals.dead))


def _phases(one: ToldBatch) -> dict[str, float]:
    return {
        PLAN: one.plan_ms,
        WRITE: one.write_ms,
        DECIDE: one.begin_ms + one.decide_ms,
        END: one.end_ms,
        SPARK: one.spark_ms,
    }


def _batches_table(told: Callable[[], ToldPipeline | None]) -> ServerTable:
    def fetch(query: Query) -> Rows:
        found = told()
        newest = list(found.batches)[::-1] if found is not None else []
        return paged(query, enumerate(newest), _batch_row)

    return ServerTable(
        "Batches",
        [
            Column("batch", "Batch", "number"),
            Column("began", "Planned at", "number"),
            Column("outcome", "Outcome", "state"),
            Column("mode", "Way"),
            Column("tasks", "Tasks", "number"),
            Column("rows", "Rows", "number"),
            Column("size", "Bytes", "number"),
            Column("plan", "Plan", "number"),
            Column("write", "Write", "number"),
            Column("decide", "Decide", "number"),
            Column("end", "End", "number"),
            Column("more", "More"),
        ],
        fetch,
        row_key="key",
        empty="No batch has been told of yet: one is told when its commit is over.",
        page_rows=BATCH_ROWS,
    )


def _batch_row(numbered: tuple[int, ToldBatch]) -> Row:
    number, one = numbered
    mark, tone = _OUTCOMES.get(one.outcome, ("", ""))
    more = [
        f"{formatting.count(one.redone)} redone" if one.redone else "",
        formatting.things(one.dead, "dead letter") if one.dead else "",
        "tasks were retried" if one.is_retried else "",
        f"took over in {formatting.milliseconds(one.begin_ms)}" if one.begin_ms >= 1 else "",
        one.error,
    ]
    return {
        "key": f"{number} {one.began_ms}",
        "batch": str(one.batch),
        "began": formatting.clock(one.began_ms / 1000),
        "outcome": one.outcome,
        "outcome_mark": mark,
        "outcome_tone": tone,
        "mode": one.mode,
        "tasks": formatting.count(one.tasks),
        "rows": formatting.count(one.rows),
        "size": formatting.size(one.bytes),
        "plan": took(one.plan_ms),
        "write": took(one.write_ms),
        "decide": took(one.decide_ms),
        "end": took(one.end_ms),
        "more": "; ".join(filter(None, more)),
    }
