"""What is known of transactions: those under way, for how long, and what they hold back.

A reader of committed records goes no further than the last stable offset: where the first open transaction of a
partition begins. All that was written behind it, also by others, waits for that one.
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
    """A partition whose last records wait for a transaction to end."""

    at: TopicPartition
    stable: int
    """The last stable offset."""
    end: int

    @property
    def count(self) -> int:
        """Offsets that readers of committed records do not get yet."""
        return self.end - self.stable


@dataclass(frozen=True, slots=True)
class OpenPart:
    """What a transaction has in one partition."""

    at: TopicPartition
    start: int | None
    """Its first offset; None: nothing is written yet."""
    stable: int | None
    end: int | None

    @property
    def holds_back(self) -> int:
        """Offsets that wait for this transaction, and would not without it; 0 where another one is first."""
        if self.start is None or self.stable is None or self.end is None or self.start != self.stable:
            return 0
        return self.end - self.stable


def described(admin: AdminClient, transactional_id: str) -> TransactionDescription | None:
    """None if there is no such id."""
    try:
        return admin.describe_transactions([transactional_id])[transactional_id]
    except BrokerError as error:
        if error.code != Code.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None


def age_ms_of(found: TransactionDescription | None) -> int | None:
    """How long it has been open; None if it is not."""
    if found is None or found.start_ms is None or found.state not in UNDER_WAY:
        return None
    return max(0, int(time.time() * 1000 - found.start_ms))


def facts_of(found: TransactionDescription) -> dict[str, Any]:
    """As plain values: the names in them are stable, for they are printed as JSON."""
    age_ms = age_ms_of(found)
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "age_ms": age_ms,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(found.partitions)],
    }


def held_back(
    admin: AdminClient, partitions: Iterable[TopicPartition], ends: Mapping[TopicPartition, int] | None = None
) -> dict[TopicPartition, HeldBack]:
    """Those of the partitions in which some transaction is open, with how far readers get.

    `ends` are their end offsets, if they are known already, from before: what ends in between is not taken for open.
    """
    wanted = dict.fromkeys(partitions, LATEST)
    if not wanted:
        return {}
    if ends is None:
        ends = {tp: found.offset for tp, found in admin.list_offsets(wanted).items()}
    stable = admin.list_offsets(wanted, Isolation.READ_COMMITTED)
    return {tp: HeldBack(tp, stable[tp].offset, ends[tp]) for tp in wanted if stable[tp].offset < ends[tp]}


def open_parts_of_all(admin: AdminClient, transactions: Iterable[TransactionDescription]) -> dict[str, list[OpenPart]]:
    """What open transactions have in each of their partitions, by id; those that nobody leads are left out."""
    transactions = list(transactions)
    wanted = {tp for one in transactions for tp in one.partitions}
    there = wanted & existing_partitions(admin, {tp.topic for tp in wanted}, led_only=True)
    held = held_back(admin, there)
    producers = admin.describe_producers(held) if held else {}
    return {
        one.transactional_id: [
            _open_part(tp, held.get(tp), _start_of(one, producers.get(tp, ()))) for tp in sorted(one.partitions & there)
        ]
        for one in transactions
    }


def _open_part(tp: TopicPartition, held: HeldBack | None, start: int | None) -> OpenPart:
    return OpenPart(tp, start, held.stable if held else None, held.end if held else None)


def _start_of(found: TransactionDescription, producers: Iterable[ActiveProducer]) -> int | None:
    return next((one.transaction_start_offset for one in producers if one.producer_id == found.producer_id), None)
