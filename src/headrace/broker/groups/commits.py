"""Committing, fetching, deleting and expiring the offsets of a shard's groups."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.broker.groups.consumer_group import ConsumerGroup, stale_code
from headrace.broker.groups.consumer_member import ConsumerMember
from headrace.broker.groups.group import Group, GroupState, MemberClaim
from headrace.broker.groups.offsets import NO_EXPIRY, NO_OFFSET, Committed
from headrace.broker.groups.rebalance import Rebalances
from headrace.broker.groups.records import (
    OffsetChange,
    consumer_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
    share_record,
)
from headrace.broker.groups.shard import AnyGroup, GroupSettings, Shard
from headrace.broker.groups.share_group import ShareGroup
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.fields import ZERO_UUID
from headrace.wire.layout import NO_LEADER_EPOCH, NO_PRODUCER_ID
from headrace.wire.records import NO_PRODUCER, BatchProducer

log = logging.getLogger("headrace.broker.groups")

GROUP_ID_NOT_FOUND_VERSION = 9
"""Older versions of OffsetCommit get ILLEGAL_GENERATION for an unknown group."""


class Commit(NamedTuple):
    """An offset to commit."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    commit_time_ms: int = -1  # -1: now
    topic_id: bytes = ZERO_UUID


class Fetched(NamedTuple):
    """The result of fetching an offset."""

    offset: int
    leader_epoch: int
    metadata: str
    error: Code = Code.NONE


NOTHING_COMMITTED = Fetched(NO_OFFSET, NO_LEADER_EPOCH, "")
UNSTABLE = Fetched(NO_OFFSET, NO_LEADER_EPOCH, "", Code.UNSTABLE_OFFSET_COMMIT)


