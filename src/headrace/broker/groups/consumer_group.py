"""A group that uses the consumer protocol (KIP-848): epochs, members, subscriptions. No clock, no log.

    member joins, leaves, changes    assignor: a target of        every member has
    its topics; topics change        the group's epoch            reached the target
    ───────────▶ ASSIGNING ──────────────────▶ RECONCILING ──────────────▶ STABLE         EMPTY: no members

The state follows from three epochs: the group's grows with every change, the target's is that of the group when the
assignor ran, and a member's is that of the target it has reached. Memory changes by `apply` only, with the changes that
are in the log: a replay gives the same group.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from enum import Enum

from headrace.broker.catalog.topics import Topics
from headrace.broker.groups.assignors import AssignableMember
from headrace.broker.groups.consumer_member import (
    LEAVE_EPOCH,
    AssignedPartitions,
    ConsumerMember,
    TopicPartitionSets,
)
from headrace.broker.groups.consumer_records import (
    ConsumerChange,
    GroupEpoch,
    MemberAssignment,
    MemberMetadata,
    MemberTarget,
    PartitionMetadata,
    RegexTopics,
    ResolvedRegex,
    TargetEpoch,
)
from headrace.broker.groups.group import MemberClaim
from headrace.errors import BrokerError, Code
from headrace.wire.consumer_protocol import PROTOCOL_TYPE

FIRST_EPOCH = 1
"""The epoch of a group before its first change, so that a member never has epoch 0 after it has joined."""
COMMIT_EPOCH_MIN_VERSION = 9
"""The first version of OffsetCommit with member epochs."""


class ConsumerGroupState(Enum):
    """The state of a group, with the names in the protocol."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """A group and its members."""

    protocol_type = PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0  # of the subscribed topics
        self.target_epoch = 0
        self.target_time_ms = 0  # when the assignor ran; 0: never
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}  # instance id → member id
        self.targets: dict[str, TopicPartitionSets] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False  # a record of Kafka 4.0, to be removed
        self.topics_version = -1  # of the subscribed topics that `metadata_hash` is about; not in the log
        self._owners: dict[tuple[bytes, int], str] = {}  # members that own a partition or have to revoke it

    def copy(self) -> ConsumerGroup:
        """Return a copy, which changes independently."""
        group = ConsumerGroup(self.id)
        for name, value in vars(self).items():
            setattr(group, name, value.copy() if isinstance(value, dict) else value)
        return group

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    # -- changes ---------------------------------------------------------------------------------

    def apply(self, change: ConsumerChange) -> None:
        """Apply a change that is in the log."""
        if isinstance(change, GroupEpoch):
            self.epoch, self.metadata_hash = change.epoch or FIRST_EPOCH, change.metadata_hash
        elif isinstance(change, TargetEpoch):
            self.target_epoch, self.target_time_ms = change.epoch or 0, change.time_ms
        elif isinstance(change, MemberMetadata):
            self._apply_member(change)
        elif isinstance(change, MemberAssignment):
            self._apply_assignment(change)
        elif isinstance(change, MemberTarget):
            if change.partitions is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.partitions
        elif isinstance(change, RegexTopics):
            if change.resolved is None:
                self.regexes.pop(change.regex, None)
            else:
                self.regexes[change.regex] = change.resolved
        else:
            self.has_partition_metadata = change.exists

    def _apply_member(self, change: MemberMetadata) -> None:
        existing = self.members.get(change.member_id)
        if existing is not None and self.static_members.get(existing.instance_id or "") == existing.id:
            del self.static_members[existing.instance_id or ""]
        if change.member is None:
            if existing is not None:
                self._release(existing)
                del self.members[change.member_id]
            return
        base = ConsumerMember(change.member_id) if existing is None else existing
        self.members[change.member_id] = member = base.with_metadata_of(change.member)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id

    def _apply_assignment(self, change: MemberAssignment) -> None:
        existing = self.members.get(change.member_id)
        if existing is None:
            if change.member is None:
                return
            existing = ConsumerMember(change.member_id)
        self._release(existing)
        current = change.member or ConsumerMember(change.member_id, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH)
        self.members[change.member_id] = member = existing.with_assignment_of(current)
        for partition in _partitions(member):
            self._owners[partition] = member.id

    def _release(self, member: ConsumerMember) -> None:
        for partition in _partitions(member):
            if self._owners.get(partition) == member.id:
                del self._owners[partition]

    def tombstones(self) -> list[ConsumerChange]:
        """Return the changes that delete the group and everything in it."""
        changes: list[ConsumerChange] = [
            *(MemberAssignment(self.id, member_id, None) for member_id in self.members),
            *(MemberTarget(self.id, member_id, None) for member_id in self.targets),
            TargetEpoch(self.id, None),
            *(MemberMetadata(self.id, member_id, None) for member_id in self.members),
            *(RegexTopics(self.id, regex, None) for regex in self.regexes),
        ]
        if self.has_partition_metadata:
            changes.append(PartitionMetadata(self.id, False))
        return [*changes, GroupEpoch(self.id, None)]

    # -- members ---------------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerMember:
        """Return a member, or raise UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise self.error(Code.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.id}.")
        return member

    def static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the member with an instance id; raise if it is unknown or has another member id."""
        current = self.static_members.get(instance_id)
        if current is None:
            raise self.error(Code.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if current != member_id:
            raise self.error(
                Code.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {current}.",
            )
        return self.members[current]

    def member_of(self, claim: MemberClaim) -> ConsumerMember:
        """Return the member of a request of the classic protocol."""
        if claim.instance_id is None:
            return self.member(claim.member_id)
        return self.static_member(claim.instance_id, claim.member_id)

    def is_owned(self, topic_id: bytes, partition: int) -> bool:
        """Return whether a member owns a partition or has to revoke it."""
        return (topic_id, partition) in self._owners

    def waits_for_partitions(self, member: ConsumerMember) -> bool:
        """Return whether another member still owns partitions of a member's target."""
        return any(
            index not in member.assigned.get(topic_id, {}) and self.is_owned(topic_id, index)
            for topic_id, indexes in self.targets.get(member.id, {}).items()
            for index in indexes
        )

    @property
    def classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.classic is not None]

    def supports_classic(self, protocol_type: str, protocols: Collection[str]) -> bool:
        """Return whether a classic consumer with these protocols can join: one is common to all classic members."""
        if protocol_type != PROTOCOL_TYPE or not protocols:
            return False
        classic = [{name for name, _ in member.classic.protocols} for member in self.classic_members if member.classic]
        return any(all(name in names for names in classic) for name in protocols)

    # -- subscriptions ---------------------------------------------------------------------------

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member is subscribed to, by name or by regular expression."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics | resolved.topics if resolved else member.topics

    def subscribed_topics(self, members: Iterable[ConsumerMember] | None = None) -> set[str]:
        """Return the topics that any of these members, or any member of the group, is subscribed to."""
        return {
            topic
            for member in (self.members.values() if members is None else members)
            for topic in self.topics_of(member)
        }

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def regex_counts(self) -> Counter[str]:
        """Return how many members use each regular expression."""
        return Counter(member.regex for member in self.members.values() if member.regex)

    def preferred_assignor(self, members: Iterable[ConsumerMember], default: str) -> str:
        """Return the assignor that most members prefer."""
        votes = Counter(member.assignor for member in members if member.assignor is not None)
        return str(max(votes, key=lambda name: votes[name])) if votes else default

    def assignable(self, members: Iterable[ConsumerMember], topics: Topics) -> list[AssignableMember]:
        """Return the members as the assignors see them. A static member that replaces another has its target."""
        return [
            AssignableMember(
                member.id,
                member.instance_id,
                frozenset(topic_ids(self.topics_of(member), topics)),
                self.target_of(member),
            )
            for member in members
        ]

    def target_of(self, member: ConsumerMember) -> TopicPartitionSets:
        """Return the target of a member, or of the static member that it replaces."""
        previous_id = self.static_members.get(member.instance_id) if member.instance_id is not None else None
        return self.targets.get(member.id) or self.targets.get(previous_id or "", {})

    # -- offsets ---------------------------------------------------------------------------------

    def check_commit(self, claim: MemberClaim, *, transactional: bool, version: int) -> ConsumerMember | None:
        """Raise unless offsets may be committed under this claim.

        Return the member if its partitions have to be checked one by one, because the claim has an older epoch.
        """
        if claim.generation < 0 and not self.members:
            return None
        if transactional and claim == MemberClaim():
            return None  # an older client, without KIP-447
        member = self.member(claim.member_id)
        if not transactional and member.classic is None and version < COMMIT_EPOCH_MIN_VERSION:
            raise self.error(
                Code.UNSUPPORTED_VERSION,
                f"OffsetCommit version {COMMIT_EPOCH_MIN_VERSION} or above must be used by members using the consumer "
                "group protocol",
            )
        if claim.generation == member.epoch:
            return None
        if claim.generation > member.epoch:
            raise self.error(
                stale_code(member), f"epoch {claim.generation} is newer than that of the member, {member.epoch}"
            )
        return member

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise unless a member may fetch offsets; requests without a member always may."""
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member.epoch != member_epoch:
            raise self.error(
                stale_code(member), f"epoch {member_epoch} is not the current one of the member, {member.epoch}"
            )

    def check_deletable(self) -> None:
        if self.members:
            raise self.error(Code.NON_EMPTY_GROUP, f"it has {len(self.members)} members")

    def error(self, code: Code, fact: str) -> BrokerError:
        """Return an error of this group."""
        return BrokerError(fact if self.id in fact else f"group {self.id!r}: {fact}", code=code)


def stale_code(member: ConsumerMember) -> Code:
    """Return the code for a wrong epoch, in the protocol of the member."""
    return Code.STALE_MEMBER_EPOCH if member.classic is None else Code.ILLEGAL_GENERATION


def topic_ids(names: Iterable[str], topics: Topics) -> Iterator[bytes]:
    """Yield the ids of the topics that exist."""
    for name in names:
        topic = topics.by_name.get(name)
        if topic is not None:
            yield topic.id


def hash_topics(names: Iterable[str], topics: Topics) -> int:
    """Return a number that changes with the ids and partition counts of topics; 0 if there are none.

    Apache Kafka stores its own hash in the same field. A coordinator that finds another hash assigns once more.
    """
    digest = hashlib.blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        topic = topics.by_name.get(name)
        if topic is not None:
            is_empty = False
            digest.update(topic.id + len(topic.partitions).to_bytes(4, "big"))
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


def _partitions(member: ConsumerMember) -> Iterator[tuple[bytes, int]]:
    for assignment in (member.assigned, member.revoking):
        yield from _pairs(assignment)


def _pairs(assignment: AssignedPartitions) -> Iterator[tuple[bytes, int]]:
    return ((topic_id, index) for topic_id, indexes in assignment.items() for index in indexes)
