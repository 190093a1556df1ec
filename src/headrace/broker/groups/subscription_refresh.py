"""Which topics the regular expressions of a group match: checked in the background, at most every ten seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_records import RegexTopics, ResolvedRegex
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.consumer_update import GroupUpdate
from headrace.broker.groups.shard import Shard
from headrace.broker.groups.topic_regexes import match_topics
from headrace.errors import BrokerError

log = logging.getLogger("headrace.broker.groups")

REFRESH_MIN_INTERVAL_MS = 10_000
"""The minimum time between two checks of a group, as in Kafka."""
REFRESH_MAX_INTERVAL_MS = 600_000
"""The maximum time: permissions may have changed."""

MayDescribe = Callable[[str], bool]
"""Returns whether a client is authorized to describe a topic."""


class SubscriptionRefresh:
    """Matches the regular expressions of a shard's groups with the topics of the cluster."""

    def __init__(self, shard: Shard, settings: ConsumerSettings) -> None:
        self._shard = shard
        self._settings = settings
        self._running: set[str] = set()  # groups

    def start_if_due(self, group: ConsumerGroup, may_describe: MayDescribe) -> None:
        """Start a check, with the permissions of the client, if topics or regular expressions have changed."""
        if group.id not in self._running and self._is_due(group):
            self._running.add(group.id)
            self._shard.spawn(self._run(group, may_describe))

    def _is_due(self, group: ConsumerGroup) -> bool:
        regexes = group.regex_counts().keys()
        if not regexes:
            return False
        now_ms = self._shard.clock.time_ms()
        last_ms = max((resolved.time_ms for resolved in group.regexes.values()), default=None)
        if last_ms is None:
            return True
        if now_ms <= last_ms + REFRESH_MIN_INTERVAL_MS:
            return False
        return (
            regexes != group.regexes.keys()
            or any(resolved.version < self._settings.topics_version for resolved in group.regexes.values())
            or now_ms > last_ms + REFRESH_MAX_INTERVAL_MS
        )

    async def _run(self, group: ConsumerGroup, may_describe: MayDescribe) -> None:
        try:
            version, now_ms = self._settings.image_version, self._shard.clock.time_ms()
            matches = await match_topics(group.regex_counts().keys(), list(self._settings.topics.by_name))
            resolved = {
                regex: ResolvedRegex(frozenset(filter(may_describe, topics)), version, now_ms)
                for regex, topics in matches.items()
            }
            await self._store(group.id, resolved)
        except BrokerError as error:
            log.warning("group %r: failed to store its matching topics, will retry: %s", group.id, error)
        finally:
            self._running.discard(group.id)

    async def _store(self, group_id: str, resolved: dict[str, ResolvedRegex]) -> None:
        async with self._shard.exclusive(group_id):
            group = self._shard.consumer_groups.get(group_id)
            if group is None:
                return  # deleted meanwhile
            update = GroupUpdate(self._shard, self._settings, group)
            counts = group.regex_counts()
            has_changed = False
            for regex, topics in resolved.items():
                if counts[regex]:
                    has_changed |= group.regexes.get(regex, ResolvedRegex()).topics != topics.topics
                    update.add(RegexTopics(group_id, regex, topics))
            if has_changed:
                update.refresh_epoch(force=True)
            await update.commit()
