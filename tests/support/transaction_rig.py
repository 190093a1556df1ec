"""A transaction coordinator on fakes, with helpers to reach each state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import pytest

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.journal import Event
from headrace.broker.catalog.topics import TRANSACTION_STATE, Topics
from headrace.broker.internal_topics import InternalTopics
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.transactions import log_records
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction import Transaction, TransactionState
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from tests.support.fake_internal import FakeCatalog, FakeInternal, FakeReplicas, HandClock

ID = "payments"
TIMEOUT_MS = 60_000
PARTITIONS = 200


class Rig:
    """A coordinator with a log and partitions that survive it: `restarted()` loads them again."""

    def __init__(self, before: Rig | None = None, options: Mapping[str, object] | None = None) -> None:
        self.clock: HandClock = before.clock if before else HandClock()
        self.internal: FakeInternal = before.internal if before else FakeInternal(self.clock, {TRANSACTION_STATE: 1})
        self.replicas: FakeReplicas = before.replicas if before else FakeReplicas()
        self.catalog: FakeCatalog = before.catalog if before else FakeCatalog()
        if not before:
            self.catalog.record(_topic("t"), _topic("u"))
        self.options: dict[str, object] = {**(before.options if before else {}), **(options or {})}
        self.coordinator = TransactionCoordinator(
            cast(InternalTopics, self.internal),
            cast(ReplicaManager, self.replicas),
            cast(Catalog, self.catalog),
            self.clock,
            BROKER_OPTIONS.resolve(("argument", self.options)),
        )

    def restarted(self) -> Rig:
        """Return a rig with a new coordinator, as after kill -9."""
        rig = Rig(self)
        for index in rig.internal.partitions_led(TRANSACTION_STATE):
            rig.coordinator.load(index)
        return rig

    async def init(self, expected: ProducerIdAndEpoch | None = None, name: str = ID) -> ProducerIdAndEpoch:
        return await self.coordinator.init_producer_id(name, TIMEOUT_MS, expected)

    async def init_until_done(self, name: str = ID) -> ProducerIdAndEpoch:
        """Retry like a producer while the coordinator is busy."""
        for _ in range(20):
            try:
                return await self.init(name=name)
            except BrokerError as error:
                if error.code != Code.CONCURRENT_TRANSACTIONS:
                    raise
            await self.clock.run(100)
        raise AssertionError("the coordinator is busy for ever")

    async def add(self, producer: ProducerIdAndEpoch, *indexes: int, version: int = 1) -> None:
        partitions = [TopicPartition("t", index) for index in indexes]
        await self.coordinator.add_partitions(ID, producer, partitions, version=version)

    async def end(self, producer: ProducerIdAndEpoch, committed: bool, version: int = 1) -> ProducerIdAndEpoch:
        return await self.coordinator.end_transaction(ID, producer, committed, version)

    @property
    def current(self) -> Transaction:
        return self.coordinator.describe(ID)

    def state(self) -> TransactionState:
        return self.current.state

    def logged(self) -> list[Transaction | None]:
        """Return every transition in the log."""
        rows = []
        for batch in self.internal.batches(TRANSACTION_STATE, 0):
            for record in batch.records():
                row = log_records.decode(record)
                assert row is not None
                rows.append(row[1])
        return rows


def _topic(name: str) -> Event:
    return Topics.creation(name, [[1]] * PARTITIONS)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run the coroutine of a test; unfinished tasks end with its event loop."""

    async def bounded() -> None:
        await asyncio.wait_for(main(), 20)

    asyncio.run(bounded())


@contextmanager
def refused(code: Code) -> Iterator[None]:
    """Expect a BrokerError with this code."""
    with pytest.raises(BrokerError) as caught:
        yield
    assert caught.value.code == code, f"refused with {caught.value}, not {code.name}"


async def code_of(work: Awaitable[object]) -> Code:
    """Return the code of a request."""
    try:
        await work
    except BrokerError as error:
        return Code(error.code)
    return Code.NONE
