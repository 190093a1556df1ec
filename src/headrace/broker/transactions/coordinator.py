"""The transaction coordinator: what producers ask for, step by step.

    InitProducerId   the next epoch; a transaction left open is aborted first
    AddPartitions…   into the log, then answered; what is in already is answered at once
    EndTxn           the decision into the log, then answered; markers and the completion follow in the background

A step that was begun is finished even if whoever asked has gone: the log may have it already, and memory must not fall
behind. Hence the tasks of our own, which a request only looks on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.clock import Clock
from headrace.broker.tasks import start_task
from headrace.broker.transactions import log_records
from headrace.broker.transactions.ending import Verdict, check_producer, judge
from headrace.broker.transactions.expiry import Expiry
from headrace.broker.transactions.markers import MarkerWriter, pause
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.states import DECIDED, State
from headrace.broker.transactions.store import Entry, StatePartition, TransactionStore
from headrace.broker.transactions.transaction import (
    EPOCH_MAX,
    VERSION_1,
    VERSION_2,
    ProducerIdEpoch,
    TopicPartition,
    Transaction,
    fenced_error,
    is_exhausted,
)
from headrace.config import Config
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.wire.hashing import coordinator_partition
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from headrace.broker.cluster.transaction_links import TransactionLinks
    from headrace.broker.internal_topics import InternalTopics
    from headrace.broker.replica_manager import ReplicaManager

log = logging.getLogger("headrace.broker.transactions")

ADD_PATIENCE_MS_MAX = 100
"""How long a write of version 2 waits for the end of the transaction before it, rather than be told to come again."""
STOP_SECONDS_MAX = 1.0
"""How long a stop waits for steps that were begun. What is cut off then is finished after the next start."""

T = TypeVar("T")


class TransactionCoordinator:
    """Everything that is to be known and done about transactional ids. Event loop only."""

    def __init__(
        self, internal: InternalTopics, replicas: ReplicaManager, catalog: Catalog, clock: Clock, config: Config
    ) -> None:
        self._internal = internal
        self._clock = clock
        self._config = config
        self.ids = ProducerIds(catalog)
        self._markers = MarkerWriter(replicas, catalog, clock)
        self._store = TransactionStore(internal, catalog, clock, self._on_loaded)
        self._expiry = Expiry(self._store, clock, config, self._start_task, self._abort_timed_out)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._elsewhere: TransactionLinks | None = None
        self.lost_before: dict[int, int] = {}
        """By partition that has lost records: the first producer id that was not given out yet by then."""

    # Life.

    def join(self, others: TransactionLinks) -> None:
        """There are other brokers, with partitions and with coordinators."""
        self._elsewhere = self._markers.elsewhere = others

    def load(self, index: int) -> None:
        """We lead a partition of the transaction log: take over what is in it."""
        self._store.load(index)

    def unload(self, index: int) -> None:
        """We do not lead it any more."""
        self._store.unload(index)

    def start(self) -> None:
        self._expiry.start()

    async def stop(self) -> None:
        self._expiry.stop()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=STOP_SECONDS_MAX)
        for task in self._tasks:
            task.cancel()

    # Requests.

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdEpoch | None = None
    ) -> ProducerIdEpoch:
        """Who the producer is from now on. With `expected` it goes on after an error, as who it was (KIP-360)."""
        if transactional_id is None:
            return ProducerIdEpoch(self.ids.take(), 0)
        _check_id(transactional_id)
        timeout_ms_max = self._config.of(int, "transaction.max.timeout.ms")
        if not 0 < timeout_ms <= timeout_ms_max:
            raise BrokerError(
                f"{transactional_id}: transaction.timeout.ms is {timeout_ms}; it may be 1 to {timeout_ms_max}, "
                "which is transaction.max.timeout.ms of the broker",
                code=Code.INVALID_TRANSACTION_TIMEOUT,
            )
        partition = self._store.partition_of(transactional_id)
        entry = partition.entries.get(transactional_id)
        if entry is None:
            unborn = Transaction.unborn(transactional_id, self.ids.take(), timeout_ms, self._clock.time_ms())
            entry = partition.entries[transactional_id] = Entry(unborn)
        _check_not_pending(entry)
        current = entry.current
        if expected is not None and not _is_owner(current, expected):
            raise fenced_error(current, expected.epoch)
        if current.state == State.ONGOING:
            last_epoch = NO_PRODUCER_EPOCH if expected is None else current.epoch
            await self._to_the_end(entry, self._fence(partition, entry, VERSION_1, last_epoch))
            raise _concurrent(transactional_id, "the transaction of its former owner is being aborted")
        if not current.is_unborn and current.producer_id < self.lost_before.get(partition.index, 0):
            # Epochs of this id after the last one that is known may have been used, and be in the logs.
            target = current.rotated(self.ids.take(), timeout_ms, self._clock.time_ms(), keep_last=False)
        else:
            target = self._initialized(current, timeout_ms, expected)
        return await self._to_the_end(entry, self._initialize(partition, entry, target))

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        version: int = VERSION_1,
    ) -> None:
        """Return when the partitions belong to the transaction."""
        entry = self._owned(transactional_id)
        _check_not_pending(entry)
        current = entry.current
        check_producer(current, producer_id, epoch)
        if epoch == EPOCH_MAX:  # ours alone: nobody was ever given it
            raise fenced_error(current, epoch)
        if current.state == State.ONGOING and current.partitions.issuperset(partitions):
            return
        target = current.extended(partitions, self._clock.time_ms(), version)
        await self._to_the_end(entry, self._store.step(entry, target))

    async def add_offsets(self, transactional_id: str, producer_id: int, epoch: int, group_id: str) -> None:
        """Return when the offsets of a group belong to the transaction."""
        index = coordinator_partition(group_id, self._internal.ensure(CONSUMER_OFFSETS))
        await self.add_partitions(transactional_id, producer_id, epoch, [(CONSUMER_OFFSETS, index)])

    def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Code]:
        """Whether partitions belong to the transaction. What is pending is left to the check at the append."""
        current = self._owned(transactional_id).current
        check_producer(current, producer_id, epoch)
        if current.state in DECIDED:
            raise _concurrent(transactional_id, "its last transaction is being ended")
        return {p: Code.NONE if p in current.partitions else Code.TRANSACTION_ABORTABLE for p in partitions}

    async def ensure_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, Code]:
        """Before a transactional write: a code for each partition, NONE if it belongs to the transaction.

        With `add` (version 2) it is made to. Without, a partition that does not belong gets TRANSACTION_ABORTABLE; for
        clients too old for that code the handler has to say INVALID_TXN_STATE.
        """
        node = None if self._elsewhere is None else self._elsewhere.coordinator_elsewhere(transactional_id)
        if node is not None:
            return await self._ensure_elsewhere(node, transactional_id, producer_id, epoch, partitions, add=add)
        try:
            if not add:
                return self.verify_partitions(transactional_id, producer_id, epoch, partitions)
            await self.add_patiently(transactional_id, producer_id, epoch, partitions)
        except BrokerError as error:
            return dict.fromkeys(partitions, _for_writers(Code(error.code)))
        return dict.fromkeys(partitions, Code.NONE)

    async def _ensure_elsewhere(
        self,
        node: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, Code]:
        """Ask the broker that coordinates the id; as patient as we are here."""
        assert self._elsewhere is not None
        deadline_ms = self._clock.monotonic_ms() + ADD_PATIENCE_MS_MAX
        attempt = 0
        while True:
            try:
                codes = await self._elsewhere.ensure_partitions(
                    node, transactional_id, producer_id, epoch, partitions, add=add
                )
            except BrokerError as error:
                codes = dict.fromkeys(partitions, Code(error.code))
            except HeadraceError as error:
                log.info("%s: its coordinator, broker %d, cannot be asked: %s", transactional_id, node, error)
                return dict.fromkeys(partitions, Code.COORDINATOR_NOT_AVAILABLE)
            if Code.CONCURRENT_TRANSACTIONS not in codes.values() or self._clock.monotonic_ms() > deadline_ms:
                return {partition: _for_writers(code) for partition, code in codes.items()}
            attempt += 1
            await pause(self._clock, attempt)

    async def end_transaction(
        self, transactional_id: str, producer_id: int, epoch: int, committed: bool, version: int
    ) -> ProducerIdEpoch:
        """Decide. Returns who the producer is after that: in version 2 somebody new."""
        entry = self._owned(transactional_id)
        _check_not_pending(entry)
        current = entry.current
        verdict = judge(current, producer_id, epoch, committed, version)
        if verdict is Verdict.DONE:
            return current.producer
        if verdict is Verdict.WAIT:
            raise _concurrent(transactional_id, "it is being ended")
        if verdict is Verdict.CONTRADICTION:
            raise BrokerError(
                f"{transactional_id} is in state {current.state.label} and cannot be "
                f"{'committed' if committed else 'aborted'}",
                code=Code.INVALID_TXN_STATE,
            )
        next_id = self.ids.take() if version >= VERSION_2 and is_exhausted(epoch) else NO_PRODUCER_ID
        target = current.prepared(committed, self._clock.time_ms(), version, next_id)
        partition = self._store.partition_of(transactional_id)
        await self._to_the_end(entry, self._decide(partition, entry, target))
        return target.next_producer

    # For people.

    def describe(self, transactional_id: str) -> Transaction:
        """What is known of an id."""
        _check_id(transactional_id)
        entry = self._store.find(transactional_id)
        if entry is None or entry.current.is_unborn:
            raise BrokerError(f"{transactional_id} is not known", code=Code.TRANSACTIONAL_ID_NOT_FOUND)
        return entry.current

    def transactions(self) -> Iterator[Transaction]:
        """What is known of all ids."""
        partitions = list(self._store.partitions.values())
        if any(partition.is_loading for partition in partitions):
            raise BrokerError("the transaction log is still being read", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        for partition in partitions:
            for entry in partition.entries.values():
                if not entry.current.is_unborn:
                    yield entry.current

    # Steps.

    def _initialized(self, current: Transaction, timeout_ms: int, expected: ProducerIdEpoch | None) -> Transaction:
        now_ms = self._clock.time_ms()
        if is_exhausted(current.epoch) and (expected is None or expected.epoch == current.epoch):
            return current.rotated(self.ids.take(), timeout_ms, now_ms, keep_last=expected is not None)
        return current.initialized(timeout_ms, now_ms, expected)

    async def _initialize(self, partition: StatePartition, entry: Entry, target: Transaction) -> ProducerIdEpoch:
        try:
            await self._store.step(entry, target)
        finally:
            if entry.current.is_unborn:
                partition.entries.pop(target.transactional_id, None)
        return target.producer

    async def add_patiently(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions that are being written to; wait a little for what is in the way."""
        deadline_ms = self._clock.monotonic_ms() + ADD_PATIENCE_MS_MAX
        while True:
            try:
                await self.add_partitions(transactional_id, producer_id, epoch, partitions, version=VERSION_2)
                return
            except BrokerError as error:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if error.code != Code.CONCURRENT_TRANSACTIONS or left_ms <= 0:
                    raise
            await self._owned(transactional_id).settled(self._clock, left_ms)

    async def _fence(self, partition: StatePartition, entry: Entry, version: int, last_epoch: int) -> None:
        await self._decide(partition, entry, entry.current.fenced(self._clock.time_ms(), version, last_epoch))

    async def _abort_timed_out(self, partition: StatePartition, entry: Entry) -> None:
        """A producer of version 2 may go on after its own abort; version 1 has no way to tell it its new epoch."""
        current = entry.current
        if entry.pending is None and current.state == State.ONGOING:
            last_epoch = current.epoch if current.version >= VERSION_2 else NO_PRODUCER_EPOCH
            await self._fence(partition, entry, current.version, last_epoch)

    async def _decide(self, partition: StatePartition, entry: Entry, target: Transaction) -> None:
        await self._store.step(entry, target)
        self._carry_out_later(partition, entry)

    # The end of a transaction that is decided.

    def _on_loaded(self, partition: StatePartition) -> None:
        for entry in partition.entries.values():
            self.ids.seen(max(entry.current.producer_id, entry.current.next_producer_id))
            if entry.current.state in DECIDED:
                self._carry_out_later(partition, entry)

    def _carry_out_later(self, partition: StatePartition, entry: Entry) -> None:
        entry.pending = entry.current.completed(self._clock.time_ms()).state
        self._start_task(self._carry_out(partition, entry))

    async def _carry_out(self, partition: StatePartition, entry: Entry) -> None:
        """Write the markers, then the completion. Pending until then, so nobody takes a step in between."""
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
                log.warning("%s: its end is not in the log yet: %s", target.transactional_id, error)
            await pause(self._clock, attempt)
        entry.current = target
        entry.settle()

    # Tasks.

    def _start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = start_task(work, "transaction coordinator", outcomes=(BrokerError,))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _to_the_end(self, entry: Entry, work: Coroutine[Any, Any, T]) -> T:
        """Take a step on an entry, in a task of its own. The task begins later, but the entry is taken now."""
        entry.pending = entry.current.state
        return await asyncio.shield(self._start_task(work))

    def _owned(self, transactional_id: str) -> Entry:
        """The entry of an id that somebody claims to have."""
        _check_id(transactional_id)
        entry = self._store.find(transactional_id)
        if entry is None:
            raise BrokerError(
                f"{transactional_id} is not known: it was never initialised, or has expired",
                code=Code.INVALID_PRODUCER_ID_MAPPING,
            )
        return entry


def _for_writers(code: Code) -> Code:
    """Whoever writes data knows a fenced producer by another name."""
    return Code.INVALID_PRODUCER_EPOCH if code == Code.PRODUCER_FENCED else code


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise BrokerError("the transactional id is empty", code=Code.INVALID_REQUEST)


def _check_not_pending(entry: Entry) -> None:
    """First of all checks: with version 2 the producer may be ahead of us, with an id that is pending itself."""
    if entry.pending is not None:
        raise _concurrent(entry.current.transactional_id, f"it is on the way to {entry.pending.label}")


def _concurrent(transactional_id: str, why: str) -> BrokerError:
    return BrokerError(f"{transactional_id}: {why}", code=Code.CONCURRENT_TRANSACTIONS)


def _is_owner(current: Transaction, expected: ProducerIdEpoch) -> bool:
    """Whether a producer that says who it was may go on. Its epoch is looked at once more when it gets the next."""
    if current.is_unborn:
        return True  # forgotten, and made anew for it
    if current.state == State.ONGOING:
        return expected == current.producer  # Kafka looks at the id only, and lets a zombie abort its successor
    if expected.producer_id == current.producer_id:
        return True
    return expected.producer_id == current.previous_producer_id and is_exhausted(expected.epoch)
