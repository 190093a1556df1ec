"""The metadata of classic consumers: subscriptions in JoinGroup, assignments in SyncGroup.

Both are opaque to the group coordinator, except where classic consumers are members of a consumer group (KIP-848).
They start with their version. A newer version than the last known one is read as the last known one: new fields come
last.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeVar

from headrace.errors import MalformedError
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message, Struct, array, bytes_, codec, int32, string

PROTOCOL_TYPE = "consumer"
LAST_VERSION = 3

_version = struct.Struct(">h")


class ProtocolTopicPartition(Struct):
    topic: str = string()
    partitions: Sequence[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: Sequence[str] = array(string)
    user_data: bytes | None = bytes_(nullable="0+", default=None)
    owned_partitions: Sequence[ProtocolTopicPartition] = array(ProtocolTopicPartition, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: Sequence[ProtocolTopicPartition] = array(ProtocolTopicPartition)
    user_data: bytes | None = bytes_(nullable="0+", default=None)


M = TypeVar("M", bound=Message)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Decode a consumer's subscription, or raise MalformedError."""
    return _decode(ConsumerProtocolSubscription, data)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Decode a consumer's assignment, or raise MalformedError. No bytes are an assignment without partitions."""
    view = memoryview(data)
    return _decode(ConsumerProtocolAssignment, view) if len(view) else ConsumerProtocolAssignment()


def encode_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    """Encode an assignment for a consumer whose subscription has this version."""
    rows = [ProtocolTopicPartition(topic=topic, partitions=indexes) for topic, indexes in partitions.items()]
    message = ConsumerProtocolAssignment(assigned_partitions=rows)
    version = min(version, LAST_VERSION)
    return _version.pack(version) + message.encode(version)


def protocol_version(data: Buffer) -> int:
    """Return the version of a subscription or assignment."""
    view = memoryview(data)
    if len(view) < _version.size:
        raise MalformedError(f"invalid consumer protocol metadata: expected a version, got {len(view)} bytes", offset=0)
    version = int(_version.unpack_from(view)[0])
    if version < 0:
        raise MalformedError(f"invalid version {version} of consumer protocol metadata: expected 0 or more", offset=0)
    return version


def _decode(message_class: type[M], data: Buffer) -> M:
    version = min(protocol_version(data), LAST_VERSION)
    message: M = codec(message_class, version).decode(data, _version.size)  # bytes after it are of newer versions
    return message
