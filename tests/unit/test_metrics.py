"""Kafka's metrics by name, their arithmetic on a fake clock, and the calls of reporters."""

from __future__ import annotations

import logging
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.config.sampling import Samples
from headrace.errors import ConfigError
from headrace.producer.metrics import ProducerMetrics
from headrace.telemetry.metrics import MetricName, MetricsReporter
from headrace.telemetry.reporters import LoggingReporter, PrometheusReporter


def words(text):
    return text.split()


# Read off a producer of Apache Kafka 4.3.0 before it was connected, and after it had sent a record.
PRODUCER_NAMES = words("""
    batch-size-avg batch-size-max batch-split-rate batch-split-total buffer-available-bytes buffer-exhausted-rate
    buffer-exhausted-total buffer-total-bytes bufferpool-wait-ratio bufferpool-wait-time-ns-total compression-rate-avg
    connection-close-rate connection-close-total connection-count connection-creation-rate connection-creation-total
    failed-authentication-rate failed-authentication-total failed-reauthentication-rate failed-reauthentication-total
    flush-time-ns-total incoming-byte-rate incoming-byte-total io-ratio io-time-ns-avg io-time-ns-total io-wait-ratio
    io-wait-time-ns-avg io-wait-time-ns-total metadata-age metadata-wait-time-ns-total network-io-rate network-io-total
    outgoing-byte-rate outgoing-byte-total produce-throttle-time-avg produce-throttle-time-max
    reauthentication-latency-avg reauthentication-latency-max record-error-rate record-error-total
    record-queue-time-avg record-queue-time-max record-retry-rate record-retry-total record-send-rate
    record-send-total record-size-avg record-size-max records-per-request-avg request-latency-avg request-latency-max
    request-rate request-size-avg request-size-max request-total requests-in-flight response-rate response-total
    select-rate select-total successful-authentication-no-reauth-total successful-authentication-rate
    successful-authentication-total successful-reauthentication-rate successful-reauthentication-total
    txn-abort-time-ns-total txn-begin-time-ns-total txn-commit-time-ns-total txn-init-time-ns-total
    txn-prepare-time-ns-total txn-send-offsets-time-ns-total waiting-threads
""")
OWN_NAMES = words("callback-error-total interceptor-error-total")  # Kafka's producer has none like them.
NODE_NAMES = words("""
    incoming-byte-rate incoming-byte-total outgoing-byte-rate outgoing-byte-total request-latency-avg
    request-latency-max request-rate request-size-avg request-size-max request-total response-rate response-total
""")
TOPIC_NAMES = words("""
    byte-rate byte-total compression-rate record-error-rate record-error-total record-retry-rate record-retry-total
    record-send-rate record-send-total
""")
NAMES_AT_THE_START = 79

WINDOW_MS = 30_000


class FakeClock:
    def __init__(self):
        self.now = 1000.0

    def monotonic_ms(self):
        return self.now

    def time_ms(self):
        return 1_700_000_000_000 + int(self.now)


class Recorder(MetricsReporter):
    """Records the calls."""

    def __init__(self):
        self.seen = []

    def init(self, metrics):
        self.seen.append(("init", len(list(metrics))))

    def metric_change(self, metric):
        self.seen.append(("change", metric.name.name))

    def metric_removal(self, metric):
        self.seen.append(("removal", metric.name.name))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def metrics(clock):
    return ProducerMetrics("c1", clock=clock)


def value(metrics, name, group="producer-metrics", **tags):
    more = ((tag.replace("_", "-"), given) for tag, given in tags.items())
    return metrics.snapshot()[MetricName(name, group, (("client-id", "c1"), *more))]


def names(metrics, group):
    return sorted(name.name for name in metrics.snapshot() if name.group == group)


# -- names -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P48")
def test_every_name_of_kafkas_producer_is_there_before_anything_happens(metrics):
    assert names(metrics, "producer-metrics") == sorted(PRODUCER_NAMES + OWN_NAMES)
    assert names(metrics, "app-info") == ["commit-id", "start-time-ms", "version"]
    assert value(metrics, "count", "kafka-metrics-count") == NAMES_AT_THE_START == len(metrics.snapshot())


def test_before_anything_happens_counts_are_zero_and_means_are_not_numbers(metrics, clock):
    for name, shown in metrics.snapshot().items():
        if name.name.endswith(("-rate", "-total", "-ratio")):
            assert shown == 0, name
        elif name.name.endswith(("-avg", "-max")):
            assert isinstance(shown, float), name
            assert math.isnan(shown), name
    assert value(metrics, "start-time-ms", "app-info") == clock.time_ms()


