"""All groups: state, members, how far behind, and which way that goes. Only those on the screen are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nicegui import ui

from headrace.client.admin import AdminClient, GroupListing
from headrace.client.facts.groups import GroupFacts, Member, PartitionLag
from headrace.ui import formatting
from headrace.ui.actions import action_button
from headrace.ui.charts import LineChart
from headrace.ui.elements import Problem, Text, Tile, section, tiles
from headrace.ui.frame import frame, group_address, topic_address
from headrace.ui.group_feeds import STEADY_PER_SECOND, GroupWatch, LagHistory
from headrace.ui.pages.offset_reset import ResetForm
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

_KEYS = {
    "group": lambda one: one.group_id,
    "state": lambda one: one.state,
    "type": lambda one: one.type,
}


def build(view: View) -> None:
    watch = GroupWatch(view.cluster)
    _build_group_page(view, watch)

    @ui.page("/groups")
    def groups() -> None:
        with frame(view, "Groups", "/groups") as page, section("Groups of consumers"):
            table = ServerTable(
                "Groups",
                [
                    Column("group", "Group", "link", sortable=True),
                    Column("state", "State", "state", sortable=True),
                    Column("type", "Protocol", sortable=True),
                    Column("members", "Members", "number"),
                    Column("lag", "Lag", "number"),
                    Column("late", "Late by", "number"),
                    Column("trend", "In the last minute", "state"),
                ],
                _Listed(watch).rows,
                row_key="group",
                empty="No group yet. One appears when a consumer with a group.id joins, or when offsets are committed "
                "for it: headrace consume TOPIC --group NAME.",
                search="groups",
                sort_by="group",
            )
            page.live(table.refresh)


class _Listed:
    """The rows of one open page."""

    def __init__(self, watch: GroupWatch) -> None:
        self._watch = watch
        self._listing = watch.listing()
        self._details = watch.details()

    def rows(self, query: Query) -> Rows:
        listed = self._listing.look() or []
        found = paged(query, listed, lambda one: {"listing": one}, keys=_KEYS, text=lambda one: one.group_id)
        shown: list[GroupListing] = [row["listing"] for row in found.rows]
        seen = self._watch.want([one.group_id for one in shown], self._details)
        rows: list[Row] = []
        problems = []
        for one in shown:
            known = seen.get(one.group_id)
            if known is not None and known.problem:
                problems.append(known.problem)
            rows.append(
                group_row(
                    one.group_id,
                    one.state,
                    one.type.lower(),
                    None if known is None else known.facts,
                    self._watch.history(one.group_id),
                )
            )
        trouble = self._listing.trouble or self._details.trouble
        return Rows(rows, found.total, trouble.text if trouble else "; ".join(problems) or None)


RECORDS, LATE = "lag", "late by"


def _build_group_page(view: View, watch: GroupWatch) -> None:
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


_STATES = {
    "Stable": ("●", "good"),
    "Empty": ("○", ""),
    "Dead": ("✕", ""),
    "PreparingRebalance": ("↻", "warn"),
    "CompletingRebalance": ("↻", "warn"),
    "Assigning": ("↻", "warn"),
    "Reconciling": ("↻", "warn"),
}


def state_cells(state: str) -> Row:
    """A state with its mark: ● has members, ○ has none, ↻ is about to share out partitions."""
    mark, tone = _STATES.get(state, ("?", ""))
    return {"state": state or formatting.UNKNOWN, "state_mark": mark, "state_tone": tone}


class Trend(NamedTuple):
    """Which way the lag goes, and how fast."""

    word: str
    mark: str = ""
    tone: str = ""
    speed: str = ""


def trend_of(history: LagHistory) -> Trend:
    per_s = history.records_per_s()
    if per_s is None:
        return Trend(formatting.UNKNOWN)
    if abs(per_s) < STEADY_PER_SECOND:
        return Trend("steady", "→")
    speed = f"by {formatting.rate(abs(per_s))}"
    return Trend("grows", "↗", "warn", speed) if per_s > 0 else Trend("shrinks", "↘", "good", speed)


def lag_text(facts: GroupFacts) -> str:
    is_known = any(one.committed is not None for one in facts.partitions)
    return formatting.records(facts.lag) if is_known else "nothing committed"


def late_text(lag_ms: int | None) -> str:
    """How late a reader is; one that has read everything is not."""
    return formatting.duration(None if lag_ms is None else lag_ms / 1000)


def group_row(name: str, state: str, kind: str, facts: GroupFacts | None, history: LagHistory) -> Row:
    """`facts` come a moment after the list."""
    members = None if facts is None or facts.members is None else len(facts.members)
    trend = trend_of(history)
    return {
        "group": name,
        "group_href": group_address(name),
        **state_cells(state if facts is None else facts.state),
        "type": kind or "classic",
        "members": formatting.count(members),
        "lag": formatting.UNKNOWN if facts is None else lag_text(facts),
        "late": late_text(None if facts is None else facts.lag_ms),
        "trend": f"{trend.word} {trend.speed}".rstrip(),
        "trend_mark": trend.mark,
        "trend_tone": trend.tone,
    }


def partition_row(one: PartitionLag) -> Row:
    return {
        "at": str(one.at),
        "topic": one.at.topic,
        "topic_href": topic_address(one.at.topic),
        "partition": str(one.at.partition),
        "committed": formatting.count(one.committed),
        "end": "gone, or no leader" if one.end is None else formatting.count(one.end),
        "lag": formatting.records(one.lag),
        "late": late_text(one.lag_ms),
        "client": formatting.UNKNOWN if one.member is None else one.member.client_id,
    }


def member_row(member: Member) -> Row:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.instance_id or formatting.UNKNOWN,
        "count": formatting.count(len(member.partitions)),
        "partitions": shortened([str(tp) for tp in member.partitions]),
    }


def shortened(names: list[str], shown_max: int = 6) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - shown_max:,} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more or formatting.UNKNOWN
