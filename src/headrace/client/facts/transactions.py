"""Open transactions: their age, and the records beyond the last stable offset.

A read_committed consumer stops at the last stable offset (LSO): where the first open transaction of a partition begins.
All records beyond it, also of other producers, wait for that transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.admin import ActiveProducer, AdminClient, TopicPartition, TransactionDescription
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.facts.partitions import existing_partitions
from headrace.client.offsets import LATEST, Isolation
from headrace.errors import BrokerError, Code


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A partition with records beyond the last stable offset."""

    at: TopicPartition
    stable: int
    """The last stable offset."""
    end: int

    @property
    def count(self) -> int:
        """The number of offsets beyond the last stable offset."""
        return self.end - self.stable


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A transaction in one of its partitions."""

    at: TopicPartition
    start: int | None
    """Its first offset; None if nothing is written yet."""
    stable: int | None
    end: int | None

    @property
    def holds_back(self) -> int:
        """The number of offsets that wait for this transaction; 0 if another one is first."""
        if self.start is None or self.stable is None or self.end is None or self.start != self.stable:
            return 0
        return self.end - self.stable


def described(admin: AdminClient, transactional_id: str) -> TransactionDescription | None:
    """Return a transaction; None if the id does not exist."""
    try:
        return admin.describe_transactions([transactional_id])[transactional_id]
    except BrokerError as error:
        if error.code != Code.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None


def age_ms_of(transaction: TransactionDescription | None) -> int | None:
    """Return the age of an open transaction; None if it is not open."""
    if transaction is None or transaction.start_ms is None or transaction.state not in UNDER_WAY:
        return None
    return max(0, int(time.time() * 1000 - transaction.start_ms))


def facts_of(transaction: TransactionDescription) -> dict[str, Any]:
    """Return a transaction as plain values, with the stable names of the JSON output."""
    age_ms = age_ms_of(transaction)
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


def held_back(
    admin: AdminClient, partitions: Iterable[TopicPartition], ends: Mapping[TopicPartition, int] | None = None
) -> dict[TopicPartition, HeldBack]:
    """Return the partitions with an open transaction, with their last stable offset.

    `ends` are end offsets that were read before, so that a transaction that ended since does not count as open.
    """
    latest = dict.fromkeys(partitions, LATEST)
    if not latest:
        return {}
    if ends is None:
        ends = {tp: end.offset for tp, end in admin.list_offsets(latest).items()}
    stable = admin.list_offsets(latest, Isolation.READ_COMMITTED)
    return {tp: HeldBack(tp, stable[tp].offset, ends[tp]) for tp in latest if stable[tp].offset < ends[tp]}


def open_parts_of_all(admin: AdminClient, transactions: Iterable[TransactionDescription]) -> dict[str, list[OpenPart]]:
    """Return the partitions of open transactions, by id; without partitions that have no leader."""
    transactions = list(transactions)
    partitions = {tp for transaction in transactions for tp in transaction.partitions}
    led = partitions & existing_partitions(admin, {tp.topic for tp in partitions}, led_only=True)
    held = held_back(admin, led)
    producers = admin.describe_producers(held) if held else {}
    return {
        transaction.transactional_id: [
            _open_part(tp, held.get(tp), _start_of(transaction, producers.get(tp, ())))
            for tp in sorted(transaction.partitions & led)
        ]
        for transaction in transactions
    }


def _open_part(tp: TopicPartition, held: HeldBack | None, start: int | None) -> OpenPart:
    return OpenPart(tp, start, held.stable if held else None, held.end if held else None)


def _start_of(transaction: TransactionDescription, producers: Iterable[ActiveProducer]) -> int | None:
    starts = (p.transaction_start_offset for p in producers if p.producer_id == transaction.producer_id)
    return next(starts, None)
