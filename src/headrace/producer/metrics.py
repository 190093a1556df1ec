"""Kafka's producer metrics, under Kafka's names.

    sender, network, application threads → MetricsObserver, ProducerMetrics → Samples
    snapshot(), reporters ← each metric reads its Samples, or calls a gauge, when its value is needed

Values are recorded for each batch and request, never for each record. All metrics of the producer exist from the start;
the mean and maximum of no values are NaN.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from headrace import __version__
from headrace.client.concurrency import OwnedLock
from headrace.client.plugins import is_for_application
from headrace.config import Log
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.config.sampling import Samples
from headrace.errors import AuthenticationError, HeadraceError
from headrace.producer.batch import ProducerBatch
from headrace.producer.recent import Recent
from headrace.telemetry.listeners import ProducerListener, SnapshotSource

PRODUCER = "producer-metrics"
NODE = "producer-node-metrics"
TOPIC = "producer-topic-metrics"

Row: TypeAlias = tuple[str, str, Callable[[Samples, float], float], str]
"""The samples, the metric's name, how to read it, its description."""


def _meter(samples: str, name: str, what: str) -> tuple[Row, Row]:
    return (
        (samples, f"{name}-rate", Samples.rate, f"{what}, per second"),
        (samples, f"{name}-total", Samples.lifetime_total, f"{what}, total"),
    )


def _events(samples: str, name: str, what: str) -> tuple[Row, Row]:
    """The number of values, not their sum."""
    return (
        (samples, f"{name}-rate", Samples.event_rate, f"{what}, per second"),
        (samples, f"{name}-total", Samples.event_total, f"{what}, total"),
    )


def _spread(samples: str, name: str, what: str) -> tuple[Row, Row]:
    return (
        (samples, f"{name}-avg", Samples.mean, f"{what}, mean"),
        (samples, f"{name}-max", Samples.maximum, f"{what}, maximum"),
    )


def _total_ns(name: str, what: str) -> Row:
    return (name, f"{name}-time-ns-total", Samples.lifetime_total, f"nanoseconds {what}, total")


