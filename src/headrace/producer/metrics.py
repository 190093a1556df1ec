"""Kafka's producer metrics, under Kafka's names.

    sender, connections, application threads → batch_drained, request_sent, response … → Samples
    snapshot(), reporters ← each metric reads its Samples, or asks a gauge, when it is looked at

A number costs a fraction of a microsecond to record, so that is done for each batch and request, never for each record.
Every name of metric_tables.py is there from the start; means and maxima of nothing are NaN.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace import __version__
from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.locks import OwnedLock
from headrace.config import Log
from headrace.producer.metric_tables import GAUGES, NODE, NODE_ROWS, PRODUCER, PRODUCER_ROWS, TOPIC, TOPIC_ROWS, Row
from headrace.producer.plugins import is_for_application
from headrace.producer.sampling import Samples
from headrace.telemetry.listeners import ProducerListener, SnapshotSource

Value: TypeAlias = float | str
Tags: TypeAlias = tuple[tuple[str, str], ...]
Transaction: TypeAlias = Literal["init", "begin", "send-offsets", "prepare", "commit", "abort"]

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class MetricName:
    """Name, group and tags. Two are the same where all three are: the description only explains."""

    name: str
    group: str = PRODUCER
    tags: Tags = ()
    description: str = field(default="", compare=False, repr=False)


class Metric:
    """A metric, with its value at the moment it is asked for."""

    __slots__ = ("_read", "name")

    def __init__(self, name: MetricName, read: Callable[[], Value]) -> None:
        self.name = name
        self._read = read

    def value(self) -> Value:
        return self._read()


class MetricsReporter:
    """A plug-in that is told which metrics there are, and asks them for values when it likes.

    It is called from the I/O thread and from the application's; what it throws is logged and goes no further.
    """

    def configure(self, config: Mapping[str, object]) -> None:
        """The producer's options, before anything else."""

    def init(self, metrics: Iterable[Metric]) -> None:
        """The metrics that exist at the start."""

    def metric_change(self, metric: Metric) -> None:
        """A metric has come, or has another source now."""

    def metric_removal(self, metric: Metric) -> None:
        """A metric is gone."""

    def close(self) -> None:
        """The producer is closed."""


