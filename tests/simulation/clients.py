"""Clients of the simulation: real producers and fetchers in simulated processes, which write a history.

A client is a loop of steps on a thread of its process. When its process is killed, a new one continues with its name
and, for transactions, its transactional id; what the old one did not learn stays unknown.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from headrace.client.admin import AdminClient, NewTopic
from headrace.client.fetcher import Fetcher
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.types import TopicPartition
from tests.simulation.world import Process, Thread, World
from tests.support.chaos_clients import GaveUpError, HeadraceClient, MustAbortError, OnResult
from tests.support.history import Ended, Event, Outcome, Read, SendResult, Sent

RECORDS_MAX = 6  # of a transaction
ABORT_CHANCE, ZOMBIE_CHANCE = 0.2, 0.05
PENDING_MAX = 100
PAUSE_SECONDS = 0.5
RESTART_SECONDS = (0.1, 10.0)


class History:
    """The events of all clients, in order."""

    def __init__(self, world: World) -> None:
        self.events: list[Event] = []
        self._world = world

    def add(self, *events: Event) -> None:
        for event in events:
            self._world.record(event)
        self.events += events


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
        send(self.scope, client, Sent(writer, f"{self.name}:{self._count}", self._partition()), self._on_result)

    def _partition(self) -> int:
        return self.rng.randrange(self.scope.partitions)

    def _on_result(self, outcome: Outcome) -> None:
        self._pending -= 1
        self.successes += outcome is Outcome.DONE


class TransactionalWriter(SimulatedClient):
    """Writes transactions over all partitions; aborts some, and leaves some to a zombie that tries to commit them."""

    def __init__(self, scope: Scope, name: str, number: int, rate_per_s: float) -> None:
        super().__init__(scope, name, number)
        self._rate_per_s = rate_per_s
        self._count = 0

    def run(self) -> None:
        client: HeadraceClient | None = None
        while not self.is_stopping:
            self.pause(self.rng.expovariate(self._rate_per_s))
            if client is None:
                client = self._client()
                continue
            self._count += 1
            name = f"{self.name}/{self._count}"
            outcome, client = self._transaction(client, name)
            self.scope.history.add(Ended(name, outcome))
            self.successes += outcome is Outcome.DONE
        if client is not None:
            client.close()
        while self._client() is None:  # fences the last one, so that no transaction stays open
            self.pause(PAUSE_SECONDS)

    def _client(self) -> HeadraceClient | None:
        client = HeadraceClient(self.scope.bootstrap, self.scope.topic, f"id-{self.name}")
        try:
            client.init()
        except (GaveUpError, MustAbortError):
            client.close()
            return None
        return client

    def _transaction(self, client: HeadraceClient, name: str) -> tuple[Outcome, HeadraceClient | None]:
        try:
            client.begin()
            for index in range(self.rng.randint(1, RECORDS_MAX)):
                partition = self.rng.randrange(self.scope.partitions)
                send(self.scope, client, Sent(self.name, f"{name}:{index}", partition, name))
                if self.rng.random() < 0.1:
                    self.pause(self.rng.expovariate(10))
            chance = self.rng.random()
            if chance < ABORT_CHANCE:
                return self._abort(client)
            if chance < ABORT_CHANCE + ZOMBIE_CHANCE:
                return self._commit_as_zombie(client)
            client.commit()
            return Outcome.DONE, client
        except MustAbortError:
            return self._abort(client)
        except GaveUpError:
            client.close()
            return Outcome.UNKNOWN, None

    def _abort(self, client: HeadraceClient) -> tuple[Outcome, HeadraceClient | None]:
        try:
            client.abort()
            return Outcome.UNDONE, client
        except (MustAbortError, GaveUpError):
            client.close()
            return Outcome.UNKNOWN, None

    def _commit_as_zombie(self, zombie: HeadraceClient) -> tuple[Outcome, HeadraceClient | None]:
        """Let a zombie commit after a new client has its id. The check finds a fault if the commit succeeds."""
        client = self._client()
        if client is None:
            zombie.close()
            return Outcome.UNKNOWN, None
        try:
            zombie.commit()
            return Outcome.DONE, client
        except (MustAbortError, GaveUpError):
            return Outcome.UNDONE, client
        finally:
            zombie.close()


class Reader(SimulatedClient):
    """Reads all partitions from their beginning, at one isolation level. It continues where it was."""

    def __init__(self, scope: Scope, name: str, number: int, *, committed: bool) -> None:
        super().__init__(scope, name, number)
        self._committed = committed
        self._positions = {TopicPartition(scope.topic, index): 0 for index in range(scope.partitions)}
        self.reads = 0

    def run(self) -> None:
        isolation: Literal["read_committed", "read_uncommitted"] = (
            "read_committed" if self._committed else "read_uncommitted"
        )
        while not self.is_stopping:
            fetcher = Fetcher(self.scope.bootstrap, isolation=isolation, max_wait_ms=5_000, request_timeout_ms=8_000)
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
            self.scope.history.add(Read(self.name, self._committed, index, tuple(records), None))
            self.reads += 1
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
                    scope.history.add(Read("final", committed, index, tuple(records), end, final=True))


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
    scope: Scope, client: HeadraceClient, event: Sent, on_done: Callable[[Outcome], None] = lambda outcome: None
) -> None:
    """Record and send a value; its result is recorded when it is known."""
    scope.history.add(event)

    def on_result(outcome: Outcome, partition: int | None, offset: int | None) -> None:
        on_done(outcome)
        scope.history.add(SendResult(event.value, outcome, partition, offset))

    result: OnResult = on_result
    assert event.partition is not None
    client.send(event.value, event.partition, result)
