"""A shared headrace broker, and connections to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker import EmbeddedBroker
from tests.support.peers.connection import Connection
from tests.support.topics import unique


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker in a process, shared by all tests: use unique topics, groups and transactional ids."""
    with EmbeddedBroker(num_partitions=1) as running:
        yield running


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[Connection]:
    """A connection to the shared broker."""
    with Connection(broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition."""
    return broker.create_topic(unique("topic"))
