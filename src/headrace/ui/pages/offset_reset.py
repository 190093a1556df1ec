"""Resetting the offsets of a group: say where to, see what would change, and only then change it.

fields ─► Target, partitions ─► Preview: what is, what will be ─► Set these offsets: exactly those that were shown
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC

from nicegui import ui

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.groups import look_up
from headrace.client.facts.partitions import chosen_partitions
from headrace.client.facts.resets import Change, Target, plan
from headrace.client.facts.times import parse_time_ms
from headrace.errors import ConfigError, HeadraceError
from headrace.ui import formatting
from headrace.ui.actions import GRACE_SECONDS, button, in_thread, run_action
from headrace.ui.elements import Choice, Problem, Text, TextField, form
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

PREVIEW_MS_MAX = 5_000.0
EARLIEST, LATEST, OFFSET, TIME, SHIFT = "earliest", "latest", "offset", "time", "shift"
_WHERE = {
    EARLIEST: "the first record there is",
    LATEST: "the end: skip all that is there",
    TIME: "a point in time",
    OFFSET: "an offset",
    SHIFT: "forward or back by a number",
}
_VALUES = {
    TIME: ("Time (UTC unless it says otherwise)", "2026-11-16T08:00:00Z"),
    OFFSET: ("Offset", "0"),
    SHIFT: ("Number of offsets; negative: back", "-100"),
}


class ResetForm:
    """The form, its preview, and the button that makes it true."""

    def __init__(self, view: View, group: str) -> None:
        self._view = view
        self._group = group
        self._changes: list[Change] = []
        Text(
            "p",
            "Only while the group has no members. Offsets stay within what a partition has. Nothing is changed "
            "before you have seen what would change.",
        ).classes("hr-note")
        with form("Reset offsets"):
            self._where = Choice("Set to", _WHERE, on_change=self._on_where)
            self._values = {
                name: TextField(label, placeholder=f"as {example}") for name, (label, example) in _VALUES.items()
            }
            self._topic = TextField("Topic", placeholder="all", on_change=self._outdated)
            self._partitions = TextField("Partitions", placeholder="all, or as 0,2", on_change=self._outdated)
            button("Preview", self._preview).classes("hr-primary")
        self._problem = Problem()
        with ui.element("div") as self._outcome:
            self._summary = Text("p").classes("hr-note")
            self._table = _table(lambda: self._changes)
            with ui.element("div").classes("hr-buttons"):
                button("Set these offsets", self._apply).classes("hr-danger")
                button("Forget it", self._outdated)
        self._on_where()

    def _on_where(self) -> None:
        for name, field in self._values.items():
            field.show(name == self._where.value)
        self._outdated()

    def _outdated(self) -> None:
        """What was shown is not what the form says any more."""
        self._changes = []
        self._outcome.set_visibility(False)

    async def _preview(self) -> None:
        self._outdated()
        try:
            self._view.check_writable()
            target, topic, numbers = self._target(), self._topic.value.strip(), self._numbers()
            self._changes = await in_thread(
                PREVIEW_MS_MAX / 1000 + GRACE_SECONDS, lambda: self._planned(target, topic, numbers)
            )
        except HeadraceError as error:
            self._problem.tell(f"Preview: {error}")
            return
        self._problem.tell(None)
        moved = sum(1 for change in self._changes if change.before != change.after)
        self._summary.show(
            f"{moved:,} of {len(self._changes):,} offsets would change. Looked up at {formatting.clock(time.time())}; "
            "nothing is changed yet."
        )
        self._table.refresh()
        self._outcome.set_visibility(True)

    def _planned(self, target: Target, topic: str, numbers: list[int] | None) -> list[Change]:
        with self._view.cluster.connect(PREVIEW_MS_MAX) as admin:
            chosen: list[TopicPartition] | None = None
            if topic:
                chosen = chosen_partitions(admin, {topic: numbers})
            elif numbers is not None:
                raise ConfigError("partitions are given, and no topic: say which topic they are of")
            return plan(admin, self._group, look_up(admin, self._group), target, chosen)

    async def _apply(self) -> None:
        changes = list(self._changes)

        def set_offsets(admin: AdminClient) -> int:
            admin.alter_group_offsets(self._group, {change.at: change.after for change in changes})
            return len(changes)

        done = await run_action(
            self._view,
            self._problem,
            set_offsets,
            what="Set these offsets",
            confirm=f"Set {len(changes):,} offsets of group {self._group!r}? Its readers will go on from there.",
            done=lambda count: f"{count:,} offsets of {self._group} are set",
        )
        if done is not None:
            self._outdated()

    # -- what the fields say ---------------------------------------------------------------------

    def _target(self) -> Target:
        where = self._where.value
        if where in (EARLIEST, LATEST):
            return Target(end=where)
        text = self._values[where].value.strip()
        if where == TIME:
            return Target(time_ms=parse_time_ms(text, UTC))
        number = _whole_number(text, _VALUES[where][0])
        return Target(offset=number) if where == OFFSET else Target(shift=number)

    def _numbers(self) -> list[int] | None:
        text = self._partitions.value.strip()
        if not text:
            return None
        return [_whole_number(part.strip(), "Partitions") for part in text.split(",")]


def _whole_number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{what}: {text!r} is no whole number") from None


def _table(changes: Callable[[], list[Change]]) -> ServerTable:
    def rows(query: Query) -> Rows:
        return paged(query, changes(), _row, keys={"moved": lambda one: one.after - (one.before or 0)})

    return ServerTable(
        "What would change",
        [
            Column("topic", "Topic"),
            Column("partition", "Partition", "number"),
            Column("before", "Is", "number"),
            Column("after", "Will be", "number"),
            Column("moved", "Moves by", "number", sortable=True),
        ],
        rows,
        row_key="at",
        empty="Nothing would change.",
    )


def _row(change: Change) -> Row:
    return {
        "at": str(change.at),
        "topic": change.at.topic,
        "partition": str(change.at.partition),
        "before": "nothing committed" if change.before is None else formatting.count(change.before),
        "after": formatting.count(change.after),
        "moved": change.moved or formatting.UNKNOWN,
    }
