"""Metrics of clients, under Kafka's names: what the producer and the consumer share.

    network, I/O thread, application threads → ClientMetrics → Samples
    snapshot(), reporters ← each metric reads its Samples, or calls a gauge, when its value is needed

The metrics of a client exist from the start, those of its brokers, topics and partitions from their first use. The mean
and maximum of no values are NaN.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headrace import __version__
from headrace.client.concurrency import OwnedLock
from headrace.client.plugins import is_for_application
from headrace.config import Log
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.config.sampling import Samples
from headrace.errors import AuthenticationError, HeadraceError
from headrace.telemetry.listeners import ClientListener, SnapshotSource

Row: TypeAlias = tuple[str, str, Callable[[Samples, float], float], str]
"""The samples, the metric's name, how to read it, its description."""


def meter(samples: str, name: str, what: str) -> tuple[Row, Row]:
    return (
        (samples, f"{name}-rate", Samples.rate, f"{what}, per second"),
        (samples, f"{name}-total", Samples.lifetime_total, f"{what}, total"),
    )


def events(samples: str, name: str, what: str) -> tuple[Row, Row]:
    """The number of values, not their sum."""
    return (
        (samples, f"{name}-rate", Samples.event_rate, f"{what}, per second"),
        (samples, f"{name}-total", Samples.event_total, f"{what}, total"),
    )


def spread(samples: str, name: str, what: str) -> tuple[Row, Row]:
    return (
        (samples, f"{name}-avg", Samples.mean, f"{what}, mean"),
        (samples, f"{name}-max", Samples.maximum, f"{what}, maximum"),
    )


def total_ns(name: str, what: str) -> Row:
    return (name, f"{name}-time-ns-total", Samples.lifetime_total, f"nanoseconds {what}, total")


NETWORK_ROWS: Final[tuple[Row, ...]] = (
    *meter("request-size", "outgoing-byte", "bytes sent"),
    *spread("request-size", "request-size", "bytes of a request"),
    *events("request-size", "request", "requests sent"),
    *meter("response-size", "incoming-byte", "bytes received"),
    *events("response-size", "response", "responses received"),
    *meter("network-io", "network-io", "requests and responses on all connections"),
    *events("io-wait", "select", "waits of the I/O thread for sockets"),
    ("io-wait", "io-wait-time-ns-avg", Samples.mean, "nanoseconds the I/O thread waits for sockets, mean"),
    ("io-wait", "io-wait-ratio", Samples.time_share, "share of time the I/O thread waits"),
    total_ns("io-wait", "the I/O thread waited"),
    ("io", "io-time-ns-avg", Samples.mean, "nanoseconds the I/O thread works between two waits, mean"),
    ("io", "io-ratio", Samples.time_share, "share of time the I/O thread works"),
    total_ns("io", "the I/O thread worked"),
    *meter("connection-creation", "connection-creation", "connections opened"),
    *meter("connection-close", "connection-close", "connections closed"),
    *meter("successful-authentication", "successful-authentication", "connections authenticated"),
    *meter("failed-authentication", "failed-authentication", "connections that failed to authenticate"),
    *meter("successful-reauthentication", "successful-reauthentication", "connections reauthenticated"),
    *meter("failed-reauthentication", "failed-reauthentication", "connections that failed to reauthenticate"),
    *spread("reauthentication-latency", "reauthentication-latency", "ms of a reauthentication"),
    # A broker's metric that Kafka's clients have too: for a client, no peer ever reauthenticates.
    (
        "successful-authentication",
        "successful-authentication-no-reauth-total",
        Samples.lifetime_total,
        "connections authenticated whose peer never reauthenticates, total",
    ),
)
"""The metrics of connections, which every client has."""
NODE_ROWS: Final[tuple[Row, ...]] = (
    *meter("request-size", "outgoing-byte", "bytes sent"),
    *spread("request-size", "request-size", "bytes of a request"),
    *events("request-size", "request", "requests sent"),
    *meter("response-size", "incoming-byte", "bytes received"),
    *events("response-size", "response", "responses received"),
    *spread("request-latency", "request-latency", "ms from a request to its response"),
)

Value: TypeAlias = float | str
Tags: TypeAlias = tuple[tuple[str, str], ...]
Gauges: TypeAlias = Mapping[str, str]
"""Descriptions by name, of metrics that call a function; NaN until one is registered."""

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class MetricName:
    """Name, group and tags of a metric. Description and kind of client do not count for equality."""

    name: str
    group: str = "producer-metrics"
    tags: Tags = ()
    description: str = field(default="", compare=False, repr=False)
    client: str = field(default="producer", compare=False, repr=False)
    """The kind of client: producer or consumer."""


class Metric:
    """A metric; `value` returns its current value."""

    __slots__ = ("_read", "name")

    def __init__(self, name: MetricName, read: Callable[[], Value]) -> None:
        self.name: MetricName = name
        self._read = read

    def value(self) -> Value:
        return self._read()


