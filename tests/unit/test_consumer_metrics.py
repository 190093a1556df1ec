"""Kafka's consumer metrics by name, and their arithmetic on a fake clock."""

from __future__ import annotations

import math

import pytest

from headrace.client.plugins import PrefixedLogger
from headrace.consumer.metrics import ConsumerMetrics, ConsumerObserver, FetchTotals, PartitionGauges, ReadData
from headrace.errors import AuthenticationError
from headrace.telemetry.metrics import MetricName
from headrace.types import TopicPartition
from headrace.wire.api import ApiKey
from tests.support.fake_network import FakeClock

FETCH = "consumer-fetch-manager-metrics"
COORDINATOR = "consumer-coordinator-metrics"
CONSUMER = "consumer-metrics"

# Read off a consumer of Apache Kafka 4.3.0 before it was connected.
NAMES = {
    CONSUMER: """
        commit-sync-time-ns-total committed-time-ns-total connection-close-rate connection-close-total connection-count
        connection-creation-rate connection-creation-total failed-authentication-rate failed-authentication-total
        failed-reauthentication-rate failed-reauthentication-total incoming-byte-rate incoming-byte-total io-ratio
        io-time-ns-avg io-time-ns-total io-wait-ratio io-wait-time-ns-avg io-wait-time-ns-total last-poll-seconds-ago
        network-io-rate network-io-total outgoing-byte-rate outgoing-byte-total poll-idle-ratio-avg
        reauthentication-latency-avg reauthentication-latency-max request-rate request-size-avg request-size-max
        request-total response-rate response-total select-rate select-total successful-authentication-no-reauth-total
        successful-authentication-rate successful-authentication-total successful-reauthentication-rate
        successful-reauthentication-total time-between-poll-avg time-between-poll-max
    """,
    FETCH: """
        bytes-consumed-rate bytes-consumed-total fetch-latency-avg fetch-latency-max fetch-rate fetch-size-avg
        fetch-size-max fetch-throttle-time-avg fetch-throttle-time-max fetch-total records-consumed-rate
        records-consumed-total records-lag-max records-lead-min records-per-request-avg
    """,
    COORDINATOR: """
        assigned-partitions commit-latency-avg commit-latency-max commit-rate commit-total
        failed-rebalance-rate-per-hour failed-rebalance-total heartbeat-rate heartbeat-response-time-max
        heartbeat-total join-rate join-time-avg join-time-max join-total last-heartbeat-seconds-ago
        last-rebalance-seconds-ago partition-assigned-latency-avg partition-assigned-latency-max
        partition-lost-latency-avg partition-lost-latency-max partition-revoked-latency-avg
        partition-revoked-latency-max rebalance-latency-avg rebalance-latency-max rebalance-latency-total
        rebalance-rate-per-hour rebalance-total sync-rate sync-time-avg sync-time-max sync-total
    """,
}
OWN_NAMES = ["interceptor-error-total"]  # Kafka's consumer has none like it.
PARTITION_NAMES = [
    "preferred-read-replica",
    "records-lag",
    "records-lag-avg",
    "records-lag-max",
    "records-lead",
    "records-lead-avg",
    "records-lead-min",
]

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Rig:
    """Metrics whose partitions have a lag of 7, a lead of 3 and no preferred replica."""

    def __init__(self):
        self.clock = FakeClock()
        gauges = PartitionGauges(lambda name: 7, lambda name: 3, lambda name: None)
        self.metrics = ConsumerMetrics("c1", gauges, clock=self.clock, log=PrefixedLogger("consumer"))
        self.observer = ConsumerObserver(self.metrics, authenticates=True)

    def names(self, group, **tags):
        return sorted(name.name for name in self.metrics.snapshot() if name.group == group and self._is(name, tags))

    def value(self, name, group=FETCH, **tags):
        return self.metrics.snapshot()[MetricName(name, group, (("client-id", "c1"), *tags.items()))]

    @staticmethod
    def _is(name, tags):
        return {tag: value for tag, value in name.tags if tag != "client-id"} == tags


@pytest.fixture
def rig():
    return Rig()


@pytest.mark.behaviour("C07")
def test_every_name_of_kafkas_consumer_is_there_before_anything_happens(rig):
    assert rig.names(CONSUMER) == sorted(NAMES[CONSUMER].split() + OWN_NAMES)
    assert rig.names(FETCH) == NAMES[FETCH].split()
    assert rig.names(COORDINATOR) == NAMES[COORDINATOR].split()
    assert rig.names("app-info") == ["commit-id", "start-time-ms", "version"]
    assert all(name.description for name in rig.metrics.snapshot())


