"""Open and hanging transactions, the records that wait for them, and the history of a transactional id.

A read_committed consumer stops at the last stable offset (LSO): where the first open transaction of a partition begins.
All records beyond it, also of other producers, wait for that transaction.

A hanging transaction is open in a partition, but unknown to its coordinator: it never ends, and read_committed
consumers never read beyond it. It is aborted partition by partition, with a marker that bypasses the coordinator; that
must not be done while a coordinator manages it.

Every state transition is a record in `__transaction_state`, so the history has even short transactions. The log is
compacted: of old transitions only the last one is left.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.admin import (
    ActiveProducer,
    AdminClient,
    HangingTransaction,
    TopicPartition,
    TransactionDescription,
)
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.offsets import LATEST, Isolation
from headrace.client.queries.topics import existing_partitions, offset_bounds
from headrace.errors import BrokerError, Code, IllegalStateError, NotFoundError, WireError
from headrace.wire.internal_topics import TransactionLogKey, TransactionLogValue, coordinator_partition

if TYPE_CHECKING:
    from headrace.client.fetch_data import FetchedRecord

_TOPIC = "__transaction_state"
HISTORY_MS = 15 * 60 * 1000
HISTORY_RECORDS_MAX = 20_000
"""Records to read at most; older ones are left out."""
HISTORY_STEPS_MAX = 100
HISTORY_SECONDS_MAX = 5.0
FETCH_BYTES_MAX = 4 * 1024 * 1024

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""By their numbers in the log."""
_EXPIRED = "Expired"