def test_a_broker_and_a_topic_bring_their_own_metrics(metrics):
    metrics.request_sent(-1, 10)
    metrics.connection_opened(1)
    metrics.record_retried("t1", 2)
    nodes = {dict(name.tags)["node-id"] for name in metrics.snapshot() if name.group == "producer-node-metrics"}
    assert nodes == {"node--1", "node-1"}
    assert sorted(set(names(metrics, "producer-node-metrics"))) == sorted(NODE_NAMES)
    assert names(metrics, "producer-topic-metrics") == sorted(TOPIC_NAMES)
    assert value(metrics, "record-retry-total", "producer-topic-metrics", topic="t1") == 2


def test_every_metric_has_a_description(metrics):
    metrics.request_sent(1, 10)
    metrics.record_retried("t1", 2)
    assert all(name.description for name in metrics.snapshot())


def drain(metrics, topic, size, records, ratio=1.0):
    metrics.batches_drained(topic, bytes=[size], records=[records], compression_ratios=[ratio], queue_times_ms=[7])


# -- what feeds them ---------------------------------------------------------------------------


def test_a_batch_and_its_request_and_its_response_are_seen_everywhere(metrics, clock):
    metrics.batches_drained(
        "t1", bytes=[600, 400], records=[10, 20], compression_ratios=[0.5, 1.0], queue_times_ms=[7, 3]
    )
    metrics.produce_request(30)
    metrics.request_sent(1, 1100)
    metrics.response(1, 50)
    metrics.produce_response(1, latency_ms=12, throttle_ms=4)
    metrics.response(1, 30)
    expected = {
        "batch-size-avg": 500,
        "batch-size-max": 600,
        "record-size-max": 120,  # the mean of a batch, before compression
        "record-size-avg": 70,
        "record-queue-time-avg": 5,
        "record-queue-time-max": 7,
        "compression-rate-avg": 0.75,
        "records-per-request-avg": 30,
        "record-send-total": 30,
        "record-send-rate": 1,  # in one window of 30 s
        "outgoing-byte-total": 1100,
        "request-total": 1,
        "request-size-max": 1100,
        "incoming-byte-total": 80,
        "response-total": 2,
        "network-io-total": 3,
        "request-latency-avg": 12,  # of produce requests only
        "produce-throttle-time-avg": 4,
        "produce-throttle-time-max": 4,
    }
    assert {name: value(metrics, name) for name in expected} == expected
    per_topic = {"record-send-total": 30, "byte-total": 1000, "compression-rate": 0.75}
    assert {name: value(metrics, name, "producer-topic-metrics", topic="t1") for name in per_topic} == per_topic
    per_node = {"request-total": 1, "response-total": 2, "incoming-byte-total": 80, "request-latency-max": 12}
    assert {name: value(metrics, name, "producer-node-metrics", node_id="node-1") for name in per_node} == per_node


def test_retries_errors_and_splits_are_counted(metrics):
    metrics.record_retried("t1", 5)
    metrics.record_failed("t1", 3)
    metrics.record_failed(None)
    metrics.batch_split()
    assert value(metrics, "record-retry-total") == 5
    assert value(metrics, "record-error-total") == 4
    assert value(metrics, "record-error-total", "producer-topic-metrics", topic="t1") == 3
    assert value(metrics, "batch-split-total") == 1


def test_connections_are_counted_as_kafka_counts_them(metrics):
    for _ in range(3):
        metrics.connection_opened(1)
    metrics.connection_closed(1)
    metrics.connection_failed(2)
    assert value(metrics, "connection-count") == 2
    assert value(metrics, "connection-creation-total") == 3
    assert value(metrics, "connection-close-total") == 2


def test_authentications_are_counted(metrics):
    metrics.authenticated(True)
    metrics.authenticated(False)
    metrics.reauthenticated(True, 8)
    metrics.reauthenticated(False, 9)
    assert value(metrics, "successful-authentication-total") == 1
    assert value(metrics, "successful-authentication-no-reauth-total") == 1
    assert value(metrics, "failed-authentication-total") == 1
    assert value(metrics, "successful-reauthentication-total") == 1
    assert value(metrics, "failed-reauthentication-total") == 1
    assert value(metrics, "reauthentication-latency-max") == 8


