"""Form that resets the offsets of a group: choose a position, preview the changes, then apply exactly those.

fields ─► ResetTarget, partitions ─► preview of current and new offsets ─► set the previewed offsets
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC

from nicegui import ui

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.queries.groups import OffsetChange, ResetTarget, find_group, plan_reset
from headrace.client.queries.topics import chosen_partitions
from headrace.client.text_formats import parse_time_ms
from headrace.errors import ConfigError, HeadraceError
from headrace.ui import formatting
from headrace.ui.actions import GRACE_SECONDS, button, in_thread, run_action
from headrace.ui.elements import Problem, Select, Text, TextField, form, parse_int
from headrace.ui.tables import Column, Row, ServerTable, item_rows
from headrace.ui.view import View

PREVIEW_MS_MAX = 5_000.0
EARLIEST, LATEST, OFFSET, TIME, SHIFT = "earliest", "latest", "offset", "time", "shift"
_TARGETS = {
    EARLIEST: "earliest offset",
    LATEST: "latest offset (skip all records)",
    TIME: "timestamp",
    OFFSET: "specific offset",
    SHIFT: "shift by a number",
}
_VALUES = {
    TIME: ("Timestamp (UTC unless it has a zone)", "2026-11-16T08:00:00Z"),
    OFFSET: ("Offset", "0"),
    SHIFT: ("Number of offsets, negative to go back", "-100"),
}


class OffsetResetForm:
    """The form, its preview, and the button that applies it."""

    def __init__(self, view: View, group: str) -> None:
        self._view = view
        self._group = group
        self._changes: list[OffsetChange] = []
        Text(
            "p",
            "The group must have no members. Offsets are limited to what a partition contains. Nothing is changed "
            "before you have seen the preview.",
        ).classes("hr-note")
        with form("Reset offsets"):
            self._target_field = Select("Set to", _TARGETS, on_change=self._on_target)
            self._values = {
                name: TextField(label, placeholder=f"for example {example}")
                for name, (label, example) in _VALUES.items()
            }
            self._topic = TextField("Topic", placeholder="all", on_change=self._discard)
            self._partitions = TextField("Partitions", placeholder="all, or 0,2", on_change=self._discard)
            button("Preview", self._preview).classes("hr-primary")
        self._problem = Problem()
        with ui.element("div") as self._outcome:
            self._summary = Text("p").classes("hr-note")
            self._table = _table(lambda: self._changes)
            with ui.element("div").classes("hr-buttons"):
                button("Set offsets", self._apply).classes("hr-danger")
                button("Cancel", self._discard)
        self._on_target()

    def _on_target(self) -> None:
        for name, field in self._values.items():
            field.show(name == self._target_field.value)
        self._discard()

    def _discard(self) -> None:
        """Discard the preview."""
        self._changes = []
        self._outcome.set_visibility(False)

    async def _preview(self) -> None:
        self._discard()
        try:
            self._view.check_writable()
            target, topic, numbers = self._target(), self._topic.value.strip(), self._numbers()
            self._changes = await in_thread(
                PREVIEW_MS_MAX / 1000 + GRACE_SECONDS, lambda: self._planned(target, topic, numbers)
            )
        except HeadraceError as error:
            self._problem.set(f"Preview: {error}")
            return
        self._problem.set(None)
        moved = sum(1 for change in self._changes if change.before != change.after)
        self._summary.show(
            f"{moved:,} of {len(self._changes):,} offsets would change. Previewed at {formatting.clock(time.time())}; "
            "nothing is changed yet."
        )
        self._table.refresh()
        self._outcome.set_visibility(True)

    def _planned(self, target: ResetTarget, topic: str, numbers: list[int] | None) -> list[OffsetChange]:
        with self._view.cluster.connect(PREVIEW_MS_MAX) as admin:
            chosen: list[TopicPartition] | None = None
            if topic:
                chosen = chosen_partitions(admin, {topic: numbers})
            elif numbers is not None:
                raise ConfigError("partitions given without a topic: enter the topic as well")
            return plan_reset(admin, self._group, find_group(admin, self._group), target, chosen)

    async def _apply(self) -> None:
        changes = list(self._changes)

        def set_offsets(admin: AdminClient) -> int:
            admin.alter_group_offsets(self._group, {change.tp: change.after for change in changes})
            return len(changes)

        done = await run_action(
            self._view,
            self._problem,
            set_offsets,
            name="Set offsets",
            confirm=f"Set {len(changes):,} offsets of group {self._group!r}? Its consumers continue from there.",
            done=lambda count: f"{count:,} offsets of {self._group} set",
        )
        if done is not None:
            self._discard()

    # -- input -----------------------------------------------------------------------------------

    def _target(self) -> ResetTarget:
        kind = self._target_field.value
        if kind in (EARLIEST, LATEST):
            return ResetTarget(end=kind)
        text = self._values[kind].value.strip()
        if kind == TIME:
            return ResetTarget(time_ms=parse_time_ms(text, UTC))
        number = parse_int(text, "offset" if kind == OFFSET else "number of offsets", is_signed=True)
        return ResetTarget(offset=number) if kind == OFFSET else ResetTarget(shift=number)

    def _numbers(self) -> list[int] | None:
        text = self._partitions.value.strip()
        if not text:
            return None
        return [parse_int(part.strip(), "partition") for part in text.split(",")]


def _table(changes: Callable[[], list[OffsetChange]]) -> ServerTable:
    return ServerTable(
        "Preview",
        [
            Column("topic", "Topic"),
            Column("partition", "Partition", "number"),
            Column("before", "Current offset", "number"),
            Column("after", "New offset", "number"),
            Column("moved", "OffsetChange", "number", sortable=True),
        ],
        item_rows(changes, _row, keys={"moved": lambda change: change.after - (change.before or 0)}),
        row_key="at",
        empty="Nothing would change.",
    )


def _row(change: OffsetChange) -> Row:
    return {
        "at": str(change.tp),
        "topic": change.tp.topic,
        "partition": str(change.tp.partition),
        "before": "none" if change.before is None else formatting.count(change.before),
        "after": formatting.count(change.after),
        "moved": change.moved or formatting.UNKNOWN,
    }
