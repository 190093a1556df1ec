"""Fixtures for all test folders; their classes are in tests/support/peers."""

from __future__ import annotations

import gc
import signal
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.support.peers import fetched, franz_go, kafkajs, maven, spark_connector
from tests.support.peers.broker import Broker
from tests.support.peers.class_archive import archive_folder
from tests.support.peers.java import JavaRunner, archive_name
from tests.support.peers.java_client import JavaClient, make_java_client
from tests.support.peers.real_kafka import RealKafka

KAFKA_VERSIONS = ("4.3.0", "3.9.1")
HEADRACE_OPTIONS = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "share.coordinator.state.topic.num.partitions": 4,
    # A member is assigned its partitions with its second heartbeat.
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.share.min.heartbeat.interval.ms": 200,
    "group.share.heartbeat.interval.ms": 500,
    # Samples may be old, and must not be deleted during a test.
    "log.retention.ms": -1,
}


def pytest_configure() -> None:
    """Restore SIGINT, which a shell ignores for background jobs: tests send it to processes that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend the timeout of tests that download and build on the first run."""
    folders = [maven.jars_folder(version) for version in KAFKA_VERSIONS]
    has_jars = all(folder.exists() and archive_folder(archive_name(folder), folder).exists() for folder in folders)
    is_ready = {
        "kafka_jars": has_jars,
        "either": has_jars,
        "client": kafkajs.is_installed() and franz_go.is_built(),
        "rider": has_jars and franz_go.is_built(),
        "spark_connector": spark_connector.is_installed(),
    }
    missing = {fixture for fixture, ready in is_ready.items() if not ready}
    for item in items if missing else ():
        if waits := missing.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(2 * len(waits) * fetched.DOWNLOAD_SECONDS_MAX))
    mark_slow_cases(items)


def mark_slow_cases(items: list[pytest.Item]) -> None:
    """Mark the cases of a test as slow that its marker `every_run("case", ...)` does not name."""
    cases: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for item in items:
        marker = item.get_closest_marker("every_run")
        if marker is not None and marker.args and isinstance(item, pytest.Function):
            cases[item.nodeid.partition("[")[0], *marker.args].add(item.callspec.id)
            if item.callspec.id not in marker.args:
                item.add_marker(pytest.mark.slow)
    for (test, *named), collected in cases.items():
        # A case that is run by its name is collected alone.
        if len(collected) > 1 and (unknown := set(named) - collected):
            raise pytest.UsageError(f"{test}: every_run names {sorted(unknown)}; the cases are {sorted(collected)}")


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection, which takes a tenth of the time of unit tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of the headrace broker to the report of a failed test."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if (embedded := getattr(value, "embedded", None)) is not None and embedded.log_text:
                report.sections.append(("The broker's log", embedded.log_text))
    return report


@pytest.fixture(scope="session")
def kafka_jars() -> Callable[[str], Path]:
    """The folder with Kafka's jars for a version."""
    return maven.kafka_jars


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaRunner:
    """Runs a Java source file with arguments on a folder of jars and returns its output."""
    return JavaRunner(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def java_client(java: JavaRunner, kafka_jars: Callable[[str], Path]) -> Iterator[JavaClient]:
    """Kafka's own clients and tools, in one Java process for the whole run."""
    client = make_java_client(java, kafka_jars(KAFKA_VERSIONS[0]))
    yield client
    client.close()


@pytest.fixture(scope="session")
def kafka(kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Apache Kafka 4.3, shared by all tests: use unique topics, groups and transactional ids."""
    yield from _running("4.3.0", kafka_jars, tmp_path_factory)


@pytest.fixture(scope="session")
def kafka39(kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Apache Kafka 3.9, the last version that accepts message sets."""
    yield from _running("3.9.1", kafka_jars, tmp_path_factory)


@pytest.fixture(scope="session")
def headrace_broker() -> Iterator[Broker]:
    """The headrace broker, shared by all tests, with the settings of the Apache Kafka it is compared with."""
    from headrace.broker import EmbeddedBroker
    from tests.support.peers.embedded import OwnBroker

    broker = OwnBroker(EmbeddedBroker(HEADRACE_OPTIONS))
    try:
        broker.embedded.start()
        yield broker
    finally:
        broker.remove()


@pytest.fixture(scope="session", params=["apache", "headrace"])
def either(request: pytest.FixtureRequest) -> Broker:
    """Apache Kafka 4.3, then the headrace broker: tests must pass on both."""
    broker: Broker = request.getfixturevalue({"apache": "kafka", "headrace": "headrace_broker"}[request.param])
    return broker


def _running(
    version: str, kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealKafka]:
    broker = RealKafka(kafka_jars(version), tmp_path_factory.mktemp("kafka") / version)
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()
