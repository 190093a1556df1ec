"""Committing, fetching and deleting the offsets of a shard's groups."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.broker.groups.group import Claim, Group, State
from headrace.broker.groups.offsets import NO_EXPIRY, NO_OFFSET, Committed
from headrace.broker.groups.rebalance import Rebalances
from headrace.broker.groups.records import OffsetChange, group_tombstone, offset_entry, offset_tombstone
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.shard import Shard
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.layout import NO_LEADER_EPOCH, NO_PRODUCER_ID
from headrace.wire.records import NO_PRODUCER, Producer
from headrace.wire.schema import ZERO_UUID

log = logging.getLogger("headrace.broker.groups")

GROUP_ID_NOT_FOUND_VERSION = 9
"""From this version of OffsetCommit on a client can be told that there is no such group."""


class Commit(NamedTuple):
    """An offset as a client sends it."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    commit_time_ms: int = -1  # -1: now
    topic_id: bytes = ZERO_UUID


class Fetched(NamedTuple):
    """An offset as a client gets it."""

    offset: int
    leader_epoch: int
    metadata: str
    error: Code = Code.NONE


NOTHING_COMMITTED = Fetched(NO_OFFSET, NO_LEADER_EPOCH, "")
UNSTABLE = Fetched(NO_OFFSET, NO_LEADER_EPOCH, "", Code.UNSTABLE_OFFSET_COMMIT)


