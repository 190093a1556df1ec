"""The commit of one batch at sizes that no test machine has: counts of messages, and simulated time.

    Scale(tasks, partitions, brokers) → measure → Counts

The batch is real: `tasks` transactions are begun, written and left open by real producers, and committed by the real
committer. There are no faults. Every message takes DELAY_SECONDS, and code takes no time, so that simulated
time is round trips.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.client.admin import AdminClient, NewTopic
from headrace.client.blocking import BlockingClient
from headrace.config.clock import SYSTEM_CLOCK
from headrace.producer.engine import SendEngine
from headrace.producer.settings import resolve
from headrace.spark import worker
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Decision, Fingerprint, Span, TaskTransaction
from headrace.spark.ledger import Ledger
from headrace.spark.sink_options import SEPARATOR, SinkOptions
from headrace.spark.transactions import Redo, Transactions
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.seams import installed
from tests.simulation.world import Process, World

TOPIC, SINK, QUERY, RUN = "rows", "sink", "query", "run"
DELAY_SECONDS = 0.000_5
STATE_PARTITIONS = 50
SECONDS_MAX = 36_000.0
OPTIONS: dict[str, object] = {
    "transaction.state.log.num.partitions": STATE_PARTITIONS,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "broker.heartbeat.interval.ms": 600_000,
    "broker.session.timeout.ms": 3_000_000,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """A batch and a cluster. A task writes to `partitions_per_task` partitions."""

    tasks: int
    partitions: int
    brokers: int
    partitions_per_task: int = 4


@dataclass(frozen=True, slots=True)
class Counts:
    """What the commit of a batch took."""

    requests: int
    """Of the driver, with metadata and connections."""
    marker_requests: int
    """Between brokers, with what else they send."""
    decision_bytes: int
    seconds: float
    """Simulated time: round trips."""


class _FixedDelay(Network):
    def delay(self) -> float:
        return DELAY_SECONDS


def measure(scale: Scale, seed: int = 1) -> Counts:
    """Commit two batches on a simulated cluster, and count what the second one takes."""
    world = World(seed, events_per_second_max=math.inf)
    network = _FixedDelay(world)
    disk = Disk(world, network)
    folder = Path(tempfile.mkdtemp(prefix="headrace-scale-"))
    try:
        with installed(world, network, disk):
            cluster = SimulatedCluster(world, network, disk, folder, [OPTIONS] * scale.brokers)
            return _Commit(scale, world, network, cluster).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Commit:
    def __init__(self, scale: Scale, world: World, network: Network, cluster: SimulatedCluster) -> None:
        self._scale = scale
        self._world = world
        self._network = network
        self._cluster = cluster
        self._counts: Counts | None = None
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": TOPIC, "decision.topic": "decisions"}
        self._options = SinkOptions.parse(given, is_stream=True)

    def run(self) -> Counts:
        self._cluster.start()
        self._wait("the cluster is up", lambda: self._cluster.is_up)
        driver = Process(self._world, "driver", "10.0.1.1")
        driver.start_thread(self._drive)
        try:
            self._wait("the batches are committed", lambda: self._counts is not None or self._world.failures)
        finally:
            driver.kill()
            for node in self._cluster.nodes:
                node.stop()
        if self._counts is None:
            raise RuntimeError(self._world.failures[0])
        return self._counts

    def _wait(self, what: str, condition: Callable[[], object]) -> None:
        if not self._world.run_until(condition, SECONDS_MAX):
            raise TimeoutError(f"timed out after {SECONDS_MAX:.0f} simulated seconds waiting until {what}")

    def _drive(self) -> None:
        with AdminClient(self._cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, self._scale.partitions, 1)])
        engine = SendEngine(resolve(self._options.producer_config()), SYSTEM_CLOCK)
        with BlockingClient(self._options.client_settings()) as client:
            parts = (Ledger(self._options, SINK, client), Transactions(client), Redo(client))
            with contextlib.closing(Committer(SINK, RUN, *parts)) as committer:
                for number, tasks in enumerate((1, self._scale.tasks)):
                    batch = Batch(QUERY, number, self._transactions(engine, tasks), fingerprint=Fingerprint(tasks, 1))
                    started, before = self._world.now, self._messages()
                    committer.commit(batch)
                    ours, others = (now - then for now, then in zip(self._messages(), before, strict=True))
                    decision = Decision(SINK, QUERY, RUN, number, tuple(batch.transactions))
                    size = sum(len(value or b"") for value in decision.records().values())
                    counts = Counts(ours, others, size, self._world.now - started)
                self._counts = counts

    def _messages(self) -> tuple[int, int]:
        """Return the requests of the driver, and the messages from broker to broker."""
        ways = self._network.by_way.items()
        ours = sum(count for (source, _), count in ways if source == "10.0.1.1")
        return ours, sum(count for (source, target), count in ways if "10.0.1.1" not in (source, target))

    def _transactions(self, engine: SendEngine, count: int) -> list[TaskTransaction]:
        """Leave the transactions of all tasks open."""
        rng, transactions = random.Random(count), []
        for number in range(count):
            name = SEPARATOR.join((SINK, RUN, "worker", str(number)))
            partitions = sorted(rng.sample(range(self._scale.partitions), self._scale.partitions_per_task))
            rows = pa.RecordBatch.from_pydict(
                {"value": [b"row"] * len(partitions), "partition": pa.array(partitions, pa.int32())}
            )
            worker.begin(engine, name)
            delivery = engine.send_arrow(TOPIC, rows)
            engine.flush(60)
            spans = tuple(
                Span(TOPIC, partition, ranges[0].first, ranges[-1].last, 1)
                for partition, ranges in sorted(delivery.result(60).items())
            )
            transactions.append(TaskTransaction(name, *worker.identity(engine), spans))
            worker.leave_open(engine)
        return transactions
