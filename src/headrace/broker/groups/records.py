"""The records of __consumer_offsets, in the formats of Apache Kafka.

A key starts with two bytes for its type: 0 or 1 an offset, 2 a classic group, 3 to 8 and 16 a consumer group
(`consumer_records.py`), 10 to 15 a share group (`share_records.py`). The types of Streams groups are not supported. A
value starts with its version. A null value is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.groups.consumer_records import ConsumerChange, decode_change, encode_change
from headrace.broker.groups.group import Group, GroupMember, GroupState
from headrace.broker.groups.offsets import NO_EXPIRY, Committed
from headrace.broker.groups.share_records import ShareChange, decode_share_change, encode_share_change
from headrace.errors import MalformedError
from headrace.types import TopicPartition
from headrace.wire.fields import ZERO_UUID, array, bytes_, int32, int64, string, uuid
from headrace.wire.layout import Record
from headrace.wire.schema import Message, Struct

OFFSET_KEYS = (0, 1)
OFFSET_KEY = 1
GROUP_KEY = 2

OFFSET_VALUE = 3
OFFSET_VALUE_WITH_EXPIRY = 1
OFFSET_VALUE_WITH_TOPIC_ID = 4
GROUP_VALUE = 3

_version = struct.Struct(">h")


class OffsetCommitKey(Message, versions="0-1"):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    group: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = bytes_()
    assignment: bytes = bytes_()


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: Sequence[MemberMetadata] = array(MemberMetadata)


class KeyValue(NamedTuple):
    """The key and value of a record."""

    key: bytes
    value: bytes | None


class OffsetChange(NamedTuple):
    """An offset record; None: a tombstone."""

    group_id: str
    partition: TopicPartition
    committed: Committed | None


class GroupChange(NamedTuple):
    """A group record; None: a tombstone."""

    group_id: str
    group: Group | None


def offset_record(group_id: str, partition: TopicPartition, committed: Committed) -> KeyValue:
    """Return the record of an offset, in the oldest sufficient version, so that older tools can read it."""
    version = OFFSET_VALUE
    if committed.expire_time_ms != NO_EXPIRY:
        version = OFFSET_VALUE_WITH_EXPIRY
    elif committed.topic_id != ZERO_UUID:
        version = OFFSET_VALUE_WITH_TOPIC_ID
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_time_ms,
        expire_timestamp=committed.expire_time_ms,
        topic_id=committed.topic_id,
    )
    return KeyValue(_offset_key(group_id, partition), _versioned(version, value))


def offset_tombstone(group_id: str, partition: TopicPartition) -> KeyValue:
    return KeyValue(_offset_key(group_id, partition), None)


def group_record(
    group: Group, assignments: dict[str, bytes] | None = None, state_time_ms: int | None = None
) -> KeyValue:
    """Return the record of a group, with its current assignments or new ones."""
    members = [
        MemberMetadata(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=member.assignment if assignments is None else assignments[member.id],
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_time_ms if state_time_ms is None else state_time_ms,
        members=members,
    )
    return KeyValue(_group_key(group.id), _versioned(GROUP_VALUE, value))


def group_tombstone(group_id: str) -> KeyValue:
    return KeyValue(_group_key(group_id), None)


def consumer_record(change: ConsumerChange) -> KeyValue:
    """Return the record of a change of a consumer group."""
    return KeyValue(*encode_change(change))


def share_record(change: ShareChange) -> KeyValue:
    """Return the record of a change of a share group."""
    return KeyValue(*encode_share_change(change))


def decode(record: Record) -> OffsetChange | GroupChange | ConsumerChange | ShareChange | None:
    """Decode a record; None for unknown types."""
    if record.key is None or len(record.key) < _version.size:
        raise MalformedError(f"invalid key {record.key!r}: expected an offset or a group", offset=0)
    (kind,) = _version.unpack_from(record.key)
    if kind in OFFSET_KEYS:
        key = OffsetCommitKey.decode(OFFSET_KEY, memoryview(record.key)[_version.size :])
        committed = None if record.value is None else _committed(record.value, record.offset)
        return OffsetChange(key.group, TopicPartition(key.topic, key.partition), committed)
    if kind == GROUP_KEY:
        group_id = GroupMetadataKey.decode(GROUP_KEY, memoryview(record.key)[_version.size :]).group
        return GroupChange(group_id, None if record.value is None else _group(group_id, record.value))
    return decode_change(kind, record.key, record.value) or decode_share_change(kind, record.key, record.value)


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
    return _versioned(OFFSET_KEY, key)


def _group_key(group_id: str) -> bytes:
    return _versioned(GROUP_KEY, GroupMetadataKey(group=group_id))


def _versioned(version: int, message: Message) -> bytes:
    return _version.pack(version) + message.encode(version)


def _value_version(value: bytes) -> int:
    if len(value) < _version.size:
        raise MalformedError(f"invalid value {value!r}: expected a version of 2 bytes", offset=0)
    return int(_version.unpack_from(value)[0])


def _committed(data: bytes, record_offset: int) -> Committed:
    value = OffsetCommitValue.decode(_value_version(data), memoryview(data)[_version.size :])
    return Committed(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        record_offset,
    )


def _group(group_id: str, data: bytes) -> Group:
    """Decode a group: with members it was stable, because only stable groups are stored with members."""
    value = GroupMetadataValue.decode(_value_version(data), memoryview(data)[_version.size :])
    group = Group(
        group_id,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        state_time_ms=value.current_state_timestamp,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
    )
    for row in value.members:
        member = GroupMember(
            id=row.member_id,
            instance_id=row.group_instance_id,
            client_id=row.client_id,
            client_host=row.client_host,
            rebalance_timeout_ms=row.session_timeout if row.rebalance_timeout == -1 else row.rebalance_timeout,
            session_timeout_ms=row.session_timeout,
            protocols={value.protocol or "": bytes(row.subscription)},
            assignment=bytes(row.assignment),
        )
        group.members[member.id] = member
        if member.instance_id is not None:
            group.static_members[member.instance_id] = member.id
    group.subscribed_topics = group.subscriptions()
    return group
