"""Producers: those that report, and the journey of a record through one of them, with live figures."""

from __future__ import annotations

from nicegui import ui

from headrace.ui import formatting
from headrace.ui.addresses import own_url, producer_address
from headrace.ui.charts import LineChart
from headrace.ui.frame import Page, frame
from headrace.ui.parts import Empty, Text, section
from headrace.ui.producer_tables import batches_table, brokers_table, errors_table, topics_table
from headrace.ui.record_journey import journey, show_journey
from headrace.ui.tables import Column, Query, Rows, ServerTable, paged
from headrace.ui.told_producers import ToldProducer, heard_of
from headrace.ui.view import View

PRODUCER_ROWS = 10
RECORDS, P50, P99, USED = "records", "p50", "p99", "used"


def build(view: View) -> None:
    @ui.page("/producers")
    def producers(id: str = "") -> None:
        with frame(view, "Producers", "/producers") as page:
            with section("Those that report"):
                table = ServerTable(
                    "Producers",
                    [
                        Column("client", "Client id", "link", sortable=True),
                        Column("place", "Where"),
                        Column("state", "State", "state"),
                        Column("rate", "Sends", "number", sortable=True),
                        Column("delivery", "Send to answer", "number"),
                        Column("used", "Buffer used", "number"),
                        Column("errors", "Failed", "number", sortable=True),
                        Column("heard", "Heard of", "number"),
                    ],
                    lambda query: _rows(view, query),
                    row_key="id",
                    empty=_nobody(),
                    search="producers",
                    page_rows=PRODUCER_ROWS,
                )
            page.live(table.refresh)
            _One(view, page, id)


def _nobody() -> str:
    return (
        "No producer reports to this view yet. Give one the options metric.reporters=view and "
        f"view.url={own_url()}. Pipelines report with --view {own_url()}, and so does the demo."
    )


def _rows(view: View, query: Query) -> Rows:
    def row(told: ToldProducer) -> dict[str, str]:
        look = told.last
        mark, tone, word = _state(told)
        return {
            "id": told.id,
            "client": look.client_id,
            "client_href": producer_address(told.id),
            "place": look.place,
            "state": word,
            "state_mark": mark,
            "state_tone": tone,
            "rate": formatting.rate(told.records.last if told.is_live else 0.0),
            "delivery": "–" if look.delivery is None else f"p99 {formatting.milliseconds(look.delivery.p99)}",
            "used": f"{told.used_share.last or 0.0:.0f} %",
            "errors": formatting.things(look.errors, "record"),
            "heard": heard_of(told.heard_s),
        }

    return paged(
        query,
        view.reports.producers(),
        row,
        keys={
            "client": lambda told: told.last.client_id,
            "rate": lambda told: told.records.last or 0.0,
            "errors": lambda told: told.last.errors,
        },
        text=lambda told: f"{told.last.client_id} {told.last.place} {told.last.transactional_id or ''}",
    )


def _state(told: ToldProducer) -> tuple[str, str, str]:
    """Mark, tone and word."""
    if told.last.is_closed:
        return "■", "", "closed"
    return ("?", "warn", "silent") if told.is_silent else ("●", "good", "live")


class _One:
    """One producer: the drawing, charts, and what waits."""

    def __init__(self, view: View, page: Page, id: str) -> None:
        self._view = view
        self._id = id
        self._missing = Empty(
            "This producer is not known here: it has never reported, or was silent for 15 minutes. Choose one above."
        )
        with ui.element("div") as self._body:
            with section("A record's journey") as drawn:
                drawn.props('id="journey"')
                self._name = Text("p").classes("hr-note")
                self._drawing = journey()
            with ui.element("div").classes("hr-columns hr-thirds"):
                with section("Records"):
                    self._records = LineChart("Records sent, the last 15 minutes", [RECORDS], "records/s")
                with section("From send to answer"):
                    self._latency = LineChart("Time from send to answer, the last 15 minutes", [P50, P99], "ms")
                with section("Buffer memory"):
                    self._used = LineChart("Share of buffer.memory in use, the last 15 minutes", [USED], "%")
            self._tables = [
                errors_table(self._told),
                batches_table(self._told),
                brokers_table(self._told),
                topics_table(self._told),
            ]
        page.live(self.refresh)

    def _told(self) -> ToldProducer | None:
        if not self._id:
            known = self._view.reports.producers()
            self._id = known[0].id if known else ""
        return self._view.reports.producer(self._id)

    def refresh(self) -> None:
        told = self._told()
        self._missing.set_visibility(told is None and bool(self._id))
        self._body.set_visibility(told is not None)
        if told is None:
            return
        look = told.last
        transactional = f", transactional.id {look.transactional_id}" if look.transactional_id else ""
        self._name.show(
            f"{look.client_id} on {look.place}{transactional}. Since {formatting.moment(look.started_ms / 1000)}; "
            f"heard of {heard_of(told.heard_s)}."
        )
        show_journey(self._drawing, told)
        self._records.show({RECORDS: told.records.points()})
        self._latency.show({P50: told.p50_ms.points(), P99: told.p99_ms.points()})
        self._used.show({USED: told.used_share.points()})
        for table in self._tables:
            table.refresh()
