"""Brokers that look older than 0.11 to a producer: Kafka 3.9 still accepts the old formats."""

from __future__ import annotations

import pytest

from headrace import Producer
from headrace.errors import UnsupportedVersionError
from tests.support.capping_proxy import CappingProxy
from tests.support.peers import librdkafka
from tests.support.peers.real_kafka import RealKafka, free_ports
from tests.support.topics import new_topic

PRODUCE = 0


@pytest.fixture(scope="module")
def old_broker(kafka_jars, tmp_path_factory):
    """Kafka 3.9, and the proxy that all its clients use."""
    (port,) = free_ports(1)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    broker = RealKafka(kafka_jars("3.9.1"), tmp_path_factory.mktemp("old") / "kafka", advertised)
    proxy = CappingProxy(port, broker.port)
    try:
        broker.start()
        yield broker, proxy, f"127.0.0.1:{port}"
    finally:
        proxy.close()
        broker.remove()


@pytest.mark.behaviour("P43")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize(("produce_version", "magic"), [(2, 1), (1, 0), (0, 0)])
def test_batches_are_down_converted_for_an_old_broker(old_broker, produce_version, magic, codec):
    broker, proxy, bootstrap = old_broker
    topic = new_topic(broker, f"old-{produce_version}-{codec}", 1)
    proxy.caps = {PRODUCE: produce_version}
    with Producer(bootstrap_servers=bootstrap, enable_idempotence=False, compression_type=codec) as producer:
        futures = [producer.send(topic, b"v%d" % i, b"k%d" % i, timestamp_ms=1000 + i) for i in range(50)]
        futures.append(producer.send(topic, None, b"gone", timestamp_ms=2000))
        assert [future.result(20).offset for future in futures] == list(range(51))
    proxy.caps = {}
    consumed = librdkafka.consume(bootstrap, topic, 51)
    assert [(record.key, record.value) for record in consumed] == [
        *((b"k%d" % i, b"v%d" % i) for i in range(50)),
        (b"gone", None),
    ]
    if magic:
        assert [record.timestamp for record in consumed][:50] == [1000 + i for i in range(50)]


@pytest.mark.behaviour("P43")
def test_headers_and_idempotence_fail_with_an_old_broker(old_broker):
    broker, proxy, bootstrap = old_broker
    topic = new_topic(broker, "old-headers", 1)
    proxy.caps = {PRODUCE: 2}
    with Producer(bootstrap_servers=bootstrap, enable_idempotence=False) as producer:
        refused = producer.send(topic, b"v", headers={"h": b"x"})
        with pytest.raises(UnsupportedVersionError, match="have headers, which the broker"):
            refused.result(20)
        assert producer.send(topic, b"v").result(20).offset == 0
    with Producer(bootstrap_servers=bootstrap) as idempotent:
        future = idempotent.send(topic, b"v")
        with pytest.raises(UnsupportedVersionError, match="Produce needs a version of 3"):
            future.result(20)
