"""Clients of the simulation: real producers and fetchers in simulated processes, which write a history.

A client is a loop of steps on a thread of its process. When its process is killed, a new one continues with its name
and, for transactions, its transactional id; what the old one did not learn stays unknown.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

from headrace.client.admin import AdminClient, NewTopic
from headrace.client.fetcher import Fetcher
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.types import TopicPartition
from headrace.verify import Action, Operation, Phase, ReadOp, SeekOp, SendOp, TransactionOp
from tests.simulation.world import Process, Thread, World
from tests.support.chaos_clients import GaveUpError, HeadraceClient, MustAbortError, OnResult

RECORDS_MAX = 6  # of a transaction
ABORT_CHANCE, ZOMBIE_CHANCE = 0.2, 0.05
PENDING_MAX = 100
PAUSE_SECONDS = 0.5
RESTART_SECONDS = (0.1, 10.0)


class History:
    """The operations of all clients, in order."""

    def __init__(self, world: World) -> None:
        self.operations: list[Operation] = []
        self._world = world

    def add(self, *operations: Operation) -> None:
        self._world.record(*operations)
        self.operations += operations


class Scope:
    """What the clients of a run share."""

    def __init__(self, world: World, history: History, bootstrap: str, topic: str, partitions: int) -> None:
        self.world = world
        self.history = history
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions


class SimulatedClient:
    """A client program whose process can be killed; it is then started again."""

    def __init__(self, scope: Scope, name: str, number: int) -> None:
        self.scope = scope
        self.name = name
        self.host = f"10.0.1.{number}"
        self.generation = 0
        self.successes = 0  # acknowledged records, committed transactions or batches
        self.process: Process | None = None
        self.is_stopping = False
        self.is_done = False
        self.rng = random.Random(scope.world.rng.getrandbits(64))

    def start(self) -> None:
        self.generation += 1
        world = self.scope.world
        process = self.process = Process(world, f"{self.name}.{self.generation}", self.host)
        process.start_thread(lambda: self._run())
        process.on_kill.append(lambda: world.later(world.rng.uniform(*RESTART_SECONDS), self.start))

    def stop(self) -> None:
        """Stop after the current step."""
        self.is_stopping = True

    def end(self) -> None:
        """End the process for good."""
        if self.process is not None:
            self.process.on_kill.clear()
            self.process.kill()

    def _run(self) -> None:
        self.run()
        self.is_done = True

    def run(self) -> None:
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        Thread.current().wait(seconds)


class PlainWriter(SimulatedClient):
    """Sends single records with an idempotent producer, and creates a new one when it gives up."""

    def __init__(self, scope: Scope, name: str, number: int, rate_per_s: float) -> None:
        super().__init__(scope, name, number)
        self._rate_per_s = rate_per_s
        self._count = 0
        self._pending = 0

    def run(self) -> None:
        while not self.is_stopping:
            self.generation += 1
            self._pending = 0
            client = HeadraceClient(self.scope.bootstrap, self.scope.topic)
            try:
                while not self.is_stopping:
                    self._send(client, f"{self.name}-{self.generation}")
                    self.pause(self.rng.expovariate(self._rate_per_s))
            except (GaveUpError, MustAbortError):
                self.pause(PAUSE_SECONDS)
            client.close()

    def _send(self, client: HeadraceClient, writer: str) -> None:
        if self._pending >= PENDING_MAX:
            return
        self._count += 1
        self._pending += 1
        value = f"{self.name}:{self._count}"
        send(
            self.scope,
            client,
            SendOp(Phase.INVOKE, writer, value, self.scope.topic, self._partition()),
            self._on_result,
        )

    def _partition(self) -> int:
        return self.rng.randrange(self.scope.partitions)

    def _on_result(self, phase: Phase) -> None:
        self._pending -= 1
        self.successes += phase is Phase.OK


class TransactionalWriter(SimulatedClient):
    """Writes transactions over all partitions; aborts some, and leaves some to a zombie that tries to commit them."""

    def __init__(self, scope: Scope, name: str, number: int, rate_per_s: float) -> None:
        super().__init__(scope, name, number)
        self._rate_per_s = rate_per_s
        self._count = 0
        self._instance = 0  # of the producer

    def run(self) -> None:
        client: HeadraceClient | None = None
        while not self.is_stopping:
            self.pause(self.rng.expovariate(self._rate_per_s))
            if client is None:
                client = self._client()
                continue
            self._count += 1
            client = self._transaction(client, f"{self.name}/{self._count}")
        if client is not None:
            client.close()
        while self._client() is None:  # fences the last one, so that no transaction stays open
            self.pause(PAUSE_SECONDS)

    def _client(self) -> HeadraceClient | None:
        client = HeadraceClient(self.scope.bootstrap, self.scope.topic, self._transactional_id)
        self._instance += 1
        producer = self._producer
        self._record(Action.INIT, Phase.INVOKE, producer)
        try:
            client.init()
        except (GaveUpError, MustAbortError):
            client.close()
            return None
        self._record(Action.INIT, Phase.OK, producer)
        return client

    @property
    def _transactional_id(self) -> str:
        return f"id-{self.name}"

    @property
    def _producer(self) -> str:
        return f"{self.name}#{self._instance}"

    def _record(self, action: Action, phase: Phase, producer: str, transaction: str | None = None) -> None:
        operation = TransactionOp(action, phase, self.name, transaction, self._transactional_id, producer)
        self.scope.history.add(operation)
        self.successes += action is Action.COMMIT and phase is Phase.OK

    def _transaction(self, client: HeadraceClient, name: str) -> HeadraceClient | None:
        """Write a transaction; return the client for the next one."""
        try:
            client.begin()
            for index in range(self.rng.randint(1, RECORDS_MAX)):
                partition = self.rng.randrange(self.scope.partitions)
                value = f"{name}:{index}"
                operation = SendOp(Phase.INVOKE, self.name, value, self.scope.topic, partition, transaction=name)
                send(self.scope, client, operation)
                if self.rng.random() < 0.1:
                    self.pause(self.rng.expovariate(10))
            chance = self.rng.random()
            if ABORT_CHANCE <= chance < ABORT_CHANCE + ZOMBIE_CHANCE:
                return self._commit_as_zombie(client, name)
            if chance >= ABORT_CHANCE:
                self._record(Action.COMMIT, Phase.INVOKE, self._producer, name)
                client.commit()
                self._record(Action.COMMIT, Phase.OK, self._producer, name)
                return client
        except MustAbortError:
            pass
        except GaveUpError:
            client.close()
            return None
        return self._abort(client, name)

    def _abort(self, client: HeadraceClient, name: str) -> HeadraceClient | None:
        self._record(Action.ABORT, Phase.INVOKE, self._producer, name)
        try:
            client.abort()
        except (MustAbortError, GaveUpError):
            client.close()
            return None
        self._record(Action.ABORT, Phase.OK, self._producer, name)
        return client

    def _commit_as_zombie(self, zombie: HeadraceClient, name: str) -> HeadraceClient | None:
        """Let a zombie commit after a new client has its id. The check reports an anomaly if the commit succeeds."""
        producer = self._producer
        client = self._client()
        if client is None:
            zombie.close()
            return None
        self._record(Action.COMMIT, Phase.INVOKE, producer, name)
        phase = Phase.OK
        try:
            zombie.commit()
        except (MustAbortError, GaveUpError):
            phase = Phase.FAIL
        finally:
            zombie.close()
        self._record(Action.COMMIT, phase, producer, name)
        return client


class Reader(SimulatedClient):
    """Reads all partitions from their beginning, at one isolation level. It continues where it was."""

    def __init__(self, scope: Scope, name: str, number: int, *, committed: bool) -> None:
        super().__init__(scope, name, number)
        self._committed = committed
        self._positions = {TopicPartition(scope.topic, index): 0 for index in range(scope.partitions)}

    def has_read(self, final: ReadOp) -> bool:
        """Return whether it has passed the last record of a final read; true if that has another isolation level."""
        return (
            final.committed is not self._committed
            or not final.records
            or self._positions[TopicPartition(final.topic, final.partition)] > final.records[-1][0]
        )

    def run(self) -> None:
        if self.generation == 1:  # a later process continues
            for tp in self._positions:
                self.scope.history.add(SeekOp(self.name, tp.topic, tp.partition, 0))
        while not self.is_stopping:
            fetcher = Fetcher(
                self.scope.bootstrap,
                isolation="read_committed" if self._committed else "read_uncommitted",
                max_wait_ms=5_000,
                request_timeout_ms=8_000,
            )
            try:
                fetcher.assign(self._positions)
                while not self.is_stopping:
                    self._read(fetcher)
            except HeadraceError as error:
                if isinstance(error, BrokerError) and error.code == Code.OFFSET_OUT_OF_RANGE:
                    self.scope.world.note(f"{self.name} is out of range: {error}")
                    raise
                self.pause(PAUSE_SECONDS)
            finally:
                fetcher.close()

    def _read(self, fetcher: Fetcher) -> None:
        by_partition: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        for record in fetcher.poll(2_000):
            by_partition[record.partition].append((record.offset, (record.value or b"").decode()))
        for index, records in by_partition.items():
            tp = TopicPartition(self.scope.topic, index)
            self._positions[tp] = fetcher.position(tp)
            end = fetcher.watermarks(tp).high
            read = ReadOp(self.name, self.scope.topic, index, self._committed, tuple(records), None if end < 0 else end)
            self.scope.history.add(read)
        self.pause(0.05)


class FinalReader(SimulatedClient):
    """Reads all records at both isolation levels, after the writers have ended."""

    def run(self) -> None:
        scope = self.scope
        partitions = [TopicPartition(scope.topic, index) for index in range(scope.partitions)]
        for committed in (True, False):
            with Fetcher(
                scope.bootstrap, isolation="read_committed" if committed else "read_uncommitted", max_wait_ms=500
            ) as fetcher:
                ends = fetcher.end_offsets(partitions)
                fetcher.assign(partitions, until=ends)
                rows: dict[int, list[tuple[int, str]]] = {tp.partition: [] for tp in partitions}
                while not fetcher.is_finished():
                    for record in fetcher.poll(1_000):
                        rows[record.partition].append((record.offset, (record.value or b"").decode()))
                for index, records in rows.items():
                    end = ends[TopicPartition(scope.topic, index)]
                    scope.history.add(ReadOp("final", scope.topic, index, committed, tuple(records), end, final=True))


class TopicCreator(SimulatedClient):
    """Creates the topic of the run."""

    def run(self) -> None:
        topic = NewTopic(self.scope.topic, self.scope.partitions)
        while True:
            try:
                with AdminClient(self.scope.bootstrap) as admin:
                    admin.create_topics([topic])
            except BrokerError as error:
                if error.code == Code.TOPIC_ALREADY_EXISTS:
                    return
            except HeadraceError:
                self.scope.world.note("creating the topic failed")
            else:
                return
            self.pause(1.0)


def send(
    scope: Scope, client: HeadraceClient, operation: SendOp, on_done: Callable[[Phase], None] = lambda phase: None
) -> None:
    """Record and send a value; its result is recorded when it is known."""
    scope.history.add(operation)

    def on_result(phase: Phase, partition: int | None, offset: int | None) -> None:
        on_done(phase)
        scope.history.add(operation._replace(phase=phase, partition=operation.partition, offset=offset))

    result: OnResult = on_result
    assert operation.partition is not None
    client.send(operation.value, operation.partition, result)
