"""Fixtures for tests on Apache Kafka and on the headrace broker: foreign clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.peers.clients import Client
from tests.support.peers.franz_go import make_franz_go
from tests.support.peers.kafkajs import make_kafkajs
from tests.support.peers.of_aiokafka import Aiokafka
from tests.support.peers.of_confluent import Confluent
from tests.support.peers.of_kafka_python import KafkaPython
from tests.support.peers.program import Program
from tests.support.peers.spark_connector import make_spark_connector

# Created on first use: a machine without Go, for example, skips only the tests that need Go.
_MAKERS: dict[str, Callable[[], Client]] = {
    "confluent-kafka": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "kafkajs": make_kafkajs,
    "franz-go": make_franz_go,
}


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
