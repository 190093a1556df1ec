"""The records of consumer groups in __consumer_offsets, in the formats of Apache Kafka 4.3.

    key   record                 value
    3     group epoch            the epoch, and a hash of the subscribed topics
    4     partition metadata     written by Kafka 4.0 only; a tombstone replaces it
    5     member                 what a member has sent
    6     target epoch           the epoch of the target assignment, and its time
    7     target of a member     the partitions that a member should have
    8     current of a member    epochs, state and partitions of a member
    16    regular expression     the topics that it matches

A change is a record before it is encoded, or after it was decoded: live and in replay, memory changes by
`ConsumerGroup.apply` only. None instead of a value is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.broker.groups.consumer_member import (
    AssignedPartitions,
    ClassicMetadata,
    ConsumerMember,
    MemberState,
    TopicPartitionSets,
)
from headrace.errors import MalformedError
from headrace.wire.fields import array, bytes_, int8, int32, int64, string, uuid
from headrace.wire.fields import struct as struct_field
from headrace.wire.schema import Message, Struct

VALUE_VERSION = 0

_version = struct.Struct(">h")


class GroupKey(Message, versions="0"):
    """The key of a record of a group."""

    group_id: str = string()


class MemberKey(Message, versions="0"):
    """The key of a record of a member."""

    group_id: str = string()
    member_id: str = string()


class RegularExpressionKey(Message, versions="0"):
    group_id: str = string()
    regular_expression: str = string()


class GroupEpochValue(Message, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64("0+", tag=0)


class ClassicProtocolRow(Struct):
    name: str = string()
    metadata: bytes = bytes_()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: Sequence[ClassicProtocolRow] = array(ClassicProtocolRow)


class MemberValue(Message, versions="0", flexible="0+"):
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: Sequence[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = struct_field(
        ClassicMemberMetadata, nullable="0+", default=None, tag=0
    )


class TargetEpochValue(Message, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64("0+", tag=0)


class TargetPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[int] = array(int32)


class TargetValue(Message, versions="0", flexible="0+"):
    topic_partitions: Sequence[TargetPartitions] = array(TargetPartitions)


class CurrentPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[int] = array(int32)
    assignment_epochs: Sequence[int] | None = array(int32, nullable="0+", default=None, tag=0)


class CurrentValue(Message, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: Sequence[CurrentPartitions] = array(CurrentPartitions)
    partitions_pending_revocation: Sequence[CurrentPartitions] = array(CurrentPartitions)


class RegularExpressionValue(Message, versions="0", flexible="0+"):
    topics: Sequence[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


# -- changes -------------------------------------------------------------------------------------


class GroupEpoch(NamedTuple):
    """A group has a new epoch; None: the group is deleted."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


class PartitionMetadata(NamedTuple):
    """A record of Kafka 4.0 exists, or is removed."""

    group_id: str
    exists: bool


class MemberMetadata(NamedTuple):
    """A member has joined or changed what it sends; the assignment of `member` is not part of the record."""

    group_id: str
    member_id: str
    member: ConsumerMember | None


class TargetEpoch(NamedTuple):
    """The target assignment has a new epoch."""

    group_id: str
    epoch: int | None
    time_ms: int = 0


class MemberTarget(NamedTuple):
    """A member has a new target."""

    group_id: str
    member_id: str
    partitions: TopicPartitionSets | None


