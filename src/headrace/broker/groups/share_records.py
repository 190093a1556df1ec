"""The records of share groups in __consumer_offsets, in the formats of Apache Kafka 4.3.

    key   record                 value
    10    member                 what a member has sent
    11    group epoch            the epoch, and a hash of the subscribed topics
    12    target epoch           the epoch of the target assignment, and its time
    13    target of a member     the partitions that a member should have
    14    current of a member    epochs and partitions of a member
    15    state of partitions    the partitions whose state is being initialized, is initialized, or is being deleted

A change is a record before it is encoded, or after it was decoded: live and in replay, memory changes by
`ShareGroup.apply` only. None instead of a value is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.groups.consumer_member import TopicPartitionSets
from headrace.broker.groups.consumer_records import (
    GroupKey,
    MemberKey,
    TargetEpochValue,
    TargetPartitions,
    TargetValue,
    encode_record,
    value_body,
)
from headrace.wire.fields import array, int8, int32, int64, string, uuid
from headrace.wire.schema import Message, Struct

_version = struct.Struct(">h")

JOIN_EPOCH = 0


class ShareGroupEpochValue(Message, versions="0-0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64()


class ShareMemberValue(Message, versions="0-0", flexible="0+"):
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: Sequence[str] = array(string)


class ShareCurrentValue(Message, versions="0-0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: Sequence[TargetPartitions] = array(TargetPartitions)


class InitializedTopic(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: Sequence[int] = array(int32)


class DeletingTopic(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()


class StatePartitionsValue(Message, versions="0-0", flexible="0+"):
    initializing_topics: Sequence[InitializedTopic] = array(InitializedTopic)
    initialized_topics: Sequence[InitializedTopic] = array(InitializedTopic)
    deleting_topics: Sequence[DeletingTopic] = array(DeletingTopic)


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """A member of a share group: what it has sent, its epochs and its partitions."""

    id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()

    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    assigned: TopicPartitionSets = field(default_factory=dict)


class TopicState(NamedTuple):
    """The partitions of a topic whose state is initialized, or being initialized."""

    name: str
    partitions: frozenset[int]


class StatePartitions(NamedTuple):
    """The partitions with a state at the share coordinator, by topic id."""

    initializing: Mapping[bytes, TopicState] = {}
    initialized: Mapping[bytes, TopicState] = {}
    deleting: Mapping[bytes, str] = {}  # names of topics


class ShareGroupEpoch(NamedTuple):
    """A group has a new epoch; None: the group is deleted."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


class ShareMemberMetadata(NamedTuple):
    """A member has joined or changed what it sends."""

    group_id: str
    member_id: str
    member: ShareGroupMember | None


class ShareTargetEpoch(NamedTuple):
    """The target assignment has a new epoch."""

    group_id: str
    epoch: int | None
    time_ms: int = 0


class ShareMemberTarget(NamedTuple):
    """A member has a new target."""

    group_id: str
    member_id: str
    partitions: TopicPartitionSets | None


class ShareMemberAssignment(NamedTuple):
    """A member has another epoch or assignment."""

    group_id: str
    member_id: str
    member: ShareGroupMember | None


class SharePartitionsState(NamedTuple):
    """Other partitions have a state at the share coordinator."""

    group_id: str
    partitions: StatePartitions | None


ShareChange = (
    ShareGroupEpoch
    | ShareMemberMetadata
    | ShareTargetEpoch
    | ShareMemberTarget
    | ShareMemberAssignment
    | SharePartitionsState
)


def is_share_tombstone(change: ShareChange) -> bool:
    """Return whether a change deletes something: its value, after the keys, is None."""
    if isinstance(change, ShareGroupEpoch | ShareTargetEpoch):
        return change.epoch is None
    if isinstance(change, ShareMemberMetadata | ShareMemberAssignment):
        return change.member is None
    return change.partitions is None


