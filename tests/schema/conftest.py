"""Two registries for the whole run: Apicurio, and the one in the broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.registry import SchemaRegistryClient
from tests.support.peers import apicurio
from tests.support.peers.apicurio import ApicurioRegistry
from tests.support.peers.fetched import DOWNLOAD_SECONDS_MAX

REGISTRY_SECONDS_MAX = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow for the start of the registry during a test, and for its download on the first run."""
    seconds = REGISTRY_SECONDS_MAX if apicurio.is_installed() else 2 * DOWNLOAD_SECONDS_MAX
    for item in items:
        if {"apicurio_registry", "registry"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture(scope="session")
def apicurio_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApicurioRegistry]:
    """Apicurio Registry, shared by all tests: use unique subjects."""
    registry = ApicurioRegistry(apicurio.folder(), tmp_path_factory.mktemp("apicurio") / "data")
    registry.start()
    yield registry
    registry.remove()


@pytest.fixture(scope="session")
def box() -> Iterator[EmbeddedBroker]:
    """A broker with a schema registry, shared by all tests: use unique subjects and topics."""
    with EmbeddedBroker(schema_registry=True) as broker:
        yield broker


class Registry(NamedTuple):
    """A registry to run a test against."""

    name: str
    url: str


@pytest.fixture(scope="session", params=["apicurio", "headrace"])
def registry(request: pytest.FixtureRequest) -> Registry:
    """Each of the registries."""
    if request.param == "headrace":
        return Registry(request.param, request.getfixturevalue("box").schema_registry_url)
    return Registry(request.param, request.getfixturevalue("apicurio_registry").url)


@pytest.fixture
def subject() -> str:
    """A new subject."""
    return f"orders-{uuid.uuid4().hex[:12]}-value"


@pytest.fixture
def apicurio_client(apicurio_registry: ApicurioRegistry) -> SchemaRegistryClient:
    """The client of headrace on Apicurio Registry."""
    return SchemaRegistryClient(apicurio_registry.url)


@pytest.fixture
def confluent_client(apicurio_registry: ApicurioRegistry) -> Iterator[Any]:
    """Confluent's client on Apicurio Registry."""
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    with confluent.SchemaRegistryClient({"url": apicurio_registry.url, "timeout": 20}) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A new topic."""
    return f"orders-{uuid.uuid4().hex[:12]}"
