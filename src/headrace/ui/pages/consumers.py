"""Consumers page: all consumers that report, and the positions of the selected one; a table of them for group pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nicegui import ui

from headrace.telemetry.models import PositionStatus
from headrace.ui import formatting
from headrace.ui.charts import LineChart
from headrace.ui.elements import EmptyNote, Text, Tile, section, tiles
from headrace.ui.frame import Page, consumer_url, frame, group_url, topic_url, view_url
from headrace.ui.reports import ReportedConsumer, last_report_text
from headrace.ui.tables import Column, Row, ServerTable, item_rows
from headrace.ui.view import View

PAGE_ROWS = 10
RECORDS, LAG = "records", "lag"
_HOW = "Set the consumer options metric.reporters=view and view.url={}."


def build(view: View) -> None:
    @ui.page("/consumers")
    def consumers(id: str = "") -> None:
        with frame(view, "Consumers", "/consumers") as page:
            with section("Reporting consumers"):
                page.live(consumer_table(view.reports.consumers).refresh)
            _ConsumerDetail(view, page, id)


def consumer_table(consumers: Callable[[], Iterable[ReportedConsumer]], *, of_group: bool = False) -> ServerTable:
    """Create the table of reporting consumers; on the page of a group without the column for it."""
    columns = [
        Column("client", "Client id", "link", sortable=True),
        Column("group", "Group", "link", sortable=True),
        Column("process", "Process"),
        Column("state", "State", "state"),
        Column("member", "Membership"),
        Column("assigned", "Partitions", "number", sortable=True),
        Column("lag", "Lag", "number", sortable=True),
        Column("rate", "Read rate", "number", sortable=True),
        Column("buffer", "Buffer used", "number"),
        Column("polled", "Last poll", "number"),
        Column("reported", "Last report", "number"),
    ]
    return ServerTable(
        "Reporting members" if of_group else "Consumers",
        [column for column in columns if not of_group or column.name != "group"],
        item_rows(consumers, _consumer_row, keys=_KEYS, text=_search_text),
        row_key="id",
        empty=f"No {'member' if of_group else 'consumer'} reports to this view yet. {_HOW.format(view_url())}",
        search="" if of_group else "consumers",
        page_rows=PAGE_ROWS,
    )


_KEYS = {
    "client": lambda consumer: consumer.report.client_id,
    "group": lambda consumer: consumer.group,
    "assigned": lambda consumer: consumer.report.assigned,
    "lag": lambda consumer: consumer.report.lag or 0,
    "rate": lambda consumer: consumer.records.last or 0.0,
}


def _consumer_row(consumer: ReportedConsumer) -> Row:
    report = consumer.report
    return {
        "id": consumer.id,
        "client": report.client_id,
        "client_href": consumer_url(consumer.id),
        "group": consumer.group or formatting.UNKNOWN,
        "group_href": group_url(consumer.group) if consumer.group else "/groups",
        "process": report.process,
        **consumer.state_cells(),
        "member": _membership(consumer),
        "assigned": f"{report.assigned:,}" + (f", {report.paused:,} paused" if report.paused else ""),
        "lag": formatting.count(report.lag, "records"),
        "rate": formatting.rate(consumer.records.last if consumer.is_live else 0.0),
        "buffer": _buffer(consumer),
        "polled": _poll_age(consumer),
        "reported": last_report_text(consumer.last_report_s),
    }


def _search_text(consumer: ReportedConsumer) -> str:
    return f"{consumer.report.client_id} {consumer.group} {consumer.report.process}"


def _membership(consumer: ReportedConsumer) -> str:
    member = consumer.report.member
    if member is None:
        return formatting.UNKNOWN
    return member.state if member.epoch is None else f"{member.state}, {member.epoch_name} {member.epoch}"


def _buffer(consumer: ReportedConsumer) -> str:
    buffer = consumer.report.buffer
    return f"{formatting.size(buffer.used_bytes)} of {formatting.size(buffer.total_bytes)}"


def _poll_age(consumer: ReportedConsumer) -> str:
    age_ms = consumer.report.poll_age_ms
    return "never" if age_ms is None else f"{formatting.duration(age_ms / 1000)} ago"


class _ConsumerDetail:
    """The selected consumer: figures, charts, positions."""

    def __init__(self, view: View, page: Page, id: str) -> None:
        self._view = view
        self._id = id
        self._missing = EmptyNote(
            "Unknown consumer: it never reported to this view, or was silent for 15 minutes. Select one above."
        )
        with ui.element("div") as self._body:
            with section("Consumer"):
                self._title = Text("p").classes("hr-note")
                with tiles():
                    self._membership = Tile("Membership")
                    self._assigned = Tile("Partitions")
                    self._lag = Tile("Lag")
                    self._rate = Tile("Read rate")
                    self._buffer = Tile("Buffer used")
                    self._polled = Tile("Last poll")
            with ui.element("div").classes("hr-columns"):
                with section("Records"):
                    self._records_chart = LineChart("Records read, last 15 minutes", [RECORDS], "records/s")
                with section("Lag in records"):
                    self._lag_chart = LineChart("Lag in records as the consumer sees it", [LAG], "records")
            with section("Positions"):
                self._positions = _position_table(self._items)
        page.live(self.refresh)

    def _consumer(self) -> ReportedConsumer | None:
        if not self._id:
            known = self._view.reports.consumers()
            self._id = known[0].id if known else ""
        return self._view.reports.consumer(self._id)

    def _items(self) -> Iterable[PositionStatus]:
        consumer = self._consumer()
        return () if consumer is None else consumer.report.positions

    def refresh(self) -> None:
        consumer = self._consumer()
        self._missing.set_visibility(consumer is None and bool(self._id))
        self._body.set_visibility(consumer is not None)
        if consumer is None:
            return
        report, totals = consumer.report, consumer.report.totals
        group = f", group {consumer.group}" if consumer.group else ""
        self._title.show(
            f"{report.client_id} on {report.process}{group}. Started {formatting.moment(report.started_ms / 1000)}; "
            f"last report {last_report_text(consumer.last_report_s)}."
        )
        self._membership.show(_membership(consumer), formatting.plural(totals.rebalances, "rebalance"))
        self._assigned.show(formatting.count(report.assigned), f"{report.paused:,} paused")
        self._lag.show(formatting.count(report.lag, "records"), "as of the last fetches")
        received = formatting.size_rate(consumer.received.last if consumer.is_live else 0.0)
        self._rate.show(formatting.rate(consumer.records.last if consumer.is_live else 0.0), received)
        self._buffer.show(formatting.size(report.buffer.used_bytes), f"of {formatting.size(report.buffer.total_bytes)}")
        self._polled.show(_poll_age(consumer), formatting.plural(totals.fetches, "fetch", "fetches"))
        self._records_chart.show({RECORDS: consumer.records.points()})
        self._lag_chart.show({LAG: consumer.lag.points()})
        self._positions.refresh()


def _position_table(positions: Callable[[], Iterable[PositionStatus]]) -> ServerTable:
    return ServerTable(
        "Positions",
        [
            Column("topic", "Topic", "link", sortable=True),
            Column("partition", "Partition", "number", sortable=True),
            Column("position", "Position", "number"),
            Column("lag", "Lag", "number", sortable=True),
            Column("state", "State"),
        ],
        item_rows(
            positions,
            _position_row,
            keys={
                "topic": lambda each: (each.topic, each.partition),
                "partition": lambda each: (each.partition, each.topic),
                "lag": lambda each: -1 if each.lag is None else each.lag,
            },
            text=lambda each: each.topic,
        ),
        row_key="at",
        empty="No assigned partitions.",
        search="topics",
    )


def _position_row(status: PositionStatus) -> Row:
    return {
        "at": f"{status.topic}-{status.partition}",
        "topic": status.topic,
        "topic_href": topic_url(status.topic),
        "partition": str(status.partition),
        "position": formatting.count(status.position),
        "lag": formatting.count(status.lag, "records"),
        "state": status.state,
    }
