"""Kafka's consumer metrics, under Kafka's names.

    application thread: polls, data that were read, rebalances → ConsumerMetrics → Samples
    I/O thread: fetches, requests to the coordinator           → ConsumerMetrics → Samples

Values are recorded for each poll, fetch and request, never for each record. The lag of a partition is computed when it
is read. What all clients have is in `telemetry/metrics.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from headrace.config import Log
from headrace.config.clock import Clock
from headrace.config.sampling import Samples
from headrace.telemetry.metrics import (
    NETWORK_ROWS,
    ClientMetrics,
    Metric,
    MetricName,
    MetricsReporter,
    NetworkMetrics,
    Row,
    Value,
    events,
    meter,
    spread,
    total_ns,
)
from headrace.types import TopicPartition
from headrace.wire.api import ApiKey

FETCH = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"
NEVER = -1.0
"""Seconds since an event that has not happened, as in Kafka."""
NO_REPLICA = -1.0
SECONDS_PER_HOUR = 3600

Listener: TypeAlias = Literal["assigned", "revoked", "lost"]


def _per_hour(samples: Samples, now_ms: float) -> float:
    return samples.event_rate(now_ms) * SECONDS_PER_HOUR


def _minimum(samples: Samples, now_ms: float) -> float:
    """Return the smallest value; the samples are of negated values."""
    return -samples.maximum(now_ms)


def _negated_mean(samples: Samples, now_ms: float) -> float:
    return -samples.mean(now_ms)


CONSUMER_ROWS: Final[tuple[Row, ...]] = (
    *NETWORK_ROWS,
    *spread("time-between-poll", "time-between-poll", "ms between two polls"),
    ("poll-idle-ratio", "poll-idle-ratio-avg", Samples.mean, "share of time in poll, not in the application, mean"),
    total_ns("commit-sync", "in commit"),
    total_ns("committed", "in committed"),
)
_CONSUMED: Final[tuple[Row, ...]] = (
    *spread("fetch-size", "fetch-size", "bytes of a fetch"),
    *meter("bytes-consumed", "bytes-consumed", "bytes consumed"),
    *meter("records-consumed", "records-consumed", "records consumed"),
    ("records-per-request", "records-per-request-avg", Samples.mean, "records of a fetch, mean"),
)
FETCH_ROWS: Final[tuple[Row, ...]] = (
    *_CONSUMED,
    *spread("fetch-latency", "fetch-latency", "ms from a fetch to its response"),
    *events("fetch-latency", "fetch", "fetches"),
    *spread("fetch-throttle-time", "fetch-throttle-time", "ms for which a broker throttled the consumer"),
    ("records-lag", "records-lag-max", Samples.maximum, "offsets behind the end of any partition, maximum"),
    ("records-lead", "records-lead-min", _minimum, "offsets after the start of any partition, minimum"),
)
PARTITION_ROWS: Final[tuple[Row, ...]] = (
    *spread("records-lag", "records-lag", "offsets behind the end of the partition"),
    ("records-lead", "records-lead-min", _minimum, "offsets after the start of the partition, minimum"),
    ("records-lead", "records-lead-avg", _negated_mean, "offsets after the start of the partition, mean"),
)
COORDINATOR_ROWS: Final[tuple[Row, ...]] = (
    *spread("commit-latency", "commit-latency", "ms from a commit to its response"),
    *events("commit-latency", "commit", "commits"),
    ("heartbeat", "heartbeat-response-time-max", Samples.maximum, "ms from a heartbeat to its response, maximum"),
    *events("heartbeat", "heartbeat", "heartbeats"),
    *spread("join", "join-time", "ms from a JoinGroup request to its response"),
    *events("join", "join", "JoinGroup requests"),
    *spread("sync", "sync-time", "ms from a SyncGroup request to its response"),
    *events("sync", "sync", "SyncGroup requests"),
    *spread("rebalance-latency", "rebalance-latency", "ms of a rebalance"),
    ("rebalance-latency", "rebalance-latency-total", Samples.lifetime_total, "ms of rebalances, total"),
    ("rebalance-latency", "rebalance-total", Samples.event_total, "rebalances, total"),
    ("rebalance-latency", "rebalance-rate-per-hour", _per_hour, "rebalances, per hour"),
    ("failed-rebalance", "failed-rebalance-total", Samples.event_total, "rebalances that failed, total"),
    ("failed-rebalance", "failed-rebalance-rate-per-hour", _per_hour, "rebalances that failed, per hour"),
    *spread("partition-assigned-latency", "partition-assigned-latency", "ms in on_assigned"),
    *spread("partition-revoked-latency", "partition-revoked-latency", "ms in on_revoked"),
    *spread("partition-lost-latency", "partition-lost-latency", "ms in on_lost"),
)
GAUGES: Final[Mapping[str, str]] = {
    "connection-count": "open connections",
    "last-poll-seconds-ago": "seconds since the last poll",
    # Kafka's consumer has no metric for errors in application code; this is headrace's.
    "interceptor-error-total": "interceptor calls that raised, total",
}
COORDINATOR_GAUGES: Final[Mapping[str, str]] = {
    "assigned-partitions": "assigned partitions",
    "last-heartbeat-seconds-ago": "seconds since the last heartbeat, -1 without one",
    "last-rebalance-seconds-ago": "seconds since the last rebalance, -1 without one",
}
_COORDINATOR_REQUESTS: Final[Mapping[int, str]] = {
    ApiKey.OFFSET_COMMIT: "commit-latency",
    ApiKey.HEARTBEAT: "heartbeat",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "heartbeat",
    ApiKey.JOIN_GROUP: "join",
    ApiKey.SYNC_GROUP: "sync",
}


@dataclass(slots=True)
class FetchTotals:
    """What one response brings, counted until all of it is read."""

    parts: int = 0
    """Partitions whose data were not read completely. Set by the I/O thread before they are passed on."""
    bytes: int = 0
    records: int = 0


class ReadData(NamedTuple):
    """The data of a partition in a response, read completely or dropped."""

    name: TopicPartition
    bytes: int
    records: int
    lag: int | None
    lead: int | None
    totals: FetchTotals


class PartitionGauges(NamedTuple):
    """Functions that return the current values of a partition; None if they are unknown."""

    lag: Callable[[TopicPartition], int | None]
    lead: Callable[[TopicPartition], int | None]
    preferred_replica: Callable[[TopicPartition], int | None]


class ConsumerMetrics(ClientMetrics):
    """The metrics of a consumer. Methods are for the application thread, except those marked otherwise."""

    def __init__(
        self,
        client_id: str,
        gauges: PartitionGauges,
        *,
        clock: Clock,
        samples: int = 2,
        sample_window_ms: float = 30_000,
        reporters: Iterable[MetricsReporter] = (),
        log: Log,
    ) -> None:
        self._partition_gauges = gauges
        self._topics: dict[str, dict[str, Samples]] = {}  # Application thread only, as the next.
        self._partitions: dict[TopicPartition, dict[str, Samples]] = {}
        self._partition_names: dict[TopicPartition, list[MetricName]] = {}  # Of those with metrics.
        self._poll_started_ms: float | None = None
        self._poll_ended_ms: float | None = None
        self._rebalance_ms: float | None = None  # The start of the current one. Set by the I/O thread, cleared here.
        self._last_rebalance_ms: float | None = None
        self._last_heartbeat_ms: float | None = None  # Set by the I/O thread.
        super().__init__(
            "consumer",
            client_id,
            CONSUMER_ROWS,
            {**GAUGES, **COORDINATOR_GAUGES},
            clock=clock,
            samples=samples,
            sample_window_ms=sample_window_ms,
            reporters=reporters,
            log=log,
        )
        self.gauge("last-poll-seconds-ago", lambda: self._seconds_since(self._poll_started_ms))
        self.gauge("last-heartbeat-seconds-ago", lambda: self._seconds_since(self._last_heartbeat_ms))
        self.gauge("last-rebalance-seconds-ago", lambda: self._seconds_since(self._last_rebalance_ms))

    def _more_metrics(self) -> list[Metric]:
        self._fetch, made = self._make(FETCH_ROWS, FETCH, self._tags)
        self._coordinator, of_coordinator = self._make(COORDINATOR_ROWS, COORDINATOR, self._tags)
        return made + of_coordinator

    def _gauge(self, name: str, group: str, description: str) -> Metric:
        return super()._gauge(name, COORDINATOR if name in COORDINATOR_GAUGES else group, description)

    def _seconds_since(self, then_ms: float | None) -> float:
        return NEVER if then_ms is None else max(0.0, self._now() - then_ms) / 1000

    # -- polls ---------------------------------------------------------------------------------

    def poll_started(self) -> None:
        now = self._now()
        if self._poll_started_ms is not None:
            self._main["time-between-poll"].record(now - self._poll_started_ms, now)
        self._poll_started_ms = now

    def poll_ended(self) -> None:
        now, started = self._now(), self._poll_started_ms
        if started is None:  # Ctrl-C before the start was recorded
            return
        before = started if self._poll_ended_ms is None else self._poll_ended_ms
        if now > before:
            self._main["poll-idle-ratio"].record((now - started) / (now - before), now)
        self._poll_ended_ms = now

    def commit_sync(self, ns: float) -> None:
        """Record the time of a commit."""
        self._main["commit-sync"].record(ns, self._now())

    def committed(self, ns: float) -> None:
        """Record the time of a request for committed offsets."""
        self._main["committed"].record(ns, self._now())

    def data_read(self, parts: Sequence[ReadData]) -> None:
        """Record the data that a poll has read completely."""
        now, fetch = self._now(), self._fetch
        by_topic: defaultdict[str, list[ReadData]] = defaultdict(list)
        for part in parts:
            by_topic[part.name.topic].append(part)
            totals = part.totals
            totals.bytes += part.bytes
            totals.records += part.records
            totals.parts -= 1
            if totals.parts == 0:
                fetch["fetch-size"].record(totals.bytes, now)
                fetch["records-per-request"].record(totals.records, now)
            partition = self._partition(part.name)
            if part.lag is not None:
                partition["records-lag"].record(part.lag, now)
            if part.lead is not None:
                partition["records-lead"].record(-part.lead, now)
        for topic, rows in by_topic.items():
            samples = self._topic(topic)
            size, records = sum(row.bytes for row in rows), sum(row.records for row in rows)
            for name, value in (("bytes-consumed", size), ("records-consumed", records)):
                samples[name].record(value, now)
                fetch[name].record(value, now)
            samples["fetch-size"].record_all([row.bytes for row in rows], now)
            samples["records-per-request"].record_all([row.records for row in rows], now)
        lags = [row.lag for row in parts if row.lag is not None]
        leads = [-row.lead for row in parts if row.lead is not None]
        if lags:
            fetch["records-lag"].record_all(lags, now)
        if leads:
            fetch["records-lead"].record_all(leads, now)

    # -- reports, on any thread ----------------------------------------------------------------

    def report_totals(self) -> dict[str, float]:
        """Return the totals since the start, for `ConsumerTotals`."""
        fetch = self._fetch
        return {
            "records": fetch["records-consumed"].total,
            "bytes": fetch["bytes-consumed"].total,
            "fetches": fetch["fetch-latency"].events,
            "rebalances": self._coordinator["rebalance-latency"].events,
        }

    def poll_age_ms(self) -> float | None:
        """Return the time since the start of the last poll."""
        started = self._poll_started_ms
        return None if started is None else max(0.0, self._now() - started)

    # -- rebalances ----------------------------------------------------------------------------

    def rebalance_started(self) -> None:
        """Record the start of a rebalance, once. Any thread."""
        if self._rebalance_ms is None:
            self._rebalance_ms = self._now()

    def rebalanced(self) -> None:
        """Record that the partitions of a rebalance were assigned."""
        now, started = self._now(), self._rebalance_ms
        self._rebalance_ms = None
        self._last_rebalance_ms = now
        self._coordinator["rebalance-latency"].record(0.0 if started is None else now - started, now)

    def listener_called(self, what: Listener, since_ms: float) -> None:
        """Record the time of a rebalance listener."""
        now = self._now()
        self._coordinator[f"partition-{what}-latency"].record(now - since_ms, now)

    def now_ms(self) -> float:
        return self._now()

    # -- I/O thread ----------------------------------------------------------------------------

    def fetched(self, node_id: int, latency_ms: float, throttle_ms: float) -> None:
        """Record a response to a fetch. I/O thread."""
        now = self._now()
        self._fetch["fetch-latency"].record(latency_ms, now)
        self._fetch["fetch-throttle-time"].record(throttle_ms, now)
        self._node(node_id)["request-latency"].record(latency_ms, now)

    def coordinator_requested(self, api_key: int) -> None:
        """Record a request. I/O thread."""
        if api_key == ApiKey.JOIN_GROUP:
            if self._rebalance_ms is not None:  # the attempt before has assigned nothing
                now = self._now()
                self._coordinator["failed-rebalance"].record(1, now)
            self.rebalance_started()
        elif api_key in (ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT):
            self._last_heartbeat_ms = self._now()

    def coordinator_responded(self, api_key: int, latency_ms: float) -> None:
        """Record a response. I/O thread."""
        samples = _COORDINATOR_REQUESTS.get(api_key)
        if samples is not None:
            self._coordinator[samples].record(latency_ms, self._now())

    # -- topics and partitions -----------------------------------------------------------------

    def metrics(self) -> list[Metric]:
        """Return all metrics. Application thread, unless there is a reporter: then partitions are added at once."""
        if not self._reporters:
            self._register_partitions()
        return super().metrics()

    def assigned(self, names: Iterable[TopicPartition]) -> None:
        """Remove the metrics of partitions that are not assigned any more, and add those of new ones."""
        current = set(names)
        for name in self._partitions.keys() - current:
            del self._partitions[name]
        for name in self._partition_names.keys() - current:
            self._unregister(self._partition_names.pop(name))
        for name in current:
            self._partition(name)
        if self._reporters:
            self._register_partitions()

    def _topic(self, topic: str) -> dict[str, Samples]:
        known = self._topics.get(topic)
        if known is None:
            known, made = self._make(_CONSUMED, FETCH, (*self._tags, ("topic", topic)))
            self._topics[topic] = known
            self._register(made)
        return known

    def _partition(self, name: TopicPartition) -> dict[str, Samples]:
        known = self._partitions.get(name)
        if known is None:
            known = self._partitions[name] = {
                source: Samples(self._windows, self._window_ms) for source, *_ in PARTITION_ROWS
            }
        return known

    def _register_partitions(self) -> None:
        """Create the metrics of partitions that have none: with a thousand of them, only if somebody looks."""
        for name in self._partitions.keys() - self._partition_names.keys():
            made = self._partition_metrics(name, self._partitions[name])
            self._partition_names[name] = [metric.name for metric in made]
            self._register(made)

    def _partition_metrics(self, name: TopicPartition, samples: Mapping[str, Samples]) -> list[Metric]:
        tags = (*self._tags, ("topic", name.topic), ("partition", str(name.partition)))
        made = [
            Metric(MetricName(title, FETCH, tags, text, self.kind), self._reader(samples[source], read))
            for source, title, read, text in PARTITION_ROWS
        ]
        gauges = self._partition_gauges

        def gauge(title: str, text: str, read: Callable[[TopicPartition], int | None], unknown: float) -> Metric:
            def value() -> Value:
                current = read(name)
                return unknown if current is None else float(current)

            return Metric(MetricName(title, FETCH, tags, text, self.kind), value)

        return [
            *made,
            gauge("records-lag", "offsets behind the end of the partition", gauges.lag, math.nan),
            gauge("records-lead", "offsets after the start of the partition", gauges.lead, math.nan),
            gauge(
                "preferred-read-replica",
                "the replica to fetch from, -1 for the leader",
                gauges.preferred_replica,
                NO_REPLICA,
            ),
        ]


class ConsumerObserver(NetworkMetrics):
    """The `NetworkObserver` of a consumer. I/O thread only."""

    def __init__(self, metrics: ConsumerMetrics, *, authenticates: bool) -> None:
        super().__init__(metrics, authenticates=authenticates)
        self._consumer = metrics

    def request_sent(self, node_id: int, api_key: int, size: int) -> None:
        super().request_sent(node_id, api_key, size)
        self._consumer.coordinator_requested(api_key)

    def response_received(self, node_id: int, api_key: int, size: int, latency_ms: float) -> None:
        super().response_received(node_id, api_key, size, latency_ms)
        self._consumer.coordinator_responded(api_key, latency_ms)
