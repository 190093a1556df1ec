"""Metrics that other projects' clients push (KIP-714): received, and exported to Prometheus."""

from __future__ import annotations

import urllib.error
import urllib.request
from functools import partial

import pytest
from confluent_kafka import Producer

from headrace.broker import EmbeddedBroker, control
from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.errors import BrokerError, Code
from headrace.wire.api.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from headrace.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from headrace.wire.fields import ZERO_UUID
from tests.support.otlp_messages import metric, metrics_data, number_point
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.waiting import eventually

BYTES_MAX = 4096
SECONDS_MAX = 30


@pytest.fixture(scope="module")
def broker():
    options = {"headrace.metrics.listener": "127.0.0.1:0", "telemetry.max.bytes": BYTES_MAX}
    with EmbeddedBroker(options) as running:
        yield running


@pytest.fixture
def subscription(broker):
    """A function that creates a subscription; deleted afterwards."""
    resource = ConfigResource(ResourceKind.CLIENT_METRICS, unique("subscription"))
    with AdminClient(broker.bootstrap) as admin:

        def subscribe(**options: str) -> ConfigResource:
            admin.alter_configs({resource: {name.replace("_", "."): value for name, value in options.items()}})
            return resource

        yield subscribe
        admin.alter_configs({resource: dict.fromkeys(("metrics", "interval.ms", "match"))})


def call(broker, op, **arguments):
    facts = control.read_run_file(broker.data_dir)
    assert facts is not None
    return control.call(facts["control"], op, **arguments)


def clients(broker, client_id):
    return [client for client in call(broker, "clients") if client["client_id"] == client_id]


def scrape(broker, path=""):
    facts = control.read_run_file(broker.data_dir)
    assert facts is not None
    with urllib.request.urlopen(facts["metrics"] + path, timeout=SECONDS_MAX) as response:
        return response.read().decode()


def test_metrics_of_librdkafka_are_received_and_exported(broker, subscription):
    client_id = unique("rdkafka")
    subscription(metrics="org.apache.kafka.producer.", interval_ms="200", match=f"client_id={client_id}")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": client_id, "enable.metrics.push": True})
    topic = unique("pushed")

    def received():
        producer.produce(topic, b"x")
        producer.poll(0)
        known = clients(broker, client_id)
        return known[0] if known and known[0]["metrics"] else None

    client = eventually("pushed metrics", received)
    assert (client["client_software_name"], client["subscribed"]) == (
        "confluent-kafka-python",
        ["org.apache.kafka.producer."],
    )
    assert client["client_source_address"] == "127.0.0.1"
    points = call(broker, "clients.metrics", id=client["client_instance_id"])
    assert {point["name"] for point in points} >= {"org.apache.kafka.producer.connection.creation.total"}
    text = scrape(broker)
    assert "\nheadrace_broker_requests_total " in text
    (line,) = [
        line
        for line in text.splitlines()
        if line.startswith("org_apache_kafka_producer_connection_creation_total{")
        and f'client_id="{client_id}"' in line
    ]
    assert float(line.rpartition(" ")[2]) >= 1
    assert producer.flush(SECONDS_MAX) == 0


def test_metrics_of_javas_clients_are_received(broker, subscription, java_client):
    producer, consumer, topic = unique("java-producer"), unique("java-consumer"), unique("pushed")
    broker.create_topic(topic)
    subscription(metrics="*", interval_ms="1000", match="client_id=java-.*")
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    java_client.tool(
        *("ProducerPerformance", "--topic", topic, "--num-records", 30, "--record-size", 10, "--throughput", 10),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", f"client.id={producer}"),
    )
    java_client.tool(
        *("consumer.ConsoleConsumer", *server, "--from-beginning", "--timeout-ms", 3_000),
        *("--command-property", f"client.id={consumer}"),
        may_fail=True,  # it times out waiting for more, which it reports as an error
    )
    for client_id, kind in ((producer, "producer"), (consumer, "consumer")):
        (client,) = eventually(f"metrics of {client_id}", partial(clients, broker, client_id))
        assert (client["client_software_name"], client["client_software_version"]) == ("apache-kafka-java", "4.3.0")
        names = {point["name"] for point in call(broker, "clients.metrics", id=client["client_instance_id"])}
        assert any(name.startswith(f"org.apache.kafka.{kind}.") for name in names), names


