"""The transaction coordinator.

    InitProducerId       bump the epoch; an open transaction is aborted first
    AddPartitionsToTxn   write the partitions to the log, then respond; known partitions need no write
    EndTxn               write the decision to the log, then respond; markers and completion follow in the background

A transition runs in a task of its own, which the request only awaits: it completes even if the client disconnects,
because the log may contain it already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.clock import TimerClock
from headrace.broker.tasks import TaskSet
from headrace.broker.transactions import log_records
from headrace.broker.transactions.expiry import TransactionExpiry
from headrace.broker.transactions.markers import MarkerWriter, back_off
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.store import StatePartition, TransactionEntry, TransactionStore
from headrace.broker.transactions.transaction import (
    DECIDED,
    EPOCH_MAX,
    VERSION_1,
    VERSION_2,
    EndTxnAction,
    Transaction,
    TransactionState,
    check_producer,
    fenced_error,
    is_exhausted,
    resolve_end_txn,
)
from headrace.config import Config
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from headrace.broker.cluster.transaction_links import TransactionLinks
    from headrace.broker.internal_topics import InternalTopics
    from headrace.broker.replica_manager import ReplicaManager

log = logging.getLogger("headrace.broker.transactions")

ADD_WAIT_MS_MAX = 100
"""How long a write of version 2 waits for the previous transaction before it fails with CONCURRENT_TRANSACTIONS."""
STOP_SECONDS_MAX = 1.0
"""How long `stop` waits for running transitions. Others are completed after the next start."""

T = TypeVar("T")


class TransactionCoordinator:
    """Coordinates the transactional ids whose partition this broker leads. Event loop only."""

    def __init__(
        self, internal: InternalTopics, replicas: ReplicaManager, catalog: Catalog, clock: TimerClock, config: Config
    ) -> None:
        self._internal = internal
        self._clock = clock
        self._config = config
        self.ids = ProducerIds(catalog)
        self._markers = MarkerWriter(replicas, catalog, clock)
        self._store = TransactionStore(internal, catalog, clock, self._on_loaded)
        self._tasks = TaskSet("transaction coordinator", outcomes=(BrokerError,))
        self._expiry = TransactionExpiry(self._store, clock, config, self._tasks.start, self._abort_timed_out)
        self._remote: TransactionLinks | None = None
        self.lost_before: dict[int, int] = {}
        """By partition that has lost records: the next producer id to be assigned at that time."""

    # -- start and stop --------------------------------------------------------------------------

    def join(self, others: TransactionLinks) -> None:
        """Use the other brokers of a cluster."""
        self._remote = self._markers.remote = others

    def load(self, index: int) -> None:
        """Load a partition of the transaction log that this broker leads from now on."""
        self._store.load(index)

    def unload(self, index: int) -> None:
        """Drop a partition that another broker leads."""
        self._store.unload(index)

    def start(self) -> None:
        self._expiry.start()

    async def stop(self) -> None:
        self._expiry.stop()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=STOP_SECONDS_MAX)
        for task in self._tasks:
            task.cancel()

    # -- requests --------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        """Return the new producer id and epoch; `expected` are those of a producer that recovers (KIP-360)."""
        if transactional_id is None:
            return ProducerIdAndEpoch(self.ids.take(), 0)
        _check_id(transactional_id)
        timeout_ms_max = self._config.of(int, "transaction.max.timeout.ms")
        if not 0 < timeout_ms <= timeout_ms_max:
            raise BrokerError(
                f"{transactional_id}: invalid transaction.timeout.ms {timeout_ms}: expected 1 to {timeout_ms_max} "
                "(transaction.max.timeout.ms of the broker)",
                code=Code.INVALID_TRANSACTION_TIMEOUT,
            )
        partition = self._store.partition_of(transactional_id)
        entry = partition.entries.get(transactional_id)
        if entry is None:
            new = Transaction.new(transactional_id, self.ids.take(), timeout_ms, self._clock.time_ms())
            entry = partition.entries[transactional_id] = TransactionEntry(new)
        _check_not_pending(entry)
        current = entry.current
        if expected is not None and not _is_owner(current, expected):
            raise fenced_error(current, expected.epoch)
        if current.state == TransactionState.ONGOING:
            last_epoch = NO_PRODUCER_EPOCH if expected is None else current.epoch
            await self._run_shielded(entry, self._fence(partition, entry, VERSION_1, last_epoch))
            raise _concurrent(transactional_id, "the transaction of the previous producer is being aborted")
        if not current.is_new and current.producer_id < self.lost_before.get(partition.index, 0):
            # Later epochs of this id than the known one may have been used.
            target = current.rotated(self.ids.take(), timeout_ms, self._clock.time_ms(), keep_last=False)
        else:
            target = self._initialized(current, timeout_ms, expected)
        return await self._run_shielded(entry, self._initialize(partition, entry, target))

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        version: int = VERSION_1,
    ) -> None:
        """Add partitions to the transaction."""
        entry = self._entry_of(transactional_id)
        _check_not_pending(entry)
        current = entry.current
        check_producer(current, producer)
        if producer.epoch == EPOCH_MAX:  # reserved for fencing
            raise fenced_error(current, producer.epoch)
        if current.state == TransactionState.ONGOING and current.partitions.issuperset(partitions):
            return
        target = current.extended(partitions, self._clock.time_ms(), version)
        await self._run_shielded(entry, self._store.step(entry, target))

    async def add_offsets(self, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str) -> None:
        """Add the offsets of a group to the transaction."""
        index = coordinator_partition(group_id, self._internal.ensure(CONSUMER_OFFSETS))
        await self.add_partitions(transactional_id, producer, [TopicPartition(CONSUMER_OFFSETS, index)])

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Code]:
        """Return NONE or TRANSACTION_ABORTABLE for each partition. Pending ones are checked again at the append."""
        current = self._entry_of(transactional_id).current
        check_producer(current, producer)
        if current.state in DECIDED:
            raise _concurrent(transactional_id, "the previous transaction is being completed")
        return {p: Code.NONE if p in current.partitions else Code.TRANSACTION_ABORTABLE for p in partitions}

    async def ensure_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, Code]:
        """Verify partitions before a transactional write; return a code for each.

        With `add` (version 2) missing partitions are added. Otherwise they get TRANSACTION_ABORTABLE, which the handler
        maps to INVALID_TXN_STATE for older clients.
        """
        node = None if self._remote is None else self._remote.remote_coordinator(transactional_id)
        if node is not None:
            return await self._ensure_remotely(node, transactional_id, producer, partitions, add=add)
        try:
            if not add:
                return self.verify_partitions(transactional_id, producer, partitions)
            await self.add_partitions_v2(transactional_id, producer, partitions)
        except BrokerError as error:
            return dict.fromkeys(partitions, _for_writers(Code(error.code)))
        return dict.fromkeys(partitions, Code.NONE)

    async def _ensure_remotely(
        self,
        node: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, Code]:
        """Send the request to the coordinator on another broker, and retry like a local one."""
        assert self._remote is not None
        deadline_ms = self._clock.monotonic_ms() + ADD_WAIT_MS_MAX
        attempt = 0
        while True:
            try:
                codes = await self._remote.ensure_partitions(node, transactional_id, *producer, partitions, add=add)
            except BrokerError as error:
                codes = dict.fromkeys(partitions, Code(error.code))
            except HeadraceError as error:
                log.info("%s: failed to reach its coordinator, broker %d: %s", transactional_id, node, error)
                return dict.fromkeys(partitions, Code.COORDINATOR_NOT_AVAILABLE)
            if Code.CONCURRENT_TRANSACTIONS not in codes.values() or self._clock.monotonic_ms() > deadline_ms:
                return {partition: _for_writers(code) for partition, code in codes.items()}
            attempt += 1
            await back_off(self._clock, attempt)

    async def end_transaction(
        self, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool, version: int
    ) -> ProducerIdAndEpoch:
        """Commit or abort; return the producer id and epoch afterwards, which are new in version 2."""
        entry = self._entry_of(transactional_id)
        _check_not_pending(entry)
        current = entry.current
        action = resolve_end_txn(current, producer, committed, version)
        if action is EndTxnAction.DONE:
            return current.producer
        if action is EndTxnAction.WAIT:
            raise _concurrent(transactional_id, "the transaction is being completed")
        if action is EndTxnAction.INVALID_STATE:
            raise BrokerError(
                f"{transactional_id} is in state {current.state.label} and cannot be "
                f"{'committed' if committed else 'aborted'}",
                code=Code.INVALID_TXN_STATE,
            )
        next_id = self.ids.take() if version >= VERSION_2 and is_exhausted(producer.epoch) else NO_PRODUCER_ID
        target = current.prepared(committed, self._clock.time_ms(), version, next_id)
        partition = self._store.partition_of(transactional_id)
        await self._run_shielded(entry, self._decide(partition, entry, target))
        return target.next_producer

    # -- administration --------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """Return the transaction of an id, or raise TRANSACTIONAL_ID_NOT_FOUND."""
        _check_id(transactional_id)
        entry = self._store.find(transactional_id)
        if entry is None or entry.current.is_new:
            raise BrokerError(f"unknown transactional id {transactional_id}", code=Code.TRANSACTIONAL_ID_NOT_FOUND)
        return entry.current

    def transactions(self) -> Iterator[Transaction]:
        """Yield the transactions of all ids."""
        partitions = list(self._store.partitions.values())
        if any(partition.is_loading for partition in partitions):
            raise BrokerError("the transaction log is being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        for partition in partitions:
            for entry in partition.entries.values():
                if not entry.current.is_new:
                    yield entry.current

    # -- transitions -----------------------------------------------------------------------------

    def _initialized(self, current: Transaction, timeout_ms: int, expected: ProducerIdAndEpoch | None) -> Transaction:
        now_ms = self._clock.time_ms()
        if is_exhausted(current.epoch) and (expected is None or expected.epoch == current.epoch):
            return current.rotated(self.ids.take(), timeout_ms, now_ms, keep_last=expected is not None)
        return current.initialized(timeout_ms, now_ms, expected)

    async def _initialize(
        self, partition: StatePartition, entry: TransactionEntry, target: Transaction
    ) -> ProducerIdAndEpoch:
        try:
            await self._store.step(entry, target)
        finally:
            if entry.current.is_new:
                partition.entries.pop(target.transactional_id, None)
        return target.producer

    async def add_partitions_v2(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions in version 2; wait for a pending transition up to ADD_WAIT_MS_MAX."""
        deadline_ms = self._clock.monotonic_ms() + ADD_WAIT_MS_MAX
        while True:
            try:
                await self.add_partitions(transactional_id, producer, partitions, version=VERSION_2)
                return
            except BrokerError as error:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if error.code != Code.CONCURRENT_TRANSACTIONS or left_ms <= 0:
                    raise
            await self._entry_of(transactional_id).settled(self._clock, left_ms)

    async def _fence(self, partition: StatePartition, entry: TransactionEntry, version: int, last_epoch: int) -> None:
        await self._decide(partition, entry, entry.current.fenced(self._clock.time_ms(), version, last_epoch))

    async def _abort_timed_out(self, partition: StatePartition, entry: TransactionEntry) -> None:
        """Abort a timed-out transaction. A producer of version 2 can continue after that, version 1 is fenced."""
        current = entry.current
        if entry.pending is None and current.state == TransactionState.ONGOING:
            last_epoch = current.epoch if current.version >= VERSION_2 else NO_PRODUCER_EPOCH
            await self._fence(partition, entry, current.version, last_epoch)

    async def _decide(self, partition: StatePartition, entry: TransactionEntry, target: Transaction) -> None:
        await self._store.step(entry, target)
        self._complete_later(partition, entry)

    # -- completion of decided transactions ------------------------------------------------------

    def _on_loaded(self, partition: StatePartition) -> None:
        for entry in partition.entries.values():
            self.ids.seen(max(entry.current.producer_id, entry.current.next_producer_id))
            if entry.current.state in DECIDED:
                self._complete_later(partition, entry)

    def _complete_later(self, partition: StatePartition, entry: TransactionEntry) -> None:
        entry.pending = entry.current.completed(self._clock.time_ms()).state
        self._tasks.start(self._complete(partition, entry))

    async def _complete(self, partition: StatePartition, entry: TransactionEntry) -> None:
        """Write the markers, then the completion. The entry is pending until then."""
        await self._markers.write(entry.current, partition.coordinator_epoch, lambda: self._store.is_current(partition))
        attempt = 0
        while True:
            target = entry.current.completed(self._clock.time_ms())
            try:
                await self._store.append(partition, [log_records.encode(target, self._clock.time_ms())])
                break
            except BrokerError as error:
                if not self._store.is_current(partition):
                    raise
                attempt += 1
                log.warning("%s: failed to write the completion, retrying: %s", target.transactional_id, error)
            await back_off(self._clock, attempt)
        entry.current = target
        entry.settle()

    # -- tasks -----------------------------------------------------------------------------------

    async def _run_shielded(self, entry: TransactionEntry, work: Coroutine[Any, Any, T]) -> T:
        """Run a transition in a task of its own. The entry is pending at once, before the task starts."""
        entry.pending = entry.current.state
        return await asyncio.shield(self._tasks.start(work))

    def _entry_of(self, transactional_id: str) -> TransactionEntry:
        """Return the entry of an id, or raise INVALID_PRODUCER_ID_MAPPING."""
        _check_id(transactional_id)
        entry = self._store.find(transactional_id)
        if entry is None:
            raise BrokerError(
                f"unknown transactional id {transactional_id}: it was never initialized or has expired",
                code=Code.INVALID_PRODUCER_ID_MAPPING,
            )
        return entry


def _for_writers(code: Code) -> Code:
    """Return the code for a write: there a fenced producer is INVALID_PRODUCER_EPOCH."""
    return Code.INVALID_PRODUCER_EPOCH if code == Code.PRODUCER_FENCED else code


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise BrokerError("the transactional id is empty", code=Code.INVALID_REQUEST)


def _check_not_pending(entry: TransactionEntry) -> None:
    """Raise if a transition is pending. Checked first: in version 2 the producer may already use the pending epoch."""
    if entry.pending is not None:
        raise _concurrent(entry.current.transactional_id, f"the transition to {entry.pending.label} is pending")


def _concurrent(transactional_id: str, why: str) -> BrokerError:
    return BrokerError(f"{transactional_id}: {why}", code=Code.CONCURRENT_TRANSACTIONS)


def _is_owner(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Return whether a producer that recovers from an error may continue. `initialized` checks its epoch."""
    if current.is_new:
        return True  # expired, and created again
    if current.state == TransactionState.ONGOING:
        return expected == current.producer  # Kafka checks the id only, so that a zombie can abort its successor
    if expected.producer_id == current.producer_id:
        return True
    return expected.producer_id == current.previous_producer_id and is_exhausted(expected.epoch)
