"""The pytest plug-in: a broker for a test run, a topic for a test.

    def test_what_is_sent_arrives(kafka_broker, kafka_topic):
        produce(kafka_broker.bootstrap, kafka_topic, …)

Loaded by every pytest run in an environment that has headrace, so it imports nothing until a fixture is asked for.
Options of the broker are lines of `key=value` in the ini option `headrace_broker_options`.
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

NAME_CHARACTERS_MAX = 200  # Kafka takes 249; a number comes after it

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "headrace_broker_options",
        "options of the broker of the fixture kafka_broker, as key=value, one a line",
        type="linelist",
        default=[],
    )


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[EmbeddedBroker]:
    """A Kafka broker in a process of its own, one for the whole run: see headrace.broker.EmbeddedBroker."""
    from headrace.broker.embedded import EmbeddedBroker

    options: dict[str, str] = {}
    for line in pytestconfig.getini("headrace_broker_options"):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise pytest.UsageError(f"headrace_broker_options takes lines of key=value, not {line!r}")
        options[key.strip()] = value.strip()
    with EmbeddedBroker(options) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new, empty topic of the test's own; it is deleted afterwards."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:NAME_CHARACTERS_MAX].strip("-.")
    name = kafka_broker.create_topic(f"{readable}-{os.getpid()}-{next(_numbers)}")
    yield name
    if kafka_broker.is_running:  # the test may have put an end to it
        kafka_broker.delete_topic(name)
