"""Transactions: the open ones with their age and what they hold back, those that hang, and all ids there are."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.client.admin import HangingTransaction
from headrace.client.facts.transactions import age_ms_of
from headrace.ui import formatting
from headrace.ui.elements import Problem, Text, Tile, section, tiles
from headrace.ui.frame import frame
from headrace.ui.pages import transaction
from headrace.ui.pages.transaction import abort_by_id, abort_in_partition, hanging_row, held_text, listed_row, open_row
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.transaction_feeds import HANGING_MS, OPEN_MAX, TransactionWatch
from headrace.ui.view import View


def build(view: View) -> None:
    watch = TransactionWatch(view.cluster, view.traffic.ends)
    transaction.build(view, watch)

    @ui.page("/transactions")
    def transactions() -> None:
        with frame(view, "Transactions", "/transactions") as page:
            shown = _Transactions(view, watch)
            page.live(shown.refresh)


class _Transactions:
    """What is on one open page."""

    def __init__(self, view: View, watch: TransactionWatch) -> None:
        self._view = view
        self._all = watch.all()
        self._standstill = watch.standstill()
        with tiles():
            self._open = Tile("Open")
            self._oldest = Tile("Oldest")
            self._held = Tile("Held back", "from readers of committed records")
            self._hanging = Tile("Hanging", "open, and known to no coordinator")
            self._ids = Tile("Ids")
        with section("Open transactions"):
            self._open_problem = Problem()
            self._open_table = self._make_open_table()
        with section("Hanging transactions"):
            Text(
                "p",
                f"Open in a partition for more than {HANGING_MS // 60_000} minutes, and no coordinator will "
                "ever end them: readers of committed records wait in front of them until they are aborted.",
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
                Column("held", "Holds back", "number", sortable=True),
                Column("abort", "", "action"),
            ],
            self._open_rows,
            row_key="id",
            empty="No transaction is open. One appears when a producer with a transactional.id begins one.",
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
                Column("held", "Holds back", "number"),
                Column("abort", "", "action"),
            ],
            self._hanging_rows,
            row_key="key",
            empty="No transaction hangs.",
            sort_by="topic",
        )
        table.on_action("abort", self._abort_hanging)
        return table

    def _make_id_table(self) -> ServerTable:
        def rows(query: Query) -> Rows:
            found = self._all.look()
            listed = found.listed if found else ()
            return paged(query, listed, listed_row, keys=_ID_KEYS, text=lambda one: one.transactional_id)

        return ServerTable(
            "Transactional ids",
            [
                Column("id", "Transactional id", "link", sortable=True),
                Column("state", "State", "state", sortable=True),
                Column("producer", "Producer id", "number", sortable=True),
            ],
            rows,
            row_key="id",
            empty="No transactional id is known. A producer with a transactional.id, or the Spark sink, makes one.",
            search="transactional ids",
            sort_by="id",
        )

    def _open_rows(self, query: Query) -> Rows:
        found = self._all.look()
        opened = list(found.opened.values()) if found else []
        rows = paged(
            query,
            opened,
            lambda one: open_row(one, self._view.read_only),
            keys=_OPEN_KEYS,
            text=lambda one: one.described.transactional_id,
        )
        problem = self._all.trouble.text if self._all.trouble else None
        if found and found.open_count > OPEN_MAX:
            problem = problem or f"{found.open_count:,} transactions are open; the first {OPEN_MAX:,} are shown."
        return Rows(rows.rows, rows.total, problem)

    def _hanging_rows(self, query: Query) -> Rows:
        found = self._standstill.look()
        hanging = found.hanging if found else ()

        def row(one: HangingTransaction) -> Row:
            return hanging_row(one, found.held.get(one.partition) if found else None, self._view.read_only)

        rows = paged(query, hanging, row, keys=_HANGING_KEYS)
        return Rows(rows.rows, rows.total, self._standstill.trouble.text if self._standstill.trouble else None)

    # -- what is done ----------------------------------------------------------------------------

    async def _abort(self, row: Row) -> None:
        found = self._all.value
        one = found.opened.get(row["id"]) if found else None
        if one is not None:
            await abort_by_id(self._view, self._open_problem, one)

    async def _abort_hanging(self, row: Row) -> None:
        found = self._standstill.value
        for one in found.hanging if found else ():
            if f"{one.partition}@{one.producer.transaction_start_offset}" == row["key"]:
                await abort_in_partition(self._view, self._hanging_problem, one)
                self._standstill.hurry()
                return

    def refresh(self) -> None:
        found, standstill = self._all.look(), self._standstill.look()
        if self._standstill.trouble is not None:  # a topic may be gone: have a fresh look at what there is
            self._view.topology.look()
            self._view.traffic.ends.look()
        if found is not None:
            ages = [age_ms_of(one.described) or 0 for one in found.opened.values()]
            self._open.show(formatting.count(found.open_count))
            self._oldest.show(formatting.duration(max(ages) / 1000) if ages else "none is open")
            self._ids.show(formatting.count(len(found.listed)))
        if standstill is not None:
            self._held.show(held_text(standstill.held_count), f"in {len(standstill.held):,} partitions")
            self._hanging.show(
                formatting.count(len(standstill.hanging)), f"{standstill.partitions:,} partitions looked at"
            )
        for table in (self._open_table, self._hanging_table, self._id_table):
            table.refresh()


_OPEN_KEYS: dict[str, Any] = {
    "id": lambda one: one.described.transactional_id,
    "state": lambda one: one.described.state,
    "age": lambda one: age_ms_of(one.described) or 0,
    "partitions": lambda one: len(one.described.partitions),
    "held": lambda one: one.holds_back,
}
_HANGING_KEYS: dict[str, Any] = {
    "topic": lambda one: one.partition,
    "written": lambda one: -one.producer.last_timestamp,
}
_ID_KEYS: dict[str, Any] = {
    "id": lambda one: one.transactional_id,
    "state": lambda one: one.state,
    "producer": lambda one: one.producer_id,
}
