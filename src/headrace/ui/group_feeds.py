"""Groups, as the pages see them: all by name, and of those that somebody looks at, members and lag, with its history.

names that pages show ─► one question for all of them ─► GroupFacts, or what went wrong with one
                                                      └► lag of the last fifteen minutes
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.client.admin import AdminClient, GroupListing
from headrace.client.facts.groups import GroupFacts, add_bounds, add_committed, with_members
from headrace.client.facts.lag_times import LagTimes
from headrace.errors import BrokerError
from headrace.ui.collector import Collector, Feed, Series

EVERY_SECONDS = 2.0
WANTED_SECONDS = 5.0
"""A group that no page has shown for so long is not asked for any more."""
WANTED_MAX = 200
HISTORIES_MAX = 500
LAG_TIME_SECONDS_MAX = 2.0
"""For the fetches of all groups: what is not known by then is not told."""
TREND_SECONDS = 60.0
STEADY_PER_SECOND = 0.05
"""A lag that changes less than so many records a second stays as it is."""


class Seen(NamedTuple):
    """A group at the last look; if it could not be asked, why."""

    facts: GroupFacts | None
    problem: str | None = None


@dataclass(slots=True)
class LagHistory:
    """Written by the collector's thread."""

    records: Series = field(default_factory=Series)
    seconds: Series = field(default_factory=Series)

    def records_per_s(self) -> float | None:
        """How fast the lag grows, over the last minute; negative: the group catches up. None: not known yet."""
        points = [(at, value) for at, value in self.records.points() if value is not None]
        recent = [point for point in points if point[0] >= points[-1][0] - TREND_SECONDS]
        if len(recent) < 2:
            return None
        (then, before), (now, after) = recent[0], recent[-1]
        return (after - before) / (now - then) if now > then else None


class GroupWatch:
    """What the pages of groups share."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._wanted: dict[str, float] = {}  # when a page last showed it. Written by the event loop.
        self._lag_times = LagTimes(LAG_TIME_SECONDS_MAX)  # the collector's thread
        self._histories: dict[str, LagHistory] = {}

    def listing(self) -> Feed[list[GroupListing]]:
        return self._collector.feed("groups", lambda admin: admin.list_groups(), every_s=EVERY_SECONDS)

    def details(self) -> Feed[Mapping[str, Seen]]:
        """Of the groups that were `want`ed."""
        return self._collector.feed("group-details", self._ask, every_s=EVERY_SECONDS)

    def want(self, names: Sequence[str], details: Feed[Mapping[str, Seen]]) -> Mapping[str, Seen]:
        """What is known of these groups; from now on they are asked for."""
        now = time.monotonic()
        for name in [name for name, at in self._wanted.items() if now - at > WANTED_SECONDS]:
            del self._wanted[name]
        new = [name for name in names if name not in self._wanted]
        for name in names:
            self._wanted.pop(name, None)  # so that the last ones come last
            self._wanted[name] = now
        if new:
            details.hurry()
        return details.look() or {}

    def history(self, name: str) -> LagHistory:
        found = self._histories.get(name)
        if found is None:
            for oldest in list(self._histories)[: len(self._histories) - HISTORIES_MAX + 1]:
                self._histories.pop(oldest, None)
            found = self._histories.setdefault(name, LagHistory())
        return found

    # -- the collector's thread ------------------------------------------------------------------

    def _ask(self, admin: AdminClient) -> Mapping[str, Seen]:
        names = list(self._wanted.copy())[-WANTED_MAX:]
        if not names:
            return {}
        listed = {listing.group_id: listing for listing in admin.list_groups()}
        seen: dict[str, Seen] = {}
        for name in names:
            try:
                facts = with_members(admin, name, listed.get(name))
                if facts is not None:
                    add_committed(admin, facts)
                seen[name] = Seen(facts)
            except BrokerError as error:  # of this group; the others may be well
                seen[name] = Seen(None, str(error))
        found = [one.facts for one in seen.values() if one.facts is not None]
        add_bounds(admin, found)
        self._lag_times.fill((partition for facts in found for partition in facts.partitions), admin)
        self._remember(found)
        return seen

    def _remember(self, found: Iterable[GroupFacts]) -> None:
        now = time.time()
        for facts in found:
            history = self.history(facts.name)
            history.records.add(now, facts.lag)
            history.seconds.add(now, None if facts.lag_ms is None else facts.lag_ms / 1000)
