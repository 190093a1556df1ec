"""What sender and network see, told to the metrics and to what is recent, in their words. I/O thread only."""

from __future__ import annotations

from headrace.errors import AuthenticationError, HeadraceError
from headrace.producer.batch import ProducerBatch
from headrace.producer.metrics import ProducerMetrics
from headrace.producer.recent import Recent


class MetricsObserver:
    """A `SenderObserver` and a `NetworkObserver`."""

    def __init__(self, metrics: ProducerMetrics, recent: Recent, *, authenticates: bool) -> None:
        self._metrics = metrics
        self._recent = recent
        self._authenticates = authenticates
        self._lost: int | None = None  # The node whose connection was closed last: its failure is counted already.

    # -- sender --------------------------------------------------------------------------------

    def batch_drained(self, batch: ProducerBatch, now: float) -> None:
        sent_bytes = batch.size if batch.sealed is None else len(batch.sealed)
        queue_ms = now - batch.created_ms
        self._metrics.batch_drained(batch.topic, sent_bytes, batch.record_count, sent_bytes / batch.size, queue_ms)
        self._recent.queue_ms.append(queue_ms)

    def produce_request(self, records: int) -> None:
        self._metrics.produce_request(records)

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
