"""What members of a classic consumer group tell each other: subscriptions and assignments, in Kafka's formats.

The coordinator passes these bytes on without reading them. They start with their version. A newer version than the
known ones starts with the fields of the newest known one.

    Subscription  v0 topics, user data; v1 owned partitions; v2 generation; v3 rack
    Assignment    v0 to v3: partitions, user data
    StickyUserData  the user data of the sticky assignor: v0 partitions; v1 generation
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from headrace.errors import MalformedError
from headrace.types import TopicPartition
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message, Struct, array, bytes_, codec, int32, string

NEWEST = 3
M = TypeVar("M", bound=Message)
_version = struct.Struct(">h")
_generation = struct.Struct(">i")


class PartitionsOfTopic(Struct):
    topic: str = string()
    partitions: Sequence[int] = array(int32)


class Subscription(Message, versions="0-3"):
    topics: Sequence[str] = array(string)
    user_data: bytes | None = bytes_(nullable="0+", default=None)
    owned_partitions: Sequence[PartitionsOfTopic] = array(PartitionsOfTopic, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class MemberAssignment(Message, versions="0-3"):
    assigned_partitions: Sequence[PartitionsOfTopic] = array(PartitionsOfTopic)
    user_data: bytes | None = bytes_(nullable="0+", default=None)


class StickyUserData(Message, versions="0-1"):
    previous_assignment: Sequence[PartitionsOfTopic] = array(PartitionsOfTopic)
    generation: int = int32("1+", default=-1, ignorable=True)


def encode_subscription(subscription: Subscription) -> bytes:
    return _version.pack(NEWEST) + subscription.encode(NEWEST)


def decode_subscription(data: Buffer) -> Subscription:
    return _decode(Subscription, data, "the subscription of a member")


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    rows = partitions_by_topic(partitions)
    return _version.pack(NEWEST) + MemberAssignment(assigned_partitions=rows, user_data=user_data).encode(NEWEST)


def decode_assignment(data: Buffer) -> list[TopicPartition]:
    """Return the assigned partitions; empty bytes assign none."""
    if not len(data):
        return []
    return flat(_decode(MemberAssignment, data, "the assignment of a member").assigned_partitions)


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


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsOfTopic]:
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        grouped[topic].append(number)
    return [PartitionsOfTopic(topic=topic, partitions=numbers) for topic, numbers in grouped.items()]


def flat(rows: Iterable[PartitionsOfTopic]) -> list[TopicPartition]:
    return [TopicPartition(row.topic, number) for row in rows for number in row.partitions]


def _decode(kind: type[M], data: Buffer, what: str) -> M:
    if len(data) < _version.size:
        raise MalformedError(f"expected {what}, got {len(data)} bytes", offset=0)
    (version,) = _version.unpack_from(data)
    if version < 0:
        raise MalformedError(f"expected {what} of version 0 or later, got {version}", offset=0)
    # Some clients leave out the last fields of a version, others add fields: use those that are there.
    failure: MalformedError | None = None
    for known in range(min(version, NEWEST), -1, -1):
        try:
            message: M = codec(kind, known).decode(data, _version.size)
        except MalformedError as error:
            failure = failure or error
        else:
            return message
    assert failure is not None
    raise failure
