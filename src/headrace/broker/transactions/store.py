"""The state of all transactional ids in the partitions of `__transaction_state` that this broker leads.

    step → InternalTopics.append (replicated) → memory        the only way to change memory
    load → InternalTopics.batches, record by record → memory

While a transition is being written, and while a decided transaction is being completed, its entry is *pending*: other
requests for the id fail with CONCURRENT_TRANSACTIONS, and clients retry. Kafka does the same. It is simpler than a lock
for each id: there is no queue to bound and no lock to leak. There must be no `await` between the checks of a request
and the start of its transition.
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
from headrace.broker.clock import TimerClock
from headrace.broker.internal_topics import code_for_clients
from headrace.broker.transactions import log_records
from headrace.broker.transactions.transaction import Transaction, TransactionState
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.layout import Record
from headrace.wire.records import RecordBatch

if TYPE_CHECKING:
    from headrace.broker.internal_topics import InternalTopics

log = logging.getLogger("headrace.broker.transactions")

LOAD_SLICE_BATCHES = 2_000
"""How many batches are loaded before the event loop runs other tasks."""


class TransactionEntry:
    """A transactional id: its current transaction and the pending transition."""

    __slots__ = ("_waiters", "current", "pending")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.pending: TransactionState | None = None
        self._waiters: list[asyncio.Future[None]] = []  # one for each waiting request

    def settle(self) -> None:
        """End the pending transition and wake the waiting requests."""
        self.pending = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter)

    async def settled(self, clock: TimerClock, timeout_ms: float) -> None:
        """Wait until no transition is pending, or for the timeout."""
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
    """A partition of the transaction log that this broker leads."""

    index: int
    coordinator_epoch: int
    entries: dict[str, TransactionEntry] = field(default_factory=dict)
    is_loading: bool = True
    failure: str = ""  # why it could not be loaded


class TransactionStore:
    """The entries of all transactional ids, in the log and in memory."""

    def __init__(
        self, internal: InternalTopics, catalog: Catalog, clock: TimerClock, on_loaded: Callable[[StatePartition], None]
    ) -> None:
        self._internal = internal
        self._catalog = catalog
        self._clock = clock
        self._on_loaded = on_loaded
        self.partitions: dict[int, StatePartition] = {}

    # -- look-up ---------------------------------------------------------------------------------

    def partition_of(self, transactional_id: str) -> StatePartition:
        """Return the loaded partition of an id, or raise."""
        index = coordinator_partition(transactional_id, self._internal.ensure(TRANSACTION_STATE))
        if index not in self.partitions and index in self._internal.partitions_led(TRANSACTION_STATE):
            self.load(index)  # the topic has just been created
        partition = self.partitions.get(index)
        if partition is None:
            raise BrokerError(f"{TRANSACTION_STATE}-{index} is led by another broker", code=Code.NOT_COORDINATOR)
        if partition.failure:
            raise BrokerError(partition.failure, code=Code.COORDINATOR_NOT_AVAILABLE)
        if partition.is_loading:
            raise BrokerError(f"{TRANSACTION_STATE}-{index} is being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        return partition

    def find(self, transactional_id: str) -> TransactionEntry | None:
        return self.partition_of(transactional_id).entries.get(transactional_id)

    def is_current(self, partition: StatePartition) -> bool:
        """Return whether this broker has led the partition without interruption."""
        return self.partitions.get(partition.index) is partition

    # -- writing ---------------------------------------------------------------------------------

    async def step(self, entry: TransactionEntry, target: Transaction) -> None:
        """Write a transition to the log, then apply it to memory. Raise the error for the client."""
        entry.pending = target.state
        try:
            partition = self.partition_of(target.transactional_id)
            if partition.entries.get(target.transactional_id) is not entry:
                raise _moved(partition)  # reloaded meanwhile: this entry is stale
            await self.append(partition, [log_records.encode(target, self._clock.time_ms())])
            entry.current = target
        finally:
            entry.settle()

    async def append(self, partition: StatePartition, records: Sequence[Record]) -> None:
        """Append records; raise unless this broker leads the partition before and after."""
        if not self.is_current(partition):
            raise _moved(partition)
        try:
            await self._internal.append(TRANSACTION_STATE, partition.index, records)
        except BrokerError as error:
            code = code_for_clients(error)
            raise BrokerError(f"failed to write the transaction log: {error}", code=code) from error
        except OSError as error:
            raise BrokerError(f"failed to write the transaction log: {error}", code=Code.NOT_COORDINATOR) from error
        if not self.is_current(partition):
            raise _moved(partition)

    # -- loading ---------------------------------------------------------------------------------

    def load(self, index: int) -> None:
        """Load a partition that this broker leads. Requests meanwhile fail with COORDINATOR_LOAD_IN_PROGRESS."""
        epoch = self._leader_epoch(index)
        known = self.partitions.get(index)
        if known is not None and known.coordinator_epoch == epoch and not known.failure:
            return
        partition = self.partitions[index] = StatePartition(index, epoch)
        self._load_slice(partition, self._internal.batches(TRANSACTION_STATE, index), {})

    def unload(self, index: int) -> None:
        """Drop a partition that another broker leads now."""
        self.partitions.pop(index, None)

    def _leader_epoch(self, index: int) -> int:
        topic = self._catalog.topics.by_name.get(TRANSACTION_STATE)
        return topic.partitions[index].leader_epoch if topic and index < len(topic.partitions) else 0

    def _load_slice(
        self, partition: StatePartition, batches: Iterator[RecordBatch], transactions: dict[str, Transaction]
    ) -> None:
        if not self.is_current(partition):
            return
        count = 0
        try:
            for batch in islice(batches, LOAD_SLICE_BATCHES):
                _replay(batch, transactions)
                count += 1
        except (BrokerError, WireError, OSError) as error:
            # A partial log is worse than none: it could reassign an old epoch.
            partition.failure = f"failed to load {TRANSACTION_STATE}-{partition.index}: {error}"
            log.error("%s", partition.failure)
            return
        if count == LOAD_SLICE_BATCHES:
            self._clock.call_later(0, self._load_slice, partition, batches, transactions)
        else:
            self._internal.when_confirmed(
                TRANSACTION_STATE, partition.index, lambda: self._finish_load(partition, transactions)
            )

    def _finish_load(self, partition: StatePartition, transactions: dict[str, Transaction]) -> None:
        if not self.is_current(partition):
            return
        partition.entries = {name: TransactionEntry(transaction) for name, transaction in transactions.items()}
        partition.is_loading = False
        if transactions:
            log.info("loaded %s-%d: %d transactional ids", TRANSACTION_STATE, partition.index, len(transactions))
        self._on_loaded(partition)


def _moved(partition: StatePartition) -> BrokerError:
    return BrokerError(f"{TRANSACTION_STATE}-{partition.index} is led by another broker", code=Code.NOT_COORDINATOR)


def _replay(batch: RecordBatch, transactions: dict[str, Transaction]) -> None:
    if batch.header.is_control:
        return
    for record in batch.records():
        row = log_records.decode(record)
        if row is None:
            log.warning("%s: skipping a record of unknown type at offset %d", TRANSACTION_STATE, record.offset)
            continue
        name, transaction = row
        if transaction is None:
            transactions.pop(name, None)
        else:
            transactions[name] = transaction
