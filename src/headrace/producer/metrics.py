"""Kafka's producer metrics, under Kafka's names.

    sender, application threads → MetricsObserver, ProducerMetrics → Samples

Values are recorded for each batch and request, never for each record. What all clients have is in
`telemetry/metrics.py`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from headrace.config import Log
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.config.sampling import Samples
from headrace.errors import HeadraceError
from headrace.producer.batch import ProducerBatch
from headrace.producer.recent import Recent
from headrace.telemetry.metrics import (
    NETWORK_ROWS,
    ClientMetrics,
    MetricsReporter,
    NetworkMetrics,
    Row,
    meter,
    spread,
    total_ns,
)

TOPIC = "producer-topic-metrics"

PRODUCER_ROWS: Final[tuple[Row, ...]] = (
    *spread("batch-size", "batch-size", "bytes of a batch as sent"),
    *spread("record-size", "record-size", "bytes of the largest record of a batch"),
    *spread("record-queue-time", "record-queue-time", "ms from a batch's creation until it is sent"),
    ("compression", "compression-rate-avg", Samples.mean, "compressed over uncompressed size of a batch, mean"),
    ("records", "records-per-request-avg", Samples.mean, "records in a produce request, mean"),
    *meter("records", "record-send", "records sent"),
    *meter("record-retry", "record-retry", "records retried"),
    *meter("record-error", "record-error", "records that failed"),
    *meter("batch-split", "batch-split", "batches split because they were too large for the broker"),
    *spread("request-latency", "request-latency", "ms from a produce request to its response"),
    *spread("produce-throttle-time", "produce-throttle-time", "ms for which a broker throttled the producer"),
    *NETWORK_ROWS,
    # Kafka's producer has no metrics for errors in application code; this and interceptor-error-total are headrace's.
    ("callback-error", "callback-error-total", Samples.lifetime_total, "delivery callbacks that raised, total"),
    *meter("buffer-exhausted", "buffer-exhausted", "records dropped because the buffer was exhausted"),
    ("bufferpool-wait", "bufferpool-wait-ratio", Samples.time_share, "share of time that threads wait for memory"),
    total_ns("bufferpool-wait", "that threads waited for memory"),
    total_ns("flush", "in flush"),
    total_ns("metadata-wait", "that threads waited for metadata"),
    total_ns("txn-init", "in init_transactions"),
    total_ns("txn-begin", "in begin_transaction"),
    total_ns("txn-send-offsets", "in send_offsets_to_transaction"),
    total_ns("txn-prepare", "in prepare_transaction"),
    total_ns("txn-commit", "in commit_transaction"),
    total_ns("txn-abort", "in abort_transaction"),
)
TOPIC_ROWS: Final[tuple[Row, ...]] = (
    *meter("records", "record-send", "records sent"),
    *meter("bytes", "byte", "bytes of batches sent"),
    ("compression", "compression-rate", Samples.mean, "compressed over uncompressed size of a batch, mean"),
    *meter("record-retry", "record-retry", "records retried"),
    *meter("record-error", "record-error", "records that failed"),
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

Transaction: TypeAlias = Literal["init", "begin", "send-offsets", "prepare", "commit", "abort"]

log = logging.getLogger("headrace")


class ProducerMetrics(ClientMetrics):
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
        self._topics: dict[str, dict[str, Samples]] = {}  # Changed under lock.
        super().__init__(
            "producer",
            client_id,
            PRODUCER_ROWS,
            GAUGES,
            clock=clock,
            samples=samples,
            sample_window_ms=sample_window_ms,
            reporters=reporters,
            log=log,
        )

    def largest_topics(self, count_max: int) -> list[tuple[str, float, float]]:
        """Return (topic, records, bytes) of the topics with the most bytes. Any thread."""
        with self.lock:
            topics = list(self._topics.items())
        rows = ((topic, samples["records"].total, samples["bytes"].total) for topic, samples in topics)
        return heapq.nlargest(count_max, rows, key=lambda row: row[2])

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
        producer, per_topic = self._main, self._topic(topic)
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
        self._main["records"].record(records, self._now())

    def record_retried(self, topic: str, count: int) -> None:
        now = self._now()
        self._main["record-retry"].record(count, now)
        self._topic(topic)["record-retry"].record(count, now)

    def record_failed(self, topic: str | None, count: int = 1) -> None:
        """Record failed records; `topic` is None if it is unknown. Any thread."""
        per_topic = None if topic is None else self._topic(topic)
        with self.lock:
            now = self._now()
            self._main["record-error"].record(count, now)
            if per_topic is not None:
                per_topic["record-error"].record(count, now)

    def batch_split(self) -> None:
        self._main["batch-split"].record(1, self._now())

    def produce_response(self, node: int, latency_ms: float, throttle_ms: float = 0.0) -> None:
        """Record latency and throttling, which as in Kafka count for produce requests only."""
        now = self._now()
        self._main["request-latency"].record(latency_ms, now)
        self._main["produce-throttle-time"].record(throttle_ms, now)
        self._node(node)["request-latency"].record(latency_ms, now)

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


class MetricsObserver(NetworkMetrics):
    """The `SenderObserver` and `NetworkObserver` that feed metrics and recent events. I/O thread only."""

    def __init__(self, metrics: ProducerMetrics, recent: Recent, *, authenticates: bool) -> None:
        super().__init__(metrics, authenticates=authenticates)
        self._producer = metrics
        self._recent = recent

    def produce_request(self, batches: Sequence[ProducerBatch], now: float) -> None:
        by_topic: dict[str, list[ProducerBatch]] = {}
        for batch in batches:
            by_topic.setdefault(batch.topic, []).append(batch)
        for topic, drained in by_topic.items():
            sizes = [batch.size if batch.sealed is None else len(batch.sealed) for batch in drained]
            queue_times_ms = [now - batch.created_ms for batch in drained]
            self._producer.batches_drained(
                topic,
                bytes=sizes,
                records=[batch.record_count for batch in drained],
                compression_ratios=[size / batch.size for size, batch in zip(sizes, drained, strict=True)],
                queue_times_ms=queue_times_ms,
            )
            self._recent.queue_ms.extend(queue_times_ms)
        self._producer.produce_request(sum(batch.record_count for batch in batches))

    def produce_response(self, node_id: int, latency_ms: float, throttle_ms: float, delivery_ms: float) -> None:
        self._producer.produce_response(node_id, latency_ms, throttle_ms)
        self._recent.request_ms.append(latency_ms)
        self._recent.delivery_ms.append(delivery_ms)

    def batch_retried(self, batch: ProducerBatch, error: Exception) -> None:
        self._producer.record_retried(batch.topic, batch.record_count)
        self._recent.failed(f"{batch.topic}-{batch.partition}, sent again", error)

    def batch_failed(self, batch: ProducerBatch) -> None:
        self._producer.record_failed(batch.topic, batch.record_count)
        if batch.error is not None:
            self._recent.failed(f"{batch.topic}-{batch.partition}, failed", batch.error)

    def batch_split(self, batch: ProducerBatch) -> None:
        self._producer.batch_split()

    def callback_failed(self, batch: ProducerBatch, error: BaseException) -> None:
        self._producer.callback_failed()
        self._recent.failed(f"delivery callback of {batch.topic}-{batch.partition}", error)

    def connection_failed(self, node_id: int, error: HeadraceError) -> None:
        super().connection_failed(node_id, error)
        self._recent.failed(f"connection to broker {node_id}" if node_id >= 0 else "connection", error)
