"""Histories of three producers under faults, on Apache Kafka and on the headrace broker, checked by headrace.verify.

One client on one broker, or all with HEADRACE_VERIFY_CLIENTS=all. HEADRACE_CHAOS_SECONDS is the duration of each,
HEADRACE_CHAOS_SEED selects the faults, HEADRACE_CHAOS_FOLDER keeps the histories.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from tests.support.chaos_clients import ClientFactory, ConfluentClient, HeadraceClient
from tests.support.client_runs import BROKER_OPTIONS, PARTITIONS, TRANSACTION_MS, ClientCell, run_client
from tests.support.peers.broker import Broker
from tests.support.peers.embedded import OwnBroker
from tests.support.peers.java import JavaRunner
from tests.support.peers.real_kafka import RealKafka
from tests.support.scripted_java import JavaProducers

SECONDS = float(os.environ.get("HEADRACE_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "7"))
FOLDER = os.environ.get("HEADRACE_CHAOS_FOLDER")
OVERHEAD_SECONDS_MAX = 300
VERSIONS = {"kafka-3.9": "3.9.1", "kafka-4.3": "4.3.0"}
V2_BROKERS = ("kafka-4.3", "headrace")
CELLS = [
    (broker, client, protocol)
    for broker in ("headrace", *VERSIONS)
    for client in ("headrace", "librdkafka", "java")
    for protocol in ("classic", "v2")
    if protocol == "classic" or (broker in V2_BROKERS and client != "librdkafka")
]
SELECTED = CELLS if os.environ.get("HEADRACE_VERIFY_CLIENTS") == "all" else [("headrace", "headrace", "classic")]

Starter = Callable[[], None]


@pytest.fixture(scope="module")
def brokers(
    kafka_jars: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], tuple[Broker, Starter]]]:
    """Return a running broker by name, which tests may kill, and what starts it again."""
    running: dict[str, OwnBroker | RealKafka] = {}

    def broker_of(name: str) -> tuple[Broker, Starter]:
        if name not in running:
            if name == "headrace":
                own = running[name] = OwnBroker(EmbeddedBroker(BROKER_OPTIONS))
                own.embedded.start()
            else:
                folder = tmp_path_factory.mktemp("kafka") / name
                kafka = running[name] = RealKafka(kafka_jars(VERSIONS[name]), folder, BROKER_OPTIONS)
                kafka.start()
        broker = running[name]
        return broker, broker.restart

    yield broker_of
    for broker in running.values():
        broker.remove()


def dump(kafka: RealKafka, folder: Path, topic: str) -> None:
    """Keep the batches and markers of Apache Kafka's log, which say whether a client or the broker is at fault."""
    for partition in range(PARTITIONS):
        (folder / f"{topic}-{partition}.dump").write_text(kafka.dump_log(topic, partition))


@pytest.mark.slow
@pytest.mark.timeout(OVERHEAD_SECONDS_MAX + 2 * SECONDS)
@pytest.mark.parametrize(("broker", "client", "protocol"), SELECTED, ids=["-".join(cell) for cell in SELECTED])
def test_the_history_of_a_client_under_faults(
    broker: str,
    client: str,
    protocol: str,
    brokers: Callable[[str], tuple[Broker, Starter]],
    java: JavaRunner,
    kafka_jars: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """No anomalies, but for librdkafka on Apache Kafka: tests/kafka/test_torn_transactions.py shows the reason."""
    folder = Path(FOLDER) if FOLDER else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    running, start = brokers(broker)
    processes: list[JavaProducers] = []
    factory: ClientFactory
    if client == "java":
        factory = JavaProducers(java, kafka_jars("4.3.0"), folder / f"{broker}-java.log", TRANSACTION_MS)
        processes.append(factory)
    elif client == "headrace":
        factory = partial(HeadraceClient, transaction_ms=TRANSACTION_MS)
    else:
        factory = partial(ConfluentClient, transaction_ms=TRANSACTION_MS)
    cell = ClientCell(f"{broker}-{client}-{protocol}", running, start, factory, protocol == "classic")
    try:
        run = run_client(cell, folder, SEED, SECONDS)
    finally:
        for process in processes:
            process.close()
    print(f"\n{run}")
    with (folder / "report.txt").open("a") as report:
        report.write(f"{run}\n")
    if not run.verdict.is_valid and isinstance(running, RealKafka):
        dump(running, folder, f"{cell.name}-{SEED}")
    assert run.errors == [], run
    assert run.verdict.is_known, run
    assert run.verdict.sizes["committed"], run
    assert run.injected.total() >= SECONDS / 10, run
    if client != "librdkafka" or broker == "headrace":
        assert run.verdict.is_valid, run
