"""Clients page: clients that push metrics to a headrace broker (KIP-714), and the metrics of the selected one."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.ui import formatting
from headrace.ui.broker_control import BrokerControl
from headrace.ui.client_feeds import clients_feed, metrics_feed
from headrace.ui.collector import Feed
from headrace.ui.elements import EmptyNote, section
from headrace.ui.frame import Page, client_url, frame
from headrace.ui.reports import last_report_text
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

CLIENT_COLUMNS = (
    Column("client", "Client id", "link", sortable=True),
    Column("software", "Software", sortable=True),
    Column("address", "Address", "mono"),
    Column("state", "State", "state"),
    Column("metrics", "Metrics", "number", sortable=True),
    Column("interval", "Interval", "number"),
    Column("pushed", "Last push", "number"),
)
METRIC_COLUMNS = (
    Column("name", "Metric", "mono", sortable=True),
    Column("attributes", "Attributes", "mono"),
    Column("value", "Value", "number", sortable=True),
)
_HOW_TO = (
    "No client has pushed metrics yet. Subscribe with Kafka's tool, for example "
    "`kafka-client-metrics.sh --bootstrap-server … --alter --name all --metrics '*' --interval 10000`. Java's clients "
    "and librdkafka push without further settings (enable.metrics.push)."
)


def build(view: View) -> None:
    @ui.page("/clients")
    def clients(id: str = "") -> None:
        with frame(view, "Clients", "/clients") as page:
            if view.control is None:
                EmptyNote(
                    "Metrics of clients are received by headrace brokers only. Start the view with --data-dir, the "
                    "data folder of the broker."
                )
                return
            feed = clients_feed(view.cluster, view.control)
            with section("Clients that push metrics"):
                table = ServerTable(
                    "Clients",
                    CLIENT_COLUMNS,
                    lambda query: _client_rows(feed, query),
                    row_key="id",
                    empty=_HOW_TO,
                    search="clients",
                    sort_by="client",
                    page_rows=10,
                )
            page.live(table.refresh)
            if id:
                _metrics_section(view, view.control, page, id)


def _client_rows(feed: Feed[list[dict[str, Any]]], query: Query) -> Rows:
    rows = paged(
        query,
        feed.get() or [],
        _client_row,
        keys={
            "client": lambda client: client["client_id"],
            "software": lambda client: client["client_software_name"],
            "metrics": lambda client: client["metrics"],
        },
        text=lambda client: f"{client['client_id']} {client['client_software_name']} {client['client_source_address']}",
    )
    return rows._replace(problem=feed.failure.text if feed.failure else None)


def _client_row(client: dict[str, Any]) -> Row:
    mark, tone, word = ("■", "", "closed") if client["is_terminating"] else ("●", "good", "live")
    return {
        "id": client["client_instance_id"],
        "client": client["client_id"] or client["client_instance_id"],
        "client_href": client_url(client["client_instance_id"]),
        "software": f"{client['client_software_name']} {client['client_software_version']}",
        "address": f"{client['client_source_address']}:{client['client_source_port']}",
        "state": word,
        "state_mark": mark,
        "state_tone": tone,
        "metrics": formatting.count(client["metrics"]),
        "interval": formatting.duration(client["interval_ms"] / 1000),
        "pushed": last_report_text(client["pushed_time_ms"] / 1000),
    }


def _metrics_section(view: View, control: BrokerControl, page: Page, id: str) -> None:
    feed = metrics_feed(view.cluster, control, id)
    with section("Metrics"):
        table = ServerTable(
            "Metrics",
            METRIC_COLUMNS,
            lambda query: _metric_rows(feed, query),
            row_key="id",
            empty=f"Client {id} has pushed no metrics, or has been silent for too long. Select one above.",
            search="metrics",
            sort_by="name",
        )
    page.live(table.refresh)


def _metric_rows(feed: Feed[list[dict[str, Any]]], query: Query) -> Rows:
    def row(point: dict[str, Any]) -> Row:
        attributes = _attributes(point)
        return {
            "id": f"{point['name']} {attributes}",
            "name": point["name"],
            "attributes": attributes,
            "value": f"{point['value']:,.6g}",
        }

    return paged(
        query,
        feed.get() or [],
        row,
        keys={"name": lambda point: (point["name"], _attributes(point)), "value": lambda point: point["value"]},
        text=lambda point: f"{point['name']} {_attributes(point)}",
    )


def _attributes(point: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(point["attributes"].items()))
