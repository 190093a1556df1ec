"""Feeds of consumer groups: all groups by name; members, lag and its history for the groups that pages show.

groups that pages show ─► one query for all of them ─► GroupOverview or an error for each
                                                   └► lag of the last 15 minutes
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.client.admin import AdminClient, GroupListing
from headrace.client.queries.groups import GroupOverview, LagTimes, add_bounds, add_committed, group_with_members
from headrace.errors import BrokerError
from headrace.ui.collector import Collector, Feed, Series

EVERY_SECONDS = 2.0
REQUEST_SECONDS = 5.0
"""A group that no page has shown for this long is not queried any more."""
GROUPS_MAX = 200
HISTORIES_MAX = 500
LAG_TIME_SECONDS_MAX = 2.0
"""For the record fetches of all groups; lag in time that is not known by then is left out."""
TREND_SECONDS = 60.0
STEADY_PER_SECOND = 0.05
"""A lag that changes by less than this is steady."""


class GroupSnapshot(NamedTuple):
    """A group at one moment, or why it could not be queried."""

    facts: GroupOverview | None
    problem: str | None = None


@dataclass(slots=True)
class LagHistory:
    """Lag of a group over time. Written by the collector's thread."""

    records: Series = field(default_factory=Series)
    seconds: Series = field(default_factory=Series)

    def records_per_s(self) -> float | None:
        """Growth of the lag over the last minute; negative while the group catches up, None if unknown."""
        points = [(at, value) for at, value in self.records.points() if value is not None]
        recent = [point for point in points if point[0] >= points[-1][0] - TREND_SECONDS]
        if len(recent) < 2:
            return None
        (then, first), (now, last) = recent[0], recent[-1]
        return (last - first) / (now - then) if now > then else None


class GroupFeeds:
    """Feeds shared by the pages of groups."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._requested: dict[str, float] = {}  # when a page last showed each group. Written by the event loop.
        self._lag_times = LagTimes(LAG_TIME_SECONDS_MAX)  # Collector thread only.
        self._histories: dict[str, LagHistory] = {}

    def listing(self) -> Feed[list[GroupListing]]:
        return self._collector.feed("groups", lambda admin: admin.list_groups(), every_s=EVERY_SECONDS)

    def details(self) -> Feed[Mapping[str, GroupSnapshot]]:
        """Return the feed of the groups that pages have requested."""
        return self._collector.feed("group-details", self._fetch, every_s=EVERY_SECONDS)

    def request(self, names: Sequence[str], details: Feed[Mapping[str, GroupSnapshot]]) -> Mapping[str, GroupSnapshot]:
        """Return what is known of these groups, and keep querying them while pages call this."""
        now = time.monotonic()
        for name in [name for name, at in self._requested.items() if now - at > REQUEST_SECONDS]:
            del self._requested[name]
        new = [name for name in names if name not in self._requested]
        for name in names:
            self._requested.pop(name, None)  # keep the most recent last
            self._requested[name] = now
        if new:
            details.refresh_now()
        return details.get() or {}

    def history(self, name: str) -> LagHistory:
        history = self._histories.get(name)
        if history is None:
            for oldest in list(self._histories)[: len(self._histories) - HISTORIES_MAX + 1]:
                self._histories.pop(oldest, None)
            history = self._histories.setdefault(name, LagHistory())
        return history

    # -- collector thread ------------------------------------------------------------------------

    def _fetch(self, admin: AdminClient) -> Mapping[str, GroupSnapshot]:
        names = list(self._requested.copy())[-GROUPS_MAX:]
        if not names:
            return {}
        listed = {listing.group_id: listing for listing in admin.list_groups()}
        snapshots: dict[str, GroupSnapshot] = {}
        for name in names:
            try:
                facts = group_with_members(admin, name, listed.get(name))
                if facts is not None:
                    add_committed(admin, facts)
                snapshots[name] = GroupSnapshot(facts)
            except BrokerError as error:  # concerns this group only
                snapshots[name] = GroupSnapshot(None, str(error))
        groups = [snapshot.facts for snapshot in snapshots.values() if snapshot.facts is not None]
        add_bounds(admin, groups)
        self._lag_times.fill((partition for facts in groups for partition in facts.partitions), admin)
        self._record(groups)
        return snapshots

    def _record(self, groups: Iterable[GroupOverview]) -> None:
        now = time.time()
        for facts in groups:
            history = self.history(facts.name)
            history.records.add(now, facts.lag)
            history.seconds.add(now, None if facts.lag_ms is None else facts.lag_ms / 1000)
