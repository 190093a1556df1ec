"""Fixtures of the tests against other implementations."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client.connection import Request
from headrace.client.network import NetworkClient
from tests.support.peers.batches import JavaBatches
from tests.support.peers.java import JavaRunner

JAVA = Path(__file__).parent / "java"


@pytest.fixture(scope="session")
def java_sources() -> Path:
    """The folder of the Java test programs."""
    return JAVA


@pytest.fixture(scope="module")
def java_batches(java: JavaRunner, tmp_path_factory: pytest.TempPathFactory) -> JavaBatches:
    """Write and read batches with Kafka's classes, once in a module, because a JVM starts slowly."""
    return JavaBatches(java, JAVA / "Batches.java", tmp_path_factory.mktemp("batches"))


@pytest.fixture
def requests_sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record node and API key of every request that headrace clients send."""
    sent: list[tuple[int, int]] = []
    send = NetworkClient.send

    def spy(self: NetworkClient, node_id: int, request: Request, now: float) -> None:
        sent.append((node_id, request.api_key))
        send(self, node_id, request, now)

    monkeypatch.setattr(NetworkClient, "send", spy)
    return sent
