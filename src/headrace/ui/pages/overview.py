"""Overview page: brokers, topics, throughput and errors of the last 15 minutes."""

from __future__ import annotations

from nicegui import ui

from headrace.client.admin import BrokerDescription
from headrace.ui import formatting
from headrace.ui.charts import LineChart
from headrace.ui.elements import Tile, section, tiles
from headrace.ui.frame import frame
from headrace.ui.tables import Column, Query, Rows, ServerTable, paged
from headrace.ui.view import Topology, View

RECEIVED, SENT = "in", "out"
REQUESTS, FAILED = "requests", "failed"
_HEADRACE_ONLY = "headrace brokers only"


def build(view: View) -> None:
    @ui.page("/")
    def overview() -> None:
        with frame(view, "Overview", "/") as page:
            figures = _Figures(view)
            with ui.element("div").classes("hr-thirds"):
                charts = _Charts(view)
            with section("Brokers"):
                table = ServerTable(
                    "Brokers",
                    [
                        Column("id", "Broker", sortable=True),
                        Column("address", "Address", "mono"),
                        Column("rack", "Rack"),
                        Column("role", "Role"),
                        Column("led", "Leader of", "number"),
                    ],
                    lambda query: _brokers(view, query),
                    row_key="id",
                    empty="No brokers yet. If this lasts, check the bootstrap servers at the top of the page.",
                )
            page.live(figures.refresh)
            page.live(charts.refresh)
            page.live(table.refresh)


class _Figures:
    def __init__(self, view: View) -> None:
        self._view = view
        with tiles("hr-tiles-many"):
            self._brokers = Tile("Brokers")
            self._topics = Tile("Topics")
            self._partitions = Tile("Partitions")
            self._size = Tile("Size")
            self._records = Tile("Records in")
            self._received = Tile("Bytes in")
            self._sent = Tile("Bytes out")
            self._errors = Tile("Failed requests")

    def refresh(self) -> None:
        traffic = self._view.traffic
        self._show_topology()
        sizes = traffic.sizes.get()
        self._size.show(
            formatting.size(sizes.total if sizes else None),
            traffic.sizes.failure.text if traffic.sizes.failure else "logs of all leaders",
        )
        ends = traffic.ends.get()
        total = sum(ends.offsets.values()) if ends else None
        self._records.show(
            formatting.rate(traffic.records_in.last), f"{formatting.short_count(total)} written in total"
        )
        if traffic.status is None:
            self._received.show(formatting.size_rate(traffic.stored_bytes.last), "from log growth")
            self._sent.show(formatting.UNKNOWN, _HEADRACE_ONLY)
            self._errors.show(formatting.UNKNOWN, _HEADRACE_ONLY)
            return
        status = traffic.status.get() or {}
        counters = traffic.counters
        self._received.show(formatting.size_rate(counters["received_bytes"].last), "on the broker's sockets")
        self._sent.show(formatting.size_rate(counters["sent_bytes"].last), "on the broker's sockets")
        self._errors.show(
            formatting.count(status.get("failed_requests")),
            f"of {formatting.short_count(status.get('requests'))} requests",
        )

    def _show_topology(self) -> None:
        topology = self._view.topology.get()
        if topology is None:
            return
        cluster = topology.cluster
        self._brokers.show(formatting.count(len(cluster.brokers)), f"controller: {cluster.controller_id}")
        internal = sum(topic.internal for topic in topology.topics.values())
        self._topics.show(formatting.count(len(topology.topics) - internal), f"and {internal} internal")
        self._partitions.show(formatting.count(topology.partition_count), _health(topology))


def _health(topology: Topology) -> str:
    """Describe partitions without a leader or with replicas out of sync."""
    problems = []
    if topology.leaderless:
        problems.append(f"⚠ {formatting.count(len(topology.leaderless))} without a leader")
    if topology.out_of_sync:
        problems.append(f"⚠ {formatting.count(len(topology.out_of_sync))} under-replicated")
    return ", ".join(problems) or "all in sync"


class _Charts:
    """Throughput of the last 15 minutes."""

    def __init__(self, view: View) -> None:
        self._traffic = view.traffic
        with section("Records in"):
            self._records = LineChart("Records in, last 15 minutes", [RECEIVED], "records/s")
        with section("Bytes"):
            names = [RECEIVED] if view.traffic.status is None else [RECEIVED, SENT]
            self._bytes = LineChart("Bytes in and out, last 15 minutes", names, "per second", is_bytes=True)
        self._requests: LineChart | None = None
        if view.traffic.status is not None:
            with section("Requests"):
                self._requests = LineChart("Requests, last 15 minutes", [REQUESTS, FAILED], "requests/s")

    def refresh(self) -> None:
        traffic = self._traffic
        self._records.show({RECEIVED: traffic.records_in.points()})
        if self._requests is None:
            self._bytes.show({RECEIVED: traffic.stored_bytes.points()})
            return
        counters = traffic.counters
        self._bytes.show({RECEIVED: counters["received_bytes"].points(), SENT: counters["sent_bytes"].points()})
        self._requests.show({REQUESTS: counters["requests"].points(), FAILED: counters["failed_requests"].points()})


def _brokers(view: View, query: Query) -> Rows:
    topology = view.topology.get()
    if topology is None:
        return Rows([], 0)
    controller, led_by = topology.cluster.controller_id, topology.led_by

    def row(broker: BrokerDescription) -> dict[str, str]:
        return {
            "id": str(broker.node_id),
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack or formatting.UNKNOWN,
            "role": "controller" if broker.node_id == controller else "",
            "led": formatting.count(led_by.get(broker.node_id, 0), "partitions"),
        }

    return paged(query, topology.cluster.brokers, row, keys={"id": lambda broker: broker.node_id})
