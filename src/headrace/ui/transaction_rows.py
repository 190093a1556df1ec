"""Transactions as rows of tables: words, marks and figures."""

from __future__ import annotations

from headrace.client.admin import HangingTransaction, TransactionDescription, TransactionListing
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.facts.history import Step
from headrace.client.facts.transactions import HeldBack, OpenPart, age_ms_of
from headrace.ui import formatting
from headrace.ui.addresses import topic_address, transaction_address
from headrace.ui.tables import Row
from headrace.ui.transaction_watch import OpenTransaction, age_seconds

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