_version = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition with records beyond the last stable offset."""

    tp: TopicPartition
    stable: int
    """The last stable offset."""
    end: int

    @property
    def count(self) -> int:
        """The number of offsets beyond the last stable offset."""
        return self.end - self.stable


@dataclass(frozen=True, slots=True)
class TransactionPartition:
    """A transaction in one of its partitions."""

    tp: TopicPartition
    start: int | None
    """Its first offset; None if nothing is written yet."""
    stable: int | None
    end: int | None

    @property
    def blocked_count(self) -> int:
        """The number of offsets that wait for this transaction; 0 if another one is first."""
        if self.start is None or self.stable is None or self.end is None or self.start != self.stable:
            return 0
        return self.end - self.stable


def describe_transaction(admin: AdminClient, transactional_id: str) -> TransactionDescription | None:
    """Return a transaction; None if the id does not exist."""
    try:
        return admin.describe_transactions([transactional_id])[transactional_id]
    except BrokerError as error:
        if error.code != Code.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None


def transaction_age_ms(transaction: TransactionDescription | None) -> int | None:
    """Return the age of an open transaction; None if it is not open."""
    if transaction is None or transaction.start_ms is None or transaction.state not in UNDER_WAY:
        return None
    return max(0, int(time.time() * 1000 - transaction.start_ms))


def transaction_to_json(transaction: TransactionDescription) -> dict[str, Any]:
    """Return a transaction as plain values, with the stable names of the JSON output."""
    age_ms = transaction_age_ms(transaction)
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "start_ms": transaction.start_ms,
        "age_ms": age_ms,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(transaction.partitions)],
    }


def blocked_partitions(
    admin: AdminClient, partitions: Iterable[TopicPartition], ends: Mapping[TopicPartition, int] | None = None
) -> dict[TopicPartition, BlockedPartition]:
    """Return the partitions with an open transaction, with their last stable offset.

    `ends` are end offsets that were read before, so that a transaction that ended since does not count as open.
    """
    latest = dict.fromkeys(partitions, LATEST)
    if not latest:
        return {}
    if ends is None:
        ends = {tp: end.offset for tp, end in admin.list_offsets(latest).items()}
    stable = admin.list_offsets(latest, Isolation.READ_COMMITTED)
    return {tp: BlockedPartition(tp, stable[tp].offset, ends[tp]) for tp in latest if stable[tp].offset < ends[tp]}


def open_partitions(
    admin: AdminClient, transactions: Iterable[TransactionDescription]
) -> dict[str, list[TransactionPartition]]:
    """Return the partitions of open transactions, by id; without partitions that have no leader."""
    transactions = list(transactions)
    partitions = {tp for transaction in transactions for tp in transaction.partitions}
    led = partitions & existing_partitions(admin, {tp.topic for tp in partitions}, led_only=True)
    blocked = blocked_partitions(admin, led)
    producers = admin.describe_producers(blocked) if blocked else {}
    return {
        transaction.transactional_id: [
            _transaction_partition(tp, blocked.get(tp), _start_offset(transaction, producers.get(tp, ())))
            for tp in sorted(transaction.partitions & led)
        ]
        for transaction in transactions
    }


def _transaction_partition(
    tp: TopicPartition, blocked: BlockedPartition | None, start: int | None
) -> TransactionPartition:
    return TransactionPartition(tp, start, blocked.stable if blocked else None, blocked.end if blocked else None)


def _start_offset(transaction: TransactionDescription, producers: Iterable[ActiveProducer]) -> int | None:
    starts = (p.transaction_start_offset for p in producers if p.producer_id == transaction.producer_id)
    return next(starts, None)


# -- hanging transactions ----------------------------------------------------------------------------


def hanging_transaction_to_json(transaction: HangingTransaction, now_ms: float) -> dict[str, Any]:
    """Return a hanging transaction as plain values, with the stable names of the JSON output."""
    return {
        "topic": transaction.partition.topic,
        "partition": transaction.partition.partition,
        "start_offset": transaction.producer.transaction_start_offset,
        "producer_id": transaction.producer.producer_id,
        "producer_epoch": transaction.producer.producer_epoch,
        "coordinator_epoch": transaction.producer.coordinator_epoch,
        "last_timestamp": transaction.producer.last_timestamp,
        "age_ms": int(now_ms - transaction.producer.last_timestamp),
    }


def find_hanging(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    """Return the producer of the hanging transaction at an offset; raises if there is none, or if it is not hanging."""
    producer = _open_at(admin, tp, start_offset)
    owner = _managing_id(admin, tp, producer)
    if owner is not None:
        raise IllegalStateError(
            f"the transaction in {tp} is not hanging: its coordinator manages it for {owner!r}. Abort it by that id"
        )
    return producer


def abort_hanging(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> None:
    """Write an abort marker to this partition."""
    admin.abort_transaction(tp, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)


def led_by(admin: AdminClient, partitions: Iterable[TopicPartition], broker_id: int) -> list[TopicPartition]:
    """Return the partitions that a broker leads."""
    brokers = [broker.node_id for broker in admin.describe_cluster().brokers]
    if broker_id not in brokers:
        raise NotFoundError(f"broker {broker_id} does not exist; the brokers are {', '.join(map(str, brokers))}")
    partitions = list(partitions)
    leaders = {
        TopicPartition(name, info.partition): info.leader
        for name, topic in admin.describe_topics({tp.topic for tp in partitions}).items()
        for info in topic.partitions
    }
    return [tp for tp in partitions if leaders.get(tp) == broker_id]


def _open_at(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    producers = admin.describe_producers([tp])[tp]
    opened = [producer for producer in producers if producer.transaction_start_offset is not None]
    for producer in opened:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = ", ".join(str(producer.transaction_start_offset) for producer in opened)
    fact = f"open transactions start at {starts}" if starts else "no transaction is open"
    raise NotFoundError(f"no open transaction in {tp} starts at offset {start_offset}: {fact}")


def _managing_id(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> str | None:
    """Return the transactional id whose coordinator manages the transaction; None if it is hanging."""
    for listing in admin.list_transactions(producer_ids=[producer.producer_id]):
        known = describe_transaction(admin, listing.transactional_id)
        if known is not None and known.state in UNDER_WAY and tp in known.partitions:
            return listing.transactional_id
    return None


# -- history -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """A state that the coordinator recorded, and when."""

    at_ms: int
    state: str
    producer_id: int | None = None
    producer_epoch: int | None = None
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class TransactionHistory:
    """The last transitions of an id, the newest last."""

    steps: tuple[TransactionStep, ...]
    is_whole: bool
    """Whether the whole time span was read; otherwise the log was too large, or the time too short."""


def transaction_history(admin: AdminClient, transactional_id: str) -> TransactionHistory:
    """Return the transitions of the last minutes."""
    topics = admin.describe_topics([_TOPIC], missing_ok=True)
    if _TOPIC not in topics:
        return TransactionHistory((), True)  # the topic is created with the first transaction
    tp = TopicPartition(_TOPIC, coordinator_partition(transactional_id, len(topics[_TOPIC].partitions)))
    ((start, end),) = offset_bounds(admin, [tp]).values()
    then_ms = int(time.time() * 1000) - HISTORY_MS
    first = admin.list_offsets({tp: then_ms})[tp].offset
    begin = max(start, end - HISTORY_RECORDS_MAX, first if first >= 0 else end)
    steps, position = _read_history(admin, tp, begin, end, transactional_id)
    return TransactionHistory(
        tuple(steps[-HISTORY_STEPS_MAX:]), position >= end and begin >= first and len(steps) <= HISTORY_STEPS_MAX
    )


def _read_history(
    admin: AdminClient, tp: TopicPartition, begin: int, end: int, transactional_id: str
) -> tuple[list[TransactionStep], int]:
    """Return the transitions of an id between two offsets, and the position reached in time."""
    from headrace.client.fetcher import Fetcher  # on first use: it imports pyarrow

    steps: list[TransactionStep] = []
    fetcher = Fetcher(admin.client, isolation="read_uncommitted", partition_bytes_max=FETCH_BYTES_MAX)
    fetcher.assign({tp: begin}, {tp: end}, check=False)
    deadline = time.monotonic() + HISTORY_SECONDS_MAX
    while fetcher.position(tp) < end and (left := deadline - time.monotonic()) > 0:
        for record in fetcher.poll(left * 1000):
            if (step := _decode_step(record, transactional_id)) is not None:
                steps.append(step)
    return steps, fetcher.position(tp)


def _decode_step(record: FetchedRecord, transactional_id: str) -> TransactionStep | None:
    """Return the transition in a record; None for other ids, and for unknown kinds of records."""
    try:
        (version,) = _version.unpack_from(record.key or b"")
        key = TransactionLogKey.decode(version, (record.key or b"")[_version.size :])
        if key.transactional_id != transactional_id:
            return None
        if record.value is None:
            return TransactionStep(record.timestamp, _EXPIRED)
        (version,) = _version.unpack_from(record.value)
        value = TransactionLogValue.decode(version, record.value[_version.size :])
    except (struct.error, WireError, ValueError):
        return None
    status = value.transaction_status
    return TransactionStep(
        value.transaction_last_update_timestamp_ms,
        _STATES[status] if 0 <= status < len(_STATES) else f"state {status}",
        value.producer_id,
        value.producer_epoch,
        sum(len(row.partition_ids) for row in value.transaction_partitions or ()),
    )
