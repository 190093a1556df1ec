"""Producers: those that report, and the journey of a record through one of them, with live figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nicegui import ui

from headrace.ui import formatting
from headrace.ui.charts import LineChart
from headrace.ui.elements import Empty, Text, section
from headrace.ui.frame import Page, frame, own_url, producer_address, topic_address
from headrace.ui.producer_diagram import journey, show_journey
from headrace.ui.producer_reports import Look, ReachedBroker, ToldError, ToldProducer, WaitingBatch, heard_of
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
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


PAGE_ROWS = 10

Told = Callable[[], ToldProducer | None]


def _look(told: Told) -> Look | None:
    found = told()
    return None if found is None else found.last


def errors_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        return paged(query, enumerate(look.last_errors if look else ()), _error_row)

    with section("Last errors"):
        return ServerTable(
            "Last errors",
            [
                Column("at", "When", "number"),
                Column("where", "Where"),
                Column("count", "How often", "number"),
                Column("text", "What"),
            ],
            fetch,
            row_key="key",
            empty="Nothing has gone wrong so far.",
            page_rows=PAGE_ROWS,
        )


def _error_row(numbered: tuple[int, ToldError]) -> Row:
    number, one = numbered
    return {
        "key": f"{number} {one.time_ms}",
        "at": formatting.clock(one.time_ms / 1000),
        "where": one.where,
        "count": formatting.count(one.count, "times") if one.count > 1 else "once",
        "text": one.text,
    }


def batches_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        rows = look.oldest if look else ()
        return paged(query, rows, _batch_row, keys={"age": lambda one: one.age_ms, "batches": lambda one: one.batches})

    with section("Batches that wait, by partition"):
        return ServerTable(
            "Batches that wait",
            [
                Column("partition", "Partition", "mono"),
                Column("leader", "Leader", "number"),
                Column("batches", "Batches", "number", sortable=True),
                Column("fill", "Fill of the last", "number"),
                Column("records", "Records in it", "number"),
                Column("age", "Age of the first", "number", sortable=True),
                Column("attempts", "Sent before"),
            ],
            fetch,
            row_key="partition",
            empty="Nothing waits: every record is on its way, or answered.",
            page_rows=PAGE_ROWS,
        )


def _batch_row(one: WaitingBatch) -> Row:
    return {
        "partition": one.name,
        "leader": f"broker {one.leader}" if one.leader >= 0 else "no leader",
        "batches": formatting.count(one.batches),
        "fill": f"{one.fill:.0%} of {formatting.size(one.room_bytes)}",
        "records": formatting.count(one.records),
        "age": formatting.milliseconds(one.age_ms),
        "attempts": f"{formatting.count(one.attempts)} times" if one.attempts else "no",
    }


def brokers_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        return paged(query, look.brokers if look else (), _broker_row)

    with section("Brokers"):
        return ServerTable(
            "Brokers of this producer",
            [
                Column("id", "Broker", "number"),
                Column("address", "Address", "mono"),
                Column("state", "Connection", "state"),
                Column("in_flight", "In flight", "number"),
                Column("sent", "Sent to it", "number"),
            ],
            fetch,
            row_key="id",
            empty="No broker is known to this producer yet: it asks when the first record is sent.",
            page_rows=PAGE_ROWS,
        )


def _broker_row(one: ReachedBroker) -> Row:
    # A broker to which nothing had to be sent needs no connection.
    state = ("●", "good", "open") if one.is_connected else ("○", "warn" if one.sent_bytes else "", "none")
    return {
        "id": str(one.id),
        "address": one.address,
        "state": state[2],
        "state_mark": state[0],
        "state_tone": state[1],
        "in_flight": f"{one.in_flight} of {one.in_flight_max} requests",
        "sent": formatting.size(one.sent_bytes),
    }


def topics_table(told: Told) -> ServerTable:
    def fetch(query: Query) -> Rows:
        look = _look(told)
        topics: Iterable[tuple[str, float, float]] = look.topics if look else ()
        return paged(query, topics, _topic_row)

    with section("Topics, by bytes"):
        return ServerTable(
            "Topics of this producer",
            [
                Column("topic", "Topic", "link"),
                Column("records", "Records", "number"),
                Column("size", "Bytes of batches", "number"),
            ],
            fetch,
            row_key="topic",
            empty="Nothing was sent yet.",
            page_rows=PAGE_ROWS,
        )


def _topic_row(found: tuple[str, float, float]) -> Row:
    topic, records, size = found
    return {
        "topic": topic,
        "topic_href": topic_address(topic),
        "records": formatting.count(records),
        "size": formatting.size(size),
    }