class MetricsReporter:
    """A plug-in that gets the metrics of a client, and may read their values at any time.

    It is called on the I/O thread and on application threads; its exceptions are logged.
    """

    def configure(self, config: Mapping[str, object]) -> None:
        """Called first, with the client's options."""

    def init(self, metrics: Iterable[Metric]) -> None:
        """Called with the metrics that exist at the start."""

    def metric_change(self, metric: Metric) -> None:
        """Called when a metric is added or replaced."""

    def metric_removal(self, metric: Metric) -> None:
        """Called when a metric is removed."""

    def close(self) -> None:
        """Called once, with the client's `close`."""


class ClientMetrics:
    """The metrics of a client. Methods are for the I/O thread, except those marked "any thread"."""

    def __init__(
        self,
        kind: str,
        client_id: str,
        rows: Iterable[Row],
        gauges: Gauges,
        *,
        clock: Clock = SYSTEM_CLOCK,
        samples: int = 2,
        sample_window_ms: float = 30_000,
        reporters: Iterable[MetricsReporter] = (),
        log: Log = log,
    ) -> None:
        """`kind` is producer or consumer; `rows` and `gauges` are the metrics that exist from the start."""
        self.kind = kind
        self._log = log
        self._tags: Tags = (("client-id", client_id),)
        self._now = clock.monotonic_ms
        self._windows = samples
        self._window_ms = sample_window_ms
        self._reporters = tuple(reporters)
        self.lock = OwnedLock()  # Held briefly, and never while a reporter is called.
        self._metrics: dict[MetricName, Metric] = {}  # Changed under lock.
        self._gauge_names = gauges
        self._gauges: dict[str, Callable[[], float]] = {}
        self._nodes: dict[int, dict[str, Samples]] = {}  # I/O thread only.
        self._connections = 0  # I/O thread only.
        group = f"{kind}-metrics"
        self._main, made = self._make(rows, group, self._tags)
        made += [self._gauge(name, group, description) for name, description in gauges.items()]
        made += self._about(float(clock.time_ms()))
        made += self._more_metrics()
        self._metrics.update((metric.name, metric) for metric in made)
        self.gauge("connection-count", lambda: self._connections)
        self.gauge("interceptor-error-total", lambda: 0)  # until the engine registers its own
        self._call_reporters(lambda reporter: reporter.init(made))

    def _more_metrics(self) -> list[Metric]:
        """Return metrics of other groups that exist from the start."""
        return []

    # -- values --------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Return all metrics. Any thread."""
        return list(self._metrics.values())

    def snapshot(self) -> dict[MetricName, Value]:
        """Return the value of every metric: a number, except version and commit id. Any thread."""
        return {metric.name: metric.value() for metric in self.metrics()}

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Set the function of a gauge; any thread may call it."""
        if name not in self._gauge_names:
            raise ValueError(f"unknown gauge {name!r}: expected one of {', '.join(self._gauge_names)}")
        self._gauges[name] = read

    def totals(self) -> dict[str, float]:
        """Return the totals since the start, by the samples of the rows; cheaper than a snapshot. Any thread."""
        return {name: samples.total for name, samples in self._main.items()}

    def node_traffic(self) -> dict[int, float]:
        """Return the bytes sent to each broker. Any thread."""
        return {node: samples["request-size"].total for node, samples in list(self._nodes.items())}

    def announce(self, create_source: Callable[[], SnapshotSource]) -> None:
        """Pass a source of snapshots to the reporters that are a ClientListener."""
        self._call_reporters(lambda reporter: _announce(reporter, create_source))

    def close(self) -> None:
        """Remove the metrics from the reporters. Their owner closes them."""
        with self.lock:
            removed = list(self._metrics.values())
            self._metrics.clear()
        for metric in removed:
            self._call_reporters(_removal(metric))

    # -- network -------------------------------------------------------------------------------

    def request_sent(self, node: int, bytes: int) -> None:
        now = self._now()
        self._main["request-size"].record(bytes, now)
        self._main["network-io"].record(1, now)
        self._node(node)["request-size"].record(bytes, now)

    def response(self, node: int, bytes: int) -> None:
        """Record a response to any request."""
        now = self._now()
        self._main["response-size"].record(bytes, now)
        self._main["network-io"].record(1, now)
        self._node(node)["response-size"].record(bytes, now)

    def connection_opened(self, node: int) -> None:
        self._connections += 1
        self._node(node)
        self._main["connection-creation"].record(1, self._now())

    def connection_closed(self, node: int) -> None:
        """Record that an open connection was closed."""
        self._connections -= 1
        self._main["connection-close"].record(1, self._now())

    def connection_failed(self, node: int) -> None:
        """Record a connection that could not be opened; Kafka counts it as closed."""
        self._main["connection-close"].record(1, self._now())

    def authenticated(self, succeeded: bool) -> None:
        """Record the result of the TLS handshake and SASL of a new connection."""
        self._main[f"{'successful' if succeeded else 'failed'}-authentication"].record(1, self._now())

    def reauthenticated(self, succeeded: bool, latency_ms: float) -> None:
        """Record the reauthentication of a connection (KIP-368)."""
        now = self._now()
        self._main[f"{'successful' if succeeded else 'failed'}-reauthentication"].record(1, now)
        if succeeded:
            self._main["reauthentication-latency"].record(latency_ms, now)

    def io(self, select_ns: float, io_ns: float) -> None:
        """Record an iteration of the I/O loop: time waiting for sockets, and working."""
        now = self._now()
        self._main["io-wait"].record(select_ns, now)
        self._main["io"].record(io_ns, now)

    def _record_locked(self, samples: str, value: float) -> None:
        with self.lock:
            self._main[samples].record(value, self._now())

    # -- creating metrics ----------------------------------------------------------------------

    def _node(self, node: int) -> dict[str, Samples]:
        known = self._nodes.get(node)
        if known is None:
            known, made = self._make(NODE_ROWS, f"{self.kind}-node-metrics", (*self._tags, ("node-id", f"node-{node}")))
            self._nodes[node] = known
            self._register(made)
        return known

    def _register(self, made: list[Metric]) -> None:
        with self.lock:
            self._metrics.update((metric.name, metric) for metric in made)
        for metric in made:
            self._call_reporters(_change(metric))

    def _unregister(self, names: Iterable[MetricName]) -> None:
        with self.lock:
            removed = [self._metrics.pop(name) for name in names if name in self._metrics]
        for metric in removed:
            self._call_reporters(_removal(metric))

    def _make(self, rows: Iterable[Row], group: str, tags: Tags) -> tuple[dict[str, Samples], list[Metric]]:
        samples: dict[str, Samples] = {}
        made = []
        for source, name, read, description in rows:
            numbers = samples.setdefault(source, Samples(self._windows, self._window_ms))
            made.append(Metric(MetricName(name, group, tags, description, self.kind), self._reader(numbers, read)))
        return samples, made

    def _reader(self, numbers: Samples, read: Callable[[Samples, float], float]) -> Callable[[], Value]:
        return lambda: float(read(numbers, self._now()))

    def _gauge(self, name: str, group: str, description: str) -> Metric:
        def read() -> float:
            source = self._gauges.get(name)
            return math.nan if source is None else float(source())

        return Metric(MetricName(name, group, self._tags, description, self.kind), read)

    def _about(self, started_ms: float) -> list[Metric]:
        def metric(name: str, group: str, read: Callable[[], Value], description: str) -> Metric:
            return Metric(MetricName(name, group, self._tags, description, self.kind), read)

        return [
            metric("version", "app-info", lambda: __version__, "version of headrace"),
            metric("commit-id", "app-info", lambda: "unknown", "always unknown; the version identifies the code"),
            metric("start-time-ms", "app-info", lambda: started_ms, "when the client was created, ms since 1970"),
            metric("count", "kafka-metrics-count", lambda: float(len(self._metrics)), "the number of metrics"),
        ]

    def _call_reporters(self, call: Callable[[MetricsReporter], None]) -> None:
        for reporter in self._reporters:
            try:
                call(reporter)
            except BaseException as error:
                if is_for_application(error):
                    raise
                self._log.exception("metrics reporter failed: %r", reporter)


def _announce(reporter: MetricsReporter, create_source: Callable[[], SnapshotSource]) -> None:
    if isinstance(reporter, ClientListener):
        reporter.client_created(create_source())


def _change(metric: Metric) -> Callable[[MetricsReporter], None]:
    return lambda reporter: reporter.metric_change(metric)


def _removal(metric: Metric) -> Callable[[MetricsReporter], None]:
    return lambda reporter: reporter.metric_removal(metric)


class NetworkMetrics:
    """The `NetworkObserver` that feeds metrics. I/O thread only."""

    def __init__(self, metrics: ClientMetrics, *, authenticates: bool) -> None:
        self._metrics = metrics
        self._authenticates = authenticates
        self._lost: int | None = None  # The node whose connection was closed last: its failure is counted.

    def connection_opened(self, node_id: int) -> None:
        self._metrics.connection_opened(node_id)
        if self._authenticates:
            self._metrics.authenticated(True)

    def connection_closed(self, node_id: int) -> None:
        self._metrics.connection_closed(node_id)
        self._lost = node_id

    def connection_failed(self, node_id: int, error: HeadraceError) -> None:
        if node_id != self._lost:
            self._metrics.connection_failed(node_id)
        self._lost = None
        if isinstance(error, AuthenticationError):
            self._metrics.authenticated(False)

    def request_sent(self, node_id: int, api_key: int, size: int) -> None:
        self._metrics.request_sent(node_id, size)

    def response_received(self, node_id: int, api_key: int, size: int, latency_ms: float) -> None:
        self._metrics.response(node_id, size)

    def polled(self, waited_ms: float, worked_ms: float) -> None:
        self._metrics.io(waited_ms * 1e6, worked_ms * 1e6)
