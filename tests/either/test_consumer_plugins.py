"""The consumer's metrics and interceptors, on Apache Kafka and on the headrace broker."""

from __future__ import annotations

import logging
import math
import time

import prometheus_client
import pytest

from headrace import Consumer, ConsumerInterceptor, MetricsReporter, OffsetAndMetadata, TopicPartition
from headrace.telemetry.reporters import LoggingReporter, PrometheusReporter
from tests.either.test_consumer import SECONDS_MAX, fill, open_consumer, read, unique

FETCH = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"
CONSUMER = "consumer-metrics"


def value(consumer: Consumer, name: str, group: str = FETCH, **tags: str) -> float:
    """Return the value of the only metric with that name and these tags, apart from the client's."""
    (number,) = (
        value
        for key, value in consumer.metrics().items()
        if key.name == name and key.group == group and {t: v for t, v in key.tags if t != "client-id"} == tags
    )
    assert isinstance(number, float)
    return number


def poll_until(condition, consumer: Consumer) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        consumer.poll(0.1)


@pytest.mark.behaviour("C07")
def test_metrics_count_what_was_consumed(either):
    topic = fill(either, 100, 2)
    names = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with open_consumer(either) as consumer:
        consumer.assign(names)
        read(consumer, 100)
        consumer.poll(0)
        assert value(consumer, "records-consumed-total") == 100
        assert value(consumer, "records-consumed-total", topic=topic) == 100
        assert value(consumer, "records-consumed-rate") > 0
        assert value(consumer, "bytes-consumed-total") > 1000
        assert value(consumer, "records-per-request-avg") > 0
        assert value(consumer, "fetch-size-max") > 0
        assert value(consumer, "fetch-total") >= 1
        assert 0 <= value(consumer, "fetch-latency-avg") <= value(consumer, "fetch-latency-max")
        assert value(consumer, "records-lag-max") == 0
        for name in names:
            tags = {"topic": topic, "partition": str(name.partition)}
            assert value(consumer, "records-lag", **tags) == 0
            assert value(consumer, "records-lead", **tags) == 50
            assert value(consumer, "records-lag-max", **tags) == 0
            assert value(consumer, "preferred-read-replica", **tags) == -1
        assert value(consumer, "assigned-partitions", COORDINATOR) == 2
        assert value(consumer, "request-total", CONSUMER) > 2
        assert value(consumer, "incoming-byte-total", CONSUMER) > 1000
        assert value(consumer, "connection-count", CONSUMER) >= 1
        assert 0 <= value(consumer, "poll-idle-ratio-avg", CONSUMER) <= 1
        assert value(consumer, "time-between-poll-max", CONSUMER) > 0
        assert 0 <= value(consumer, "last-poll-seconds-ago", CONSUMER) < SECONDS_MAX
        assert value(consumer, "io-wait-time-ns-total", CONSUMER) > 0
        consumer.assign(names[:1])
        tags = {"topic": topic, "partition": "1"}
        assert not [key for key in consumer.metrics() if dict(key.tags).items() >= tags.items()]


@pytest.mark.behaviour("C07")
def test_the_lag_is_that_of_the_position(either):
    topic = fill(either, 100)
    name = TopicPartition(topic, 0)
    with open_consumer(either, max_poll_records=10) as consumer:
        consumer.assign([name])
        read(consumer, 30)
        assert value(consumer, "records-lag", topic=topic, partition="0") == 70 == consumer.lag(name)
        assert value(consumer, "records-lead", topic=topic, partition="0") == 30


@pytest.mark.behaviour("C07")
def test_columns_are_counted_as_records_are(either):
    topic = fill(either, 100)
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        count = 0
        while count < 100:
            batch = consumer.poll_arrow(SECONDS_MAX)
            assert batch is not None
            count += batch.num_rows
        assert value(consumer, "records-consumed-total", topic=topic) == 100


@pytest.mark.behaviour("C07")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_metrics_of_a_member_show_its_group(either, protocol):
    topic, group = fill(either, 10), unique("group")
    options = {"heartbeat_interval_ms": 100} if protocol == "classic" else {"group_protocol": protocol}
    with open_consumer(either, group_id=group, **options) as consumer:
        assert value(consumer, "last-rebalance-seconds-ago", COORDINATOR) == -1
        assert math.isnan(value(consumer, "rebalance-latency-avg", COORDINATOR))
        consumer.subscribe([topic])
        read(consumer, 10)
        consumer.commit()
        consumer.committed([TopicPartition(topic, 0)])
        poll_until(lambda: value(consumer, "heartbeat-total", COORDINATOR) >= 2, consumer)
        assert value(consumer, "rebalance-total", COORDINATOR) == 1
        assert value(consumer, "rebalance-latency-max", COORDINATOR) >= 0
        assert value(consumer, "rebalance-rate-per-hour", COORDINATOR) > 0
        assert (value(consumer, "join-total", COORDINATOR) > 0) == (protocol == "classic")
        assert (value(consumer, "sync-total", COORDINATOR) > 0) == (protocol == "classic")
        assert value(consumer, "commit-total", COORDINATOR) >= 1
        assert value(consumer, "commit-latency-max", COORDINATOR) > 0
        assert value(consumer, "heartbeat-response-time-max", COORDINATOR) >= 0
        assert value(consumer, "partition-assigned-latency-max", COORDINATOR) >= 0
        assert 0 <= value(consumer, "last-heartbeat-seconds-ago", COORDINATOR) < SECONDS_MAX
        assert 0 <= value(consumer, "last-rebalance-seconds-ago", COORDINATOR) < SECONDS_MAX
        assert value(consumer, "commit-sync-time-ns-total", CONSUMER) > 0
        assert value(consumer, "committed-time-ns-total", CONSUMER) > 0


