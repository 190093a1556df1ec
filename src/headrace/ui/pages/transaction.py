"""One transactional id: what it has open, what that holds back, and the steps it has gone through."""

from __future__ import annotations

from nicegui import ui

from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.facts.history import SPAN_MS
from headrace.ui.aborting import WHAT, abort_by_id
from headrace.ui.actions import button
from headrace.ui.frame import frame
from headrace.ui.parts import Problem, Text, Tile, section, tiles
from headrace.ui.tables import Column, Query, Rows, ServerTable, paged
from headrace.ui.transaction_rows import age_text, held_text, left_text, part_row, state_cells, step_row
from headrace.ui.transaction_watch import OpenTransaction, TransactionWatch
from headrace.ui.view import View

_MINUTES = SPAN_MS // 60_000


def build(view: View, watch: TransactionWatch) -> None:
    @ui.page("/transaction")
    def transaction(id: str = "") -> None:
        with frame(view, f"Transactional id {id}", "/transactions") as page:
            shown = _Transaction(view, watch, id)
            page.live(shown.refresh)


class _Transaction:
    """What is on one open page."""

    def __init__(self, view: View, watch: TransactionWatch, transactional_id: str) -> None:
        self._view = view
        self._id = transactional_id
        self._detail = watch.detail(transactional_id)
        self._problem = Problem()
        with tiles():
            self._state = Tile("State")
            self._age = Tile("Open for")
            self._left = Tile("Time left", "before its coordinator aborts it")
            self._held = Tile("Holds back", "from readers of committed records")
            self._producer = Tile("Producer id")
        self._abort: ui.element | None = None
        if not view.read_only:
            with ui.element("div").classes("hr-buttons hr-actions"):
                self._abort = button(WHAT, self._on_abort).classes("hr-danger")
                self._abort.set_visibility(False)
            self._abort_problem = Problem()
        with section("Partitions"):
            self._part_table = self._make_part_table()
        with section("State history"):
            self._history_note = Text("p").classes("hr-note")
            self._step_table = self._make_step_table()

    def _make_part_table(self) -> ServerTable:
        def rows(query: Query) -> Rows:
            one = self._opened()
            return paged(query, one.parts if one else (), part_row, keys=_PART_KEYS, text=lambda part: str(part.at))

        return ServerTable(
            "Partitions",
            [
                Column("topic", "Topic", "link", sortable=True),
                Column("partition", "Partition", "number"),
                Column("start", "Begins at", "number"),
                Column("stable", "Last stable offset", "number"),
                Column("end", "End offset", "number"),
                Column("held", "Holds back", "number", sortable=True),
            ],
            rows,
            row_key="at",
            empty="Nothing is open: no partition is part of a transaction now.",
            sort_by="topic",
        )

    def _make_step_table(self) -> ServerTable:
        def rows(query: Query) -> Rows:
            detail = self._detail.look()
            steps = detail.history.steps if detail else ()
            numbered = [(i + 1, step, steps[i - 1] if i else None) for i, step in enumerate(steps)]
            return paged(query, reversed(numbered), lambda one: step_row(*one))

        return ServerTable(
            "State history",
            [
                Column("at", "Written at", "mono"),
                Column("state", "State", "state"),
                Column("after", "After", "number"),
                Column("partitions", "Partitions", "number"),
                Column("producer", "Producer"),
            ],
            rows,
            row_key="number",
            empty=f"No step in the last {_MINUTES} minutes.",
        )

    def _opened(self) -> OpenTransaction | None:
        detail = self._detail.look()
        return None if detail is None else detail.opened

    async def _on_abort(self) -> None:
        one = self._opened()
        if one is not None:
            await abort_by_id(self._view, self._abort_problem, one)

    def refresh(self) -> None:
        detail = self._detail.look()
        trouble = self._detail.trouble
        if trouble is not None:
            self._problem.tell(trouble.text)
        elif detail is not None and detail.opened is None:
            self._problem.tell(f"There is no transactional id {self._id!r}: it was never used, or it has expired.")
        else:
            self._problem.tell(None)
        if detail is not None and detail.opened is not None:
            self._show(detail.opened)
        if detail is not None:
            more = "" if detail.history.is_whole else " There was more than is shown."
            self._history_note.show(
                f"As its coordinator wrote them down in the last {_MINUTES} minutes, the newest first.{more}"
            )
        self._part_table.refresh()
        self._step_table.refresh()

    def _show(self, one: OpenTransaction) -> None:
        found = one.described
        cells = state_cells(found.state)
        self._state.show(f"{cells['state_mark']} {cells['state']}")
        self._age.show(age_text(found) if found.state in UNDER_WAY else "not open")
        self._left.show(left_text(found))
        self._held.show(held_text(one.holds_back))
        self._producer.show(str(found.producer_id), f"epoch {found.producer_epoch}")
        if self._abort is not None:
            self._abort.set_visibility(found.state in UNDER_WAY)


_PART_KEYS = {
    "topic": lambda part: part.at,
    "held": lambda part: part.holds_back,
}
