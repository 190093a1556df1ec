"""Writers for a chaos run: threads that record their sends and the results."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.verify import Action, HistoryWriter, Phase, SendOp, TransactionOp
from tests.support.chaos_clients import Client, ClientFactory, GaveUpError, MustAbortError, OnResult
from tests.support.waiting import eventually

PENDING_MAX = 300
RECORDS_MAX = 6  # of a transaction
ABORT_CHANCE, ZOMBIE_CHANCE = 0.2, 0.05
RETRY_SECONDS = 0.2
SETTLE_SECONDS_MAX = 60
STOP_SECONDS_MAX = 40


@dataclass(slots=True)
class Setting:
    """The cluster, topic and history that all clients of a run share."""

    bootstrap: str
    topic: str
    partitions: int
    history: HistoryWriter
    acks: list[tuple[int, float, float]] = field(default_factory=list)  # partition, sent at, acknowledged at


class Writer(threading.Thread):
    """Repeats `step` until it is stopped."""

    def __init__(self, name: str, setting: Setting, create_client: ClientFactory, rate_per_s: float, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.setting = setting
        self.rng = random.Random(seed)
        self.error: BaseException | None = None
        self.acknowledged = 0
        self.reasons: Counter[str] = Counter()  # why clients gave up, or had to abort
        self._create_client = create_client
        self._rate_per_s = rate_per_s
        self._stopping = threading.Event()
        self._client: Client | None = None
        self._count = 0
        self._pending = 0  # approximate: limits the rate only
        self._generation = 0
        self._instance = 0  # of a transactional client

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping.set()
        self.join(STOP_SECONDS_MAX)
        if self.is_alive():
            raise TimeoutError(f"writer {self.name} has not stopped after {STOP_SECONDS_MAX} s")
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self._stopping.wait(max(0.0, due - time.monotonic())):
                due = max(due, time.monotonic() - 1) + 1 / self._rate_per_s
                self.step()
            self.drop_client()
        except BaseException as error:
            self.error = error

    def step(self) -> None:
        raise NotImplementedError

    def client(self) -> Client:
        if self._client is None:
            self._generation += 1
            self._client = self.create_client()
        return self._client

    def create_client(self) -> Client:
        return self._create_client(self.setting.bootstrap, self.setting.topic)

    def drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(GaveUpError, MustAbortError):
                client.close()

    def send(self, client: Client, writer: str, transaction: str | None = None) -> None:
        """Send the next value to a random partition."""
        self._count += 1
        value, partition = f"{writer}:{self._count}", self.rng.randrange(self.setting.partitions)
        send = SendOp(Phase.INVOKE, writer, value, self.setting.topic, partition, transaction=transaction)
        self.setting.history.add(send)
        self._pending += 1
        client.send(value, partition, self._on_result(writer, value))

    def _on_result(self, writer: str, value: str) -> OnResult:
        sent_at = time.monotonic()

        def on_result(phase: Phase, partition: int | None, offset: int | None) -> None:
            self._pending -= 1
            self.setting.history.add(SendOp(phase, writer, value, self.setting.topic, partition, offset))
            if phase is Phase.OK and partition is not None:
                self.acknowledged += 1
                self.setting.acks.append((partition, sent_at, time.monotonic()))

        return on_result


class PlainWriter(Writer):
    """Sends single records with an idempotent producer, and creates a new one when it gives up."""

    def step(self) -> None:
        client = self.client()
        try:
            if self._pending >= PENDING_MAX:
                self._stopping.wait(RETRY_SECONDS)
                client.serve()
                return
            self.send(client, f"{self.name}-{self._generation}")
        except (GaveUpError, MustAbortError) as error:
            self.reasons[str(error)] += 1
            self.drop_client()
            self._pending = 0


class TransactionalWriter(Writer):
    """Writes transactions over all partitions; aborts some, and leaves some to a zombie that tries to commit them."""

    def create_client(self) -> Client:
        client = self._create_client(self.setting.bootstrap, self.setting.topic, self.transactional_id)
        self._instance += 1
        self._record(Action.INIT, Phase.INVOKE, self._producer, None)
        try:
            client.init()
        except BaseException:
            client.close()
            raise
        self._record(Action.INIT, Phase.OK, self._producer, None)
        return client

    @property
    def transactional_id(self) -> str:
        return f"id-{self.name}"

    @property
    def _producer(self) -> str:
        return f"{self.name}#{self._instance}"

    def _record(self, action: Action, phase: Phase, producer: str, transaction: str | None) -> None:
        operation = TransactionOp(action, phase, self.name, transaction, self.transactional_id, producer)
        self.setting.history.add(operation)

    def step(self) -> None:
        try:
            client = self.client()
        except (GaveUpError, MustAbortError) as error:
            self.reasons[str(error)] += 1
            self._stopping.wait(RETRY_SECONDS)
            return
        self._count += 1
        if not self._transaction(client, f"{self.name}/{self._count}"):
            self.drop_client()

    def _transaction(self, client: Client, name: str) -> bool:
        """Write a transaction; return whether the client can be used again."""
        try:
            client.begin()
            for _ in range(self.rng.randint(1, RECORDS_MAX)):
                self.send(client, self.name, name)
            self.before_end()
            chance = self.rng.random()
            if ABORT_CHANCE <= chance < ABORT_CHANCE + ZOMBIE_CHANCE:
                self._client = None
                self._commit_as_zombie(client, name)
                return True
            if chance >= ABORT_CHANCE:
                self._record(Action.COMMIT, Phase.INVOKE, self._producer, name)
                client.commit()
                self._record(Action.COMMIT, Phase.OK, self._producer, name)
                return True
        except MustAbortError as error:
            self.reasons[str(error)] += 1
        except GaveUpError as error:
            self.reasons[str(error)] += 1
            return False
        return self._abort(client, name)

    def before_end(self) -> None:
        """Do something before a transaction is ended."""

    def _abort(self, client: Client, name: str) -> bool:
        self._record(Action.ABORT, Phase.INVOKE, self._producer, name)
        try:
            client.abort()
        except (MustAbortError, GaveUpError) as error:
            self.reasons[str(error)] += 1
            return False
        self._record(Action.ABORT, Phase.OK, self._producer, name)
        return True

    def _commit_as_zombie(self, zombie: Client, name: str) -> None:
        """Let a zombie commit after a new client has its id. The check reports an anomaly if the commit succeeds."""
        producer = self._producer
        try:
            self.client()
        except (MustAbortError, GaveUpError):
            zombie.close()
            return
        self._record(Action.COMMIT, Phase.INVOKE, producer, name)
        phase = Phase.OK
        try:
            zombie.commit()
        except (MustAbortError, GaveUpError):
            phase = Phase.FAIL
        finally:
            zombie.close()
        self._record(Action.COMMIT, phase, producer, name)

    def settle(self) -> None:
        """End open transactions of this writer: a new client with its id fences the old one."""

        def is_initialised() -> bool:
            try:
                self.create_client().close()
            except (MustAbortError, GaveUpError):
                return False
            return True

        eventually(f"{self.name} can initialise again", is_initialised, SETTLE_SECONDS_MAX)