class MemberAssignment(NamedTuple):
    """A member has another epoch, state or assignment; nothing else of `member` is part of the record."""

    group_id: str
    member_id: str
    member: ConsumerMember | None


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, and when that was checked."""

    topics: frozenset[str] = frozenset()
    version: int = -1  # of the catalog
    time_ms: int = -1


class RegexTopics(NamedTuple):
    """A regular expression matches other topics."""

    group_id: str
    regex: str
    resolved: ResolvedRegex | None


ConsumerChange = (
    GroupEpoch | PartitionMetadata | MemberMetadata | TargetEpoch | MemberTarget | MemberAssignment | RegexTopics
)


def is_tombstone(change: ConsumerChange) -> bool:
    """Return whether a change deletes something."""
    if isinstance(change, GroupEpoch | TargetEpoch):
        return change.epoch is None
    if isinstance(change, MemberMetadata | MemberAssignment):
        return change.member is None
    if isinstance(change, MemberTarget):
        return change.partitions is None
    return change.resolved is None if isinstance(change, RegexTopics) else not change.exists


def encode_change(change: ConsumerChange) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a change."""
    if isinstance(change, GroupEpoch):
        value: Message | None = None
        if change.epoch is not None:
            value = GroupEpochValue(epoch=change.epoch, metadata_hash=change.metadata_hash)
        return encode_record(3, GroupKey(group_id=change.group_id), value)
    if isinstance(change, PartitionMetadata):
        assert not change.exists, "partition metadata is not written any more"
        return encode_record(4, GroupKey(group_id=change.group_id), None)
    if isinstance(change, TargetEpoch):
        value = None
        if change.epoch is not None:
            value = TargetEpochValue(assignment_epoch=change.epoch, assignment_timestamp=change.time_ms)
        return encode_record(6, GroupKey(group_id=change.group_id), value)
    if isinstance(change, RegexTopics):
        key = RegularExpressionKey(group_id=change.group_id, regular_expression=change.regex)
        resolved = change.resolved
        value = None
        if resolved is not None:
            value = RegularExpressionValue(
                topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.time_ms
            )
        return encode_record(16, key, value)
    member_key = MemberKey(group_id=change.group_id, member_id=change.member_id)
    if isinstance(change, MemberMetadata):
        return encode_record(5, member_key, None if change.member is None else _member_value(change.member))
    if isinstance(change, MemberTarget):
        return encode_record(7, member_key, None if change.partitions is None else _target_value(change.partitions))
    return encode_record(8, member_key, None if change.member is None else _current_value(change.member))


def encode_record(kind: int, key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
    """Return the bytes of a record of a type, also for the types of share groups."""
    data = None if value is None else _version.pack(VALUE_VERSION) + value.encode(VALUE_VERSION)
    return _version.pack(kind) + key.encode(0), data


def _member_value(member: ConsumerMember) -> MemberValue:
    classic = None
    if member.classic is not None:
        rows = [ClassicProtocolRow(name=name, metadata=data) for name, data in member.classic.protocols]
        classic = ClassicMemberMetadata(session_timeout_ms=member.classic.session_timeout_ms, supported_protocols=rows)
    return MemberValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    )


def _target_value(partitions: TopicPartitionSets) -> TargetValue:
    rows = [TargetPartitions(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in partitions.items()]
    return TargetValue(topic_partitions=rows)


def _current_value(member: ConsumerMember) -> CurrentValue:
    return CurrentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_current_rows(member.assigned),
        partitions_pending_revocation=_current_rows(member.revoking),
    )


def _current_rows(partitions: AssignedPartitions) -> list[CurrentPartitions]:
    return [
        CurrentPartitions(topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values()))
        for topic_id, epochs in partitions.items()
    ]


# -- decoding ------------------------------------------------------------------------------------


