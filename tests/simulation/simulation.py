"""A simulation: a cluster, its clients and faults from one seed, then the check of what the clients saw.

    Simulation(seed, plan).run() → Result: anomalies, digest, counts

When the time of the plan is over, all faults end; the cluster must recover within a bound and the writers end. Then
everything is read, and the history is checked by headrace.verify.
"""

from __future__ import annotations

import gc
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.verify import ReadOp, ReplicaOp, StoredBatch, check
from headrace.wire.records import read_batches
from tests.simulation.clients import (
    FinalReader,
    History,
    PlainWriter,
    Reader,
    Scope,
    SimulatedClient,
    TopicCreator,
    TransactionalWriter,
)
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.committing import TRANSACTION_SECONDS, Executor, SimulatedQuery
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.network import Network
from tests.simulation.seams import installed
from tests.simulation.world import LivelockError, World

TOPIC = "t"
RECOVERY_SECONDS_MAX = 300.0
"""How long the cluster and its clients may take to recover when all faults have ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a simulation."""

    brokers: int = 3
    partitions: int = 3
    seconds: float = 600.0
    plain_writers: int = 1
    transactional_writers: int = 2
    queries: int = 1
    executors: int = 2
    readers: int = 2
    rate_per_s: float = 1.0
    """Steps of each writer: records, or transactions."""
    faults: bool = True


@dataclass(slots=True)
class Result:
    """The outcome of a simulation."""

    seed: int
    digest: int
    anomalies: list[str]
    simulated_seconds: float
    real_seconds: float
    events: int
    messages: int
    history: int
    faults: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class StuckError(Exception):
    """The cluster or a client does not make progress although there are no faults."""


class Simulation:
    """One run."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.plan = plan = plan or Plan()
        self.world = World(seed)
        self.network = Network(self.world)
        self.disk = Disk(self.world, self.network)
        self.history = History(self.world)
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-simulation-", dir=_memory_folder()))
        self.cluster = SimulatedCluster(self.world, self.network, self.disk, self._folder, [{}] * plan.brokers)
        scope = self._scope = Scope(self.world, self.history, self.cluster.bootstrap, TOPIC, plan.partitions)
        self.writers: list[SimulatedClient] = [
            *(PlainWriter(scope, f"w{n}", 1 + n, plan.rate_per_s) for n in range(plan.plain_writers)),
            *(TransactionalWriter(scope, f"x{n}", 20 + n, plan.rate_per_s) for n in range(plan.transactional_writers)),
        ]
        self.executors = [Executor(scope, f"e{n}", 60 + n) for n in range(plan.executors if plan.queries else 0)]
        self.writers += [
            SimulatedQuery(scope, f"q{n}", 80 + n, self.executors, plan.rate_per_s / 4) for n in range(plan.queries)
        ]
        self.readers = [Reader(scope, f"r{n}", 40 + n, committed=n % 2 == 0) for n in range(plan.readers)]
        self.faults = Faults(self.cluster, [*self.writers, *self.readers, *self.executors])

    def run(self) -> Result:
        started = time.monotonic()
        try:
            with installed(self.world, self.network, self.disk):
                anomalies = self._run_and_check()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            gc.collect()
        return Result(
            self.world.seed,
            self.world.digest,
            anomalies,
            self.world.elapsed,
            time.monotonic() - started,
            self.world.events,
            self.network.messages,
            len(self.history.operations),
            self.faults.counts,
            self.world.notes,
        )

    def _run_and_check(self) -> list[str]:
        try:
            self._run()
        except (StuckError, LivelockError) as error:
            return [f"stuck: {error}", *(f"ended: {text}" for text in self.world.failures)]
        finally:
            self._end()
        self._dump_replicas()
        return [
            *map(str, check(self.history.operations).anomalies),
            *(f"ended: {text}" for text in self.world.failures),
        ]

    def _run(self) -> None:
        cluster, world = self.cluster, self.world
        cluster.start()
        self._wait("the cluster is up", lambda: cluster.is_up)
        creator = TopicCreator(self._scope, "creator", 99)
        creator.start()
        self._wait("the topic is created", lambda: creator.is_done)
        for client in (*self.writers, *self.readers, *self.executors):
            client.start()
        if self.plan.faults:
            self.faults.start()
        world.run_for(self.plan.seconds)
        self.faults.stop()
        self._wait("all replicas are in sync", cluster.is_in_sync)
        before = [writer.successes for writer in self.writers]
        self._wait(
            "all writers make progress",
            lambda: all(writer.successes > count for writer, count in zip(self.writers, before, strict=True)),
        )
        for writer in self.writers:
            writer.stop()
        self._wait("the writers have ended", lambda: all(writer.is_done for writer in self.writers))
        world.run_for(TRANSACTION_SECONDS + 30 if self.plan.queries else 0)  # leftovers of killed tasks expire
        final = FinalReader(self._scope, "final", 98)
        final.start()
        self._wait("all records are read", lambda: final.is_done)
        ends = [each for each in self.history.operations if isinstance(each, ReadOp) and each.final]
        self._wait(
            "the readers have the last records",
            lambda: all(each.has_read(end) for each in self.readers for end in ends),
        )
        for reader in self.readers:
            reader.stop()
        self._wait("the readers have ended", lambda: all(reader.is_done for reader in self.readers))
        self._wait("all replicas are in sync", cluster.is_in_sync)
        world.run_for(10.0)  # until followers have the last records

    def _wait(self, what: str, condition: Callable[[], object]) -> None:
        if not self.world.run_until(condition, RECOVERY_SECONDS_MAX):
            raise StuckError(f"timed out after {RECOVERY_SECONDS_MAX:.0f} simulated seconds waiting until {what}")

    def _end(self) -> None:
        """Kill everything, so that nothing of this run remains in the interpreter."""
        for client in (*self.writers, *self.readers, *self.executors):
            client.end()
        for node in self.cluster.nodes:
            node.stop()

    def _dump_replicas(self) -> None:
        """Record the batches that brokers have on disk."""
        for node in self.cluster.nodes:
            for partition in range(self.plan.partitions):
                files = sorted((node.folder / f"{TOPIC}-{partition}").glob("*.log"))
                batches = [
                    StoredBatch(
                        batch.header.base_offset,
                        batch.header.last_offset,
                        batch.header.leader_epoch,
                        hashlib.sha1(batch.view).hexdigest(),
                    )
                    for file in files
                    for batch in read_batches(file.read_bytes())
                ]
                self.history.add(ReplicaOp(node.node_id, TOPIC, partition, tuple(batches)))


def simulate(plan: Plan, seed: int) -> Result:
    return Simulation(seed, plan).run()


def _memory_folder() -> str | None:
    """Return a file system in memory, if there is one: the disk is simulated anyway."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() else None
