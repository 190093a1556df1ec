"""One change of a consumer group: a draft of the group, and the records that lead to it.

    update_member ─▶ refresh_epoch ─▶ refresh_target ─▶ reconcile_member ─▶ commit
    what it sent     subscriptions     assignor          the member's part   write, then the draft is the group

Every record is applied to the draft at once, so that the next part sees it. The group itself does not change before
the records are replicated, and not at all if that fails. One update at a time: `Shard.exclusive`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from headrace.broker.groups.assignors import ASSIGNORS
from headrace.broker.groups.consumer_group import ConsumerGroup, hash_topics, topic_ids
from headrace.broker.groups.consumer_member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Target,
    TopicPartitionSets,
    reconcile,
)
from headrace.broker.groups.consumer_records import (
    ConsumerChange,
    GroupEpoch,
    MemberAssignment,
    MemberMetadata,
    MemberTarget,
    PartitionMetadata,
    RegexTopics,
    TargetEpoch,
)
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.records import KeyValue, consumer_record
from headrace.broker.groups.shard import Shard

log = logging.getLogger("headrace.broker.groups")


def is_target_due(group: ConsumerGroup, settings: ConsumerSettings, now_ms: int) -> bool:
    """Return whether a group has a newer epoch than its target, and the assignment interval is over."""
    if group.target_epoch >= group.epoch:
        return False
    return (
        not group.target_time_ms or now_ms >= group.target_time_ms + settings.times_of(group.id).assignment_interval_ms
    )


class GroupUpdate:
    """A draft of a consumer group and its records."""

    def __init__(self, shard: Shard, settings: ConsumerSettings, group: ConsumerGroup) -> None:
        self._shard = shard
        self._settings = settings
        self.group = group.copy()  # the draft
        self._entries: list[KeyValue] = []

    def add(self, *changes: ConsumerChange) -> None:
        """Add changes to the draft."""
        for change in changes:
            self.group.apply(change)
            self._entries.append(consumer_record(change))

    def add_records(self, entries: Iterable[KeyValue]) -> None:
        """Add records that the draft has already, or that are of a classic group."""
        self._entries.extend(entries)

    async def commit(self) -> None:
        """Write the records; then the draft is the group."""
        if self._entries:
            await self._shard.write(self._entries, lambda _: self._install())
        else:
            self._install()

    def _install(self) -> None:
        self._shard.replace_group(self.group.id, self.group)

    # -- members ---------------------------------------------------------------------------------

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a static member by its new process, which gets its target and its partitions."""
        target = self.group.targets.get(old.id, {})
        new = replace(old, id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        self._remove_records(old)
        self.add(
            MemberMetadata(self.group.id, member_id, new),
            MemberTarget(self.group.id, member_id, target),
            MemberAssignment(self.group.id, member_id, new),
        )
        return new

    def update_member(self, member: ConsumerMember) -> bool:
        """Store what a member has sent; return whether its topics have changed."""
        existing = self.group.members.get(member.id)
        if existing != member:
            self.add(MemberMetadata(self.group.id, member.id, member))
        before = frozenset() if existing is None else existing.topics
        return before != member.topics

    def leave_temporarily(self, member: ConsumerMember) -> None:
        """Keep the partitions of a static member for its next process."""
        leaving = replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={})
        self.add(MemberAssignment(self.group.id, member.id, leaving))

    def remove_members(self, members: Collection[ConsumerMember]) -> None:
        """Remove members and start a new epoch."""
        for member in members:
            self._remove_records(member)
        counts = self.group.regex_counts()
        for regex in {member.regex for member in members if member.regex and not counts[member.regex]}:
            if regex in self.group.regexes:
                self.add(RegexTopics(self.group.id, regex, None))
        self.bump_epoch()

    def _remove_records(self, member: ConsumerMember) -> None:
        self.add(
            MemberAssignment(self.group.id, member.id, None),
            MemberTarget(self.group.id, member.id, None),
            MemberMetadata(self.group.id, member.id, None),
        )

    # -- epochs ----------------------------------------------------------------------------------

    def refresh_epoch(self, *, force: bool) -> None:
        """Start a new epoch if the subscribed topics have changed, or if forced to."""
        if not force and self.group.topics_version == self._settings.topics_version:
            return
        if force or self._current_hash() != self.group.metadata_hash:
            self.bump_epoch()
        self.group.topics_version = self._settings.topics_version
        if self.group.has_partition_metadata:
            self.add(PartitionMetadata(self.group.id, False))

    def bump_epoch(self) -> None:
        """Start a new epoch of the group."""
        self.add(GroupEpoch(self.group.id, self.group.epoch + 1, self._current_hash()))
        log.info("group %r: epoch %d", self.group.id, self.group.epoch)

    def _current_hash(self) -> int:
        return hash_topics(self.group.subscribed_topics(), self._settings.topics)

    def refresh_target(self, now_ms: int) -> None:
        """Run the assignor if the group has a newer epoch than the target, and the assignment interval is over."""
        group = self.group
        if not is_target_due(group, self._settings, now_ms):
            return
        topics = self._settings.topics
        members = list(group.members.values())
        name = group.preferred_assignor(members, self._settings.assignors[0])
        counts = {
            topics.by_name[topic].id: len(topics.by_name[topic].partitions)
            for topic in sorted(group.subscribed_topics(members))
            if topic in topics.by_name
        }
        assignment = ASSIGNORS[name](group.assignable(members, topics), counts)
        for member in members:
            target = {topic_id: frozenset(indexes) for topic_id, indexes in assignment[member.id].items()}
            if group.targets.get(member.id) != target:
                self.add(MemberTarget(group.id, member.id, target))
        self.add(TargetEpoch(group.id, group.epoch, now_ms))
        log.info("group %r: new target of epoch %d by assignor %s", group.id, group.epoch, name)

    def reconcile_member(
        self, member_id: str, owned: TopicPartitionSets | None, *, has_changed_subscription: bool
    ) -> ConsumerMember:
        """Move a member towards its target; return the member."""
        group = self.group
        member = group.members[member_id]
        if not has_changed_subscription and member.is_reconciled(group.target_epoch):
            return member
        target = Target(
            group.target_epoch,
            group.target_of(member),
            frozenset(topic_ids(group.topics_of(member), self._settings.topics)),
            group.is_owned,
        )
        updated = reconcile(member, target, owned, has_changed_subscription=has_changed_subscription)
        if updated != member:
            self.add(MemberAssignment(group.id, member_id, updated))
            log.debug("group %r: member %r has epoch %d, %s", group.id, member_id, updated.epoch, updated.state.name)
        return updated

    @staticmethod
    def has_to_revoke(member: ConsumerMember) -> bool:
        """Return whether a member has to revoke partitions within its rebalance timeout."""
        return member.state is MemberState.UNREVOKED_PARTITIONS
