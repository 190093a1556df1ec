"""The pytest plug-in: a broker for a test run, a topic for each test.

    def test_records_arrive(kafka_broker, kafka_topic):
        produce(kafka_broker.bootstrap, kafka_topic, …)

    def test_orders_have_a_schema(schema_registry):
        SchemaRegistryClient(schema_registry).register("orders-value", …)

Every pytest run in an environment with headrace loads it, so it imports the broker only when a fixture needs it. The
ini option `headrace_broker_options` has options of the broker as `key=value` lines.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker

NAME_CHARACTERS_MAX = 200  # Kafka allows 249; a suffix is added

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "headrace_broker_options",
        "options of the broker of the fixture kafka_broker, as key=value, one per line",
        type="linelist",
        default=[],
    )


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[EmbeddedBroker]:
    """A Kafka broker in a separate process for the whole run: see headrace.broker.EmbeddedBroker."""
    from headrace.broker.embedded import EmbeddedBroker

    options: dict[str, str] = {}
    for line in pytestconfig.getini("headrace_broker_options"):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise pytest.UsageError(f"invalid headrace_broker_options line {line!r}: expected key=value")
        options[key.strip()] = value.strip()
    with EmbeddedBroker(options) as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry(kafka_broker: EmbeddedBroker) -> str:
    """The URL of a schema registry in the process of the broker, for the whole run: use a subject for each test."""
    return kafka_broker.start_schema_registry()


@pytest.fixture
def kafka_topic(kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new, empty topic, which is deleted after the test."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:NAME_CHARACTERS_MAX].strip("-.")
    name = kafka_broker.create_topic(f"{readable}-{os.getpid()}-{next(_numbers)}")
    yield name
    if kafka_broker.is_running:  # the test may have stopped it
        kafka_broker.delete_topic(name)