PRODUCER_ROWS: Final[tuple[Row, ...]] = (
    *_spread("batch-size", "batch-size", "bytes of a batch as sent"),
    *_spread("record-size", "record-size", "bytes of the largest record of a batch"),
    *_spread("record-queue-time", "record-queue-time", "ms from a batch's creation until it is sent"),
    ("compression", "compression-rate-avg", Samples.mean, "compressed over uncompressed size of a batch, mean"),
    ("records", "records-per-request-avg", Samples.mean, "records in a produce request, mean"),
    *_meter("records", "record-send", "records sent"),
    *_meter("record-retry", "record-retry", "records retried"),
    *_meter("record-error", "record-error", "records that failed"),
    *_meter("batch-split", "batch-split", "batches split because they were too large for the broker"),
    *_spread("request-latency", "request-latency", "ms from a produce request to its response"),
    *_spread("produce-throttle-time", "produce-throttle-time", "ms for which a broker throttled the producer"),
    *_meter("request-size", "outgoing-byte", "bytes sent"),
    *_spread("request-size", "request-size", "bytes of a request"),
    *_events("request-size", "request", "requests sent"),
    *_meter("response-size", "incoming-byte", "bytes received"),
    *_events("response-size", "response", "responses received"),
    *_meter("network-io", "network-io", "requests and responses on all connections"),
    *_events("io-wait", "select", "waits of the I/O thread for sockets"),
    ("io-wait", "io-wait-time-ns-avg", Samples.mean, "nanoseconds the I/O thread waits for sockets, mean"),
    ("io-wait", "io-wait-ratio", Samples.time_share, "share of time the I/O thread waits"),
    _total_ns("io-wait", "the I/O thread waited"),
    ("io", "io-time-ns-avg", Samples.mean, "nanoseconds the I/O thread works between two waits, mean"),
    ("io", "io-ratio", Samples.time_share, "share of time the I/O thread works"),
    _total_ns("io", "the I/O thread worked"),
    *_meter("connection-creation", "connection-creation", "connections opened"),
    *_meter("connection-close", "connection-close", "connections closed"),
    *_meter("successful-authentication", "successful-authentication", "connections authenticated"),
    *_meter("failed-authentication", "failed-authentication", "connections that failed to authenticate"),
    *_meter("successful-reauthentication", "successful-reauthentication", "connections reauthenticated"),
    *_meter("failed-reauthentication", "failed-reauthentication", "connections that failed to reauthenticate"),
    *_spread("reauthentication-latency", "reauthentication-latency", "ms of a reauthentication"),
    # A broker's metric that Kafka's clients have too: for a client, no peer ever reauthenticates.
    (
        "successful-authentication",
        "successful-authentication-no-reauth-total",
        Samples.lifetime_total,
        "connections authenticated whose peer never reauthenticates, total",
    ),
    # Kafka's producer has no metrics for errors in application code; this and interceptor-error-total are headrace's.
    ("callback-error", "callback-error-total", Samples.lifetime_total, "delivery callbacks that raised, total"),
    *_meter("buffer-exhausted", "buffer-exhausted", "records dropped because the buffer was exhausted"),
    ("bufferpool-wait", "bufferpool-wait-ratio", Samples.time_share, "share of time that threads wait for memory"),
    _total_ns("bufferpool-wait", "that threads waited for memory"),
    _total_ns("flush", "in flush"),
    _total_ns("metadata-wait", "that threads waited for metadata"),
    _total_ns("txn-init", "in init_transactions"),
    _total_ns("txn-begin", "in begin_transaction"),
    _total_ns("txn-send-offsets", "in send_offsets_to_transaction"),
    _total_ns("txn-prepare", "in prepare_transaction"),
    _total_ns("txn-commit", "in commit_transaction"),
    _total_ns("txn-abort", "in abort_transaction"),
)
NODE_ROWS: Final[tuple[Row, ...]] = (
    *_meter("request-size", "outgoing-byte", "bytes sent"),
    *_spread("request-size", "request-size", "bytes of a request"),
    *_events("request-size", "request", "requests sent"),
    *_meter("response-size", "incoming-byte", "bytes received"),
    *_events("response-size", "response", "responses received"),
    *_spread("request-latency", "request-latency", "ms from a produce request to its response"),
)
TOPIC_ROWS: Final[tuple[Row, ...]] = (
    *_meter("records", "record-send", "records sent"),
    *_meter("bytes", "byte", "bytes of batches sent"),
    ("compression", "compression-rate", Samples.mean, "compressed over uncompressed size of a batch, mean"),
    *_meter("record-retry", "record-retry", "records retried"),
    *_meter("record-error", "record-error", "records that failed"),
)
GAUGES: Final[dict[str, str]] = {
    "buffer-total-bytes": "bytes of buffer memory",
    "buffer-available-bytes": "bytes of buffer memory that are available",
    "waiting-threads": "threads that wait for memory",
    "requests-in-flight": "requests without a response",
    "metadata-age": "seconds since the last metadata update",
    "connection-count": "open connections",
    "interceptor-error-total": "interceptor calls that raised, total",
}
"""Metrics that call a function; NaN until one is registered."""


Value: TypeAlias = float | str
Tags: TypeAlias = tuple[tuple[str, str], ...]
Transaction: TypeAlias = Literal["init", "begin", "send-offsets", "prepare", "commit", "abort"]

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class MetricName:
    """Name, group and tags of a metric. The description does not count for equality."""

    name: str
    group: str = PRODUCER
    tags: Tags = ()
    description: str = field(default="", compare=False, repr=False)


class Metric:
    """A metric; `value` returns its current value."""

    __slots__ = ("_read", "name")

    def __init__(self, name: MetricName, read: Callable[[], Value]) -> None:
        self.name: MetricName = name
        self._read = read

    def value(self) -> Value:
        return self._read()


