"""Feeds of transactions: all transactional ids, open transactions, hanging ones, and the history of one id.

list ─► describe the open ones ─► last stable offsets of their partitions ─► records beyond the LSO because of each
all partitions ─► those whose LSO is below the end offset ─► transactions that no coordinator knows: hanging
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.admin import (
    AdminClient,
    HangingTransaction,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from headrace.client.admin.transactions import TRANSACTION_MS_MAX, UNDER_WAY
from headrace.client.queries.transactions import (
    BlockedPartition,
    TransactionHistory,
    TransactionPartition,
    blocked_partitions,
    describe_transaction,
    open_partitions,
    transaction_history,
)
from headrace.ui.cluster_feeds import EndOffsets
from headrace.ui.collector import Collector, Feed

EVERY_SECONDS = 2.0
STALLED_EVERY_SECONDS = 4.0
"""Less often than the rest, because it queries every partition."""
OPEN_MAX = 500
"""Open transactions that are described; further ones are only counted."""
HANGING_MS = TRANSACTION_MS_MAX
"""A transaction that is open for longer than any broker permits, and that no coordinator knows, is hanging."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction and its partitions."""

    description: TransactionDescription
    parts: tuple[TransactionPartition, ...]

    @property
    def beyond_lso(self) -> int:
        """Number of records that read_committed consumers cannot read because of it."""
        return sum(part.blocked_count for part in self.parts)


@dataclass(frozen=True, slots=True)
class TransactionList:
    """All transactional ids, and the open transactions."""

    listings: tuple[TransactionListing, ...]
    open: Mapping[str, OpenTransaction]
    """By transactional id; at most OPEN_MAX."""
    open_count: int


@dataclass(frozen=True, slots=True)
class StalledPartitions:
    """Partitions with records beyond the last stable offset, and hanging transactions."""

    partition_count: int
    """Number of partitions checked."""
    beyond_lso: Mapping[TopicPartition, BlockedPartition]
    hanging: tuple[HangingTransaction, ...]

    @property
    def record_count(self) -> int:
        """Number of records beyond the last stable offset."""
        return sum(held.count for held in self.beyond_lso.values())


@dataclass(frozen=True, slots=True)
class TransactionDetail:
    """One transactional id; `transaction` is None if the id is unknown."""

    transaction: OpenTransaction | None
    history: TransactionHistory


class TransactionFeeds:
    """Feeds shared by the pages of transactions."""

    def __init__(self, collector: Collector, ends: Feed[EndOffsets]) -> None:
        self._collector = collector
        self._ends = ends

    def all(self) -> Feed[TransactionList]:
        return self._collector.feed("transactions", _fetch_all, every_s=EVERY_SECONDS)

    def stalled(self) -> Feed[StalledPartitions]:
        return self._collector.feed("stalled", self._fetch_stalled, every_s=STALLED_EVERY_SECONDS)

    def detail(self, transactional_id: str) -> Feed[TransactionDetail]:
        return self._collector.feed(
            f"transaction:{transactional_id}",
            lambda admin: _fetch_detail(admin, transactional_id),
            every_s=EVERY_SECONDS,
        )

    def _fetch_stalled(self, admin: AdminClient) -> StalledPartitions:
        last_ends = self._ends.get()
        ends = {} if last_ends is None else last_ends.offsets
        blocked = blocked_partitions(admin, ends, ends)
        hanging = admin.find_hanging_transactions(blocked, older_than_ms=HANGING_MS) if blocked else []
        return StalledPartitions(len(ends), blocked, tuple(hanging))


def _fetch_all(admin: AdminClient) -> TransactionList:
    listings = admin.list_transactions()
    open_ids = [listing.transactional_id for listing in listings if listing.state in UNDER_WAY]
    descriptions = [describe_transaction(admin, transactional_id) for transactional_id in open_ids[:OPEN_MAX]]
    still_open = [
        description for description in descriptions if description is not None and description.state in UNDER_WAY
    ]
    parts = open_partitions(admin, still_open)
    return TransactionList(
        tuple(listings),
        {
            description.transactional_id: OpenTransaction(description, tuple(parts[description.transactional_id]))
            for description in still_open
        },
        len(open_ids),
    )


def _fetch_detail(admin: AdminClient, transactional_id: str) -> TransactionDetail:
    description = describe_transaction(admin, transactional_id)
    transaction = None
    if description is not None:
        is_open = description.state in UNDER_WAY
        parts = open_partitions(admin, [description])[transactional_id] if is_open else []
        transaction = OpenTransaction(description, tuple(parts))
    return TransactionDetail(transaction, transaction_history(admin, transactional_id))


def age_seconds(transaction: HangingTransaction) -> float:
    """Return the time since its last record was written."""
    return max(0.0, time.time() - transaction.producer.last_timestamp / 1000)
