"""Addresses of pages that are about one thing. Groups and transactional ids may be any text: they go in the query."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from nicegui import ui


def topic_address(name: str) -> str:
    return f"/topics/{quote(name, safe='')}"


def group_address(name: str) -> str:
    return f"/group?{urlencode({'name': name})}"


def transaction_address(transactional_id: str) -> str:
    return f"/transaction?{urlencode({'id': transactional_id})}"


def producer_address(id: str) -> str:
    return f"/producers?{urlencode({'id': id})}"


def pipeline_address(name: str) -> str:
    return f"/pipelines?{urlencode({'name': name})}"


def own_url() -> str:
    """Where the browser of the page that is being built has found this view: what others may report to."""
    return str(ui.context.client.request.base_url).rstrip("/")
