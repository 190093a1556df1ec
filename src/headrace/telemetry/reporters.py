"""Metrics reporters: for Prometheus, for the log, and for the live view.

    ClientMetrics → init, metric_change, metric_removal → the reporter's list of metrics
    a scrape, or the reporter's thread → values

They are plug-ins for `metric.reporters`: "prometheus", "log", "view" (telemetry/view_reporter.py), or an instance.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.client.plugins import PluginKind, copy_methods
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.telemetry.metrics import Metric, MetricName, MetricsReporter
from headrace.telemetry.prometheus import SharedCollector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

log = logging.getLogger("headrace.metrics")

LOG_INTERVAL_SECONDS = 60.0
CLOSE_SECONDS_MAX = 5.0
_JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"  # Kafka's default, ignored here.


def chosen(config: Config) -> tuple[object, ...]:
    """Return the reporters of a client's options, to be loaded."""
    return tuple(each for each in config.of(tuple, "metric.reporters") if each != _JMX_REPORTER)


class _CollectingReporter(MetricsReporter):
    """Keeps the current metrics."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Metric] = {}  # Changes are atomic: any thread may copy it.

    def init(self, metrics: Iterable[Metric]) -> None:
        for metric in metrics:
            self.metric_change(metric)

    def metric_change(self, metric: Metric) -> None:
        self._metrics[metric.name] = metric

    def metric_removal(self, metric: Metric) -> None:
        self._metrics.pop(metric.name, None)

    def metrics(self) -> list[Metric]:
        return list(self._metrics.values())


class PrometheusReporter(_CollectingReporter):
    """Exports the metrics to Prometheus: `kafka_producer_record_send_total{client_id="…"}`.

    It uses a registry of prometheus_client, by default the one that `prometheus_client.start_http_server` serves.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        try:
            import prometheus_client
        except ImportError:
            raise ConfigError(
                "PrometheusReporter needs the package prometheus-client: pip install 'headrace[metrics]'"
            ) from None
        self._registry = registry if registry is not None else prometheus_client.REGISTRY

    def init(self, metrics: Iterable[Metric]) -> None:
        super().init(metrics)
        _Collector.of(self._registry).add(self)

    def close(self) -> None:
        if not self._metrics:  # otherwise another client shares this reporter
            _Collector.of(self._registry).discard(self)


class _Collector(SharedCollector[PrometheusReporter]):
    """The metrics of all clients."""

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Family] = {}
        for reporter in self.sources():
            for metric in reporter.metrics():
                value = metric.value()
                if isinstance(value, str):
                    continue  # version and commit id: Prometheus has numbers only
                name = _family_name(metric.name)
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                if name not in families:
                    families[name] = kind(name, metric.name.description)
                labels = {label.replace("-", "_"): tag for label, tag in metric.name.tags}
                families[name].add_sample(name, labels, value)
        yield from families.values()


def _family_name(name: MetricName) -> str:
    """producer-topic-metrics, byte-rate → kafka_producer_topic_byte_rate."""
    if name.group == "kafka-metrics-count":
        return f"kafka_{name.client}_metrics_count"
    group = name.group.removesuffix("-metrics")
    prefix = group if group.startswith(name.client) else f"{name.client}-{group}"
    return f"kafka-{prefix}-{name.name}".replace("-", "_")


class LoggingReporter(_CollectingReporter):
    """Logs the metrics that are not zero to `headrace.metrics` at INFO, every `interval_seconds`."""

    def __init__(self, interval_seconds: float = LOG_INTERVAL_SECONDS) -> None:
        super().__init__()
        self._interval_seconds = interval_seconds
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def init(self, metrics: Iterable[Metric]) -> None:
        super().init(metrics)
        self._thread = threading.Thread(target=self._run, name="headrace-metrics-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while not self._closed.wait(self._interval_seconds):
            self.report()

    def report(self) -> None:
        """Log a line for each group and set of tags."""
        for line in self.lines():
            log.info("%s", line)

    def lines(self) -> list[str]:
        """Return lines such as `producer-metrics client-id=c1: record-send-rate=3.3 …`, without zeros and NaNs."""
        groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = defaultdict(list)
        for metric in self.metrics():
            value = metric.value()
            if isinstance(value, float) and (not value or math.isnan(value)):
                continue
            shown = value if isinstance(value, str) else f"{value:.15g}" if value.is_integer() else f"{value:.4g}"
            groups[metric.name.group, metric.name.tags].append(f"{metric.name.name}={shown}")
        return [
            f"{group} {' '.join(f'{name}={tag}' for name, tag in tags)}: {' '.join(sorted(values))}"
            for (group, tags), values in sorted(groups.items())
        ]


class _AdaptedReporter(MetricsReporter):
    """Wraps an object with some of a reporter's methods."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, *_METHODS)


_METHODS = ("configure", "init", "metric_change", "metric_removal", "close")


def _adapt(value: object) -> MetricsReporter | None:
    return _AdaptedReporter(value) if any(hasattr(value, method) for method in _METHODS[1:4]) else None


KIND = PluginKind(
    "metrics reporter",
    MetricsReporter,
    {"prometheus": PrometheusReporter, "log": LoggingReporter, "view": "headrace.telemetry.view_reporter.ViewReporter"},
    _adapt,
)
