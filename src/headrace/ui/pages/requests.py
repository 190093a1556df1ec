"""Requests page: what a headrace broker serves, by type of request and by topic."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.ui import formatting
from headrace.ui.collector import Feed
from headrace.ui.elements import EmptyNote, section
from headrace.ui.frame import frame
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

REQUEST_COLUMNS = (
    Column("api", "Request", sortable=True),
    Column("requests", "Total", "number", sortable=True),
    Column("rate", "Rate", "number", sortable=True),
    Column("mean", "Mean time", "number", sortable=True),
    Column("max", "Longest", "number", sortable=True),
    Column("failed", "Failed", "number", sortable=True),
    Column("errors", "Errors", "mono", wide=True),
)
TOPIC_COLUMNS = (
    Column("topic", "Topic", sortable=True),
    Column("records", "Records in", "number", sortable=True),
    Column("rate", "Rate", "number", sortable=True),
    Column("bytes_in", "Bytes in", "number", sortable=True),
    Column("bytes_out", "Bytes out", "number", sortable=True),
    Column("failed_produces", "Failed writes", "number", sortable=True),
    Column("failed_fetches", "Failed reads", "number", sortable=True),
)


def build(view: View) -> None:
    @ui.page("/requests")
    def requests() -> None:
        with frame(view, "Requests", "/requests") as page:
            status = view.traffic.status
            if status is None:
                EmptyNote(
                    "Requests are counted by headrace brokers only. Start the view with --data-dir, the data folder "
                    "of the broker."
                )
                return
            with section("By type; rates and times of the last minute"):
                by_type = ServerTable(
                    "Types of requests",
                    REQUEST_COLUMNS,
                    lambda query: _request_rows(status, query),
                    row_key="api",
                    empty="No requests yet.",
                    search="types of requests",
                    sort_by="requests",
                    descending=True,
                )
            with section("By topic"):
                by_topic = ServerTable(
                    "Traffic of topics",
                    TOPIC_COLUMNS,
                    lambda query: _topic_rows(status, query),
                    row_key="topic",
                    empty="No records have been written or read since the start.",
                    search="topics",
                    sort_by="bytes_in",
                    descending=True,
                )
            page.live(by_type.refresh)
            page.live(by_topic.refresh)


def _request_rows(status: Feed[dict[str, Any]], query: Query) -> Rows:
    keys = {"rate": "requests_per_s", "mean": "mean_ms", "max": "max_ms"}
    return _rows(status, "request_statistics", query, keys)


def _topic_rows(status: Feed[dict[str, Any]], query: Query) -> Rows:
    return _rows(status, "topic_statistics", query, {"records": "records_in", "rate": "records_in_per_s"})


def _rows(status: Feed[dict[str, Any]], name: str, query: Query, keys: dict[str, str]) -> Rows:
    """Return the rows of a part of the status; `keys`: the fields behind columns with other names."""
    is_topic = name == "topic_statistics"
    columns = TOPIC_COLUMNS if is_topic else REQUEST_COLUMNS

    def key_of(column: str) -> Any:
        return lambda row: row[keys.get(column, column)]

    rows = paged(
        query,
        (status.get() or {}).get(name, ()),
        _topic_row if is_topic else _request_row,
        keys={column.name: key_of(column.name) for column in columns if column.sortable},
        text=lambda row: str(row[columns[0].name]),
    )
    return rows._replace(problem=status.failure.text if status.failure else None)


def _request_row(row: dict[str, Any]) -> Row:
    return {
        "api": row["api"],
        "requests": formatting.count(row["requests"]),
        "rate": formatting.rate(row["requests_per_s"], "requests"),
        "mean": formatting.milliseconds(row["mean_ms"]),
        "max": formatting.milliseconds(row["max_ms"]),
        "failed": formatting.count(row["failed"]),
        "errors": ", ".join(f"{name} {count}" for name, count in row["errors"].items()),
    }


def _topic_row(row: dict[str, Any]) -> Row:
    return {
        "topic": row["topic"],
        "records": formatting.count(row["records_in"]),
        "rate": formatting.rate(row["records_in_per_s"]),
        "bytes_in": formatting.size(row["bytes_in"]),
        "bytes_out": formatting.size(row["bytes_out"]),
        "failed_produces": formatting.count(row["failed_produces"]),
        "failed_fetches": formatting.count(row["failed_fetches"]),
    }