@pytest.mark.behaviour("C07")
def test_data_count_when_they_are_read_and_fetches_when_all_of_them_are(rig):
    totals = FetchTotals(parts=2)
    rig.metrics.data_read([ReadData(P0, 1000, 10, 5, 20, totals)])
    assert rig.value("bytes-consumed-total") == 1000
    assert math.isnan(rig.value("fetch-size-avg"))
    rig.metrics.data_read([ReadData(P1, 500, 30, 2, None, totals)])
    assert (rig.value("fetch-size-max"), rig.value("records-per-request-avg")) == (1500, 40)
    assert (rig.value("records-consumed-total"), rig.value("records-consumed-total", topic="t")) == (40, 40)
    assert (rig.value("records-lag-max"), rig.value("records-lead-min")) == (5, 20)
    assert rig.value("records-lag-avg", topic="t", partition="1") == 2
    assert math.isnan(rig.value("records-lead-avg", topic="t", partition="1"))
    assert rig.value("records-lead-avg", topic="t", partition="0") == 20


@pytest.mark.behaviour("C07")
def test_partitions_have_metrics_while_they_are_assigned(rig):
    rig.metrics.assigned([P0, P1])
    assert rig.names(FETCH, topic="t", partition="1") == PARTITION_NAMES
    assert rig.value("records-lag", topic="t", partition="1") == 7
    assert rig.value("records-lead", topic="t", partition="1") == 3
    assert rig.value("preferred-read-replica", topic="t", partition="1") == -1
    rig.metrics.assigned([P0])
    assert rig.names(FETCH, topic="t", partition="1") == []
    assert rig.names(FETCH, topic="t", partition="0") == PARTITION_NAMES


def test_polls_are_idle_while_they_wait(rig):
    assert rig.value("last-poll-seconds-ago", CONSUMER) == -1
    for _ in range(3):
        rig.metrics.poll_started()
        rig.clock.advance(30)
        rig.metrics.poll_ended()
        rig.clock.advance(70)
    assert rig.value("time-between-poll-avg", CONSUMER) == 100
    assert rig.value("poll-idle-ratio-avg", CONSUMER) == pytest.approx((1 + 0.3 + 0.3) / 3)
    assert rig.value("last-poll-seconds-ago", CONSUMER) == pytest.approx(0.1)


def test_a_rebalance_lasts_from_the_first_join_until_partitions_are_assigned(rig):
    rig.observer.request_sent(1, ApiKey.JOIN_GROUP, 100)
    rig.clock.advance(50)
    rig.observer.request_sent(1, ApiKey.JOIN_GROUP, 100)  # the coordinator has given it a member id
    rig.clock.advance(50)
    rig.metrics.rebalanced()
    rig.clock.advance(2000)
    assert rig.value("rebalance-latency-max", COORDINATOR) == 100
    assert (rig.value("rebalance-total", COORDINATOR), rig.value("failed-rebalance-total", COORDINATOR)) == (1, 1)
    assert rig.value("last-rebalance-seconds-ago", COORDINATOR) == 2
    rig.observer.request_sent(1, ApiKey.JOIN_GROUP, 100)
    assert rig.value("failed-rebalance-total", COORDINATOR) == 1


@pytest.mark.parametrize(
    ("api_key", "name"),
    [
        (ApiKey.OFFSET_COMMIT, "commit-latency-max"),
        (ApiKey.HEARTBEAT, "heartbeat-response-time-max"),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, "heartbeat-response-time-max"),
        (ApiKey.JOIN_GROUP, "join-time-max"),
        (ApiKey.SYNC_GROUP, "sync-time-max"),
    ],
)
def test_latencies_of_the_coordinator_are_by_request(rig, api_key, name):
    rig.observer.request_sent(1, api_key, 100)
    rig.observer.response_received(1, api_key, 50, 12.0)
    rig.observer.response_received(1, ApiKey.FETCH, 50, 99.0)
    assert rig.value(name, COORDINATOR) == 12
    assert rig.value("incoming-byte-total", CONSUMER) == 100


def test_connections_are_counted(rig):
    rig.observer.connection_opened(1)
    rig.observer.connection_failed(2, AuthenticationError("no"))
    rig.metrics.fetched(1, 8.0, 2.0)
    assert rig.value("connection-count", CONSUMER) == 1
    assert rig.value("successful-authentication-total", CONSUMER) == 1
    assert rig.value("failed-authentication-total", CONSUMER) == 1
    tags = (("client-id", "c1"), ("node-id", "node-1"))
    assert rig.metrics.snapshot()[MetricName("request-latency-avg", "consumer-node-metrics", tags)] == 8
    assert (rig.value("fetch-latency-avg"), rig.value("fetch-throttle-time-max")) == (8, 2)