class MetricsReporter:
    """A plug-in that gets the metrics of a producer, and may read their values at any time.

    It is called on the I/O thread and on application threads; its exceptions are logged.
    """

    def configure(self, config: Mapping[str, object]) -> None:
        """Called first, with the producer's options."""

    def init(self, metrics: Iterable[Metric]) -> None:
        """Called with the metrics that exist at the start."""

    def metric_change(self, metric: Metric) -> None:
        """Called when a metric is added or replaced."""

    def metric_removal(self, metric: Metric) -> None:
        """Called when a metric is removed."""

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class ProducerMetrics:
    """The metrics of a producer. Methods are for the I/O thread, except those marked "any thread"."""

    def __init__(
        self,
        client_id: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        samples: int = 2,
        sample_window_ms: float = 30_000,
        reporters: Iterable[MetricsReporter] = (),
        log: Log = log,
    ) -> None:
        self._log = log
        self._tags: Tags = (("client-id", client_id),)
        self._now = clock.monotonic_ms
        self._windows = samples
        self._window_ms = sample_window_ms
        self._reporters = tuple(reporters)
        self.lock = OwnedLock()  # Held briefly, and never while a reporter is called.
        self._metrics: dict[MetricName, Metric] = {}  # Changed under lock.
        self._gauges: dict[str, Callable[[], float]] = {}
        self._nodes: dict[int, dict[str, Samples]] = {}  # I/O thread only.
        self._topics: dict[str, dict[str, Samples]] = {}  # Changed under lock.
        self._connections = 0  # I/O thread only.
        self._producer, made = self._make(PRODUCER_ROWS, PRODUCER, self._tags)
        made += [self._gauge(name, description) for name, description in GAUGES.items()]
        made += self._about(float(clock.time_ms()))
        self._metrics.update((metric.name, metric) for metric in made)
        self.gauge("connection-count", lambda: self._connections)
        self.gauge("interceptor-error-total", lambda: 0)  # until the engine registers its own
        self._call_reporters(lambda reporter: reporter.init(made))

    # -- values --------------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Return all metrics. Any thread."""
        return list(self._metrics.values())

    def snapshot(self) -> dict[MetricName, Value]:
        """Return the value of every metric: a number, except version and commit id. Any thread."""
        return {metric.name: metric.value() for metric in self.metrics()}

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Set the function of one of the `GAUGES`; any thread may call it."""
        if name not in GAUGES:
            raise ValueError(f"unknown gauge {name!r}: expected one of {', '.join(GAUGES)}")
        self._gauges[name] = read

    def totals(self) -> dict[str, float]:
        """Return the totals since the start, by the samples of `PRODUCER_ROWS`; cheaper than a snapshot. Any thread."""
        return {name: samples.total for name, samples in self._producer.items()}

    def largest_topics(self, count_max: int) -> list[tuple[str, float, float]]:
        """Return (topic, records, bytes) of the topics with the most bytes. Any thread."""
        with self.lock:
            topics = list(self._topics.items())
        rows = ((topic, samples["records"].total, samples["bytes"].total) for topic, samples in topics)
        return heapq.nlargest(count_max, rows, key=lambda row: row[2])

    def node_traffic(self) -> dict[int, float]:
        """Return the bytes sent to each broker. Any thread."""
        return {node: samples["request-size"].total for node, samples in list(self._nodes.items())}

    def announce(self, create_source: Callable[[], SnapshotSource]) -> None:
        """Pass a source of snapshots to the reporters that are a ProducerListener."""
        self._call_reporters(lambda reporter: _announce(reporter, create_source))

    def close(self) -> None:
        """Remove the metrics from the reporters. Their owner closes them."""
        with self.lock:
            removed = self.metrics()
            self._metrics.clear()
        for metric in removed:
            self._call_reporters(_removal(metric))

    # -- batches -------------------------------------------------------------------------------

    def batches_drained(
        self,
        topic: str,
        *,
        bytes: Sequence[int],
        records: Sequence[int],
        compression_ratios: Sequence[float],
        queue_times_ms: Sequence[float],
    ) -> None:
        """Record the batches of a topic in a request. The size of a record is the mean of its batch."""
        now = self._now()
        producer, per_topic = self._producer, self._topic(topic)
        record_sizes = [
            size / (ratio * count or 1.0) for size, ratio, count in zip(bytes, compression_ratios, records, strict=True)
        ]
        producer["batch-size"].record_all(bytes, now)
        producer["record-size"].record_all(record_sizes, now)
        producer["record-queue-time"].record_all(queue_times_ms, now)
        producer["compression"].record_all(compression_ratios, now)
        per_topic["records"].record_all(records, now)
        per_topic["bytes"].record_all(bytes, now)
        per_topic["compression"].record_all(compression_ratios, now)

    def produce_request(self, records: int) -> None:
        """Record a produce request with `records` in all its batches."""
        self._producer["records"].record(records, self._now())

    def record_retried(self, topic: str, count: int) -> None:
        now = self._now()
        self._producer["record-retry"].record(count, now)
        self._topic(topic)["record-retry"].record(count, now)

    def record_failed(self, topic: str | None, count: int = 1) -> None:
        """Record failed records; `topic` is None if it is unknown. Any thread."""
        per_topic = None if topic is None else self._topic(topic)
        with self.lock:
            now = self._now()
            self._producer["record-error"].record(count, now)
            if per_topic is not None:
                per_topic["record-error"].record(count, now)

    def batch_split(self) -> None:
        self._producer["batch-split"].record(1, self._now())

    # -- network -------------------------------------------------------------------------------

    def request_sent(self, node: int, bytes: int) -> None:
        now = self._now()
        self._producer["request-size"].record(bytes, now)
        self._producer["network-io"].record(1, now)
        self._node(node)["request-size"].record(bytes, now)

    def response(self, node: int, bytes: int) -> None:
        """Record a response to any request."""
        now = self._now()
        self._producer["response-size"].record(bytes, now)
        self._producer["network-io"].record(1, now)
        self._node(node)["response-size"].record(bytes, now)

    def produce_response(self, node: int, latency_ms: float, throttle_ms: float = 0.0) -> None:
        """Record latency and throttling, which as in Kafka count for produce requests only."""
        now = self._now()
        self._producer["request-latency"].record(latency_ms, now)
        self._producer["produce-throttle-time"].record(throttle_ms, now)
        self._node(node)["request-latency"].record(latency_ms, now)

    def connection_opened(self, node: int) -> None:
        self._connections += 1
        self._node(node)
        self._producer["connection-creation"].record(1, self._now())

    def connection_closed(self, node: int) -> None:
        """Record that an open connection was closed."""
        self._connections -= 1
        self._producer["connection-close"].record(1, self._now())

    def connection_failed(self, node: int) -> None:
        """Record a connection that could not be opened; Kafka counts it as closed."""
        self._producer["connection-close"].record(1, self._now())

    def authenticated(self, succeeded: bool) -> None:
        """Record the result of the TLS handshake and SASL of a new connection."""
        self._producer[f"{'successful' if succeeded else 'failed'}-authentication"].record(1, self._now())

    def reauthenticated(self, succeeded: bool, latency_ms: float) -> None:
        """Record the reauthentication of a connection (KIP-368)."""
        now = self._now()
        self._producer[f"{'successful' if succeeded else 'failed'}-reauthentication"].record(1, now)
        if succeeded:
            self._producer["reauthentication-latency"].record(latency_ms, now)

    def io(self, select_ns: float, io_ns: float) -> None:
        """Record an iteration of the I/O loop: time waiting for sockets, and working."""
        now = self._now()
        self._producer["io-wait"].record(select_ns, now)
        self._producer["io"].record(io_ns, now)

    # -- application threads -------------------------------------------------------------------

    def callback_failed(self) -> None:
        """Record that a delivery callback raised. Any thread."""
        self._record_locked("callback-error", 1)

    def buffer_exhausted(self) -> None:
        """Record that a record got no memory in time. Any thread."""
        self._record_locked("buffer-exhausted", 1)

    def bufferpool_wait(self, ns: float) -> None:
        """Record a wait for memory. Any thread."""
        self._record_locked("bufferpool-wait", ns)

    def metadata_wait(self, ns: float) -> None:
        """Record a wait for metadata. Any thread."""
        self._record_locked("metadata-wait", ns)

    def flush(self, ns: float) -> None:
        """Record the time of a flush. Any thread."""
        self._record_locked("flush", ns)

    def txn(self, call: Transaction, ns: float) -> None:
        """Record the time of a transaction call. Any thread."""
        self._record_locked(f"txn-{call}", ns)

    def _record_locked(self, samples: str, value: float) -> None:
        with self.lock:
            self._producer[samples].record(value, self._now())

    # -- creating metrics ----------------------------------------------------------------------

    def _node(self, node: int) -> dict[str, Samples]:
        known = self._nodes.get(node)
        if known is None:
            known, made = self._make(NODE_ROWS, NODE, (*self._tags, ("node-id", f"node-{node}")))
            self._nodes[node] = known
            self._register(made)
        return known

    def _topic(self, topic: str) -> dict[str, Samples]:
        known = self._topics.get(topic)
        if known is None:
            known, made = self._make(TOPIC_ROWS, TOPIC, (*self._tags, ("topic", topic)))
            with self.lock:
                first = self._topics.setdefault(topic, known)
            if first is not known:
                return first  # another thread was first
            self._register(made)
        return known

    def _register(self, made: list[Metric]) -> None:
        with self.lock:
            self._metrics.update((metric.name, metric) for metric in made)
        for metric in made:
            self._call_reporters(_change(metric))

    def _make(self, rows: Iterable[Row], group: str, tags: Tags) -> tuple[dict[str, Samples], list[Metric]]:
        samples: dict[str, Samples] = {}
        made = []
        for source, name, read, description in rows:
            numbers = samples.setdefault(source, Samples(self._windows, self._window_ms))
            made.append(Metric(MetricName(name, group, tags, description), self._reader(numbers, read)))
        return samples, made

    def _reader(self, numbers: Samples, read: Callable[[Samples, float], float]) -> Callable[[], Value]:
        return lambda: float(read(numbers, self._now()))

    def _gauge(self, name: str, description: str) -> Metric:
        def read() -> float:
            source = self._gauges.get(name)
            return math.nan if source is None else float(source())

        return Metric(MetricName(name, PRODUCER, self._tags, description), read)

    def _about(self, started_ms: float) -> list[Metric]:
        def metric(name: str, group: str, read: Callable[[], Value], description: str) -> Metric:
            return Metric(MetricName(name, group, self._tags, description), read)

        return [
            metric("version", "app-info", lambda: __version__, "version of headrace"),
            metric("commit-id", "app-info", lambda: "unknown", "always unknown; the version identifies the code"),
            metric("start-time-ms", "app-info", lambda: started_ms, "when the producer was created, ms since 1970"),
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


def _change(metric: Metric) -> Callable[[MetricsReporter], None]:
    return lambda reporter: reporter.metric_change(metric)


def _announce(reporter: MetricsReporter, create_source: Callable[[], SnapshotSource]) -> None:
    if isinstance(reporter, ProducerListener):
        reporter.producer_created(create_source())


def _removal(metric: Metric) -> Callable[[MetricsReporter], None]:
    return lambda reporter: reporter.metric_removal(metric)


class MetricsObserver:
    """The `SenderObserver` and `NetworkObserver` that feed metrics and recent events. I/O thread only."""

    def __init__(self, metrics: ProducerMetrics, recent: Recent, *, authenticates: bool) -> None:
        self._metrics = metrics
        self._recent = recent
        self._authenticates = authenticates
        self._lost: int | None = None  # The node whose connection was closed last: its failure is counted.

    # -- sender --------------------------------------------------------------------------------

    def produce_request(self, batches: Sequence[ProducerBatch], now: float) -> None:
        by_topic: dict[str, list[ProducerBatch]] = {}
        for batch in batches:
            by_topic.setdefault(batch.topic, []).append(batch)
        for topic, drained in by_topic.items():
            sizes = [batch.size if batch.sealed is None else len(batch.sealed) for batch in drained]
            queue_times_ms = [now - batch.created_ms for batch in drained]
            self._metrics.batches_drained(
                topic,
                bytes=sizes,
                records=[batch.record_count for batch in drained],
                compression_ratios=[size / batch.size for size, batch in zip(sizes, drained, strict=True)],
                queue_times_ms=queue_times_ms,
            )
            self._recent.queue_ms.extend(queue_times_ms)
        self._metrics.produce_request(sum(batch.record_count for batch in batches))

    def produce_response(self, node_id: int, latency_ms: float, throttle_ms: float, delivery_ms: float) -> None:
        self._metrics.produce_response(node_id, latency_ms, throttle_ms)
        self._recent.request_ms.append(latency_ms)
        self._recent.delivery_ms.append(delivery_ms)

    def batch_retried(self, batch: ProducerBatch, error: Exception) -> None:
        self._metrics.record_retried(batch.topic, batch.record_count)
        self._recent.failed(f"{batch.topic}-{batch.partition}, sent again", error)

    def batch_failed(self, batch: ProducerBatch) -> None:
        self._metrics.record_failed(batch.topic, batch.record_count)
        if batch.error is not None:
            self._recent.failed(f"{batch.topic}-{batch.partition}, failed", batch.error)

    def batch_split(self, batch: ProducerBatch) -> None:
        self._metrics.batch_split()

    def callback_failed(self, batch: ProducerBatch, error: BaseException) -> None:
        self._metrics.callback_failed()
        self._recent.failed(f"delivery callback of {batch.topic}-{batch.partition}", error)

    # -- network -------------------------------------------------------------------------------

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
        self._recent.failed(f"connection to broker {node_id}" if node_id >= 0 else "connection", error)
        self._lost = None
        if isinstance(error, AuthenticationError):
            self._metrics.authenticated(False)

    def request_sent(self, node_id: int, size: int) -> None:
        self._metrics.request_sent(node_id, size)

    def polled(self, waited_ms: float, worked_ms: float) -> None:
        self._metrics.io(waited_ms * 1e6, worked_ms * 1e6)

    def response_received(self, node_id: int, size: int, latency_ms: float, throttle_ms: int) -> None:
        self._metrics.response(node_id, size)
