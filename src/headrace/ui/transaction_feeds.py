"""Transactions, as the pages see them: all ids, the open ones and what they hold back, those that hang, one's past.

list ─► describe those under way ─► how far readers get in their partitions ─► what each holds back
all partitions ─► those whose readers are held back ─► whose producers no coordinator knows: they hang
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
from headrace.client.facts.history import History, history_of
from headrace.client.facts.transactions import (
    HeldBack,
    OpenPart,
    described,
    held_back,
    open_parts_of_all,
)
from headrace.ui.cluster_feeds import Ends
from headrace.ui.collector import Collector, Feed

EVERY_SECONDS = 2.0
HELD_BACK_EVERY_SECONDS = 4.0
"""Every partition is asked about: less often than the rest."""
OPEN_MAX = 500
"""Transactions under way that are looked at closely; more are only counted."""
HANGING_MS = TRANSACTION_MS_MAX
"""What is open in a partition for longer, and known to no coordinator, hangs: brokers allow no transaction so much."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One under way."""

    described: TransactionDescription
    parts: tuple[OpenPart, ...]

    @property
    def holds_back(self) -> int:
        return sum(part.holds_back for part in self.parts)


@dataclass(frozen=True, slots=True)
class Transactions:
    listed: tuple[TransactionListing, ...]
    opened: Mapping[str, OpenTransaction]
    """By id; at most OPEN_MAX of them."""
    open_count: int


@dataclass(frozen=True, slots=True)
class Standstill:
    """Where readers of committed records cannot go on, and what nobody will ever end."""

    partitions: int
    """That were looked at."""
    held: Mapping[TopicPartition, HeldBack]
    hanging: tuple[HangingTransaction, ...]

    @property
    def held_count(self) -> int:
        return sum(one.count for one in self.held.values())


@dataclass(frozen=True, slots=True)
class Detail:
    """One id; nothing if there is none of that name."""

    opened: OpenTransaction | None
    history: History


class TransactionWatch:
    """What the pages of transactions share."""

    def __init__(self, collector: Collector, ends: Feed[Ends]) -> None:
        self._collector = collector
        self._ends = ends

    def all(self) -> Feed[Transactions]:
        return self._collector.feed("transactions", _ask_all, every_s=EVERY_SECONDS)

    def standstill(self) -> Feed[Standstill]:
        return self._collector.feed("held-back", self._ask_standstill, every_s=HELD_BACK_EVERY_SECONDS)

    def detail(self, transactional_id: str) -> Feed[Detail]:
        return self._collector.feed(
            f"transaction:{transactional_id}",
            lambda admin: _ask_detail(admin, transactional_id),
            every_s=EVERY_SECONDS,
        )

    def _ask_standstill(self, admin: AdminClient) -> Standstill:
        """All partitions that have a leader; their ends are known, for the overview needs them, too."""
        known = self._ends.look()
        ends = {} if known is None else known.offsets
        held = held_back(admin, ends, ends)
        hanging = admin.find_hanging_transactions(held, older_than_ms=HANGING_MS) if held else []
        return Standstill(len(ends), held, tuple(hanging))


def _ask_all(admin: AdminClient) -> Transactions:
    listed = admin.list_transactions()
    under_way = [one.transactional_id for one in listed if one.state in UNDER_WAY]
    found = [described(admin, transactional_id) for transactional_id in under_way[:OPEN_MAX]]
    opened = [one for one in found if one is not None and one.state in UNDER_WAY]
    parts = open_parts_of_all(admin, opened)
    return Transactions(
        tuple(listed),
        {one.transactional_id: OpenTransaction(one, tuple(parts[one.transactional_id])) for one in opened},
        len(under_way),
    )


def _ask_detail(admin: AdminClient, transactional_id: str) -> Detail:
    found = described(admin, transactional_id)
    opened = None
    if found is not None:
        parts = open_parts_of_all(admin, [found])[transactional_id] if found.state in UNDER_WAY else []
        opened = OpenTransaction(found, tuple(parts))
    return Detail(opened, history_of(admin, transactional_id))


def age_seconds(one: HangingTransaction) -> float:
    """Since the last record of it was written."""
    return max(0.0, time.time() - one.producer.last_timestamp / 1000)
