"""Feeds of the clients that push metrics to headrace brokers (KIP-714), by their control sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, IllegalStateError
from headrace.ui.broker_control import BrokerControl
from headrace.ui.collector import Collector, Feed

EVERY_SECONDS = 2.0
CALL_SECONDS_MAX = 2.0


def clients_feed(collector: Collector, control: BrokerControl) -> Feed[list[dict[str, Any]]]:
    """Return the feed of all clients that have pushed metrics to any broker of the cluster."""
    return collector.feed("clients", lambda _: _clients(control), every_s=EVERY_SECONDS)


def metrics_feed(collector: Collector, control: BrokerControl, id: str) -> Feed[list[dict[str, Any]]]:
    """Return the feed of the metrics that a client has pushed last."""
    return collector.feed(f"metrics of client {id}", lambda _: _metrics(control, id), every_s=EVERY_SECONDS)


def _clients(control: BrokerControl) -> list[dict[str, Any]]:
    """Return a row for each client; of a client that changed the broker, the newest."""
    newest: dict[str, dict[str, Any]] = {}
    for rows in _call_all(control, "clients"):
        for row in rows:
            known = newest.get(row["client_instance_id"])
            if known is None or known["pushed_time_ms"] < row["pushed_time_ms"]:
                newest[row["client_instance_id"]] = row
    return list(newest.values())


def _metrics(control: BrokerControl, id: str) -> list[dict[str, Any]]:
    return next((rows for rows in _call_all(control, "clients.metrics", id=id) if rows), [])


def _call_all(control: BrokerControl, op: str, **arguments: Any) -> list[list[dict[str, Any]]]:
    """Call an operation of every broker that runs."""
    try:
        status = control.call("status", seconds_max=CALL_SECONDS_MAX)
        rows = status.get("brokers") or [status]
        controls = [BrokerControl(Path(row["data_dir"])) for row in rows if row.get("alive", True)]
        return [broker.call(op, seconds_max=CALL_SECONDS_MAX, **arguments) for broker in controls]
    except HeadraceError as error:
        raise IllegalStateError(str(error)) from error  # the control socket, not the cluster
