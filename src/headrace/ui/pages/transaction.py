"""Page of a transactional id: its open transaction, partitions and state history; rows and abort actions."""

from __future__ import annotations

from collections.abc import Iterable

from nicegui import ui

from headrace.client.admin import AdminClient, HangingTransaction, TransactionDescription, TransactionListing
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.queries.transactions import (
    HISTORY_MS,
    BlockedPartition,
    TransactionPartition,
    TransactionStep,
    abort_hanging,
    find_hanging,
    transaction_age_ms,
)
from headrace.ui import formatting
from headrace.ui.actions import button, run_action
from headrace.ui.elements import Problem, Text, Tile, section, tiles
from headrace.ui.frame import frame, topic_url, transaction_url
from headrace.ui.tables import Column, Row, ServerTable, item_rows
from headrace.ui.transaction_feeds import OpenTransaction, TransactionFeeds, age_seconds
from headrace.ui.view import View

_MINUTES = HISTORY_MS // 60_000
ABORT = "Abort"
ABORT_ACTION = "Abort transaction"
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


def build_transaction_page(view: View, feeds: TransactionFeeds) -> None:
    @ui.page("/transaction")
    def transaction(id: str = "") -> None:
        with frame(view, f"Transactional id {id}", "/transactions") as page:
            content = _TransactionContent(view, feeds, id)
            page.live(content.refresh)


class _TransactionContent:
    def __init__(self, view: View, feeds: TransactionFeeds, transactional_id: str) -> None:
        self._view = view
        self._id = transactional_id
        self._detail = feeds.detail(transactional_id)
        self._problem = Problem()
        with tiles():
            self._state = Tile("State")
            self._age = Tile("Open for")
            self._left = Tile("Time left", "until it times out")
            self._beyond_lso = Tile("Beyond LSO", "hidden from read_committed")
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
        def parts() -> Iterable[TransactionPartition]:
            transaction = self._transaction()
            return transaction.parts if transaction else ()

        return ServerTable(
            "Partitions",
            [
                Column("topic", "Topic", "link", sortable=True),
                Column("partition", "Partition", "number"),
                Column("start", "First offset", "number"),
                Column("stable", "Last stable offset", "number"),
                Column("end", "End offset", "number"),
                Column("beyond_lso", "Beyond LSO", "number", sortable=True),
            ],
            item_rows(parts, part_row, keys=_PART_KEYS, text=lambda part: str(part.tp)),
            row_key="at",
            empty="No partitions: the transaction is not open.",
            sort_by="topic",
        )

    def _make_step_table(self) -> ServerTable:
        def newest_first() -> Iterable[tuple[int, TransactionStep, TransactionStep | None]]:
            detail = self._detail.get()
            steps = detail.history.steps if detail else ()
            return reversed([(i + 1, step, steps[i - 1] if i else None) for i, step in enumerate(steps)])

        return ServerTable(
            "State history",
            [
                Column("at", "Time", "mono"),
                Column("state", "State", "state"),
                Column("after", "Since previous", "number"),
                Column("partitions", "Partitions", "number"),
                Column("producer", "Producer"),
            ],
            item_rows(newest_first, lambda step: step_row(*step)),
            row_key="number",
            empty=f"No state change in the last {_MINUTES} minutes.",
        )

    def _transaction(self) -> OpenTransaction | None:
        detail = self._detail.get()
        return None if detail is None else detail.transaction

    async def _on_abort(self) -> None:
        transaction = self._transaction()
        if transaction is not None:
            await abort_by_id(self._view, self._abort_problem, transaction)

    def refresh(self) -> None:
        detail = self._detail.get()
        failure = self._detail.failure
        if failure is not None:
            self._problem.set(failure.text)
        elif detail is not None and detail.transaction is None:
            self._problem.set(f"Unknown transactional id {self._id!r}: it was never used, or it has expired.")
        else:
            self._problem.set(None)
        if detail is not None and detail.transaction is not None:
            self._show(detail.transaction)
        if detail is not None:
            more = "" if detail.history.is_whole else " Older entries are not shown."
            self._history_note.show(
                f"Entries of the coordinator's log of the last {_MINUTES} minutes, the newest first.{more}"
            )
        self._part_table.refresh()
        self._step_table.refresh()

    def _show(self, transaction: OpenTransaction) -> None:
        description = transaction.description
        cells = state_cells(description.state)
        self._state.show(f"{cells['state_mark']} {cells['state']}")
        self._age.show(age_text(description) if description.state in UNDER_WAY else "not open")
        self._left.show(left_text(description))
        self._beyond_lso.show(beyond_lso_text(transaction.beyond_lso))
        self._producer.show(str(description.producer_id), f"epoch {description.producer_epoch}")
        if self._abort is not None:
            self._abort.set_visibility(description.state in UNDER_WAY)


_PART_KEYS = {
    "topic": lambda part: part.tp,
    "beyond_lso": lambda part: part.blocked_count,
}


# -- rows ----------------------------------------------------------------------------------------


