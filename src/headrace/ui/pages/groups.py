"""All groups: state, members, how far behind, and which way that goes. Only those on the screen are asked for."""

from __future__ import annotations

from nicegui import ui

from headrace.client.admin import GroupListing
from headrace.ui.frame import frame
from headrace.ui.group_rows import group_row
from headrace.ui.group_watch import GroupWatch
from headrace.ui.pages import group
from headrace.ui.parts import section
from headrace.ui.tables import Column, Query, Row, Rows, ServerTable, paged
from headrace.ui.view import View

_KEYS = {
    "group": lambda one: one.group_id,
    "state": lambda one: one.state,
    "type": lambda one: one.type,
}


def build(view: View) -> None:
    watch = GroupWatch(view.cluster)
    group.build(view, watch)

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
