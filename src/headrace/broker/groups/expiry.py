"""Offsets that are too old are forgotten, and then the groups that nothing is left of.

How old an offset is: for a group without members, since the last one left (KIP-211), so that a consumer which commits
rarely does not lose its place while it runs; for topics that a living group no longer reads, and for clients without a
group, since the commit.
"""

from __future__ import annotations

import logging

from headrace.broker.groups.commits import Commits
from headrace.broker.groups.group import Group, State
from headrace.broker.groups.offsets import NO_EXPIRY, Committed
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.shard import Shard
from headrace.errors import BrokerError
from headrace.types import TopicPartition

log = logging.getLogger("headrace.broker.groups")

_KEY = "expiry"


class Expiry:
    """Looks over a shard from time to time."""

    def __init__(self, shard: Shard, commits: Commits, settings: GroupSettings) -> None:
        self._shard = shard
        self._commits = commits
        self._settings = settings

    def start(self) -> None:
        self._shard.timers.schedule(_KEY, self._settings.expiry_interval_ms, self._due)

    def _due(self) -> None:
        self._shard.spawn(self.run())
        self.start()

    async def run(self) -> None:
        """Write tombstones for what is too old."""
        now_ms = self._shard.clock.time_ms()
        offsets: list[tuple[str, TopicPartition]] = []
        groups: list[Group] = []
        for group in self._shard.groups.values():
            kept = dict(self._shard.offsets.of(group.id))
            for place, committed in list(kept.items()):
                if self._is_expired(group, place, committed, now_ms):
                    offsets.append((group.id, place))
                    del kept[place]
            if not kept and group.is_deserted and not self._shard.offsets.has_open_transactions(group.id):
                groups.append(group)
        try:
            await self._commits.forget(offsets, groups)
        except BrokerError as error:
            log.warning("%d old offsets could not be removed, later then: %s", len(offsets), error)

    def _is_expired(self, group: Group, place: TopicPartition, committed: Committed, now_ms: int) -> bool:
        if group.is_subscribed(place[0]) or self._shard.offsets.is_unstable(group.id, place):
            return False
        since_ms = committed.commit_time_ms
        if group.protocol_type is not None:
            if group.state is State.EMPTY:
                since_ms = since_ms if group.state_time_ms < 0 else group.state_time_ms
            elif group.state is not State.STABLE or group.subscribed_topics is None:
                return False
        if committed.expire_time_ms != NO_EXPIRY:
            return now_ms >= committed.expire_time_ms
        return now_ms - since_ms >= self._settings.offsets_retention_ms
