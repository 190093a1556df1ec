"""Streaming queries for Prometheus: a collector that reads the figures of the listeners when it is scraped.

A registry of prometheus_client has one collector for all listeners: a query that several of them follow counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.spark.query_figures import RUNNING, PhaseTimes, QueryFigures
from headrace.telemetry.prometheus import SharedCollector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

FiguresSource = Callable[[], list[QueryFigures]]
"""Returns copies of the figures of a listener. Called by the thread of a scrape."""


def default_registry(*, is_required: bool) -> CollectorRegistry | None:
    """Return the registry that `prometheus_client.start_http_server` serves; None without the package."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        if is_required:
            raise ConfigError(
                "metrics of queries need the package prometheus-client: pip install 'headrace[metrics]'"
            ) from None
        return None
    return REGISTRY


class QueryCollector(SharedCollector[FiguresSource]):
    """The queries of all listeners."""

    def collect(self) -> Iterator[Metric]:
        queries: dict[str, QueryFigures] = {}
        for source in self.sources():
            for query in source():
                queries.setdefault(query.name, query)
        families = _Families()
        for query in queries.values():
            families.add(query)
        yield from families.all()


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"headrace_{name}", text, labels=["query", *labels])

        def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"headrace_{name}", text, labels=["query", *labels])

        def summary(name: str, text: str, *labels: str) -> SummaryMetricFamily:
            return SummaryMetricFamily(f"headrace_{name}", text, labels=["query", *labels])

        self._info = gauge(
            "query_info",
            "Always 1; the ids of a query, and its sink.",
            *("query_id", "run_id", "sink", "topic", "delivery"),
        )
        self._running = gauge("query_running", "1 while the query runs, 0 after it has stopped or failed.")
        self._batch = gauge("query_last_batch", "Number of the last batch.")
        self._progress = gauge("query_last_progress_timestamp_seconds", "When the last batch ended.")
        self._batches = counter("query_batches", "Batches that have ended.")
        self._rows = counter("query_input_rows", "Rows read from all sources.")
        self._phases = summary("query_phase_seconds", "Time of batches by Spark's phases.", "phase")
        self._lag = gauge(
            "source_lag_records",
            "Offsets between the end of the last batch and the end of the partition when it was planned.",
            *("source", "topic", "partition"),
        )
        self._offset = gauge("source_offset", "Where the last batch ended.", "source", "topic", "partition")
        self._newest = gauge(
            "source_newest_timestamp_seconds", "Newest timestamp of a record in the topic.", "source", "topic"
        )
        self._commits = counter("sink_commits", "Commits of batches by outcome.", "sink", "outcome")
        self._delivered = counter("sink_rows", "Rows delivered.", "sink")
        self._bytes = counter("sink_bytes", "Bytes of keys and values delivered.", "sink")
        self._dead = counter("sink_dead_letters", "Rows written to the dead letter topic.", "sink")
        self._redone = counter("sink_redone_transactions", "Expired transactions that were written again.", "sink")
        self._commit_phases = summary("sink_phase_seconds", "Time of commits by phase.", "sink", "phase")

    def all(self) -> Iterable[Metric]:
        return [family for family in vars(self).values() if family.samples]

    def add(self, query: QueryFigures) -> None:
        name, sink = query.name, query.sink
        ids = [query.id, query.run]
        ids += ["", "", ""] if sink is None else [sink.sink, sink.topic or "", sink.delivery]
        self._info.add_metric([name, *ids], 1)
        self._running.add_metric([name], query.state == RUNNING)
        self._batches.add_metric([name], query.totals.batches)
        self._rows.add_metric([name], query.totals.rows)
        if query.totals.last_batch is not None:
            self._batch.add_metric([name], query.totals.last_batch)
        if query.progress_ms is not None:
            self._progress.add_metric([name], query.progress_ms / 1000)
        _add_phases(self._phases, [name], query.phases)
        self._add_sources(query)
        if sink is not None:
            self._add_commits(query, [name, sink.sink])

    def _add_sources(self, query: QueryFigures) -> None:
        for number, source in enumerate(() if query.progress is None else query.progress.sources):
            labels = [query.name, str(number)]
            for tp, lag in sorted((source.lags or {}).items()):
                self._lag.add_metric([*labels, tp.topic, str(tp.partition)], lag)
            for tp, offset in sorted((source.ends or {}).items()):
                self._offset.add_metric([*labels, tp.topic, str(tp.partition)], offset)
            for topic, newest_ms in sorted(source.newest_ms.items()):
                self._newest.add_metric([*labels, topic], newest_ms / 1000)

    def _add_commits(self, query: QueryFigures, labels: list[str]) -> None:
        for outcome, count in sorted(query.outcomes.items()):
            self._commits.add_metric([*labels, outcome], count)
        totals = query.commits
        self._delivered.add_metric(labels, totals.rows)
        self._bytes.add_metric(labels, totals.bytes)
        self._dead.add_metric(labels, totals.dead)
        self._redone.add_metric(labels, totals.redone)
        _add_phases(self._commit_phases, labels, query.commit_phases)


def _add_phases(family: SummaryMetricFamily, labels: list[str], phases: Mapping[str, PhaseTimes]) -> None:
    for phase, times in phases.items():
        family.add_metric([*labels, phase], times.count, round(times.seconds, 6))