class ProducerMetrics:
    """The metrics of one producer. Methods are for the I/O thread, but for those that say "any thread"."""

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
        self.lock = OwnedLock()  # held for a moment only, and never while a reporter is called
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
        self.gauge("interceptor-error-total", lambda: 0)  # until the producer says where they are counted
        self._tell(lambda reporter: reporter.init(made))

    # -- asked for -----------------------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Every metric. Any thread."""
        return list(self._metrics.values())

    def snapshot(self) -> dict[MetricName, Value]:
        """Every metric with its value now: a number, but for version and commit id. Any thread."""
        return {metric.name: metric.value() for metric in self.metrics()}

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Say where one of the `GAUGES` has its value from; `read` has to bear any thread."""
        if name not in GAUGES:
            raise ValueError(f"{name!r} is none of the gauges: {', '.join(GAUGES)}")
        self._gauges[name] = read

    def totals(self) -> dict[str, float]:
        """What was recorded since the start, by the names of `PRODUCER_ROWS`; cheaper than a snapshot. Any thread."""
        return {name: samples.total for name, samples in self._producer.items()}

    def largest_topics(self, count_max: int) -> list[tuple[str, float, float]]:
        """(topic, records, bytes) of those that got the most. Any thread."""
        with self.lock:
            topics = list(self._topics.items())
        rows = ((topic, samples["records"].total, samples["bytes"].total) for topic, samples in topics)
        return heapq.nlargest(count_max, rows, key=lambda row: row[2])

    def node_traffic(self) -> dict[int, float]:
        """Bytes sent to each broker. Any thread."""
        return {node: samples["request-size"].total for node, samples in list(self._nodes.items())}

    def announce(self, create_source: Callable[[], SnapshotSource]) -> None:
        """Pass a source of snapshots to the reporters that are a ProducerListener."""
        self._tell(lambda reporter: _announce(reporter, create_source))

    def close(self) -> None:
        """Take the metrics back from the reporters. Who made the reporters closes them."""
        with self.lock:
            gone = self.metrics()
            self._metrics.clear()
        for metric in gone:
            self._tell(_removal(metric))

    # -- batches -------------------------------------------------------------------------------

    def batch_drained(
        self,
        topic: str,
        bytes: int,
        records: int,
        compression_ratio: float,
        queue_time_ms: float,
        record_bytes_max: int | None = None,
    ) -> None:
        """A batch leaves. Who does not know its largest record leaves that to the mean of the batch."""
        now = self._now()
        producer, per_topic = self._producer, self._topic(topic)
        largest = record_bytes_max if record_bytes_max is not None else bytes / (compression_ratio * records or 1.0)
        producer["batch-size"].record(bytes, now)
        producer["record-size"].record(largest, now)
        producer["record-queue-time"].record(queue_time_ms, now)
        producer["compression"].record(compression_ratio, now)
        per_topic["records"].record(records, now)
        per_topic["bytes"].record(bytes, now)
        per_topic["compression"].record(compression_ratio, now)

    def produce_request(self, records: int) -> None:
        """A produce request leaves, with so many records in all its batches."""
        self._producer["records"].record(records, self._now())

    def record_retried(self, topic: str, count: int) -> None:
        now = self._now()
        self._producer["record-retry"].record(count, now)
        self._topic(topic)["record-retry"].record(count, now)

    def record_failed(self, topic: str | None, count: int = 1) -> None:
        """Without a topic where a send failed before it had one that is known. Any thread."""
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
        """A response has come, to whatever was asked."""
        now = self._now()
        self._producer["response-size"].record(bytes, now)
        self._producer["network-io"].record(1, now)
        self._node(node)["response-size"].record(bytes, now)

    def produce_response(self, node: int, latency_ms: float, throttle_ms: float = 0.0) -> None:
        """It was the answer to a produce request: of these alone latency and throttling count, as in Kafka."""
        now = self._now()
        self._producer["request-latency"].record(latency_ms, now)
        self._producer["produce-throttle-time"].record(throttle_ms, now)
        self._node(node)["request-latency"].record(latency_ms, now)

    def connection_opened(self, node: int) -> None:
        self._connections += 1
        self._node(node)
        self._producer["connection-creation"].record(1, self._now())

    def connection_closed(self, node: int) -> None:
        """One that was opened."""
        self._connections -= 1
        self._producer["connection-close"].record(1, self._now())

    def connection_failed(self, node: int) -> None:
        """One that never came about; Kafka counts it as closed."""
        self._producer["connection-close"].record(1, self._now())

    def authenticated(self, succeeded: bool) -> None:
        """The TLS handshake and SASL of a new connection are over."""
        self._producer[f"{'successful' if succeeded else 'failed'}-authentication"].record(1, self._now())

    def reauthenticated(self, succeeded: bool, latency_ms: float) -> None:
        """A connection has proved again who we are (KIP-368)."""
        now = self._now()
        self._producer[f"{'successful' if succeeded else 'failed'}-reauthentication"].record(1, now)
        if succeeded:
            self._producer["reauthentication-latency"].record(latency_ms, now)

    def io(self, select_ns: float, io_ns: float) -> None:
        """One turn of the I/O thread: so long waited for sockets, so long worked on them."""
        now = self._now()
        self._producer["io-wait"].record(select_ns, now)
        self._producer["io"].record(io_ns, now)

    # -- application threads -------------------------------------------------------------------

    def callback_failed(self) -> None:
        """A delivery callback has raised. Any thread."""
        self._record_locked("callback-error", 1)

    def buffer_exhausted(self) -> None:
        """A record found no memory in time. Any thread."""
        self._record_locked("buffer-exhausted", 1)

    def bufferpool_wait(self, ns: float) -> None:
        """A thread waited for memory. Any thread."""
        self._record_locked("bufferpool-wait", ns)

    def metadata_wait(self, ns: float) -> None:
        """A thread waited for metadata. Any thread."""
        self._record_locked("metadata-wait", ns)

    def flush(self, ns: float) -> None:
        """Any thread."""
        self._record_locked("flush", ns)

    def txn(self, call: Transaction, ns: float) -> None:
        """A call about transactions is over. Any thread."""
        self._record_locked(f"txn-{call}", ns)

    def _record_locked(self, samples: str, value: float) -> None:
        with self.lock:
            self._producer[samples].record(value, self._now())

    # -- what there is -------------------------------------------------------------------------

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
                return first  # another thread was faster
            self._register(made)
        return known

    def _register(self, made: list[Metric]) -> None:
        with self.lock:
            self._metrics.update((metric.name, metric) for metric in made)
        for metric in made:
            self._tell(_change(metric))

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
            metric("commit-id", "app-info", lambda: "unknown", "as Kafka has it; here the version says it all"),
            metric("start-time-ms", "app-info", lambda: started_ms, "when this producer was made, ms since 1970"),
            metric("count", "kafka-metrics-count", lambda: float(len(self._metrics)), "how many metrics there are"),
        ]

    def _tell(self, what: Callable[[MetricsReporter], None]) -> None:
        for reporter in self._reporters:
            try:
                what(reporter)
            except BaseException as error:
                if is_for_application(error):
                    raise
                self._log.exception("a metrics reporter failed: %r", reporter)


def _change(metric: Metric) -> Callable[[MetricsReporter], None]:
    return lambda reporter: reporter.metric_change(metric)


def _announce(reporter: MetricsReporter, create_source: Callable[[], SnapshotSource]) -> None:
    if isinstance(reporter, ProducerListener):
        reporter.producer_created(create_source())


def _removal(metric: Metric) -> Callable[[MetricsReporter], None]:
    return lambda reporter: reporter.metric_removal(metric)