class Commits:
    """The offsets of a shard."""

    def __init__(self, shard: Shard, rebalances: Rebalances, settings: GroupSettings) -> None:
        self._shard = shard
        self._rebalances = rebalances
        self._settings = settings

    async def commit(
        self,
        group_id: str,
        claim: Claim,
        commits: Mapping[TopicPartition, Commit],
        *,
        retention_ms: int = -1,
        version: int = GROUP_ID_NOT_FOUND_VERSION,
    ) -> dict[TopicPartition, Code]:
        """Store what a member, or somebody who needs no group, has read. An error of all of them is raised."""
        group = self._group_of_commit(group_id, claim, version >= GROUP_ID_NOT_FOUND_VERSION)
        group.check_commit(claim, transactional=False)
        if group.state in (State.STABLE, State.PREPARING_REBALANCE):
            self._rebalances.keep_alive(group, group.members[claim.member_id])
        expire_time_ms = NO_EXPIRY if retention_ms < 0 else self._shard.clock.time_ms() + retention_ms
        return await self._store(group_id, commits, NO_PRODUCER, expire_time_ms)

    async def commit_in_transaction(
        self, group_id: str, claim: Claim, commits: Mapping[TopicPartition, Commit], producer: Producer
    ) -> dict[TopicPartition, Code]:
        """Store offsets that are to become visible with a producer's transaction."""
        self._group_of_commit(group_id, claim, False).check_commit(claim, transactional=True)
        return await self._store(group_id, commits, producer, NO_EXPIRY)

    def _group_of_commit(self, group_id: str, claim: Claim, may_say_not_found: bool) -> Group:
        """The group. Who claims no generation uses it for its offsets only, and need not have made it before."""
        group = self._shard.groups.get(group_id)
        if group is not None:
            return group
        if claim.generation < 0:
            return Group(group_id)  # becomes known with the first offset that is stored
        code = Code.GROUP_ID_NOT_FOUND if may_say_not_found else Code.ILLEGAL_GENERATION
        raise BrokerError(f"there is no group {group_id!r}", code=code)

    async def _store(
        self, group_id: str, commits: Mapping[TopicPartition, Commit], producer: Producer, expire_time_ms: int
    ) -> dict[TopicPartition, Code]:
        results = {place: self._check_metadata(commit.metadata) for place, commit in commits.items()}
        now_ms = self._shard.clock.time_ms()
        stored = {
            place: Committed(
                commit.offset,
                commit.leader_epoch,
                commit.metadata or "",
                now_ms if commit.commit_time_ms < 0 else commit.commit_time_ms,
                expire_time_ms,
                ZERO_UUID if expire_time_ms != NO_EXPIRY else commit.topic_id,
            )
            for place, commit in commits.items()
            if results[place] is Code.NONE
        }
        if not stored:
            return results
        producer_id = producer.producer_id if producer.transactional else NO_PRODUCER_ID

        def apply(first_offset: int) -> None:
            for record_offset, (place, committed) in enumerate(stored.items(), first_offset):
                # Version 1 of the format, which keeps an expiry, has no room for the epoch.
                epoch = committed.leader_epoch if expire_time_ms == NO_EXPIRY else NO_LEADER_EPOCH
                change = committed._replace(record_offset=record_offset, leader_epoch=epoch)
                self._shard.apply_offset(OffsetChange(group_id, place, change), producer_id)

        with self._shard.offsets.in_flight(group_id, stored):
            entries = [offset_entry(group_id, place, committed) for place, committed in stored.items()]
            await self._shard.write(entries, apply, producer=producer)
        return results

    def _check_metadata(self, metadata: str | None) -> Code:
        if metadata is None or len(metadata) <= self._settings.offset_metadata_max:
            return Code.NONE
        return Code.OFFSET_METADATA_TOO_LARGE

    def fetch(
        self, group_id: str, places: Iterable[tuple[TopicPartition, bytes]], require_stable: bool
    ) -> dict[TopicPartition, Fetched]:
        """What was committed for some partitions, each with the id of its topic, as far as there is one."""
        committed = self._shard.offsets.of(group_id)
        return {place: self._fetched(group_id, place, committed, require_stable, id_) for place, id_ in places}

    def fetch_all(self, group_id: str, require_stable: bool) -> dict[TopicPartition, Fetched]:
        committed = self._shard.offsets.of(group_id)
        return {place: self._fetched(group_id, place, committed, require_stable, ZERO_UUID) for place in committed}

    def _fetched(
        self,
        group_id: str,
        place: TopicPartition,
        offsets: Mapping[TopicPartition, Committed],
        require_stable: bool,
        topic_id: bytes,
    ) -> Fetched:
        if require_stable and self._shard.offsets.is_unstable(group_id, place):
            return UNSTABLE
        found = offsets.get(place)
        if found is None or (ZERO_UUID not in (topic_id, found.topic_id) and topic_id != found.topic_id):
            return NOTHING_COMMITTED  # or committed for a topic of that name which is gone
        return Fetched(found.offset, found.leader_epoch, found.metadata)

    async def delete(self, group_id: str, places: Collection[TopicPartition]) -> dict[TopicPartition, Code]:
        """Forget offsets of topics that the group does not read."""
        group = self._shard.group(group_id)
        group.check_offsets_deletable()
        results = {
            place: Code.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(place[0]) else Code.NONE for place in places
        }
        known = self._known_places(group_id)
        await self.forget((group_id, place) for place, code in results.items() if not code and place in known)
        return results

    async def delete_group(self, group_id: str) -> None:
        """Forget a group that has no members, with all its offsets."""
        group = self._shard.group(group_id)
        group.check_deletable()
        await self.forget(((group_id, place) for place in self._known_places(group_id)), groups=[group])

    async def forget(self, offsets: Iterable[tuple[str, TopicPartition]], groups: Collection[Group] = ()) -> None:
        """Write the tombstones of offsets and groups."""
        gone = list(offsets)
        entries = [offset_tombstone(group_id, place) for group_id, place in gone]
        entries += [group_tombstone(group.id) for group in groups]

        def apply(_: int) -> None:
            for group_id, place in gone:
                self._shard.apply_offset(OffsetChange(group_id, place, None))
            for group in groups:
                self._shard.remove(group)

        if entries:
            await self._shard.write(entries, apply)

    async def forget_topic(self, topic: str) -> None:
        """Forget all offsets of a topic that is no more."""
        try:
            await self.forget(self._shard.offsets.places_of_topic(topic))
        except BrokerError as error:
            log.warning("the offsets of topic %r, which was deleted, could not be removed: %s", topic, error)

    def _known_places(self, group_id: str) -> set[TopicPartition]:
        return {*self._shard.offsets.of(group_id), *self._shard.offsets.pending_of(group_id)}
