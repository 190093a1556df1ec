"""The offsets of share groups: describe, alter and delete; deletion of share groups.

The start offset of a partition in a share group is part of its state at the share coordinator. Offsets are altered and
deleted only in groups without members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.shard import Shard
from headrace.broker.groups.share_group import ShareGroup
from headrace.broker.groups.share_heartbeats import ShareGroupUpdate, ShareStates
from headrace.broker.groups.share_records import SharePartitionsState, TopicState
from headrace.broker.share.state import SharePartitionKey, ShareState
from headrace.errors import BrokerError, Code


class NewOffset(NamedTuple):
    """A start offset to be set."""

    topic_id: bytes
    topic: str
    partition: int
    offset: int


class ShareOffsets:
    """The offsets of a shard's share groups."""

    def __init__(self, shard: Shard, settings: ConsumerSettings, states: ShareStates) -> None:
        self._shard = shard
        self._settings = settings
        self._states = states

    def group(self, group_id: str) -> ShareGroup:
        """Return a share group, or raise GROUP_ID_NOT_FOUND."""
        group = self._shard.share_groups.get(group_id)
        if group is None:
            is_other = group_id in self._shard.groups or group_id in self._shard.consumer_groups
            fact = "is not a share group" if is_other else "not found"
            raise BrokerError(f"Group {group_id} {fact}.", code=Code.GROUP_ID_NOT_FOUND)
        return group

    def initialized(self, group_id: str) -> Mapping[bytes, TopicState]:
        """Return the partitions with a state; none if the group does not exist."""
        group = self._shard.share_groups.get(group_id)
        return {} if group is None else group.states.initialized

    async def describe(self, keys: Iterable[SharePartitionKey]) -> dict[SharePartitionKey, ShareState]:
        """Return the states of share partitions; an uninitialized one where there is none."""
        keys = list(keys)
        results = await asyncio.gather(*(self._states.summary(key) for key in keys), return_exceptions=True)
        states: dict[SharePartitionKey, ShareState] = {}
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, BrokerError):
                result = ShareState(leader_epoch=0)  # absence of data, as in Apache Kafka
            elif isinstance(result, BaseException):
                raise result
            states[key] = result
        return states

    async def alter(self, group_id: str, offsets: Iterable[NewOffset]) -> None:
        """Set start offsets; the group is created if it does not exist."""
        async with self._shard.exclusive(group_id):
            group = self._shard.share_groups.get(group_id)
            if group is None and (group_id in self._shard.groups or group_id in self._shard.consumer_groups):
                raise BrokerError(f"Group {group_id} is not a share group.", code=Code.GROUP_ID_NOT_FOUND)
            update = ShareGroupUpdate(self._shard, self._settings, group or ShareGroup(group_id))
            update.group.check_deletable()
            if group is None:
                update.bump_epoch()
            initialized: dict[bytes, TopicState] = {}
            for row in offsets:
                key = SharePartitionKey(group_id, row.topic_id, row.partition)
                await self._states.initialize(key, update.group.epoch, row.offset)
                known = initialized.get(row.topic_id, TopicState(row.topic, frozenset()))
                initialized[row.topic_id] = TopicState(row.topic, known.partitions | {row.partition})
            states = update.group.with_states(initialized, self._settings.topics)
            update.add(SharePartitionsState(group_id, states))
            await update.commit()

    async def delete(self, group_id: str, topics: Iterable[bytes]) -> None:
        """Delete the offsets of topics of a group without members."""
        async with self._shard.exclusive(group_id):
            group = self.group(group_id)
            group.check_deletable()
            topics = [topic_id for topic_id in topics if topic_id in group.states.initialized]
            await self._delete_states(group, topics)
            update = ShareGroupUpdate(self._shard, self._settings, group)
            update.add(SharePartitionsState(group_id, group.without_topics(topics)))
            await update.commit()

    async def delete_states(self, group_id: str) -> None:
        """Delete all states of a group that is about to be deleted."""
        group = self._shard.share_groups.get(group_id)
        if group is not None:
            group.check_deletable()
            await self._delete_states(group, [*group.states.initialized])

    async def _delete_states(self, group: ShareGroup, topics: Iterable[bytes]) -> None:
        existing = self._settings.topics.by_id
        keys = [
            SharePartitionKey(group.id, topic_id, index)
            for topic_id in topics
            if topic_id in existing  # the share coordinator deletes the states of deleted topics
            for index in sorted(group.states.initialized[topic_id].partitions)
        ]
        await asyncio.gather(*(self._states.delete(key) for key in keys))
