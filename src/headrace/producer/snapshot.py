"""Snapshots of a producer's state, stage by stage, for reports.

    collect() → the steps of `send` → the buffer pool → batches by partition → requests by broker → latencies, errors

Collecting takes no lock and changes nothing: values of one snapshot may be a moment apart. Its size is bounded, however
many topics and partitions there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from headrace.client.metadata import Cluster, Metadata
from headrace.client.network import NetworkClient
from headrace.config import Log
from headrace.config.clock import Clock
from headrace.producer.accumulator import Accumulator
from headrace.producer.metrics import ProducerMetrics
from headrace.producer.pipeline import SendPipeline
from headrace.producer.queues import PartitionQueue
from headrace.producer.recent import Recent
from headrace.producer.settings import ProducerSettings
from headrace.producer.transactions import TransactionManager
from headrace.telemetry.models import (
    AccumulatorStatus,
    BrokerConnection,
    BufferPoolStatus,
    Latencies,
    PartitionQueueStatus,
    Percentiles,
    ProducerSnapshot,
    ProducerTotals,
    ReportedError,
    TopicTotals,
    TransactionStatus,
)

QUEUES_SHOWN_MAX = 24
QUEUES_SCANNED_MAX = 2_000
BROKERS_SHOWN_MAX = 24
TOPICS_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCollector:
    """Collects snapshots from the parts of one producer. Any thread."""

    settings: ProducerSettings
    clock: Clock
    steps: SendPipeline
    metrics: ProducerMetrics
    accumulator: Accumulator
    client: NetworkClient
    metadata: Metadata
    transactions: TransactionManager | None
    recent: Recent
    log: Log

    def collect(self) -> ProducerSnapshot:
        cluster = self.metadata.cluster
        totals = self.metrics.totals()
        return ProducerSnapshot(
            client_id=self.settings.client_id,
            transaction=self._transaction(),
            steps=self.steps.describe(),
            pool=self._pool(totals),
            batches=self._batches(cluster),
            brokers=self._brokers(cluster),
            topics=tuple(TopicTotals(*row) for row in self.metrics.largest_topics(TOPICS_SHOWN_MAX)),
            totals=ProducerTotals(
                records=totals["records"],
                sent_bytes=totals["request-size"],
                retries=totals["record-retry"],
                errors=totals["record-error"],
                splits=totals["batch-split"],
                throttled_ms=totals["produce-throttle-time"],
            ),
            latency=Latencies(
                queue=percentiles(list(self.recent.queue_ms)),
                request=percentiles(list(self.recent.request_ms)),
                delivery=percentiles(list(self.recent.delivery_ms)),
            ),
            errors=tuple(ReportedError(*astuple(error)) for error in self.recent.errors()),
        )

    def _transaction(self) -> TransactionStatus | None:
        manager = self.transactions
        if manager is None or not manager.is_transactional:
            return None
        return TransactionStatus(manager.transactional_id or "", str(manager.state))

    def _pool(self, totals: dict[str, float]) -> BufferPoolStatus:
        pool = self.accumulator.pool
        return BufferPoolStatus(
            total_bytes=pool.total_bytes,
            used_bytes=pool.total_bytes - pool.available_bytes,
            waiting_threads=pool.waiting_threads,
            waited_ms=round(totals["bufferpool-wait"] / 1e6, 1),
            exhausted=int(totals["buffer-exhausted"]),
        )

    def _batches(self, cluster: Cluster) -> AccumulatorStatus:
        now = self.clock.monotonic_ms()
        queues = self.accumulator.busy_queues()[:QUEUES_SCANNED_MAX]
        statuses = [status for queue in queues if (status := _queue_status(queue, cluster, now)) is not None]
        return AccumulatorStatus(
            batch_bytes=self.settings.batch_size,
            linger_ms=self.settings.linger_ms,
            partitions=len(statuses),
            queued=sum(status.batches for status in statuses),
            oldest=tuple(heapq.nlargest(QUEUES_SHOWN_MAX, statuses, key=lambda status: status.age_ms)),
        )

    def _brokers(self, cluster: Cluster) -> tuple[BrokerConnection, ...]:
        traffic = self.metrics.node_traffic()
        return tuple(
            BrokerConnection(
                id=node,
                address=str(endpoint),
                is_connected=self.client.is_connected(node),
                in_flight=self.client.in_flight_count(node),
                in_flight_max=self.settings.max_in_flight,
                sent_bytes=traffic.get(node, 0.0),
            )
            for node, endpoint in heapq.nsmallest(BROKERS_SHOWN_MAX, cluster.brokers.items())
        )


def _queue_status(queue: PartitionQueue, cluster: Cluster, now: float) -> PartitionQueueStatus | None:
    try:
        first, last = queue.batches[0], queue.batches[-1]
    except IndexError:
        return None  # drained meanwhile
    return PartitionQueueStatus(
        topic=queue.topic.name,
        partition=queue.partition,
        leader=cluster.leader(queue.topic.name, queue.partition),
        batches=max(1, len(queue.batches)),
        records=last.record_count,
        bytes=last.size,
        room_bytes=len(last.buffer),
        age_ms=round(max(0.0, now - first.created_ms), 1),
        attempts=first.attempts,
    )


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """Return percentiles to a hundredth; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    last = len(ordered) - 1
    return Percentiles(*(round(ordered[round(last * share)], 2) for share in (0.5, 0.95, 0.99, 1.0)))