def test_the_io_thread_knows_how_it_spends_its_time(metrics, clock):
    for _ in range(3):
        clock.now += WINDOW_MS / 2
        metrics.io(select_ns=9e9, io_ns=6e9)
    assert value(metrics, "select-total") == 3
    assert value(metrics, "io-wait-time-ns-avg") == 9e9
    assert value(metrics, "io-time-ns-total") == 18e9
    assert value(metrics, "io-wait-ratio") == pytest.approx(27 / 30)
    assert value(metrics, "io-ratio") == pytest.approx(18 / 30)
    assert value(metrics, "select-rate") == pytest.approx(3 / 30)


def test_times_of_application_threads_are_added_up(metrics):
    metrics.flush(5)
    metrics.flush(6)
    metrics.metadata_wait(7)
    metrics.bufferpool_wait(3e9)
    metrics.buffer_exhausted()
    for call in ("init", "begin", "send-offsets", "prepare", "commit", "abort"):
        metrics.txn(call, 2)
        assert value(metrics, f"txn-{call}-time-ns-total") == 2
    assert value(metrics, "flush-time-ns-total") == 11
    assert value(metrics, "metadata-wait-time-ns-total") == 7
    assert value(metrics, "bufferpool-wait-time-ns-total") == 3e9
    assert value(metrics, "bufferpool-wait-ratio") == pytest.approx(0.1)
    assert value(metrics, "buffer-exhausted-total") == 1


def test_gauges_are_read_on_demand(metrics):
    free = [10]
    metrics.gauge("buffer-available-bytes", lambda: free[0])
    assert value(metrics, "buffer-available-bytes") == 10
    free[0] = 5
    assert value(metrics, "buffer-available-bytes") == 5
    with pytest.raises(ValueError, match="unknown gauge 'buffer-size': expected one of buffer-total-bytes"):
        metrics.gauge("buffer-size", lambda: 0)