def encode_share_change(change: ShareChange) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a change."""
    group_key = GroupKey(group_id=change.group_id)
    value: Message | None = None
    if isinstance(change, ShareGroupEpoch):
        if change.epoch is not None:
            value = ShareGroupEpochValue(epoch=change.epoch, metadata_hash=change.metadata_hash)
        return encode_record(11, group_key, value)
    if isinstance(change, ShareTargetEpoch):
        if change.epoch is not None:
            value = TargetEpochValue(assignment_epoch=change.epoch, assignment_timestamp=change.time_ms)
        return encode_record(12, group_key, value)
    if isinstance(change, SharePartitionsState):
        return encode_record(15, group_key, None if change.partitions is None else _states_value(change.partitions))
    member_key = MemberKey(group_id=change.group_id, member_id=change.member_id)
    if isinstance(change, ShareMemberTarget):
        if change.partitions is not None:
            value = TargetValue(topic_partitions=_rows(change.partitions))
        return encode_record(13, member_key, value)
    member = change.member
    if isinstance(change, ShareMemberMetadata):
        if member is not None:
            value = ShareMemberValue(
                rack_id=member.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
            )
        return encode_record(10, member_key, value)
    if member is not None:
        value = ShareCurrentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            assigned_partitions=_rows(member.assigned),
        )
    return encode_record(14, member_key, value)


def _rows(partitions: TopicPartitionSets) -> list[TargetPartitions]:
    return [TargetPartitions(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in partitions.items()]


def _states_value(states: StatePartitions) -> StatePartitionsValue:
    def rows(topics: Mapping[bytes, TopicState]) -> list[InitializedTopic]:
        return [
            InitializedTopic(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
            for topic_id, topic in topics.items()
        ]

    return StatePartitionsValue(
        initializing_topics=rows(states.initializing),
        initialized_topics=rows(states.initialized),
        deleting_topics=[DeletingTopic(topic_id=key, topic_name=name) for key, name in states.deleting.items()],
    )


# -- decoding ------------------------------------------------------------------------------------


def decode_share_change(kind: int, key: bytes, value: bytes | None) -> ShareChange | None:
    """Decode a record whose key starts with `kind`; None if the record is not of a share group."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    return decoder(memoryview(key)[_version.size :], value_body(kind, value))


def _group_epoch(key: memoryview, body: memoryview | None) -> ShareChange:
    group_id = GroupKey.decode(0, key).group_id
    if body is None:
        return ShareGroupEpoch(group_id, None)
    value = ShareGroupEpochValue.decode(0, body)
    return ShareGroupEpoch(group_id, value.epoch, value.metadata_hash)


def _target_epoch(key: memoryview, body: memoryview | None) -> ShareChange:
    group_id = GroupKey.decode(0, key).group_id
    if body is None:
        return ShareTargetEpoch(group_id, None)
    value = TargetEpochValue.decode(0, body)
    return ShareTargetEpoch(group_id, value.assignment_epoch, value.assignment_timestamp)


def _states(key: memoryview, body: memoryview | None) -> ShareChange:
    group_id = GroupKey.decode(0, key).group_id
    if body is None:
        return SharePartitionsState(group_id, None)
    value = StatePartitionsValue.decode(0, body)

    def topics(rows: Sequence[InitializedTopic]) -> dict[bytes, TopicState]:
        return {row.topic_id: TopicState(row.topic_name, frozenset(row.partitions)) for row in rows}

    deleting = {row.topic_id: row.topic_name for row in value.deleting_topics}
    states = StatePartitions(topics(value.initializing_topics), topics(value.initialized_topics), deleting)
    return SharePartitionsState(group_id, states)


def _member_metadata(key: memoryview, body: memoryview | None) -> ShareChange:
    group_id, member_id, _ = MemberKey.decode(0, key)
    if body is None:
        return ShareMemberMetadata(group_id, member_id, None)
    value = ShareMemberValue.decode(0, body)
    member = ShareGroupMember(
        member_id, value.rack_id, value.client_id, value.client_host, frozenset(value.subscribed_topic_names)
    )
    return ShareMemberMetadata(group_id, member_id, member)


def _member_target(key: memoryview, body: memoryview | None) -> ShareChange:
    group_id, member_id, _ = MemberKey.decode(0, key)
    if body is None:
        return ShareMemberTarget(group_id, member_id, None)
    return ShareMemberTarget(group_id, member_id, _sets(TargetValue.decode(0, body).topic_partitions))


def _member_assignment(key: memoryview, body: memoryview | None) -> ShareChange:
    group_id, member_id, _ = MemberKey.decode(0, key)
    if body is None:
        return ShareMemberAssignment(group_id, member_id, None)
    value = ShareCurrentValue.decode(0, body)
    member = ShareGroupMember(
        member_id,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=_sets(value.assigned_partitions),
    )
    return ShareMemberAssignment(group_id, member_id, member)


def _sets(rows: Sequence[TargetPartitions]) -> TopicPartitionSets:
    return {row.topic_id: frozenset(row.partitions) for row in rows}


_DECODERS: dict[int, Callable[[memoryview, memoryview | None], ShareChange]] = {
    10: _member_metadata,
    11: _group_epoch,
    12: _target_epoch,
    13: _member_target,
    14: _member_assignment,
    15: _states,
}
