"""Fixtures for tests on Apache Kafka and on the headrace broker: foreign clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from tests.support.peers.broker import Broker
from tests.support.peers.clients import Client
from tests.support.peers.embedded import OwnBroker
from tests.support.peers.franz_go import make_franz_go
from tests.support.peers.kafkajs import make_kafkajs
from tests.support.peers.of_aiokafka import Aiokafka
from tests.support.peers.of_confluent import Confluent
from tests.support.peers.of_kafka_python import KafkaPython
from tests.support.peers.program import Program
from tests.support.peers.real_kafka import RealKafka
from tests.support.peers.spark_connector import make_spark_connector

# Created on first use: a machine without Go, for example, skips only the tests that need Go.
_MAKERS: dict[str, Callable[[], Client]] = {
    "confluent-kafka": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "kafkajs": make_kafkajs,
    "franz-go": make_franz_go,
}

QUICK_GROUPS: dict[str, object] = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 4000,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.max.size": 12,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""Brokers whose groups of the consumer protocol (KIP-848) notice changes within a second."""


@pytest.fixture(scope="session", params=["apache", "headrace"])
def quick(
    request: pytest.FixtureRequest, kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Apache Kafka 4.3, then the headrace broker, with short intervals and timeouts of groups."""
    if request.param == "apache":
        properties = {name: str(value) for name, value in QUICK_GROUPS.items()}
        kafka = RealKafka(kafka_jars("4.3.0"), tmp_path_factory.mktemp("kafka") / "quick", properties)
        try:
            kafka.start()
            yield kafka
        finally:
            kafka.remove()
        return
    own = OwnBroker(EmbeddedBroker(QUICK_GROUPS))
    try:
        own.embedded.start()
        yield own
    finally:
        own.remove()


@pytest.fixture(scope="session")
def spark_connector() -> Iterator[Program]:
    """Spark with its own Kafka connector, in one process for the whole run."""
    program = make_spark_connector()
    yield program
    program.close()


@pytest.fixture(scope="session", params=["java", *_MAKERS])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Each client in turn, for the whole run."""
    if request.param == "java":
        yield request.getfixturevalue("java_client")
        return
    client = _MAKERS[request.param]()
    yield client
    client.close()
