"""Transactions page: open transactions, hanging transactions, all transactional ids."""

from __future__ import annotations

from collections.abc import Iterable

from nicegui import ui

from headrace.client.admin import HangingTransaction, TransactionListing
from headrace.client.queries.transactions import transaction_age_ms
from headrace.ui import formatting
from headrace.ui.elements import Problem, Text, Tile, section, tiles
from headrace.ui.frame import frame
from headrace.ui.pages.transaction import (
    abort_by_id,
    abort_in_partition,
    beyond_lso_text,
    build_transaction_page,
    hanging_row,
    listed_row,
    open_row,
)
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, SortKeys, item_rows, paged
from headrace.ui.transaction_feeds import HANGING_MS, OPEN_MAX, OpenTransaction, TransactionFeeds
from headrace.ui.view import View


def build(view: View) -> None:
    feeds = TransactionFeeds(view.cluster, view.traffic.ends)
    build_transaction_page(view, feeds)

    @ui.page("/transactions")
    def transactions() -> None:
        with frame(view, "Transactions", "/transactions") as page:
            content = _TransactionsContent(view, feeds)
            page.live(content.refresh)


class _TransactionsContent:
    def __init__(self, view: View, feeds: TransactionFeeds) -> None:
        self._view = view
        self._all = feeds.all()
        self._stalled = feeds.stalled()
        with tiles():
            self._open = Tile("Open")
            self._oldest = Tile("Oldest")
            self._beyond_lso = Tile("Beyond LSO", "hidden from read_committed")
            self._hanging = Tile("Hanging", "unknown to all coordinators")
            self._ids = Tile("Transactional ids")
        with section("Open transactions"):
            self._open_problem = Problem()
            self._open_table = self._make_open_table()
        with section("Hanging transactions"):
            Text(
                "p",
                f"Open in a partition for more than {HANGING_MS // 60_000} minutes and unknown to all coordinators. "
                "read_committed consumers cannot read past them until they are aborted.",
            ).classes("hr-note")
            self._hanging_problem = Problem()
            self._hanging_table = self._make_hanging_table()
        with section("All transactional ids"):
            self._id_table = self._make_id_table()

    # -- tables ----------------------------------------------------------------------------------

    def _make_open_table(self) -> ServerTable:
        table = ServerTable(
            "Open transactions",
            [
                Column("id", "Transactional id", "link", sortable=True),
                Column("state", "State", "state", sortable=True),
                Column("age", "Open for", "number", sortable=True),
                Column("left", "Time left", "number"),
                Column("partitions", "Partitions", "number", sortable=True),
                Column("beyond_lso", "Beyond LSO", "number", sortable=True),
                Column("abort", "", "action"),
            ],
            self._open_rows,
            row_key="id",
            empty="No open transactions. A producer with a transactional.id opens one.",
            search="open transactions",
            sort_by="age",
            descending=True,
        )
        table.on_action("abort", self._abort)
        return table

    def _make_hanging_table(self) -> ServerTable:
        table = ServerTable(
            "Hanging transactions",
            [
                Column("topic", "Topic", "link", sortable=True),
                Column("partition", "Partition", "number"),
                Column("start", "First offset", "number"),
                Column("producer", "Producer"),
                Column("written", "Last written", "number", sortable=True),
                Column("beyond_lso", "Beyond LSO", "number"),
                Column("abort", "", "action"),
            ],
            self._hanging_rows,
            row_key="key",
            empty="No hanging transactions.",
            sort_by="topic",
        )
        table.on_action("abort", self._abort_hanging)
        return table

    def _make_id_table(self) -> ServerTable:
        def listings() -> Iterable[TransactionListing]:
            transactions = self._all.get()
            return transactions.listings if transactions else ()

        return ServerTable(
            "Transactional ids",
            [
                Column("id", "Transactional id", "link", sortable=True),
                Column("state", "State", "state", sortable=True),
                Column("producer", "Producer id", "number", sortable=True),
            ],
            item_rows(listings, listed_row, keys=_ID_KEYS, text=lambda listing: listing.transactional_id),
            row_key="id",
            empty="No transactional ids. Producers with a transactional.id and the Spark sink create them.",
            search="transactional ids",
            sort_by="id",
        )

    def _open_rows(self, query: Query) -> Rows:
        transactions = self._all.get()
        rows = paged(
            query,
            transactions.open.values() if transactions else (),
            lambda transaction: open_row(transaction, self._view.read_only),
            keys=_OPEN_KEYS,
            text=lambda transaction: transaction.description.transactional_id,
        )
        problem = self._all.failure.text if self._all.failure else None
        if transactions and transactions.open_count > OPEN_MAX:
            problem = problem or f"Showing the first {OPEN_MAX:,} of {transactions.open_count:,} open transactions."
        return Rows(rows.rows, rows.total, problem)

    def _hanging_rows(self, query: Query) -> Rows:
        stalled = self._stalled.get()
        hanging = stalled.hanging if stalled else ()

        def row(transaction: HangingTransaction) -> Row:
            held = stalled.beyond_lso.get(transaction.partition) if stalled else None
            return hanging_row(transaction, held, self._view.read_only)

        rows = paged(query, hanging, row, keys=_HANGING_KEYS)
        return Rows(rows.rows, rows.total, self._stalled.failure.text if self._stalled.failure else None)

    # -- actions ---------------------------------------------------------------------------------

    async def _abort(self, row: Row) -> None:
        transactions = self._all.value
        transaction = transactions.open.get(row["id"]) if transactions else None
        if transaction is not None:
            await abort_by_id(self._view, self._open_problem, transaction)

    async def _abort_hanging(self, row: Row) -> None:
        stalled = self._stalled.value
        for transaction in stalled.hanging if stalled else ():
            if f"{transaction.partition}@{transaction.producer.transaction_start_offset}" == row["key"]:
                await abort_in_partition(self._view, self._hanging_problem, transaction)
                self._stalled.refresh_now()
                return

    def refresh(self) -> None:
        transactions, stalled = self._all.get(), self._stalled.get()
        if self._stalled.failure is not None:  # perhaps a topic was deleted: update the list of partitions
            self._view.topology.get()
            self._view.traffic.ends.get()
        if transactions is not None:
            ages = [transaction_age_ms(transaction.description) or 0 for transaction in transactions.open.values()]
            self._open.show(formatting.count(transactions.open_count))
            self._oldest.show(formatting.duration(max(ages) / 1000) if ages else formatting.UNKNOWN)
            self._ids.show(formatting.count(len(transactions.listings)))
        if stalled is not None:
            partitions = formatting.plural(len(stalled.beyond_lso), "partition")
            self._beyond_lso.show(beyond_lso_text(stalled.record_count), f"in {partitions}")
            self._hanging.show(
                formatting.count(len(stalled.hanging)), f"{stalled.partition_count:,} partitions checked"
            )
        for table in (self._open_table, self._hanging_table, self._id_table):
            table.refresh()


_OPEN_KEYS: SortKeys[OpenTransaction] = {
    "id": lambda transaction: transaction.description.transactional_id,
    "state": lambda transaction: transaction.description.state,
    "age": lambda transaction: transaction_age_ms(transaction.description) or 0,
    "partitions": lambda transaction: len(transaction.description.partitions),
    "beyond_lso": lambda transaction: transaction.beyond_lso,
}
_HANGING_KEYS: SortKeys[HangingTransaction] = {
    "topic": lambda transaction: transaction.partition,
    "written": lambda transaction: -transaction.producer.last_timestamp,
}
_ID_KEYS: SortKeys[TransactionListing] = {
    "id": lambda listing: listing.transactional_id,
    "state": lambda listing: listing.state,
    "producer": lambda listing: listing.producer_id,
}
