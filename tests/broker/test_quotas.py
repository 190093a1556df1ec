"""Client quotas: set, described and enforced."""

from __future__ import annotations

import time

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.access import (
    AlterClientQuotasRequest,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    EntryDataRequest,
    OpData,
)
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.metadata import ApiVersionsRequest, MetadataRequest
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.log_rig import batch
from tests.support.peers.connection import Connection
from tests.support.topics import unique

EXACT, DEFAULT, ANY = 0, 1, 2


def entry(parts, **values):
    return EntryDataRequest(
        entity=[EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in parts.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )


def alter(connection, *entries, validate_only=False):
    response = connection.call(AlterClientQuotasRequest(entries=entries, validate_only=validate_only), 1)
    return [row.error_code for row in response.entries]


def describe(connection, *components, strict=False):
    rows = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    response = connection.call(DescribeClientQuotasRequest(components=rows, strict=strict), 1)
    assert response.error_code == 0, response
    return {
        tuple((part.entity_type, part.entity_name) for part in row.entity): {v.key: v.value for v in row.values}
        for row in response.entries
    }


@pytest.fixture
def client_id(connection):
    """Yield a unique client id; delete its quotas afterwards."""
    name = unique("client")
    yield name
    gone = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage"))
    assert alter(connection, entry({"client_id": name}, **gone)) == [Code.NONE]


def test_quotas_are_found_by_entity(connection, client_id):
    user = unique("ann")
    both = {"user": user, "client_id": client_id}
    assert alter(
        connection,
        entry({"client_id": client_id}, producer_byte_rate=1e6, request_percentage=12.5),
        entry(both, consumer_byte_rate=2e6),
        entry({"user": user}, producer_byte_rate=3e6),
        entry({"ip": "10.1.2.3"}, connection_creation_rate=5.0),
    ) == [0, 0, 0, 0]
    alone, together = (("client-id", client_id),), (("client-id", client_id), ("user", user))
    exact = ("client-id", EXACT, client_id)
    assert describe(connection, exact, strict=True) == {alone: {"producer_byte_rate": 1e6, "request_percentage": 12.5}}
    assert describe(connection, exact).keys() == {alone, together}
    assert describe(connection, exact, ("user", ANY, None)).keys() == {together}
    assert describe(connection, ("user", EXACT, user), strict=True) == {(("user", user),): {"producer_byte_rate": 3e6}}
    assert describe(connection, ("ip", ANY, None)) == {(("ip", "10.1.2.3"),): {"connection_creation_rate": 5.0}}
    assert describe(connection, ("user", DEFAULT, None)) == {}
    assert describe(connection).keys() >= {alone, together}
    assert alter(
        connection,
        entry(both, consumer_byte_rate=None),
        entry({"user": user}, producer_byte_rate=None),
        entry({"ip": "10.1.2.3"}, connection_creation_rate=None),
    ) == [0, 0, 0]
    assert describe(connection, ("user", EXACT, user)) == {}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (entry({"client_id": "x"}, speed=1.0), Code.INVALID_REQUEST),
        (entry({"client_id": "x"}, connection_creation_rate=1.0), Code.INVALID_REQUEST),
        (entry({"client_id": "x"}, producer_byte_rate=-1.0), Code.INVALID_REQUEST),
        (entry({"client_id": "x"}, producer_byte_rate=1.5), Code.INVALID_REQUEST),
        (entry({"client_id": "x"}, request_percentage=float("nan")), Code.INVALID_REQUEST),
        (entry({"ip": "10.0.0.1", "user": "x"}, connection_creation_rate=1.0), Code.INVALID_REQUEST),
        (entry({"client_id": ""}, producer_byte_rate=1.0), Code.INVALID_REQUEST),
        (entry({"planet": "x"}, producer_byte_rate=1.0), Code.UNSUPPORTED_VERSION),
        (entry({}, producer_byte_rate=1.0), Code.INVALID_REQUEST),
    ],
)
def test_invalid_quotas_are_rejected_and_the_others_set(connection, client_id, wrong, code):
    assert alter(connection, wrong, entry({"client_id": client_id}, producer_byte_rate=7.0)) == [code, Code.NONE]
    assert describe(connection, ("client-id", EXACT, "x")) == {}
    assert describe(connection, ("client-id", EXACT, client_id))


