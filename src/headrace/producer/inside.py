"""What goes on inside a producer at one moment, step by step, for whoever draws it.

    look() → the steps of `send` → the buffer pool → batches by partition → requests by broker → latencies, errors

It asks the parts from outside, takes no lock of theirs and changes nothing: numbers of one snapshot may be a moment
apart. What it gives is bounded, however many topics and partitions there are.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from typing import Any

from headrace.client.clock import Clock
from headrace.client.metadata import Cluster, Metadata
from headrace.client.network import NetworkClient
from headrace.config import Log
from headrace.producer.accumulator import Accumulator
from headrace.producer.metrics import ProducerMetrics
from headrace.producer.pipeline import SendPipeline
from headrace.producer.queues import PartitionQueue
from headrace.producer.recent import Recent, percentiles
from headrace.producer.settings import ProducerSettings
from headrace.producer.transactions import TransactionManager

PARTITIONS_SHOWN_MAX = 24
PARTITIONS_LOOKED_AT_MAX = 2_000
BROKERS_SHOWN_MAX = 24
TOPICS_SHOWN_MAX = 12


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of one producer, as far as they can be looked at. Any thread."""

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

    def look(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        cluster = self.metadata.cluster
        totals = self.metrics.totals()
        return {
            "client_id": self.settings.client_id,
            "transaction": self._transaction(),
            "steps": self.steps.describe(),
            "pool": self._pool(totals),
            "batches": self._batches(cluster),
            "brokers": self._brokers(cluster),
            "topics": [
                {"topic": topic, "records": records, "bytes": size}
                for topic, records, size in self.metrics.largest_topics(TOPICS_SHOWN_MAX)
            ],
            "totals": {name: totals[source] for name, source in _TOTALS.items()},
            "latency": {
                "queue": percentiles(list(self.recent.queue_ms)),
                "request": percentiles(list(self.recent.request_ms)),
                "delivery": percentiles(list(self.recent.delivery_ms)),
            },
            "errors": [asdict(error) for error in self.recent.errors()],
        }

    def _transaction(self) -> dict[str, Any] | None:
        manager = self.transactions
        if manager is None or not manager.is_transactional:
            return None
        return {"id": manager.transactional_id, "state": str(manager.state)}

    def _pool(self, totals: dict[str, float]) -> dict[str, Any]:
        pool = self.accumulator.pool
        return {
            "total_bytes": pool.total_bytes,
            "used_bytes": pool.total_bytes - pool.available_bytes,
            "waiting_threads": pool.waiting_threads,
            "waited_ms": round(totals["bufferpool-wait"] / 1e6, 1),
            "exhausted": totals["buffer-exhausted"],
        }

    def _batches(self, cluster: Cluster) -> dict[str, Any]:
        now = self.clock.monotonic_ms()
        queues = self.accumulator.busy_queues()
        rows = [row for queue in queues[:PARTITIONS_LOOKED_AT_MAX] if (row := _queue_row(queue, cluster, now))]
        return {
            "batch_bytes": self.settings.batch_size,
            "linger_ms": self.settings.linger_ms,
            "partitions": len(rows),
            "queued": sum(row["batches"] for row in rows),
            "oldest": heapq.nlargest(PARTITIONS_SHOWN_MAX, rows, key=lambda row: row["age_ms"]),
        }

    def _brokers(self, cluster: Cluster) -> list[dict[str, Any]]:
        traffic = self.metrics.node_traffic()
        return [
            {
                "id": node,
                "address": str(endpoint),
                "is_connected": self.client.is_connected(node),
                "in_flight": self.client.in_flight_count(node),
                "in_flight_max": self.settings.max_in_flight,
                "sent_bytes": traffic.get(node, 0.0),
            }
            for node, endpoint in heapq.nsmallest(BROKERS_SHOWN_MAX, cluster.brokers.items())
        ]


def _queue_row(queue: PartitionQueue, cluster: Cluster, now: float) -> dict[str, Any] | None:
    try:
        first, last = queue.batches[0], queue.batches[-1]
    except IndexError:
        return None  # drained meanwhile
    return {
        "topic": queue.topic.name,
        "partition": queue.partition,
        "leader": cluster.leader(queue.topic.name, queue.partition),
        "batches": max(1, len(queue.batches)),
        "records": last.record_count,
        "bytes": last.size,
        "room_bytes": len(last.buffer),
        "age_ms": round(max(0.0, now - first.created_ms), 1),
        "attempts": first.attempts,
    }


_TOTALS = {
    "records": "records",
    "retries": "record-retry",
    "errors": "record-error",
    "splits": "batch-split",
    "sent_bytes": "request-size",
    "throttled_ms": "produce-throttle-time",
}
