"""One group: members, lag by partition in records and in time, its last minutes; resetting and deleting it."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from headrace.client.admin import AdminClient
from headrace.client.facts.groups import GroupFacts, PartitionLag
from headrace.ui import formatting
from headrace.ui.actions import action_button
from headrace.ui.charts import LineChart
from headrace.ui.frame import frame
from headrace.ui.group_rows import lag_text, late_text, member_row, partition_row, trend_of
from headrace.ui.group_watch import GroupWatch
from headrace.ui.parts import Problem, Text, Tile, section, tiles
from headrace.ui.reset_form import ResetForm
from headrace.ui.tables import Column, Query, Rows, ServerTable, paged
from headrace.ui.view import View

RECORDS, LATE = "lag", "late by"


def build(view: View, watch: GroupWatch) -> None:
    @ui.page("/group")
    def group(name: str = "") -> None:
        with frame(view, f"Group {name}", "/groups") as page:
            shown = _Group(view, watch, name)
            page.live(shown.refresh)


class _Group:
    """What is on one open page."""

    def __init__(self, view: View, watch: GroupWatch, name: str) -> None:
        self._watch = watch
        self._name = name
        self._details = watch.details()
        self._problem = Problem()
        with tiles():
            self._state = Tile("State")
            self._members = Tile("Members")
            self._lag = Tile("Lag")
            self._late = Tile("Late by", "age of the first record not consumed")
            self._trend = Tile("In the last minute")
        with ui.element("div").classes("hr-columns"):
            with section("Lag in records"):
                self._records_chart = LineChart("Lag in records over the last 15 minutes", [RECORDS], "records")
            with section("Lag in time"):
                self._late_chart = LineChart("Lag in seconds over the last 15 minutes", [LATE], "s")
        with section("Members"):
            self._member_table = _member_table(self._facts)
        with section("Partitions"):
            self._partition_table = _partition_table(self._facts)
        if view.read_only:
            return
        with section("Reset offsets"):
            ResetForm(view, name)
        with section("Delete the group"):
            Text("p", "Deletes it with all that it has committed. It must have no members.").classes("hr-note")
            action_button(
                view,
                "Delete this group",
                lambda admin: _delete(admin, name),
                confirm=f"Delete group {name!r} and all offsets it has committed? This cannot be undone.",
                typed=name,
                done=f"Group {name} is deleted",
                after=lambda _: ui.navigate.to("/groups"),
            )

    def _facts(self) -> GroupFacts | None:
        seen = self._watch.want([self._name], self._details).get(self._name)
        return None if seen is None else seen.facts

    def refresh(self) -> None:
        seen = self._watch.want([self._name], self._details).get(self._name)
        self._problem.tell(self._wrong())
        if seen is not None and seen.facts is not None:
            self._show(seen.facts)
        history = self._watch.history(self._name)
        self._records_chart.show({RECORDS: history.records.points()})
        self._late_chart.show({LATE: history.seconds.points()})
        self._member_table.refresh()
        self._partition_table.refresh()

    def _wrong(self) -> str | None:
        if self._details.trouble is not None:
            return self._details.trouble.text
        seen = (self._details.value or {}).get(self._name)
        if seen is None:
            return None  # it was not asked for yet
        if seen.problem:
            return seen.problem
        if seen.facts is None:
            return f"There is no group {self._name!r}: it was deleted, or its offsets have expired."
        return None

    def _show(self, facts: GroupFacts) -> None:
        self._state.show(facts.state, f"{facts.type} protocol{', ' + facts.assignor if facts.assignor else ''}")
        self._members.show(formatting.count(None if facts.members is None else len(facts.members)))
        late = [one for one in facts.partitions if one.lag]
        self._lag.show(lag_text(facts), f"in {len(late):,} of {len(facts.partitions):,} partitions")
        self._late.show(late_text(facts.lag_ms))
        trend = trend_of(self._watch.history(self._name))
        self._trend.show(f"{trend.mark} {trend.word}".strip(), trend.speed)


def _delete(admin: AdminClient, name: str) -> str:
    admin.delete_groups([name])
    return name


def _member_table(facts: Callable[[], GroupFacts | None]) -> ServerTable:
    def rows(query: Query) -> Rows:
        found = facts()
        return paged(query, (found.members or ()) if found else (), member_row, keys=_MEMBER_KEYS)

    return ServerTable(
        "Members",
        [
            Column("client", "Client", sortable=True),
            Column("host", "Host", sortable=True),
            Column("count", "Partitions", "number", sortable=True),
            Column("partitions", "Which"),
            Column("instance", "Instance"),
            Column("member", "Member", "mono"),
        ],
        rows,
        row_key="member",
        empty="No members at the moment: nobody reads for this group. Its offsets can be reset now.",
    )


def _partition_table(facts: Callable[[], GroupFacts | None]) -> ServerTable:
    def rows(query: Query) -> Rows:
        found = facts()
        items: list[PartitionLag] = found.partitions if found else []
        return paged(query, items, partition_row, keys=_PARTITION_KEYS, text=lambda one: str(one.at))

    return ServerTable(
        "Partitions",
        [
            Column("topic", "Topic", "link", sortable=True),
            Column("partition", "Partition", "number", sortable=True),
            Column("committed", "Committed offset", "number"),
            Column("end", "End offset", "number"),
            Column("lag", "Lag", "number", sortable=True),
            Column("late", "Late by", "number", sortable=True),
            Column("client", "Read by"),
        ],
        rows,
        row_key="at",
        empty="Nothing is committed, and no partition is assigned.",
        search="topics",
        sort_by="topic",
    )


_MEMBER_KEYS = {
    "client": lambda one: one.client_id,
    "host": lambda one: one.host,
    "count": lambda one: len(one.partitions),
}
_PARTITION_KEYS = {
    "topic": lambda one: one.at,
    "partition": lambda one: (one.at.partition, one.at.topic),
    "lag": lambda one: -1 if one.lag is None else one.lag,
    "late": lambda one: -1 if one.lag_ms is None else one.lag_ms,
}
