"""The records of `__share_group_state`, in Kafka's formats: snapshots of a share partition, and updates between them.

A key is two bytes for its type (0: snapshot, 1: update) and the share partition; a value is a version and the state. A
null value is a tombstone, always of the snapshot type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.share.state import SharePartitionKey, ShareState, merge
from headrace.errors import MalformedError
from headrace.wire.api.share_state import StateBatch
from headrace.wire.fields import array, int32, int64, string, uuid
from headrace.wire.internal_topics import split_version
from headrace.wire.layout import Record
from headrace.wire.schema import Message

SNAPSHOT = 0
UPDATE = 1
VALUE_VERSION = 0

_version = struct.Struct(">h")


class ShareStateKey(Message, versions="0-0"):
    """The key of both types of records."""

    group_id: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()


class ShareSnapshotValue(Message, versions="0-0", flexible="0+"):
    snapshot_epoch: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32("0+", tag=0, default=-1)
    create_timestamp: int = int64()
    write_timestamp: int = int64()
    state_batches: Sequence[StateBatch] = array(StateBatch)


class ShareUpdateValue(Message, versions="0-0", flexible="0+"):
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32("0+", tag=0, default=-1)
    state_batches: Sequence[StateBatch] = array(StateBatch)


class StateChange(NamedTuple):
    """A decoded record."""

    key: SharePartitionKey
    value: ShareState | ShareUpdateValue | None  # None: a tombstone


def snapshot_record(key: SharePartitionKey, state: ShareState, now_ms: int) -> Record:
    """Return the record of a snapshot."""
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=state.batches,
    )
    return Record(0, now_ms, _key(SNAPSHOT, key), _version.pack(VALUE_VERSION) + value.encode(VALUE_VERSION), ())


def update_record(key: SharePartitionKey, value: ShareUpdateValue, now_ms: int) -> Record:
    """Return the record of an update."""
    return Record(0, now_ms, _key(UPDATE, key), _version.pack(VALUE_VERSION) + value.encode(VALUE_VERSION), ())


def tombstone(key: SharePartitionKey, now_ms: int) -> Record:
    """Return the record that deletes the state of a share partition."""
    return Record(0, now_ms, _key(SNAPSHOT, key), None, ())


def apply_update(state: ShareState, value: ShareUpdateValue) -> ShareState:
    """Return the state after an update."""
    start_offset = state.start_offset if value.start_offset == -1 else value.start_offset
    return ShareState(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch if value.leader_epoch == -1 else value.leader_epoch,
        start_offset=start_offset,
        complete_count=value.delivery_complete_count,
        created_ms=state.created_ms,
        written_ms=state.written_ms,
        batches=merge(state.batches, value.state_batches, start_offset),
    )


def decode(record: Record) -> StateChange | None:
    """Decode a record; None for unknown types."""
    if record.key is None:
        raise MalformedError("invalid record: expected a key", offset=0)
    kind, body = split_version(record.key)
    if kind not in (SNAPSHOT, UPDATE):
        return None
    decoded = ShareStateKey.decode(0, body)
    key = SharePartitionKey(decoded.group_id, decoded.topic_id, decoded.partition)
    if record.value is None:
        return StateChange(key, None)
    version, data = split_version(record.value)
    if version != VALUE_VERSION:
        raise MalformedError(f"invalid state of a share partition: expected version 0, got {version}", offset=0)
    if kind == UPDATE:
        return StateChange(key, ShareUpdateValue.decode(version, data))
    value = ShareSnapshotValue.decode(version, data)
    state = ShareState(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        value.create_timestamp,
        value.write_timestamp,
        tuple(value.state_batches),
    )
    return StateChange(key, state)


def _key(kind: int, key: SharePartitionKey) -> bytes:
    return _version.pack(kind) + ShareStateKey(
        group_id=key.group_id, topic_id=key.topic_id, partition=key.partition
    ).encode(0)