def decode_change(kind: int, key: bytes, value: bytes | None) -> ConsumerChange | None:
    """Decode a record whose key starts with `kind`; None if the record is not of a consumer group."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    return decoder(memoryview(key)[_version.size :], value_body(kind, value))


def value_body(kind: int, value: bytes | None) -> memoryview | None:
    """Return the value of a record without its version, which is checked; None: a tombstone."""
    if value is None:
        return None
    if len(value) < _version.size:
        raise MalformedError(f"invalid value {value!r}: expected a version of 2 bytes", offset=0)
    (version,) = _version.unpack_from(value)
    if version != VALUE_VERSION:
        raise MalformedError(f"invalid version {version} of a value of type {kind}: expected 0", offset=0)
    return memoryview(value)[_version.size :]


def _group_epoch(key: memoryview, body: memoryview | None) -> ConsumerChange:
    group_id = GroupKey.decode(0, key).group_id
    if body is None:
        return GroupEpoch(group_id, None)
    value = GroupEpochValue.decode(0, body)
    return GroupEpoch(group_id, value.epoch, value.metadata_hash)


def _partition_metadata(key: memoryview, body: memoryview | None) -> ConsumerChange:
    return PartitionMetadata(GroupKey.decode(0, key).group_id, body is not None)


def _target_epoch(key: memoryview, body: memoryview | None) -> ConsumerChange:
    group_id = GroupKey.decode(0, key).group_id
    if body is None:
        return TargetEpoch(group_id, None)
    value = TargetEpochValue.decode(0, body)
    return TargetEpoch(group_id, value.assignment_epoch, value.assignment_timestamp)


def _regex_topics(key: memoryview, body: memoryview | None) -> ConsumerChange:
    decoded = RegularExpressionKey.decode(0, key)
    resolved = None
    if body is not None:
        value = RegularExpressionValue.decode(0, body)
        resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
    return RegexTopics(decoded.group_id, decoded.regular_expression, resolved)


def _member_metadata(key: memoryview, body: memoryview | None) -> ConsumerChange:
    group_id, member_id = _member_key(key)
    if body is None:
        return MemberMetadata(group_id, member_id, None)
    value = MemberValue.decode(0, body)
    classic = None
    if value.classic_member_metadata is not None:
        rows = value.classic_member_metadata.supported_protocols
        protocols = tuple((row.name, bytes(row.metadata)) for row in rows)
        classic = ClassicMetadata(value.classic_member_metadata.session_timeout_ms, protocols)
    member = ConsumerMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        frozenset(value.subscribed_topic_names),
        value.subscribed_topic_regex or "",
        value.rebalance_timeout_ms,
        value.server_assignor,
        classic,
    )
    return MemberMetadata(group_id, member_id, member)


def _member_target(key: memoryview, body: memoryview | None) -> ConsumerChange:
    group_id, member_id = _member_key(key)
    if body is None:
        return MemberTarget(group_id, member_id, None)
    rows = TargetValue.decode(0, body).topic_partitions
    return MemberTarget(group_id, member_id, {row.topic_id: frozenset(row.partitions) for row in rows})


def _member_assignment(key: memoryview, body: memoryview | None) -> ConsumerChange:
    group_id, member_id = _member_key(key)
    if body is None:
        return MemberAssignment(group_id, member_id, None)
    value = CurrentValue.decode(0, body)
    known_states = {state.value for state in MemberState}
    member = ConsumerMember(
        member_id,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if value.state in known_states else MemberState.UNKNOWN,
        assigned=_assigned(value.assigned_partitions, value.member_epoch),
        revoking=_assigned(value.partitions_pending_revocation, value.member_epoch),
    )
    return MemberAssignment(group_id, member_id, member)


def _assigned(rows: Sequence[CurrentPartitions], member_epoch: int) -> AssignedPartitions:
    """Return the epoch of each partition; records of older versions have that of the member only."""
    return {
        row.topic_id: dict(
            zip(row.partitions, row.assignment_epochs, strict=True)
            if row.assignment_epochs is not None and len(row.assignment_epochs) == len(row.partitions)
            else dict.fromkeys(row.partitions, member_epoch)
        )
        for row in rows
    }


def _member_key(key: memoryview) -> tuple[str, str]:
    decoded = MemberKey.decode(0, key)
    return decoded.group_id, decoded.member_id


_DECODERS: dict[int, Callable[[memoryview, memoryview | None], ConsumerChange]] = {
    3: _group_epoch,
    4: _partition_metadata,
    5: _member_metadata,
    6: _target_epoch,
    7: _member_target,
    8: _member_assignment,
    16: _regex_topics,
}
