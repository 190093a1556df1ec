"""What members of a classic consumer group tell each other: subscriptions and assignments, in Kafka's formats.

The coordinator of a classic group passes these bytes on without reading them; it reads those of classic consumers in a
consumer group (KIP-848). They start with their version. A newer version than the known ones starts with the fields of
the newest known one.

    ConsumerProtocolSubscription  v0 topics, user data; v1 owned partitions; v2 generation; v3 rack
    ConsumerProtocolAssignment    v0 to v3: partitions, user data
    StickyUserData                the user data of the sticky assignor: v0 partitions; v1 generation
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from headrace.errors import MalformedError
from headrace.types import TopicPartition
from headrace.wire.fields import array, bytes_, int32, string
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message, Struct, codec

PROTOCOL_TYPE = "consumer"
LAST_VERSION = 3
M = TypeVar("M", bound=Message)
_version = struct.Struct(">h")
_generation = struct.Struct(">i")


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


class StickyUserData(Message, versions="0-1"):
    previous_assignment: Sequence[ProtocolTopicPartition] = array(ProtocolTopicPartition)
    generation: int = int32("1+", default=-1, ignorable=True)


def encode_subscription(subscription: ConsumerProtocolSubscription) -> bytes:
    return _version.pack(LAST_VERSION) + subscription.encode(LAST_VERSION)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    return _decode(ConsumerProtocolSubscription, data)


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None, *, version: int = LAST_VERSION
) -> bytes:
    """Encode the assignment of a member. `version`: that of its subscription."""
    version = min(version, LAST_VERSION)
    rows = partitions_by_topic(partitions)
    message = ConsumerProtocolAssignment(assigned_partitions=rows, user_data=user_data)
    return _version.pack(version) + message.encode(version)


def decode_assignment(data: Buffer) -> list[TopicPartition]:
    """Return the assigned partitions; empty bytes assign none."""
    if not len(data):
        return []
    return flat(_decode(ConsumerProtocolAssignment, data).assigned_partitions)


def encode_sticky(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """Return the user data of the sticky assignor."""
    return StickyUserData(previous_assignment=partitions_by_topic(partitions), generation=generation).encode(1)


def decode_sticky(data: Buffer | None) -> tuple[list[TopicPartition], int]:
    """Return partitions and generation of the sticky assignor's user data; ([], -1) if they are something else."""
    for version in (1, 0):
        try:
            decoded = StickyUserData.decode(version, data or b"")
        except MalformedError:
            continue
        return flat(decoded.previous_assignment), decoded.generation
    return [], -1


def encode_generation(generation: int) -> bytes:
    """Return the user data of Java's cooperative sticky assignor."""
    return _generation.pack(generation)


def decode_generation(data: Buffer | None) -> int:
    """Return the generation in the user data of a cooperative sticky assignor, Java's or librdkafka's; or -1."""
    if data is not None and len(data) == _generation.size:
        return int(_generation.unpack(data)[0])
    return decode_sticky(data)[1]


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> list[ProtocolTopicPartition]:
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        grouped[topic].append(number)
    return [ProtocolTopicPartition(topic=topic, partitions=numbers) for topic, numbers in grouped.items()]


def flat(rows: Iterable[ProtocolTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(row.topic, number) for row in rows for number in row.partitions]


def protocol_version(data: Buffer) -> int:
    """Return the version of a subscription or assignment."""
    view = memoryview(data)
    if len(view) < _version.size:
        raise MalformedError(f"invalid consumer protocol metadata: expected a version, got {len(view)} bytes", offset=0)
    version = int(_version.unpack_from(view)[0])
    if version < 0:
        raise MalformedError(f"invalid version {version} of consumer protocol metadata: expected 0 or more", offset=0)
    return version


def _decode(kind: type[M], data: Buffer) -> M:
    # Some clients leave out the last fields of a version, others add fields: use those that are there.
    failure: MalformedError | None = None
    for known in range(min(protocol_version(data), LAST_VERSION), -1, -1):
        try:
            message: M = codec(kind, known).decode(data, _version.size)
        except MalformedError as error:
            failure = failure or error
        else:
            return message
    assert failure is not None
    raise failure