def test_threads_that_record_at_once_lose_nothing(metrics):
    barrier = threading.Barrier(4)

    def work(_):
        barrier.wait()
        for i in range(500):
            metrics.flush(1)
            metrics.record_failed(f"t{i % 50}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert value(metrics, "flush-time-ns-total") == value(metrics, "record-error-total") == 2000
    assert sum(value(metrics, "record-error-total", "producer-topic-metrics", topic=f"t{i}") for i in range(50)) == 2000


def test_a_snapshot_may_be_taken_while_topics_come(metrics):
    done = threading.Event()

    def read():
        while not done.is_set():
            metrics.snapshot()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for i in range(300):
            drain(metrics, f"t{i}", 100, 1)
        done.set()
        reading.result(10)
    assert value(metrics, "count", "kafka-metrics-count") == NAMES_AT_THE_START + 300 * len(TOPIC_NAMES)


# -- sampling ----------------------------------------------------------------------------------


def test_a_burst_at_the_start_is_spread_over_a_window():
    samples = Samples(2, WINDOW_MS)
    samples.record(100, 0)
    assert samples.rate(0) == pytest.approx(100 / 30)
    assert samples.rate(15_000) == pytest.approx(100 / 45)
    assert samples.rate(45_000) == pytest.approx(100 / 45)


def test_a_steady_flow_has_its_rate_at_any_time():
    samples = Samples(2, WINDOW_MS)
    for now in range(0, 600_000, 100):
        samples.record(5, now)
        if now > 3 * WINDOW_MS:
            assert samples.rate(now) == pytest.approx(50, rel=0.01)
            assert samples.event_rate(now) == pytest.approx(10, rel=0.01)
    assert samples.total == 30_000
    assert samples.event_total(0) == 6000


def test_old_samples_count_for_the_total_only():
    samples = Samples(2, WINDOW_MS)
    samples.record(9, 0)
    samples.record(3, 40_000)
    assert (samples.maximum(40_000), samples.mean(40_000)) == (9, 6)
    assert (samples.maximum(70_000), samples.mean(70_000)) == (3, 3)
    assert samples.rate(100_001) == 0
    assert math.isnan(samples.maximum(100_001))
    assert math.isnan(samples.mean(100_001))
    assert samples.total == 12


def test_asking_changes_nothing():
    samples = Samples(3, 1000)
    samples.record(1, 0)
    assert samples.rate(1e9) == 0
    assert samples.rate(0) == pytest.approx(1 / 2)


def test_negative_values_have_a_maximum_too():
    samples = Samples()
    samples.record(-5, 0)
    assert samples.maximum(0) == -5


@pytest.mark.parametrize("windows", [1, 2, 10])
def test_however_many_windows_there_are_no_more_are_kept(windows):
    samples = Samples(windows, 10)
    for now in range(1000):
        samples.record(1, now)
        assert len(samples._windows) <= windows + 1
    assert samples.rate(1000) == pytest.approx(1000, rel=0.15)


# -- reporters ---------------------------------------------------------------------------------


@pytest.mark.behaviour("P48")
def test_a_reporter_gets_existing_new_and_removed_metrics(clock):
    recorder = Recorder()
    metrics = ProducerMetrics("c1", clock=clock, reporters=[recorder])
    assert recorder.seen == [("init", NAMES_AT_THE_START)]
    metrics.request_sent(1, 10)
    assert sorted(recorder.seen[1:]) == [("change", name) for name in sorted(NODE_NAMES)]
    recorder.seen.clear()
    metrics.close()
    assert {what for what, _ in recorder.seen} == {"removal"}
    assert len(recorder.seen) == NAMES_AT_THE_START + len(NODE_NAMES)
    assert not metrics.snapshot()
    metrics.request_sent(1, 10)  # a late word from the I/O thread does no harm


def test_a_reporter_that_fails_stops_neither_the_producer_nor_the_next_reporter(clock, caplog):
    class Broken(MetricsReporter):
        def init(self, metrics):
            raise RuntimeError("no")

        metric_change = init

    recorder = Recorder()
    metrics = ProducerMetrics("c1", clock=clock, reporters=[Broken(), recorder])
    metrics.request_sent(1, 10)
    metrics.close()
    assert len(recorder.seen) == 1 + len(NODE_NAMES) + NAMES_AT_THE_START + len(NODE_NAMES)
    assert "metrics reporter failed" in caplog.text


def test_prometheus_sees_the_metrics_of_all_producers_in_one_family(clock):
    prometheus = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    registry = prometheus.CollectorRegistry(auto_describe=True)
    reporters = [PrometheusReporter(registry), PrometheusReporter(registry)]
    both = [ProducerMetrics(f"c{i}", clock=clock, reporters=[reporters[i]]) for i in range(2)]
    drain(both[0], "t1", 600, 10, 0.5)
    both[1].produce_request(3)
    assert registry.get_sample_value("kafka_producer_topic_byte_total", {"client_id": "c0", "topic": "t1"}) == 600
    assert registry.get_sample_value("kafka_producer_batch_size_avg", {"client_id": "c0"}) == 600
    assert registry.get_sample_value("kafka_producer_record_send_total", {"client_id": "c1"}) == 3
    text = prometheus.generate_latest(registry).decode()
    assert text.count("# TYPE kafka_producer_record_send_total counter") == 1
    assert 'kafka_producer_metrics_count{client_id="c1"} 79.0' in text

    both[0].close()
    reporters[0].close()
    assert registry.get_sample_value("kafka_producer_record_send_total", {"client_id": "c0"}) is None
    assert registry.get_sample_value("kafka_producer_record_send_total", {"client_id": "c1"}) == 3


def test_a_prometheus_reporter_may_serve_two_producers(clock):
    prometheus = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    registry = prometheus.CollectorRegistry()
    reporter = PrometheusReporter(registry)
    first, second = (ProducerMetrics(name, clock=clock, reporters=[reporter]) for name in ("c1", "c2"))
    first.close()
    reporter.close()
    assert registry.get_sample_value("kafka_producer_request_total", {"client_id": "c2"}) == 0
    second.close()
    reporter.close()
    assert registry.get_sample_value("kafka_producer_request_total", {"client_id": "c2"}) is None


def test_without_prometheus_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[metrics\]'"):
        PrometheusReporter()


def test_the_log_gets_a_line_for_each_group_without_the_zeros(clock, caplog):
    reporter = LoggingReporter()
    metrics = ProducerMetrics("c1", clock=clock, reporters=[reporter])
    drain(metrics, "t1", 1_234_567, 10, 1 / 3)
    try:
        with caplog.at_level(logging.INFO, "headrace.metrics"):
            reporter.report()
    finally:
        reporter.close()
    (topic,) = [line for line in caplog.messages if line.startswith("producer-topic-metrics")]
    assert topic.startswith("producer-topic-metrics client-id=c1 topic=t1: byte-rate=")
    assert "byte-total=1234567" in topic
    assert "compression-rate=0.3333" in topic
    assert "record-error" not in topic
    assert "nan" not in caplog.text


def test_the_log_is_written_now_and_then_until_the_end(clock, caplog):
    reporter = LoggingReporter(interval_seconds=0.001)
    written = threading.Event()
    reporter.report = written.set  # type: ignore[method-assign]
    ProducerMetrics("c1", clock=clock, reporters=[reporter])
    assert written.wait(10)
    reporter.close()
    assert reporter._thread is not None
    assert not reporter._thread.is_alive()