class Commits:
    """Commits, fetches and deletes the offsets of a shard."""

    def __init__(self, shard: Shard, rebalances: Rebalances, settings: GroupSettings) -> None:
        self._shard = shard
        self._rebalances = rebalances
        self._settings = settings

    async def commit(
        self,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, Commit],
        *,
        retention_ms: int = -1,
        version: int = GROUP_ID_NOT_FOUND_VERSION,
    ) -> dict[TopicPartition, Code]:
        """Commit offsets of a member, or of a consumer without membership. Errors of the whole request are raised."""
        expire_time_ms = NO_EXPIRY if retention_ms < 0 else self._shard.clock.time_ms() + retention_ms
        consumer_group = self._shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            member = consumer_group.check_commit(claim, transactional=False, version=version)
            return await self._store_checked(group_id, member, claim, commits, expire_time_ms)
        group = self._group_of_commit(group_id, claim, version >= GROUP_ID_NOT_FOUND_VERSION)
        group.check_commit(claim, transactional=False)
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalances.keep_alive(group, group.members[claim.member_id])
        return await self._store(group_id, commits, NO_PRODUCER, expire_time_ms)

    async def commit_in_transaction(
        self, group_id: str, claim: MemberClaim, commits: Mapping[TopicPartition, Commit], producer: BatchProducer
    ) -> dict[TopicPartition, Code]:
        """Commit offsets that become visible with a producer's transaction."""
        consumer_group = self._shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            self._check_transactional(consumer_group, claim, commits)
            return await self._store(group_id, commits, producer, NO_EXPIRY)
        self._group_of_commit(group_id, claim, False).check_commit(claim, transactional=True)
        return await self._store(group_id, commits, producer, NO_EXPIRY)

    @staticmethod
    def _check_transactional(
        group: ConsumerGroup, claim: MemberClaim, commits: Mapping[TopicPartition, Commit]
    ) -> None:
        """Raise unless a transaction may commit these offsets. TxnOffsetCommit has no STALE_MEMBER_EPOCH."""
        try:
            member = group.check_commit(claim, transactional=True, version=GROUP_ID_NOT_FOUND_VERSION)
            codes = [_partition_code(member, claim, partition, commit) for partition, commit in commits.items()]
        except BrokerError as error:
            codes = [Code(error.code)]
        code = next(filter(None, codes), Code.NONE)
        if code:
            code = Code.ILLEGAL_GENERATION if code is Code.STALE_MEMBER_EPOCH else code
            raise group.error(code, f"epoch {claim.generation} of member {claim.member_id!r} may not commit")

    async def _store_checked(
        self,
        group_id: str,
        member: ConsumerMember | None,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, Commit],
        expire_time_ms: int,
    ) -> dict[TopicPartition, Code]:
        """Store the offsets of partitions that a member had in the epoch of its claim (KIP-1251)."""
        codes = {partition: _partition_code(member, claim, partition, commit) for partition, commit in commits.items()}
        accepted = {partition: commit for partition, commit in commits.items() if not codes[partition]}
        return {**codes, **await self._store(group_id, accepted, NO_PRODUCER, expire_time_ms)}

    def _group_of_commit(self, group_id: str, claim: MemberClaim, not_found_supported: bool) -> Group:
        """Return the group; without a generation it is used for offsets only and need not exist."""
        group = self._shard.groups.get(group_id)
        if group is not None:
            return group
        if claim.generation < 0:
            return Group(group_id)  # is added with its first offset
        code = Code.GROUP_ID_NOT_FOUND if not_found_supported else Code.ILLEGAL_GENERATION
        raise BrokerError(f"unknown group {group_id!r}", code=code)

    async def _store(
        self, group_id: str, commits: Mapping[TopicPartition, Commit], producer: BatchProducer, expire_time_ms: int
    ) -> dict[TopicPartition, Code]:
        results = {partition: self._check_metadata(commit.metadata) for partition, commit in commits.items()}
        now_ms = self._shard.clock.time_ms()
        stored = {
            partition: Committed(
                commit.offset,
                commit.leader_epoch,
                commit.metadata or "",
                now_ms if commit.commit_time_ms < 0 else commit.commit_time_ms,
                expire_time_ms,
                ZERO_UUID if expire_time_ms != NO_EXPIRY else commit.topic_id,
            )
            for partition, commit in commits.items()
            if results[partition] is Code.NONE
        }
        if not stored:
            return results
        producer_id = producer.producer_id if producer.transactional else NO_PRODUCER_ID

        def apply(first_offset: int) -> None:
            for record_offset, (partition, committed) in enumerate(stored.items(), first_offset):
                # Version 1 of the record, which has the expiry time, has no leader epoch.
                epoch = committed.leader_epoch if expire_time_ms == NO_EXPIRY else NO_LEADER_EPOCH
                change = committed._replace(record_offset=record_offset, leader_epoch=epoch)
                self._shard.apply_offset(OffsetChange(group_id, partition, change), producer_id)

        with self._shard.offsets.in_flight(group_id, stored):
            entries = [offset_record(group_id, partition, committed) for partition, committed in stored.items()]
            await self._shard.write(entries, apply, producer=producer)
        return results

    def _check_metadata(self, metadata: str | None) -> Code:
        if metadata is None or len(metadata) <= self._settings.offset_metadata_max:
            return Code.NONE
        return Code.OFFSET_METADATA_TOO_LARGE

    def fetch(
        self, group_id: str, partitions: Iterable[tuple[TopicPartition, bytes]], require_stable: bool
    ) -> dict[TopicPartition, Fetched]:
        """Return the offsets of partitions, each given with the id of its topic (zero: unknown)."""
        committed = self._shard.offsets.of(group_id)
        return {
            partition: self._fetched(group_id, partition, committed, require_stable, id_)
            for partition, id_ in partitions
        }

    def fetch_all(self, group_id: str, require_stable: bool) -> dict[TopicPartition, Fetched]:
        committed = self._shard.offsets.of(group_id)
        return {
            partition: self._fetched(group_id, partition, committed, require_stable, ZERO_UUID)
            for partition in committed
        }

    def _fetched(
        self,
        group_id: str,
        partition: TopicPartition,
        offsets: Mapping[TopicPartition, Committed],
        require_stable: bool,
        topic_id: bytes,
    ) -> Fetched:
        if require_stable and self._shard.offsets.is_unstable(group_id, partition):
            return UNSTABLE
        committed = offsets.get(partition)
        if committed is None or (ZERO_UUID not in (topic_id, committed.topic_id) and topic_id != committed.topic_id):
            return NOTHING_COMMITTED  # also if committed for a deleted topic of that name
        return Fetched(committed.offset, committed.leader_epoch, committed.metadata)

    async def delete(self, group_id: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Code]:
        """Delete offsets of topics that the group is not subscribed to."""
        group: Group | ConsumerGroup | None = self._shard.consumer_groups.get(group_id)
        if group is None:
            group = self._shard.group(group_id)
            group.check_offsets_deletable()
        results = {
            partition: Code.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(partition.topic) else Code.NONE
            for partition in partitions
        }
        known = self._known_partitions(group_id)
        await self.write_tombstones(
            (group_id, partition) for partition, code in results.items() if not code and partition in known
        )
        return results

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members and its offsets."""
        async with self._shard.exclusive(group_id):
            group: AnyGroup | None = self._shard.consumer_groups.get(group_id) or self._shard.share_groups.get(group_id)
            group = group or self._shard.group(group_id)
            group.check_deletable()
            await self.write_tombstones(
                ((group_id, partition) for partition in self._known_partitions(group_id)), groups=[group]
            )

    async def write_tombstones(
        self, offsets: Iterable[tuple[str, TopicPartition]], groups: Collection[AnyGroup] = ()
    ) -> None:
        """Write tombstones of offsets and groups."""
        deleted = list(offsets)
        entries = [offset_tombstone(group_id, partition) for group_id, partition in deleted]
        for group in groups:
            if isinstance(group, ConsumerGroup):
                entries += map(consumer_record, group.tombstones())
            elif isinstance(group, ShareGroup):
                entries += map(share_record, group.tombstones())
            else:
                entries.append(group_tombstone(group.id))

        def apply(_: int) -> None:
            for group_id, partition in deleted:
                self._shard.apply_offset(OffsetChange(group_id, partition, None))
            for group in groups:
                self._shard.remove(group)

        if entries:
            await self._shard.write(entries, apply)

    async def delete_topic_offsets(self, topic: str) -> None:
        """Delete all offsets of a deleted topic."""
        try:
            await self.write_tombstones(self._shard.offsets.partitions_of_topic(topic))
        except BrokerError as error:
            log.warning("failed to remove the offsets of the deleted topic %r: %s", topic, error)

    def _known_partitions(self, group_id: str) -> set[TopicPartition]:
        return {*self._shard.offsets.of(group_id), *self._shard.offsets.pending_of(group_id)}


def _partition_code(
    member: ConsumerMember | None, claim: MemberClaim, partition: TopicPartition, commit: Commit
) -> Code:
    """Return the error of a partition that a member did not have in the epoch of its claim; no member: none."""
    if member is None:
        return Code.NONE
    epoch = member.assignment_epoch(commit.topic_id, partition.partition)
    return stale_code(member) if epoch is None or claim.generation < epoch else Code.NONE


# -- expiry --------------------------------------------------------------------------------------


_EXPIRY_TIMER = "expiry"


class OffsetExpiry:
    """Deletes expired offsets, then groups without offsets or members.

    The retention of an offset starts, in a group without members, when the last member left (KIP-211), so that a
    consumer that rarely commits keeps its offsets while it runs. For topics that a group is not subscribed to, and for
    consumers without membership, it starts with the commit.
    """

    def __init__(self, shard: Shard, commits: Commits, settings: GroupSettings) -> None:
        self._shard = shard
        self._commits = commits
        self._settings = settings

    def start(self) -> None:
        self._shard.timers.schedule(_EXPIRY_TIMER, self._settings.expiry_interval_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._shard.spawn(self.run())
        self.start()

    async def run(self) -> None:
        """Write tombstones for expired offsets and unused groups."""
        now_ms = self._shard.clock.time_ms()
        offsets: list[tuple[str, TopicPartition]] = []
        groups: list[AnyGroup] = []
        for consumer_group in self._shard.consumer_groups.values():
            expired = self._expired_of_consumer_group(consumer_group, now_ms)
            offsets += [(consumer_group.id, partition) for partition in expired]
            left = self._shard.offsets.of(consumer_group.id).keys() - expired
            is_used = consumer_group.members or self._shard.offsets.has_open_transactions(consumer_group.id)
            if not left and not is_used and not self._shard.is_changing(consumer_group.id):
                groups.append(consumer_group)
        for group in self._shard.groups.values():
            kept = dict(self._shard.offsets.of(group.id))
            for partition, committed in list(kept.items()):
                if self._is_expired(group, partition, committed, now_ms):
                    offsets.append((group.id, partition))
                    del kept[partition]
            if not kept and group.is_unused and not self._shard.offsets.has_open_transactions(group.id):
                groups.append(group)
        try:
            await self._commits.write_tombstones(offsets, groups)
        except BrokerError as error:
            log.warning("failed to remove %d expired offsets, will retry: %s", len(offsets), error)

    def _expired_of_consumer_group(self, group: ConsumerGroup, now_ms: int) -> set[TopicPartition]:
        """Return the partitions of topics without subscribers whose offsets are old."""
        subscribed = group.subscribed_topics()
        return {
            partition
            for partition, committed in self._shard.offsets.of(group.id).items()
            if partition.topic not in subscribed
            and not self._shard.offsets.is_unstable(group.id, partition)
            and now_ms - committed.commit_time_ms >= self._settings.offsets_retention_ms
        }

    def _is_expired(self, group: Group, partition: TopicPartition, committed: Committed, now_ms: int) -> bool:
        if group.is_subscribed(partition.topic) or self._shard.offsets.is_unstable(group.id, partition):
            return False
        since_ms = committed.commit_time_ms
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since_ms = since_ms if group.state_time_ms < 0 else group.state_time_ms
            elif group.state is not GroupState.STABLE or group.subscribed_topics is None:
                return False
        if committed.expire_time_ms != NO_EXPIRY:
            return now_ms >= committed.expire_time_ms
        return now_ms - since_ms >= self._settings.offsets_retention_ms