class Recorder(MetricsReporter):
    """Keeps the names of the current metrics."""

    def __init__(self):
        self.names = set()
        self.is_closed = False

    def init(self, metrics):
        self.names = {metric.name for metric in metrics}

    def metric_change(self, metric):
        self.names.add(metric.name)

    def metric_removal(self, metric):
        self.names.remove(metric.name)

    def close(self):
        self.is_closed = True


@pytest.mark.behaviour("C07")
def test_reporters_get_the_metrics_of_partitions_as_they_come_and_go(either):
    topic, recorder = fill(either, 10, 2), Recorder()
    registry = prometheus_client.CollectorRegistry()
    prometheus, log = PrometheusReporter(registry), LoggingReporter()
    reporters = [recorder, prometheus, log]
    with open_consumer(either, metric_reporters=reporters, client_id="shown") as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        assert recorder.names == consumer.metrics().keys()
        assert len([key for key in recorder.names if key.name == "records-lag"]) == 2
        read(consumer, 10)
        consumer.assign([TopicPartition(topic, 0)])
        assert len([key for key in recorder.names if key.name == "records-lag"]) == 1
        assert recorder.names == consumer.metrics().keys()
        text = prometheus_client.generate_latest(registry).decode()
        assert f'kafka_consumer_fetch_manager_records_consumed_total{{client_id="shown",topic="{topic}"}} 10.0' in text
        assert 'kafka_consumer_metrics_count{client_id="shown"}' in text
        assert any(line.startswith("consumer-metrics client-id=shown: ") for line in log.lines())
    assert (recorder.names, recorder.is_closed) == (set(), True)
    assert "shown" not in prometheus_client.generate_latest(registry).decode()


class Stamp(ConsumerInterceptor):
    """Adds a suffix to values, drops records without a key, and keeps committed offsets."""

    def __init__(self):
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.calls: list[str] = []

    def configure(self, config):
        self.calls.append(f"configure {config['client.id']}")

    def on_consume(self, records):
        self.calls.append("on_consume")
        return [record._replace(value=record.value + b"!") for record in records if record.key is not None]

    def on_commit(self, offsets):
        self.commits.append(dict(offsets))

    def close(self):
        self.calls.append("close")


@pytest.mark.behaviour("C07")
def test_interceptors_change_records_and_see_commits(either):
    topic, stamp = fill(either, 3), Stamp()
    name = TopicPartition(topic, 0)
    options = {"group_id": unique("group"), "client_id": "stamped", "enable_auto_commit": False}
    with open_consumer(either, interceptor_classes=stamp, **options) as consumer:
        consumer.assign([name])
        assert [record.value for record in read(consumer, 1)] == [b"value 0!"]
        poll_until(lambda: consumer.position(name) == 3, consumer)
        consumer.commit()
        assert [offsets[name].offset for offsets in stamp.commits] == [3]
        consumer.commit_async({name: 2})
        poll_until(lambda: len(stamp.commits) == 2, consumer)
        assert stamp.commits[1][name].offset == 2
    assert stamp.calls[0] == "configure stamped"
    assert stamp.calls[-1] == "close"


@pytest.mark.behaviour("C07")
def test_automatic_commits_reach_interceptors_also_at_the_end(either):
    topic, stamp = fill(either, 3), Stamp()
    with open_consumer(either, interceptor_classes=stamp, group_id=unique("group")) as consumer:
        consumer.subscribe([topic])
        read(consumer, 1)
    assert [offsets[TopicPartition(topic, 0)].offset for offsets in stamp.commits] == [3]


class Broken:
    """An interceptor by its methods only, which raises."""

    def on_consume(self, records):
        raise RuntimeError("on_consume is broken")

    def on_commit(self, offsets):
        raise RuntimeError("on_commit is broken")


@pytest.mark.behaviour("C07")
def test_errors_of_interceptors_are_logged_and_counted(either, caplog):
    topic = fill(either, 3)
    name = TopicPartition(topic, 0)
    with open_consumer(either, interceptor_classes=[Broken(), Stamp()], group_id=unique("group")) as consumer:
        consumer.assign([name])
        with caplog.at_level(logging.WARNING):
            assert [record.value for record in read(consumer, 1)] == [b"value 0!"]
        assert "Broken.on_consume failed" in caplog.text
        assert value(consumer, "interceptor-error-total", CONSUMER) == 1
