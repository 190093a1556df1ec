"""What is known of all transactional ids, kept in the partitions of `__transaction_state` that this broker leads.

    step → InternalTopics.append (replicated) → memory        the only way that memory changes
    load → InternalTopics.batches, record by record → memory

While a step is being written, and while a decided transaction is being carried out, its entry is *pending*: nobody else
takes a step on that id, requests are told CONCURRENT_TRANSACTIONS and come again. That is Kafka's way, and simpler than
a lock for each id: there is nothing to queue, to bound or to leave locked, and clients know that answer anyway. Checks
and the beginning of a step must therefore have no `await` between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import TRANSACTION_STATE
from headrace.broker.clock import Clock
from headrace.broker.internal_topics import code_for_clients
from headrace.broker.transactions import log_records
from headrace.broker.transactions.states import State
from headrace.broker.transactions.transaction import Transaction
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.hashing import coordinator_partition
from headrace.wire.layout import Record
from headrace.wire.records import RecordBatch

if TYPE_CHECKING:
    from headrace.broker.internal_topics import InternalTopics

log = logging.getLogger("headrace.broker.transactions")

BATCHES_A_TURN_MAX = 2_000
"""Of a log that is being loaded, before the event loop sees to other things."""


class Entry:
    """A transactional id in memory."""

    __slots__ = ("_waiters", "current", "pending")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.pending: State | None = None
        self._waiters: list[asyncio.Future[None]] = []  # as many as there are requests that wait

    def settle(self) -> None:
        """Nothing is pending any more."""
        self.pending = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter)

    async def settled(self, clock: Clock, timeout_ms: float) -> None:
        """Wait until nothing is pending, or the time is up."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timer = clock.call_later(timeout_ms, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(slots=True, eq=False)
class StatePartition:
    """A partition of the transaction log that we lead."""

    index: int
    coordinator_epoch: int
    entries: dict[str, Entry] = field(default_factory=dict)
    is_loading: bool = True
    failure: str = ""  # why it could not be loaded


class TransactionStore:
    """Entries by id, in the log and in memory."""

    def __init__(
        self, internal: InternalTopics, catalog: Catalog, clock: Clock, on_loaded: Callable[[StatePartition], None]
    ) -> None:
        self._internal = internal
        self._catalog = catalog
        self._clock = clock
        self._on_loaded = on_loaded
        self.partitions: dict[int, StatePartition] = {}

    # Finding.

    def partition_of(self, transactional_id: str) -> StatePartition:
        """Where an id is kept, if that is here and loaded."""
        index = coordinator_partition(transactional_id, self._internal.ensure(TRANSACTION_STATE))
        if index not in self.partitions and index in self._internal.partitions_led(TRANSACTION_STATE):
            self.load(index)  # the topic has just been made
        partition = self.partitions.get(index)
        if partition is None:
            raise BrokerError(f"{TRANSACTION_STATE}-{index} is led by another broker", code=Code.NOT_COORDINATOR)
        if partition.failure:
            raise BrokerError(partition.failure, code=Code.COORDINATOR_NOT_AVAILABLE)
        if partition.is_loading:
            raise BrokerError(
                f"{TRANSACTION_STATE}-{index} is still being read", code=Code.COORDINATOR_LOAD_IN_PROGRESS
            )
        return partition

    def find(self, transactional_id: str) -> Entry | None:
        return self.partition_of(transactional_id).entries.get(transactional_id)

    def is_current(self, partition: StatePartition) -> bool:
        """Whether we still lead it, and have not lost it in between."""
        return self.partitions.get(partition.index) is partition

    # Writing.

    async def step(self, entry: Entry, target: Transaction) -> None:
        """Take a step: into the log, then into memory. Raises what the client is to be told."""
        entry.pending = target.state
        try:
            partition = self.partition_of(target.transactional_id)
            if partition.entries.get(target.transactional_id) is not entry:
                raise _moved(partition)  # away, and back: this entry is of the past
            await self.append(partition, [log_records.encode(target, self._clock.time_ms())])
            entry.current = target
        finally:
            entry.settle()

    async def append(self, partition: StatePartition, records: Sequence[Record]) -> None:
        """Write records, and make sure that the partition is ours before and after that."""
        if not self.is_current(partition):
            raise _moved(partition)
        try:
            await self._internal.append(TRANSACTION_STATE, partition.index, records)
        except BrokerError as error:
            code = code_for_clients(error)
            raise BrokerError(f"the transaction log could not be written: {error}", code=code) from error
        except OSError as error:
            raise BrokerError(
                f"the transaction log could not be written: {error}", code=Code.NOT_COORDINATOR
            ) from error
        if not self.is_current(partition):
            raise _moved(partition)

    # Reading it back.

    def load(self, index: int) -> None:
        """Read a partition that we lead now; what is asked before that is done is told so."""
        epoch = self._leader_epoch(index)
        known = self.partitions.get(index)
        if known is not None and known.coordinator_epoch == epoch and not known.failure:
            return
        partition = self.partitions[index] = StatePartition(index, epoch)
        self._load_turn(partition, self._internal.batches(TRANSACTION_STATE, index), {})

    def unload(self, index: int) -> None:
        """Forget a partition that somebody else leads now."""
        self.partitions.pop(index, None)

    def _leader_epoch(self, index: int) -> int:
        topic = self._catalog.topics.by_name.get(TRANSACTION_STATE)
        return topic.partitions[index].leader_epoch if topic and index < len(topic.partitions) else 0

    def _load_turn(
        self, partition: StatePartition, batches: Iterator[RecordBatch], found: dict[str, Transaction]
    ) -> None:
        if not self.is_current(partition):
            return
        taken = 0
        try:
            for batch in islice(batches, BATCHES_A_TURN_MAX):
                _replay(batch, found)
                taken += 1
        except (BrokerError, WireError, OSError) as error:
            # Half of a log would be worse than none: it could give a producer id out of date its epoch back.
            partition.failure = f"{TRANSACTION_STATE}-{partition.index} cannot be read: {error}"
            log.error("%s", partition.failure)
            return
        if taken == BATCHES_A_TURN_MAX:
            self._clock.call_later(0, self._load_turn, partition, batches, found)
        else:
            self._internal.when_confirmed(
                TRANSACTION_STATE, partition.index, lambda: self._finish_load(partition, found)
            )

    def _finish_load(self, partition: StatePartition, found: dict[str, Transaction]) -> None:
        if not self.is_current(partition):
            return
        partition.entries = {name: Entry(transaction) for name, transaction in found.items()}
        partition.is_loading = False
        if found:
            log.info("%s-%d: %d transactional ids", TRANSACTION_STATE, partition.index, len(found))
        self._on_loaded(partition)


def _moved(partition: StatePartition) -> BrokerError:
    return BrokerError(f"{TRANSACTION_STATE}-{partition.index} has moved", code=Code.NOT_COORDINATOR)


def _replay(batch: RecordBatch, found: dict[str, Transaction]) -> None:
    if batch.header.is_control:
        return
    for record in batch.records():
        row = log_records.decode(record)
        if row is None:
            log.warning("%s: offset %d: a kind of record that is not known", TRANSACTION_STATE, record.offset)
            continue
        name, transaction = row
        if transaction is None:
            found.pop(name, None)
        else:
            found[name] = transaction