def state_cells(state: str) -> Row:
    """Return a state with its mark: ▶ open, … ending, ✓ committed, ✕ aborted."""
    mark, tone = _STATES.get(state, ("?", ""))
    return {"state": state, "state_mark": mark, "state_tone": tone}


def age_text(description: TransactionDescription) -> str:
    age_ms = transaction_age_ms(description)
    return formatting.duration(None if age_ms is None else age_ms / 1000)


def left_text(description: TransactionDescription) -> str:
    """Format the time until the coordinator aborts the transaction."""
    age_ms = transaction_age_ms(description)
    if age_ms is None:
        return formatting.UNKNOWN
    left_ms = description.timeout_ms - age_ms
    return formatting.duration(left_ms / 1000) if left_ms > 0 else "expired"


def beyond_lso_text(count: int) -> str:
    return formatting.count(count, "records") if count else "none"


def listed_row(listing: TransactionListing) -> Row:
    return {
        "id": listing.transactional_id,
        "id_href": transaction_url(listing.transactional_id),
        **state_cells(listing.state),
        "producer": str(listing.producer_id),
    }


def open_row(transaction: OpenTransaction, read_only: bool) -> Row:
    description = transaction.description
    can_abort = not read_only and description.state in UNDER_WAY
    return {
        "id": description.transactional_id,
        "id_href": transaction_url(description.transactional_id),
        **state_cells(description.state),
        "age": age_text(description),
        "left": left_text(description),
        "partitions": formatting.count(len(description.partitions)),
        "beyond_lso": beyond_lso_text(transaction.beyond_lso),
        "abort": ABORT if can_abort else "",
    }


def part_row(part: TransactionPartition) -> Row:
    note = ""
    if part.start is not None and part.stable is not None and part.stable < part.start:
        note = "behind an earlier open transaction"
    return {
        "at": str(part.tp),
        "topic": part.tp.topic,
        "topic_href": topic_url(part.tp.topic),
        "partition": str(part.tp.partition),
        "start": "no records yet" if part.start is None else formatting.count(part.start),
        "stable": formatting.count(part.stable),
        "end": formatting.count(part.end),
        "beyond_lso": note or beyond_lso_text(part.blocked_count),
    }


def hanging_row(transaction: HangingTransaction, held: BlockedPartition | None, read_only: bool) -> Row:
    partition, producer = transaction.partition, transaction.producer
    return {
        "key": f"{partition}@{producer.transaction_start_offset}",
        "topic": partition.topic,
        "topic_href": topic_url(partition.topic),
        "partition": str(partition.partition),
        "start": formatting.count(producer.transaction_start_offset),
        "producer": f"{producer.producer_id}, epoch {producer.producer_epoch}",
        "written": f"{formatting.duration(age_seconds(transaction))} ago",
        "beyond_lso": beyond_lso_text(held.count if held and held.stable == producer.transaction_start_offset else 0),
        "abort": "" if read_only else ABORT,
    }


def step_row(number: int, step: TransactionStep, previous: TransactionStep | None) -> Row:
    return {
        "number": str(number),
        "at": formatting.moment_ms(step.at_ms),
        **state_cells(step.state),
        "after": formatting.UNKNOWN
        if previous is None
        else formatting.milliseconds(max(0, step.at_ms - previous.at_ms)),
        "partitions": formatting.count(step.partitions),
        "producer": formatting.UNKNOWN
        if step.producer_id is None
        else f"{step.producer_id}, epoch {step.producer_epoch}",
    }


# -- actions -------------------------------------------------------------------------------------


async def abort_by_id(view: View, problem: Problem, transaction: OpenTransaction) -> None:
    """Fence the producer of a transactional id, which aborts its transaction."""
    description = transaction.description
    name = description.transactional_id

    def fence(admin: AdminClient) -> str:
        admin.fence_producers([name])
        return name

    await run_action(
        view,
        problem,
        fence,
        name=ABORT_ACTION,
        confirm=f"Abort the transaction of {name!r}, open for {age_text(description)} in "
        f"{formatting.plural(len(description.partitions), 'partition')}? Its records will not be visible to "
        "read_committed consumers, and its producer is fenced.",
        done=f"Transaction aborted; the producer of {name} is fenced",
    )


async def abort_in_partition(view: View, problem: Problem, transaction: HangingTransaction) -> None:
    """Write the abort marker of a hanging transaction, after checking again that it hangs."""
    partition, producer = transaction.partition, transaction.producer
    start = producer.transaction_start_offset
    assert start is not None

    def mark(admin: AdminClient) -> str:
        abort_hanging(admin, partition, find_hanging(admin, partition, start))
        return str(partition)

    await run_action(
        view,
        problem,
        mark,
        name=ABORT_ACTION,
        confirm=f"Write an abort marker to {partition} for the transaction of producer {producer.producer_id} that "
        f"starts at offset {start:,}? Its records will not be visible to read_committed consumers.",
        done=f"Transaction aborted in {partition} from offset {start:,}",
    )
