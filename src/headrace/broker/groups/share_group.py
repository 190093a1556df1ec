"""A share group (KIP-932): epochs, members, targets, and the partitions that have a state. No clock, no log.

A partition may be assigned to several members, so a member reaches its target at once: there is no reconciliation.
Memory changes by `apply` only, with the changes that are in the log: a replay gives the same group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum

from headrace.broker.catalog.topics import Topics
from headrace.broker.groups.consumer_group import topic_ids
from headrace.broker.groups.consumer_member import TopicPartitionSets
from headrace.broker.groups.share_records import (
    JOIN_EPOCH,
    ShareChange,
    ShareGroupEpoch,
    ShareGroupMember,
    ShareMemberAssignment,
    ShareMemberMetadata,
    ShareMemberTarget,
    SharePartitionsState,
    ShareTargetEpoch,
    StatePartitions,
    TopicState,
)
from headrace.errors import BrokerError, Code

SHARE_PROTOCOL = "share"


class ShareGroupState(Enum):
    """The state of a group, with the names in the protocol."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareGroup:
    """A group and its members."""

    protocol_type = SHARE_PROTOCOL

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = 0
        self.metadata_hash = 0  # of the subscribed topics
        self.target_epoch = 0
        self.target_time_ms = 0  # when the assignor ran; 0: never
        self.members: dict[str, ShareGroupMember] = {}
        self.targets: dict[str, TopicPartitionSets] = {}
        self.states = StatePartitions()

    def copy(self) -> ShareGroup:
        """Return a copy, which changes independently."""
        group = ShareGroup(self.id)
        for name, value in vars(self).items():
            setattr(group, name, value.copy() if isinstance(value, dict) else value)
        return group

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # -- changes ---------------------------------------------------------------------------------

    def apply(self, change: ShareChange) -> None:
        """Apply a change that is in the log."""
        if isinstance(change, ShareGroupEpoch):
            self.epoch, self.metadata_hash = change.epoch or 0, change.metadata_hash
        elif isinstance(change, ShareTargetEpoch):
            self.target_epoch, self.target_time_ms = change.epoch or 0, change.time_ms
        elif isinstance(change, SharePartitionsState):
            self.states = change.partitions or StatePartitions()
        elif isinstance(change, ShareMemberTarget):
            if change.partitions is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.partitions
        elif isinstance(change, ShareMemberMetadata):
            self._apply_member(change)
        else:
            member = change.member or ShareGroupMember(change.member_id, epoch=-1, previous_epoch=-1)
            existing = self.members.get(change.member_id)
            if existing is not None or change.member is not None:
                existing = existing or ShareGroupMember(change.member_id)
                self.members[change.member_id] = replace(
                    existing, epoch=member.epoch, previous_epoch=member.previous_epoch, assigned=member.assigned
                )

    def _apply_member(self, change: ShareMemberMetadata) -> None:
        if change.member is None:
            self.members.pop(change.member_id, None)
            return
        existing = self.members.get(change.member_id, ShareGroupMember(change.member_id))
        self.members[change.member_id] = replace(
            change.member, epoch=existing.epoch, previous_epoch=existing.previous_epoch, assigned=existing.assigned
        )

    def tombstones(self) -> list[ShareChange]:
        """Return the changes that delete the group and everything in it."""
        return [
            *(ShareMemberAssignment(self.id, member_id, None) for member_id in self.members),
            *(ShareMemberTarget(self.id, member_id, None) for member_id in self.targets),
            ShareTargetEpoch(self.id, None),
            *(ShareMemberMetadata(self.id, member_id, None) for member_id in self.members),
            SharePartitionsState(self.id, None),
            ShareGroupEpoch(self.id, None),
        ]

    # -- members ---------------------------------------------------------------------------------

    def member(self, member_id: str) -> ShareGroupMember:
        """Return a member, or raise UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(f"Member {member_id} is not a member of group {self.id}.", code=Code.UNKNOWN_MEMBER_ID)
        return member

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that any member is subscribed to."""
        return frozenset().union(*(member.topics for member in self.members.values()))

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values())

    def check_deletable(self) -> None:
        """Raise NON_EMPTY_GROUP if the group has members."""
        if self.members:
            raise BrokerError(f"Group {self.id} is not empty.", code=Code.NON_EMPTY_GROUP)

    # -- partitions ------------------------------------------------------------------------------

    def assignable(self, topics: Topics) -> dict[bytes, frozenset[int]]:
        """Return the partitions of subscribed topics that have a state."""
        subscribed = set(topic_ids(self.subscribed_topics(), topics))
        return {key: topic.partitions for key, topic in self.states.initialized.items() if key in subscribed}

    def is_assignment_pending(self, topics: Topics) -> bool:
        """Return whether there are partitions with a state that no member has, or the other way round."""
        assigned: dict[bytes, set[int]] = {}
        for target in self.targets.values():
            for topic_id, indexes in target.items():
                assigned.setdefault(topic_id, set()).update(indexes)
        return any(assigned.get(key) != set(indexes) for key, indexes in self.assignable(topics).items())

    def without_state(self, topics: Topics) -> dict[bytes, TopicState]:
        """Return the partitions of subscribed topics that have no state yet."""
        missing: dict[bytes, TopicState] = {}
        for name in sorted(self.subscribed_topics()):
            topic = topics.by_name.get(name)
            if topic is not None:
                known = self.states.initialized.get(topic.id, TopicState(name, frozenset())).partitions
                indexes = frozenset(range(len(topic.partitions))) - known
                if indexes:
                    missing[topic.id] = TopicState(name, indexes)
        return missing

    def with_states(self, initialized: Mapping[bytes, TopicState], topics: Topics) -> StatePartitions:
        """Return the partitions with a state after some were initialized; deleted topics are dropped."""
        merged = {key: topic for key, topic in self.states.initialized.items() if key in topics.by_id}
        for key, topic in initialized.items():
            known = merged.get(key, TopicState(topic.name, frozenset())).partitions
            merged[key] = TopicState(topic.name, known | topic.partitions)
        deleting = {key: name for key, name in self.states.deleting.items() if key not in initialized}
        return StatePartitions({}, merged, deleting)

    def without_topics(self, removed: Iterable[bytes]) -> StatePartitions:
        """Return the partitions with a state without some topics."""
        gone = set(removed)
        initialized = {key: topic for key, topic in self.states.initialized.items() if key not in gone}
        return StatePartitions({}, initialized, {})


def check_epoch(member: ShareGroupMember, epoch: int) -> None:
    """Raise FENCED_MEMBER_EPOCH unless a heartbeat has the current or the previous epoch, or joins."""
    if epoch in (JOIN_EPOCH, member.epoch, member.previous_epoch):
        return
    size, end = "greater", ""
    if epoch < member.epoch:
        size, end = "smaller", f", and it does not match the previous member epoch ({member.previous_epoch})"
    raise BrokerError(
        f"The share group member has a {size} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}){end}. The member must abandon all its partitions and rejoin.",
        code=Code.FENCED_MEMBER_EPOCH,
    )