def test_a_dry_run_changes_nothing(connection, client_id):
    assert alter(connection, entry({"client_id": client_id}, producer_byte_rate=7.0), validate_only=True) == [0]
    assert describe(connection, ("client-id", EXACT, client_id)) == {}


@pytest.mark.behaviour("B06")
def test_a_producer_above_its_quota_is_throttled(broker, connection, topic, client_id):
    rate = 50_000
    assert alter(connection, entry({"client_id": client_id}, producer_byte_rate=float(rate))) == [0]
    # Ten windows of a second are granted at once; the rest is throttled.
    with Producer(bootstrap_servers=broker.bootstrap, client_id=client_id, linger_ms=0) as producer:
        began = time.monotonic()
        for _ in range(12):
            producer.send(topic, bytes(rate)).result(30)
        took = time.monotonic() - began
        values = producer.metrics().items()
        throttled = next(value for name, value in values if name.name == "produce-throttle-time-max")
    assert isinstance(throttled, float)
    assert throttled > 500
    assert took > 1


def test_other_clients_are_not_throttled(broker, connection, topic, client_id):
    assert alter(connection, entry({"client_id": client_id}, producer_byte_rate=1.0)) == [0]
    with Producer(bootstrap_servers=broker.bootstrap, client_id=unique("other")) as producer:
        producer.send(topic, bytes(500_000)).result(5)


@pytest.mark.behaviour("B06")
def test_a_consumer_above_its_quota_is_throttled():
    with EmbeddedBroker() as broker, Connection(broker.bootstrap) as connection:
        topic = broker.create_topic("read")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send(topic, bytes(130_000)).result(20)
        assert alter(connection, entry({"client_id": None}, consumer_byte_rate=10_000.0)) == [0]
        fetch_partition = FetchPartition(partition=0, partition_max_bytes=1_000_000)
        request = FetchRequest(max_bytes=1_000_000, topics=[FetchTopic(topic=topic, partitions=[fetch_partition])])
        began = time.monotonic()
        response = connection.call(request, 11)
        assert time.monotonic() - began < 1, "what was fetched comes at once"
        assert response.throttle_time_ms == pytest.approx(3_000, abs=100), "130,000 bytes where 100,000 are granted"
        connection.call(ApiVersionsRequest(), 0)
        assert time.monotonic() - began > response.throttle_time_ms / 1000 - 0.1, "what comes next has to wait"


@pytest.mark.behaviour("B06")
def test_a_throttled_produce_gets_its_response_at_once_and_is_muted():
    with EmbeddedBroker() as broker, Connection(broker.bootstrap) as connection:
        topic = broker.create_topic("written")
        assert alter(connection, entry({"client_id": None}, producer_byte_rate=10_000.0)) == [0]
        data = PartitionProduceData(partition_index=0, records=batch(bytes(110_000)))
        request = ProduceRequest(
            acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        began = time.monotonic()
        response = connection.call(request, 9)
        assert time.monotonic() - began < 1, "the response does not wait"
        assert response.responses[0].partition_responses[0].error_code == Code.NONE
        assert response.throttle_time_ms == pytest.approx(1_000, abs=100), "110,000 bytes where 100,000 are granted"
        connection.call(ApiVersionsRequest(), 0)
        assert time.monotonic() - began > response.throttle_time_ms / 1000 - 0.1, "the next request waits"


@pytest.mark.behaviour("B06")
def test_a_client_above_its_request_percentage_is_throttled():
    with EmbeddedBroker() as broker, Connection(broker.bootstrap) as connection:
        assert alter(connection, entry({"client_id": None}, request_percentage=0.001)) == [0]
        for _ in range(100):  # a tenth of a millisecond is granted for ten seconds
            throttle_ms = connection.call(MetadataRequest(topics=[]), 9).throttle_time_ms
            if throttle_ms:
                break
        assert 0 < throttle_ms <= 1_000
        began = time.monotonic()
        connection.call(ApiVersionsRequest(), 0)
        assert time.monotonic() - began > throttle_ms / 1000 - 0.1


def test_quotas_survive_a_restart():
    with EmbeddedBroker() as broker:
        with Connection(broker.bootstrap) as connection:
            assert alter(connection, entry({"client_id": None}, consumer_byte_rate=1e6)) == [0]
        broker.restart()
        with Connection(broker.bootstrap) as connection:
            assert describe(connection) == {(("client-id", None),): {"consumer_byte_rate": 1e6}}