# -- the rules, by a raw connection --------------------------------------------------------------


@pytest.fixture
def raw(broker):
    with Connection(broker.bootstrap) as connection:
        yield connection


def subscribed(raw, instance_id=ZERO_UUID):
    return raw.call(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


def pushed(raw, response, metrics, codec=NONE, **changes):
    fields = {
        "client_instance_id": response.client_instance_id,
        "subscription_id": response.subscription_id,
        "compression_type": codec,
        "metrics": metrics,
    }
    return raw.call(PushTelemetryRequest(**{**fields, **changes}), 0).error_code


METRICS = metrics_data(metric("sent", [number_point(5, topic="orders")]))


def test_a_new_client_gets_an_instance_id_and_limits(raw, subscription):
    subscription(metrics="a,b", interval_ms="5000")
    response = subscribed(raw)
    assert response.client_instance_id != ZERO_UUID
    assert list(response.accepted_compression_types) == [ZSTD, LZ4, GZIP, SNAPPY]
    assert (response.push_interval_ms, response.telemetry_max_bytes) == (5000, BYTES_MAX)
    assert list(response.requested_metrics) == ["a", "b"]
    again = subscribed(raw, response.client_instance_id)
    assert again.error_code == Code.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_metrics_are_accepted_in_every_compression(broker, raw, subscription, codec):
    subscription(metrics="*", interval_ms="5000")
    response = subscribed(raw)
    assert pushed(raw, response, bytes(compress(codec, METRICS)), codec) == Code.NONE
    instance_id = next(
        client["client_instance_id"]
        for client in call(broker, "clients")
        if client["client_instance_id"].replace("-", "") == bytes(response.client_instance_id).hex()
    )
    assert call(broker, "clients.metrics", id=instance_id) == [
        {"name": "sent", "attributes": {"topic": "orders"}, "value": 5.0, "is_sum": False}
    ]


def test_pushes_that_break_the_rules_are_rejected(raw, subscription):
    subscription(metrics="*", interval_ms="5000")

    def code(*args, **changes):
        return pushed(raw, subscribed(raw), *args, **changes)

    assert code(METRICS, subscription_id=1) == Code.UNKNOWN_SUBSCRIPTION_ID
    assert code(METRICS, client_instance_id=ZERO_UUID) == Code.INVALID_REQUEST
    assert code(METRICS, codec=9) == Code.UNSUPPORTED_COMPRESSION_TYPE
    assert code(bytes(BYTES_MAX + 1)) == Code.TELEMETRY_TOO_LARGE
    assert code(b"\x0a\x05\x00") == Code.INVALID_RECORD
    assert code(b"not zstd", codec=ZSTD) == Code.INVALID_RECORD
    bomb = bytes(compress(ZSTD, bytes(100 * BYTES_MAX)))
    assert len(bomb) < BYTES_MAX
    assert code(bomb, codec=ZSTD) == Code.TELEMETRY_TOO_LARGE
    assert code(b"") == Code.NONE


def test_subscriptions_are_validated_described_and_deleted(broker, subscription):
    with AdminClient(broker.bootstrap) as admin:
        resource = subscription(metrics="a,b", match="client_id=x.*")
        entries = admin.describe_configs([resource])[resource]
        assert {name: (entry.value, entry.is_default) for name, entry in entries.items()} == {
            "metrics": ("a,b", False),
            "interval.ms": ("300000", True),
            "match": ("client_id=x.*", False),
        }
        for options in ({"interval_ms": "99"}, {"match": "bogus=1"}, {"match": "client_id=("}, {"bogus": "1"}):
            with pytest.raises(BrokerError) as caught:
                subscription(**options)
            assert caught.value.code == Code.INVALID_CONFIG


def test_other_paths_of_the_metrics_listener_are_not_found(broker):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(broker, "/more")
