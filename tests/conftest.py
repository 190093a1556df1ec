"""Fixtures for every layer of tests. See tests/support/peers for what they hand out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peers import maven
from peers.java import JavaRunner
from peers.real_kafka import RealKafka

KAFKA_VERSIONS = ("4.3.0", "3.9.1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first run on a machine downloads jars in the middle of a test: let it."""
    if all(maven.jars_folder(version).exists() for version in KAFKA_VERSIONS):
        return
    for item in items:
        if "kafka_jars" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(len(KAFKA_VERSIONS) * maven.DOWNLOAD_SECONDS_MAX))


@pytest.fixture(scope="session")
def kafka_jars() -> Callable[[str], Path]:
    """The folder with Kafka's jars for a version."""
    return maven.kafka_jars


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaRunner:
    """Runs a Java source file with arguments on a folder of jars and returns what it prints."""
    return JavaRunner(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def kafka(kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A running Apache Kafka 4.3, one for the whole run: use topics, groups and transactional ids of your own."""
    yield from _running("4.3.0", kafka_jars, tmp_path_factory)


@pytest.fixture(scope="session")
def kafka39(kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A running Apache Kafka 3.9, the last one that takes message sets."""
    yield from _running("3.9.1", kafka_jars, tmp_path_factory)


def _running(
    version: str, kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealKafka]:
    broker = RealKafka(kafka_jars(version), tmp_path_factory.mktemp("kafka") / version)
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()
