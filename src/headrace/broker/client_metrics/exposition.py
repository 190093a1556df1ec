"""The metrics of the broker and of its clients in the text format of Prometheus, served over HTTP.

GET /metrics    headrace_broker_…     counters of this broker, its types of requests and its topics
                org_apache_kafka_…    what clients push, with labels that name the client
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.client_metrics.instances import ClientInstance
from headrace.broker.client_metrics.otlp import Point
from headrace.broker.registry.http_server import HttpRequest, HttpResponse, HttpServer
from headrace.broker.registry.service import parse_listener
from headrace.broker.statistics import TopicStatistics

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

LISTENER = "headrace.metrics.listener"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INVALID = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricsService:
    """The HTTP listener of a broker. Event loop only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server = HttpServer(self._respond, _error)
        self.url = ""

    async def start(self, listener: str) -> None:
        """Listen on HOST:PORT. Raise ConfigError, or OSError if the port is in use."""
        host, port = parse_listener(listener, LISTENER)
        self.url = f"{await self._server.listen(host, port, 'of the metrics listener')}/metrics"

    async def stop(self) -> None:
        await self._server.stop()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        if request.path != ("metrics",):
            return _error(404, "not found: metrics are at /metrics")
        if request.method not in ("GET", "HEAD"):
            return _error(405, f"method {request.method} is not allowed: expected GET")
        counters = {"connections": len(self._broker.server.connections), **self._broker.server.counters()}
        statistics = self._broker.statistics
        lines = [
            *_broker_lines(counters),
            *_request_lines(statistics.request_rows()),
            *_topic_lines(statistics.topic_rows()),
            *_share_group_lines(self._broker.share_group_rows()),
            *client_lines(self._broker.client_instances.all()),
        ]
        return HttpResponse(200, "".join(f"{line}\n" for line in lines).encode(), CONTENT_TYPE)


def _error(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, f"{message}\n".encode(), CONTENT_TYPE)


def _broker_lines(counters: Mapping[str, int]) -> Iterator[str]:
    for name, value in counters.items():
        is_gauge = name == "connections"
        full_name = f"headrace_broker_{name}" if is_gauge else f"headrace_broker_{name}_total"
        yield f"# TYPE {full_name} {'gauge' if is_gauge else 'counter'}"
        yield f"{full_name} {value}"


def _request_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the counters of each type of request. The time includes waiting for records, replicas and other members."""
    for name, key in (("requests", "requests"), ("failed_requests", "failed"), ("request_seconds", "seconds")):
        full_name = f"headrace_broker_api_{name}_total"
        yield f"# TYPE {full_name} counter"
        for row in rows:
            yield f'{full_name}{{api="{row["api"]}"}} {row[key]!r}'
    yield "# TYPE headrace_broker_api_errors_total counter"
    for row in rows:
        for error, count in row["errors"].items():
            yield f'headrace_broker_api_errors_total{{api="{row["api"]}",error="{error}"}} {count}'


def _topic_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name in TopicStatistics.__slots__:
        full_name = f"headrace_broker_topic_{name}_total"
        yield f"# TYPE {full_name} counter"
        for row in rows:
            yield f'{full_name}{{topic="{row["topic"]}"}} {row[name]}'


def _share_group_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what share groups have in flight, and the records that were delivered and acknowledged."""
    for name in next(iter(rows), {}).keys() - {"group"}:
        is_gauge = name in ("partitions", "in_flight")
        full_name = f"headrace_broker_share_group_{name}" + ("" if is_gauge else "_records_total")
        yield f"# TYPE {full_name} {'gauge' if is_gauge else 'counter'}"
        for row in rows:
            yield f'{full_name}{{group="{row["group"].translate(_ESCAPES)}"}} {row[name]}'


def client_lines(instances: Iterable[ClientInstance]) -> Iterator[str]:
    """Yield the metrics of clients, all samples of a name together. A sum is a counter, everything else a gauge."""
    families: dict[str, list[tuple[ClientInstance, Point]]] = {}
    for instance in instances:
        for point in instance.points.values():
            families.setdefault(_metric_name(point.name), []).append((instance, point))
    for name, samples in sorted(families.items()):
        yield f"# TYPE {name} {'counter' if all(point.is_sum for _, point in samples) else 'gauge'}"
        for instance, point in samples:
            yield f"{name}{{{_labels(instance, point)}}} {point.value!r}"


def _metric_name(name: str) -> str:
    text = _INVALID.sub("_", name)
    return f"_{text}" if not text or text[0].isdigit() else text


def _labels(instance: ClientInstance, point: Point) -> str:
    labels = {_metric_name(key): value for key, value in point.attributes}
    facts = instance.facts
    labels |= {
        "client_instance_id": facts.client_instance_id,
        "client_id": facts.client_id,
        "client_software_name": facts.client_software_name,
        "client_software_version": facts.client_software_version,
    }
    return ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items())
