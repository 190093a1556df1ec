"""Pages of consumer groups: all groups with their lag; members, partitions and actions of one group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nicegui import ui

from headrace.client.admin import AdminClient, GroupListing
from headrace.client.queries.groups import GroupOverview, Member, PartitionLag
from headrace.ui import formatting
from headrace.ui.actions import action_button
from headrace.ui.charts import LineChart
from headrace.ui.elements import Problem, Text, Tile, section, tiles
from headrace.ui.frame import frame, group_url, topic_url
from headrace.ui.group_feeds import STEADY_PER_SECOND, GroupFeeds, LagHistory
from headrace.ui.pages.consumers import consumer_table
from headrace.ui.pages.offset_reset import OffsetResetForm
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, item_rows, paged
from headrace.ui.view import View

RECORDS, LAG_SECONDS = "lag", "lag in time"
SHOWN_PARTITIONS_MAX = 6
_STATES = {
    "Stable": ("●", "good"),
    "Empty": ("○", ""),
    "Dead": ("✕", ""),
    "PreparingRebalance": ("↻", "warn"),
    "CompletingRebalance": ("↻", "warn"),
    "Assigning": ("↻", "warn"),
    "Reconciling": ("↻", "warn"),
}
_GROUP_KEYS = {
    "group": lambda listing: listing.group_id,
    "state": lambda listing: listing.state,
    "type": lambda listing: listing.type,
}


def build(view: View) -> None:
    feeds = GroupFeeds(view.cluster)
    _build_group_page(view, feeds)

    @ui.page("/groups")
    def groups() -> None:
        with frame(view, "Groups", "/groups") as page, section("Consumer groups"):
            table = ServerTable(
                "Groups",
                [
                    Column("group", "Group", "link", sortable=True),
                    Column("state", "State", "state", sortable=True),
                    Column("type", "Protocol", sortable=True),
                    Column("members", "Members", "number"),
                    Column("lag", "Lag", "number"),
                    Column("lag_time", "Lag in time", "number"),
                    Column("trend", "Trend (1 min)", "state"),
                ],
                _GroupRows(feeds).fetch,
                row_key="group",
                empty="No consumer groups yet. A group appears when a consumer with a group.id joins or commits "
                "offsets, for example headrace consume TOPIC --group NAME.",
                search="groups",
                sort_by="group",
            )
            page.live(table.refresh)


class _GroupRows:
    """The rows of one open page. Only groups on the screen are queried."""

    def __init__(self, feeds: GroupFeeds) -> None:
        self._feeds = feeds
        self._listing = feeds.listing()
        self._details = feeds.details()

    def fetch(self, query: Query) -> Rows:
        listings = self._listing.get() or []
        page = paged(
            query,
            listings,
            lambda listing: {"listing": listing},
            keys=_GROUP_KEYS,
            text=lambda listing: listing.group_id,
        )
        shown: list[GroupListing] = [row["listing"] for row in page.rows]
        snapshots = self._feeds.request([listing.group_id for listing in shown], self._details)
        rows: list[Row] = []
        problems = []
        for listing in shown:
            snapshot = snapshots.get(listing.group_id)
            if snapshot is not None and snapshot.problem:
                problems.append(snapshot.problem)
            facts = None if snapshot is None else snapshot.facts
            rows.append(group_row(listing, facts, self._feeds.history(listing.group_id)))
        failure = self._listing.failure or self._details.failure
        return Rows(rows, page.total, failure.text if failure else "; ".join(problems) or None)


# -- one group -----------------------------------------------------------------------------------


def _build_group_page(view: View, feeds: GroupFeeds) -> None:
    @ui.page("/group")
    def group(name: str = "") -> None:
        with frame(view, f"Group {name}", "/groups") as page:
            content = _GroupContent(view, feeds, name)
            page.live(content.refresh)


class _GroupContent:
    def __init__(self, view: View, feeds: GroupFeeds, name: str) -> None:
        self._feeds = feeds
        self._name = name
        self._details = feeds.details()
        self._problem = Problem()
        with tiles():
            self._state = Tile("State")
            self._members = Tile("Members")
            self._lag = Tile("Lag")
            self._lag_time = Tile("Lag in time", "age of the next record")
            self._trend = Tile("Trend", "over the last minute")
        with ui.element("div").classes("hr-columns"):
            with section("Lag in records"):
                self._records_chart = LineChart("Lag in records, last 15 minutes", [RECORDS], "records")
            with section("Lag in time"):
                self._time_chart = LineChart("Lag in seconds, last 15 minutes", [LAG_SECONDS], "s")
        with section("Members"):
            self._member_table = _member_table(self._facts)
        with section("Reporting members"):
            self._reporting_table = consumer_table(
                lambda: [consumer for consumer in view.reports.consumers() if consumer.group == name], of_group=True
            )
        with section("Partitions"):
            self._partition_table = _partition_table(self._facts)
        if view.read_only:
            return
        with section("Reset offsets"):
            OffsetResetForm(view, name)
        with section("Delete group"):
            Text("p", "Deletes the group and its committed offsets. The group must have no members.").classes("hr-note")
            action_button(
                view,
                "Delete group",
                lambda admin: _delete(admin, name),
                confirm=f"Delete group {name!r} and its committed offsets? This cannot be undone.",
                typed=name,
                done=f"Group {name} deleted",
                after=lambda _: ui.navigate.to("/groups"),
            )

    def _facts(self) -> GroupOverview | None:
        snapshot = self._feeds.request([self._name], self._details).get(self._name)
        return None if snapshot is None else snapshot.facts

    def refresh(self) -> None:
        facts = self._facts()
        self._problem.set(self._problem_text())
        if facts is not None:
            self._show(facts)
        history = self._feeds.history(self._name)
        self._records_chart.show({RECORDS: history.records.points()})
        self._time_chart.show({LAG_SECONDS: history.seconds.points()})
        self._member_table.refresh()
        self._reporting_table.refresh()
        self._partition_table.refresh()

    def _problem_text(self) -> str | None:
        if self._details.failure is not None:
            return self._details.failure.text
        snapshot = (self._details.value or {}).get(self._name)
        if snapshot is None:
            return None  # not queried yet
        if snapshot.problem:
            return snapshot.problem
        if snapshot.facts is None:
            return f"Group {self._name!r} does not exist: it was deleted, or its offsets have expired."
        return None

    def _show(self, facts: GroupOverview) -> None:
        self._state.show(facts.state, protocol_text(facts))
        self._members.show(formatting.count(None if facts.members is None else len(facts.members)))
        lagging = sum(1 for partition in facts.partitions if partition.lag)
        self._lag.show(lag_text(facts), f"in {lagging:,} of {len(facts.partitions):,} partitions")
        self._lag_time.show(lag_time_text(facts.lag_ms))
        trend = trend_of(self._feeds.history(self._name))
        self._trend.show(f"{trend.mark} {trend.word}".strip(), trend.speed or "over the last minute")


def _delete(admin: AdminClient, name: str) -> str:
    admin.delete_groups([name])
    return name


def _member_table(facts: Callable[[], GroupOverview | None]) -> ServerTable:
    def members() -> Iterable[_MemberOfGroup]:
        group = facts()
        return [_MemberOfGroup(member, group) for member in group.members or ()] if group else ()

    return ServerTable(
        "Members",
        [
            Column("client", "Client id", sortable=True),
            Column("host", "Host", sortable=True),
            Column("protocol", "Protocol", sortable=True),
            Column("epoch", "Epoch", "state"),
            Column("count", "Partitions", "number", sortable=True),
            Column("lag", "Lag", "number", sortable=True),
            Column("partitions", "Assignment"),
            Column("instance", "Instance id"),
            Column("member", "Member id", "mono"),
        ],
        item_rows(members, member_row, keys=_MEMBER_KEYS),
        row_key="member",
        empty="No active members. Offsets of the group can be reset.",
    )


def _partition_table(facts: Callable[[], GroupOverview | None]) -> ServerTable:
    def partitions() -> Iterable[PartitionLag]:
        group = facts()
        return group.partitions if group else ()

    return ServerTable(
        "Partitions",
        [
            Column("topic", "Topic", "link", sortable=True),
            Column("partition", "Partition", "number", sortable=True),
            Column("committed", "Committed offset", "number"),
            Column("end", "End offset", "number"),
            Column("lag", "Lag", "number", sortable=True),
            Column("lag_time", "Lag in time", "number", sortable=True),
            Column("client", "Consumer"),
        ],
        item_rows(partitions, partition_row, keys=_PARTITION_KEYS, text=lambda partition: str(partition.tp)),
        row_key="at",
        empty="No committed offsets and no assigned partitions.",
        search="topics",
        sort_by="topic",
    )


_MEMBER_KEYS = {
    "client": lambda row: row.member.client_id,
    "host": lambda row: row.member.host,
    "protocol": lambda row: row.member.protocol,
    "count": lambda row: len(row.member.partitions),
    "lag": lambda row: row.group.lag_of(row.member) or 0,
}
_PARTITION_KEYS = {
    "topic": lambda partition: partition.tp,
    "partition": lambda partition: (partition.tp.partition, partition.tp.topic),
    "lag": lambda partition: -1 if partition.lag is None else partition.lag,
    "lag_time": lambda partition: -1 if partition.lag_ms is None else partition.lag_ms,
}


# -- rows ----------------------------------------------------------------------------------------


def state_cells(state: str) -> Row:
    """Return a state with its mark: ● stable, ○ empty, ↻ rebalancing."""
    mark, tone = _STATES.get(state, ("?", ""))
    return {"state": state or formatting.UNKNOWN, "state_mark": mark, "state_tone": tone}


class Trend(NamedTuple):
    """Direction and speed of a change of lag."""

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
    return Trend("growing", "↗", "warn", speed) if per_s > 0 else Trend("shrinking", "↘", "good", speed)


def lag_text(facts: GroupOverview) -> str:
    is_known = any(partition.committed is not None for partition in facts.partitions)
    return formatting.count(facts.lag, "records") if is_known else "no committed offsets"


def lag_time_text(lag_ms: int | None) -> str:
    return formatting.duration(None if lag_ms is None else lag_ms / 1000)


def group_row(listing: GroupListing, facts: GroupOverview | None, history: LagHistory) -> Row:
    """Return the row of a group; `facts` arrive a moment after the listing."""
    members = None if facts is None or facts.members is None else len(facts.members)
    trend = trend_of(history)
    return {
        "group": listing.group_id,
        "group_href": group_url(listing.group_id),
        **state_cells(listing.state if facts is None else facts.state),
        "type": listing.type.lower() or "classic",
        "members": formatting.count(members),
        "lag": formatting.UNKNOWN if facts is None else lag_text(facts),
        "lag_time": lag_time_text(None if facts is None else facts.lag_ms),
        "trend": f"{trend.word} {trend.speed}".rstrip(),
        "trend_mark": trend.mark,
        "trend_tone": trend.tone,
    }


def partition_row(partition: PartitionLag) -> Row:
    return {
        "at": str(partition.tp),
        "topic": partition.tp.topic,
        "topic_href": topic_url(partition.tp.topic),
        "partition": str(partition.tp.partition),
        "committed": formatting.count(partition.committed),
        "end": "deleted or leaderless" if partition.end is None else formatting.count(partition.end),
        "lag": formatting.count(partition.lag, "records"),
        "lag_time": lag_time_text(partition.lag_ms),
        "client": formatting.UNKNOWN if partition.member is None else partition.member.client_id,
    }


class _MemberOfGroup(NamedTuple):
    member: Member
    group: GroupOverview


def member_row(row: _MemberOfGroup) -> Row:
    member, group = row
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.instance_id or formatting.UNKNOWN,
        "protocol": member.protocol,
        **epoch_cells(member, group),
        "count": formatting.count(len(member.partitions)),
        "lag": formatting.count(group.lag_of(member), "records"),
        "partitions": shortened([str(tp) for tp in member.partitions]),
    }


def epoch_cells(member: Member, group: GroupOverview) -> Row:
    """Return the epoch of a member of a KIP-848 group, and whether it has reached the epoch and the assignment."""
    if member.epoch is None:
        return {"epoch": formatting.UNKNOWN, "epoch_mark": "", "epoch_tone": ""}
    if member.pending_count:
        text = f"{member.epoch}, {formatting.count(member.pending_count, 'partitions')} to move"
    elif group.epoch is not None and member.epoch < group.epoch:
        text = f"{member.epoch} of {group.epoch}"
    else:
        return {"epoch": str(member.epoch), "epoch_mark": "●", "epoch_tone": "good"}
    return {"epoch": text, "epoch_mark": "↻", "epoch_tone": "warn"}


def protocol_text(facts: GroupOverview) -> str:
    """Return protocol, assignor and epochs of a group."""
    text = f"{facts.type} protocol{', ' + facts.assignor if facts.assignor else ''}"
    if facts.epoch is None:
        return text
    behind = "" if facts.assignment_epoch == facts.epoch else f", assigned for epoch {facts.assignment_epoch}"
    return f"{text}, epoch {facts.epoch}{behind}"


def shortened(names: list[str]) -> str:
    """Join the first names, and say how many more there are."""
    more = f" and {len(names) - SHOWN_PARTITIONS_MAX:,} more" if len(names) > SHOWN_PARTITIONS_MAX else ""
    return ", ".join(names[:SHOWN_PARTITIONS_MAX]) + more or formatting.UNKNOWN
