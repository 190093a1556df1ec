"""Fixtures of the tests against other implementations."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.batches import JavaBatches
from peers.java import JavaRunner

JAVA = Path(__file__).parent / "java"


@pytest.fixture(scope="session")
def java_sources() -> Path:
    """The folder of our Java programs."""
    return JAVA


@pytest.fixture(scope="module")
def java_batches(java: JavaRunner, tmp_path_factory: pytest.TempPathFactory) -> JavaBatches:
    """Writes and reads batches by Kafka's own classes; once each way in a module, for a JVM takes its time."""
    return JavaBatches(java, JAVA / "Batches.java", tmp_path_factory.mktemp("batches"))
