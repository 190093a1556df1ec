"""One Apicurio Registry for the whole run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.peers import apicurio
from tests.support.peers.apicurio import ApicurioRegistry
from tests.support.peers.fetched import DOWNLOAD_SECONDS_MAX

REGISTRY_SECONDS_MAX = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow for the start of the registry during a test, and for its download on the first run."""
    seconds = REGISTRY_SECONDS_MAX if apicurio.is_installed() else 2 * DOWNLOAD_SECONDS_MAX
    for item in items:
        if "apicurio_registry" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture(scope="session")
def apicurio_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApicurioRegistry]:
    """Apicurio Registry, shared by all tests: use unique subjects."""
    registry = ApicurioRegistry(apicurio.folder(), tmp_path_factory.mktemp("apicurio") / "data")
    registry.start()
    yield registry
    registry.remove()


@pytest.fixture
def subject() -> str:
    """A new subject."""
    return f"orders-{uuid.uuid4().hex[:12]}-value"
