"""A member of a consumer group (KIP-848), and how it moves from its current assignment to the target. No clock, no log.

    state                    the next heartbeat                                             state after it
    STABLE                   the target has a newer epoch                                   see below
    UNREVOKED_PARTITIONS     the member still owns partitions that it has to revoke         the same
    UNREVOKED_PARTITIONS     it has revoked them all                                        see below
    UNRELEASED_PARTITIONS    always                                                         see below

    compared with the target                                       epoch of the member      state after it
    it owns partitions that are not in the target                  the same                 UNREVOKED_PARTITIONS
    partitions of the target are still owned by other members      that of the target       UNRELEASED_PARTITIONS
    none of both                                                   that of the target       STABLE

A partition is assigned to a member only when no other member owns it or has to revoke it: each partition has one owner.
Every assigned partition has the epoch in which it was assigned: an offset commit with an older epoch is stale
(KIP-1251).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.errors import BrokerError, Code

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
NO_EPOCH = -1

TopicPartitionSets = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
AssignedPartitions = Mapping[bytes, Mapping[int, int]]
"""The epoch of the assignment of each partition, by topic id."""


class MemberState(IntEnum):
    """The state of a member, with the numbers of the records."""

    UNKNOWN = 127
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ClassicMetadata(NamedTuple):
    """What a member that uses the classic protocol sent with JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, in order of preference


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: what it has sent, and its current assignment."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None  # None: it uses the consumer protocol

    epoch: int = JOIN_EPOCH
    previous_epoch: int = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = field(default_factory=dict)
    revoking: AssignedPartitions = field(default_factory=dict)

    def with_metadata_of(self, other: ConsumerMember) -> ConsumerMember:
        """Return this member with everything that `other` has sent."""
        return replace(
            other,
            epoch=self.epoch,
            previous_epoch=self.previous_epoch,
            state=self.state,
            assigned=self.assigned,
            revoking=self.revoking,
        )

    def with_assignment_of(self, other: ConsumerMember) -> ConsumerMember:
        """Return this member with the epochs, the state and the partitions of `other`."""
        return other.with_metadata_of(self)

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return whether the current assignment is the target of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def owns_all(self, partitions: TopicPartitionSets) -> bool:
        """Return whether all these partitions are assigned to this member."""
        return all(indexes <= self.assigned.get(topic_id, {}).keys() for topic_id, indexes in partitions.items())

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which a partition was assigned; None if the member does not have it."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if epoch is None else epoch

    def check_epoch(self, epoch: int, owned: TopicPartitionSets | None) -> None:
        """Raise FENCED_MEMBER_EPOCH unless a heartbeat has the current epoch.

        A member may always rejoin. The previous epoch is accepted if the response with the current one can have been
        lost: the member then owns no partitions beyond its assignment.
        """
        if epoch in (JOIN_EPOCH, self.epoch):
            return
        if epoch == self.previous_epoch < self.epoch and owned is not None and self.owns_all(owned):
            return
        size = "greater" if epoch > self.epoch else "smaller"
        raise BrokerError(
            f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({self.epoch}). The member must abandon all its partitions and rejoin.",
            code=Code.FENCED_MEMBER_EPOCH,
        )


class Target(NamedTuple):
    """What a member is reconciled with."""

    epoch: int
    partitions: TopicPartitionSets
    subscribed_ids: Collection[bytes]  # topics that the member is still subscribed to
    is_owned: Callable[[bytes, int], bool]  # whether any member owns or has to revoke a partition


def reconcile(
    member: ConsumerMember, target: Target, owned: TopicPartitionSets | None, *, has_changed_subscription: bool = False
) -> ConsumerMember:
    """Return the member after a heartbeat in which it owns `owned` (None: not sent, so unchanged)."""
    if member.state is MemberState.UNKNOWN:
        # A newer version of the coordinator has written the state. The member starts again, without partitions.
        if owned is None or owned:
            raise BrokerError(
                "The consumer group member is in a unknown state. The member must abandon all its partitions and "
                "rejoin.",
                code=Code.FENCED_MEMBER_EPOCH,
            )
        return _advance(member, target, owned)
    if member.state is MemberState.STABLE and member.epoch == target.epoch:
        return _drop_unsubscribed(member, target, owned) if has_changed_subscription else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking):
        return _drop_unsubscribed(member, target, owned) if has_changed_subscription else member
    return _advance(member, target, owned)


def _advance(member: ConsumerMember, target: Target, owned: TopicPartitionSets | None) -> ConsumerMember:
    kept: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    added: dict[bytes, dict[int, int]] = {}
    has_unreleased = False
    for topic_id in {**target.partitions, **member.assigned}:
        is_subscribed = topic_id in target.subscribed_ids
        expected = target.partitions.get(topic_id, frozenset()) if is_subscribed else frozenset()
        current = member.assigned.get(topic_id, {})
        kept[topic_id] = {index: epoch for index, epoch in current.items() if index in expected}
        revoking[topic_id] = {index: epoch for index, epoch in current.items() if index not in expected}
        own_revoking = member.revoking.get(topic_id, {})
        new = {index for index in expected if index not in current}
        free = {index for index in new if index in own_revoking or not target.is_owned(topic_id, index)}
        has_unreleased |= len(free) < len(new)
        added[topic_id] = dict.fromkeys(sorted(free), target.epoch)
    kept, revoking, added = _without_empty(kept), _without_empty(revoking), _without_empty(added)
    if revoking and _owns_any(owned, revoking):
        return _unrevoked(member, kept, revoking)
    assigned = {topic_id: {**kept.get(topic_id, {}), **added.get(topic_id, {})} for topic_id in {**kept, **added}}
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE,
        previous_epoch=member.epoch,
        epoch=target.epoch,
        assigned=assigned,
        revoking={},
    )


def _drop_unsubscribed(member: ConsumerMember, target: Target, owned: TopicPartitionSets | None) -> ConsumerMember:
    """Revoke the partitions of topics that the member has just unsubscribed from, ahead of the next target."""
    dropped = {
        topic_id: indexes for topic_id, indexes in member.assigned.items() if topic_id not in target.subscribed_ids
    }
    if not dropped:
        return member
    kept = {topic_id: indexes for topic_id, indexes in member.assigned.items() if topic_id not in dropped}
    revoking = {
        topic_id: {**member.revoking.get(topic_id, {}), **dropped.get(topic_id, {})}
        for topic_id in {**member.revoking, **dropped}
    }
    if not _owns_any(owned, revoking):
        return replace(member, previous_epoch=member.epoch, assigned=kept)
    return _unrevoked(member, kept, revoking)


def _unrevoked(member: ConsumerMember, kept: AssignedPartitions, revoking: AssignedPartitions) -> ConsumerMember:
    """Return a member that has to give up partitions before it gets others."""
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_epoch=member.epoch,
        assigned=kept,
        revoking=revoking,
    )


def _owns_any(owned: TopicPartitionSets | None, partitions: AssignedPartitions) -> bool:
    """Return whether the member still owns any of these partitions; a member that does not send them may."""
    if owned is None:
        return True
    return any(not indexes.isdisjoint(partitions.get(topic_id, ())) for topic_id, indexes in owned.items())


def _without_empty(partitions: dict[bytes, dict[int, int]]) -> dict[bytes, dict[int, int]]:
    return {topic_id: indexes for topic_id, indexes in partitions.items() if indexes}
