"""One transactional id: what it has open, what that holds back, and the steps it has gone through."""

from __future__ import annotations

from nicegui import ui

from headrace.client.admin import AdminClient, HangingTransaction, TransactionDescription, TransactionListing
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.facts.hanging import abort_hanging, hanging_at
from headrace.client.facts.history import SPAN_MS, Step
from headrace.client.facts.transactions import HeldBack, OpenPart, age_ms_of
from headrace.ui import formatting
from headrace.ui.actions import button, run_action
from headrace.ui.elements import Problem, Text, Tile, section, tiles
from headrace.ui.frame import frame, topic_address, transaction_address
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.transaction_feeds import OpenTransaction, TransactionWatch, age_seconds
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
                self._abort = button(ABORT_ACTION, self._on_abort).classes("hr-danger")
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


ABORT = "Abort"
_STATES = {
    "Empty": ("○", ""),
    "Ongoing": ("▶", "warn"),
    "PrepareCommit": ("…", "warn"),
    "PrepareAbort": ("…", "warn"),
    "PrepareEpochFence": ("…", "warn"),
    "CompleteCommit": ("✓", "good"),
    "CompleteAbort": ("✕", ""),
    "Dead": ("✕", ""),
}


def state_cells(state: str) -> Row:
    """A state with its mark: ▶ open, … on its way to its end, ✓ committed, ✕ aborted."""
    mark, tone = _STATES.get(state, ("?", ""))
    return {"state": state, "state_mark": mark, "state_tone": tone}


def age_text(found: TransactionDescription) -> str:
    age_ms = age_ms_of(found)
    return formatting.duration(None if age_ms is None else age_ms / 1000)


def left_text(found: TransactionDescription) -> str:
    """How long its coordinator will bear with it."""
    age_ms = age_ms_of(found)
    if age_ms is None:
        return formatting.UNKNOWN
    left_ms = found.timeout_ms - age_ms
    return formatting.duration(left_ms / 1000) if left_ms > 0 else "its time is up"


def held_text(count: int) -> str:
    return formatting.records(count) if count else "nothing"


def listed_row(listing: TransactionListing) -> Row:
    return {
        "id": listing.transactional_id,
        "id_href": transaction_address(listing.transactional_id),
        **state_cells(listing.state),
        "producer": str(listing.producer_id),
    }


def open_row(one: OpenTransaction, read_only: bool) -> Row:
    found = one.described
    may_abort = not read_only and found.state in UNDER_WAY
    return {
        "id": found.transactional_id,
        "id_href": transaction_address(found.transactional_id),
        **state_cells(found.state),
        "age": age_text(found),
        "left": left_text(found),
        "partitions": formatting.count(len(found.partitions)),
        "held": held_text(one.holds_back),
        "abort": ABORT if may_abort else "",
    }


def part_row(part: OpenPart) -> Row:
    waits_for = ""
    if part.start is not None and part.stable is not None and part.stable < part.start:
        waits_for = "another transaction is open before it"
    return {
        "at": str(part.at),
        "topic": part.at.topic,
        "topic_href": topic_address(part.at.topic),
        "partition": str(part.at.partition),
        "start": "nothing written yet" if part.start is None else formatting.count(part.start),
        "stable": formatting.count(part.stable),
        "end": formatting.count(part.end),
        "held": waits_for or held_text(part.holds_back),
    }


def hanging_row(one: HangingTransaction, held: HeldBack | None, read_only: bool) -> Row:
    return {
        "key": f"{one.partition}@{one.producer.transaction_start_offset}",
        "topic": one.partition.topic,
        "topic_href": topic_address(one.partition.topic),
        "partition": str(one.partition.partition),
        "start": formatting.count(one.producer.transaction_start_offset),
        "producer": f"{one.producer.producer_id}, epoch {one.producer.producer_epoch}",
        "written": f"{formatting.duration(age_seconds(one))} ago",
        "held": held_text(held.count if held and held.stable == one.producer.transaction_start_offset else 0),
        "abort": "" if read_only else ABORT,
    }


def step_row(number: int, step: Step, before: Step | None) -> Row:
    return {
        "number": str(number),
        "at": formatting.moment_ms(step.at_ms),
        **state_cells(step.state),
        "after": formatting.UNKNOWN if before is None else formatting.milliseconds(max(0, step.at_ms - before.at_ms)),
        "partitions": formatting.count(step.partitions),
        "producer": formatting.UNKNOWN
        if step.producer_id is None
        else f"{step.producer_id}, epoch {step.producer_epoch}",
    }


ABORT_ACTION = "Abort the transaction"


async def abort_by_id(view: View, problem: Problem, one: OpenTransaction) -> None:
    """Shut out whoever uses the id, which aborts what it has open."""
    name = one.described.transactional_id

    def fence(admin: AdminClient) -> str:
        admin.fence_producers([name])
        return name

    await run_action(
        view,
        problem,
        fence,
        what=ABORT_ACTION,
        confirm=f"Abort the transaction of {name!r}, open for {age_text(one.described)} in "
        f"{len(one.described.partitions):,} partitions? What it has written will never be seen by readers of committed "
        "records, and its producer is shut out.",
        done=f"Aborted; who used {name} before is shut out",
    )


async def abort_in_partition(view: View, problem: Problem, one: HangingTransaction) -> None:
    """Write the marker that no coordinator will write. Whether it really hangs is looked at once more."""
    start = one.producer.transaction_start_offset
    assert start is not None

    def mark(admin: AdminClient) -> str:
        abort_hanging(admin, one.partition, hanging_at(admin, one.partition, start))
        return str(one.partition)

    await run_action(
        view,
        problem,
        mark,
        what=ABORT_ACTION,
        confirm=f"Write an abort marker into {one.partition}, for the transaction of producer "
        f"{one.producer.producer_id} that begins at offset {start:,}? Its records will never be seen by readers of "
        "committed records.",
        done=f"Aborted in {one.partition}, from offset {start:,} on",
    )
