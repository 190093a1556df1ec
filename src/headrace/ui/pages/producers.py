"""Producers page: all producers that report, and the path of a record through the selected one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from nicegui import ui

from headrace.telemetry.models import (
    BrokerConnection,
    PartitionQueueStatus,
    ProducerReport,
    ReportedError,
    TopicTotals,
)
from headrace.ui import formatting
from headrace.ui.charts import LineChart
from headrace.ui.elements import EmptyNote, Text, section
from headrace.ui.frame import Page, frame, producer_url, topic_url, view_url
from headrace.ui.producer_diagram import create_producer_diagram, draw_producer
from headrace.ui.reports import ReportedProducer, last_report_text
from headrace.ui.tables import Column, Row, ServerTable, SortKeys, item_rows
from headrace.ui.view import View

PAGE_ROWS = 10
RECORDS, P50, P99, USED = "records", "p50", "p99", "used"

T = TypeVar("T")


def build(view: View) -> None:
    @ui.page("/producers")
    def producers(id: str = "") -> None:
        with frame(view, "Producers", "/producers") as page:
            with section("Reporting producers"):
                table = ServerTable(
                    "Producers",
                    [
                        Column("client", "Client id", "link", sortable=True),
                        Column("process", "Process"),
                        Column("state", "State", "state"),
                        Column("rate", "Send rate", "number", sortable=True),
                        Column("delivery", "Delivery latency", "number"),
                        Column("used", "Buffer used", "number"),
                        Column("errors", "Failed", "number", sortable=True),
                        Column("reported", "Last report", "number"),
                    ],
                    item_rows(
                        view.reports.producers,
                        _producer_row,
                        keys={
                            "client": lambda producer: producer.report.client_id,
                            "rate": lambda producer: producer.records.last or 0.0,
                            "errors": lambda producer: producer.report.totals.errors,
                        },
                        text=_search_text,
                    ),
                    row_key="id",
                    empty="No producer reports to this view yet. Set the producer options metric.reporters=view and "
                    f"view.url={view_url()}. Pipelines and the demo report with --view {view_url()}.",
                    search="producers",
                    page_rows=PAGE_ROWS,
                )
            page.live(table.refresh)
            _ProducerDetail(view, page, id)


def _producer_row(producer: ReportedProducer) -> Row:
    report, delivery = producer.report, producer.report.latency.delivery
    return {
        "id": producer.id,
        "client": report.client_id,
        "client_href": producer_url(producer.id),
        "process": report.process,
        **producer.state_cells(),
        "rate": formatting.rate(producer.records.last if producer.is_live else 0.0),
        "delivery": formatting.UNKNOWN if delivery is None else f"p99 {formatting.milliseconds(delivery.p99)}",
        "used": f"{producer.used_percent.last or 0.0:.0f} %",
        "errors": formatting.plural(report.totals.errors, "record"),
        "reported": last_report_text(producer.last_report_s),
    }


def _search_text(producer: ReportedProducer) -> str:
    return f"{producer.report.client_id} {producer.report.process} {_transactional_id(producer)}"


def _transactional_id(producer: ReportedProducer) -> str:
    transaction = producer.report.transaction
    return "" if transaction is None else transaction.id


class _ProducerDetail:
    """The selected producer: diagram, charts, tables."""

    def __init__(self, view: View, page: Page, id: str) -> None:
        self._view = view
        self._id = id
        self._missing = EmptyNote(
            "Unknown producer: it never reported to this view, or was silent for 15 minutes. Select one above."
        )
        with ui.element("div") as self._body:
            with section("Path of a record") as diagram_section:
                diagram_section.props('id="journey"')
                self._title = Text("p").classes("hr-note")
                self._diagram = create_producer_diagram()
            with ui.element("div").classes("hr-columns hr-thirds"):
                with section("Records"):
                    self._records = LineChart("Records sent, last 15 minutes", [RECORDS], "records/s")
                with section("Delivery latency"):
                    self._latency = LineChart("Delivery latency, last 15 minutes", [P50, P99], "ms")
                with section("Buffer memory"):
                    self._used = LineChart("Share of buffer.memory in use, last 15 minutes", [USED], "%")
            self._tables = [
                _errors_table(self._items(lambda report: enumerate(report.errors))),
                _batches_table(self._items(lambda report: report.batches.oldest)),
                _brokers_table(self._items(lambda report: report.brokers)),
                _topics_table(self._items(lambda report: report.topics)),
            ]
        page.live(self.refresh)

    def _producer(self) -> ReportedProducer | None:
        if not self._id:
            known = self._view.reports.producers()
            self._id = known[0].id if known else ""
        return self._view.reports.producer(self._id)

    def _items(self, select: Callable[[ProducerReport], Iterable[T]]) -> Callable[[], Iterable[T]]:
        """Return a function that returns items of the last report; none without a report."""

        def items() -> Iterable[T]:
            producer = self._producer()
            return () if producer is None else select(producer.report)

        return items

    def refresh(self) -> None:
        producer = self._producer()
        self._missing.set_visibility(producer is None and bool(self._id))
        self._body.set_visibility(producer is not None)
        if producer is None:
            return
        report, transactional_id = producer.report, _transactional_id(producer)
        self._title.show(
            f"{report.client_id} on {report.process}"
            f"{f', transactional.id {transactional_id}' if transactional_id else ''}. "
            f"Started {formatting.moment(report.started_ms / 1000)}; "
            f"last report {last_report_text(producer.last_report_s)}."
        )
        draw_producer(self._diagram, producer)
        self._records.show({RECORDS: producer.records.points()})
        self._latency.show({P50: producer.p50_ms.points(), P99: producer.p99_ms.points()})
        self._used.show({USED: producer.used_percent.points()})
        for table in self._tables:
            table.refresh()


# -- tables of the selected producer -------------------------------------------------------------


def _errors_table(items: Callable[[], Iterable[tuple[int, ReportedError]]]) -> ServerTable:
    with section("Recent errors"):
        return ServerTable(
            "Recent errors",
            [
                Column("at", "Time", "number"),
                Column("where", "Where"),
                Column("count", "Count", "number"),
                Column("text", "Error"),
            ],
            item_rows(items, _error_row),
            row_key="key",
            empty="No errors.",
            page_rows=PAGE_ROWS,
        )


def _error_row(numbered: tuple[int, ReportedError]) -> Row:
    number, error = numbered
    return {
        "key": f"{number} {error.time_ms}",
        "at": formatting.clock(error.time_ms / 1000),
        "where": error.where,
        "count": formatting.count(error.count),
        "text": error.text,
    }


def _batches_table(items: Callable[[], Iterable[PartitionQueueStatus]]) -> ServerTable:
    keys: SortKeys[PartitionQueueStatus] = {"age": lambda queue: queue.age_ms, "batches": lambda queue: queue.batches}
    with section("Queued batches by partition"):
        return ServerTable(
            "Queued batches",
            [
                Column("partition", "Partition", "mono"),
                Column("leader", "Leader", "number"),
                Column("batches", "Batches", "number", sortable=True),
                Column("fill", "Last batch full", "number"),
                Column("records", "Records in it", "number"),
                Column("age", "Oldest batch", "number", sortable=True),
                Column("attempts", "Attempts"),
            ],
            item_rows(items, _queue_row, keys=keys),
            row_key="partition",
            empty="No batch is queued: all records are in flight or acknowledged.",
            page_rows=PAGE_ROWS,
        )


def _queue_row(queue: PartitionQueueStatus) -> Row:
    return {
        "partition": queue.name,
        "leader": f"broker {queue.leader}" if queue.leader >= 0 else "no leader",
        "batches": formatting.count(queue.batches),
        "fill": f"{queue.fill:.0%} of {formatting.size(queue.room_bytes)}",
        "records": formatting.count(queue.records),
        "age": formatting.milliseconds(queue.age_ms),
        "attempts": formatting.count(queue.attempts) if queue.attempts else "none",
    }


def _brokers_table(items: Callable[[], Iterable[BrokerConnection]]) -> ServerTable:
    with section("Brokers"):
        return ServerTable(
            "Brokers of this producer",
            [
                Column("id", "Broker", "number"),
                Column("address", "Address", "mono"),
                Column("state", "Connection", "state"),
                Column("in_flight", "In flight", "number"),
                Column("sent", "Bytes sent", "number"),
            ],
            item_rows(items, _broker_row),
            row_key="id",
            empty="No broker known yet: metadata is fetched with the first record.",
            page_rows=PAGE_ROWS,
        )


def _broker_row(broker: BrokerConnection) -> Row:
    # Without a connection is normal for a broker that nothing was sent to.
    mark, tone, state = (
        ("●", "good", "open") if broker.is_connected else ("○", "warn" if broker.sent_bytes else "", "none")
    )
    return {
        "id": str(broker.id),
        "address": broker.address,
        "state": state,
        "state_mark": mark,
        "state_tone": tone,
        "in_flight": f"{broker.in_flight} of {broker.in_flight_max} requests",
        "sent": formatting.size(broker.sent_bytes),
    }


def _topics_table(items: Callable[[], Iterable[TopicTotals]]) -> ServerTable:
    with section("Topics by bytes sent"):
        return ServerTable(
            "Topics of this producer",
            [
                Column("topic", "Topic", "link"),
                Column("records", "Records", "number"),
                Column("size", "Batch bytes", "number"),
            ],
            item_rows(items, _topic_row),
            row_key="topic",
            empty="Nothing sent yet.",
            page_rows=PAGE_ROWS,
        )


def _topic_row(totals: TopicTotals) -> Row:
    return {
        "topic": totals.topic,
        "topic_href": topic_url(totals.topic),
        "records": formatting.count(totals.records),
        "size": formatting.size(totals.bytes),
    }
