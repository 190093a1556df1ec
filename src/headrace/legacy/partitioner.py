"""Partitioning: the partition of a key, and the grouping of messages by leader and partition.

The default partitioner hashes keys like Java, so a key gets the same partition as with the Scala producer of 0.8.2.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping

from headrace.client.plugins import PluginKind
from headrace.errors import HeadraceError
from headrace.legacy.messages import Messages, SerializedMessages
from headrace.legacy.sync_producer import NO_LEADER, BrokerPartitionInfo, PartitionAndLeader
from headrace.types import TopicPartition

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


class Partitioner:
    """Base class of partitioners; subclasses define at least `partition`."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Called once, before anything else."""

    def partition(self, key: object, partition_count: int) -> int:
        """Return the partition of a key, which is never None: 0 to `partition_count` - 1."""
        raise NotImplementedError(f"{type(self).__qualname__} must define partition")

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class DefaultPartitioner(Partitioner):
    """Uses the absolute value of the key's hash, modulo the number of partitions."""

    def partition(self, key: object, partition_count: int) -> int:
        value = java_hash(key)
        # Utils.abs of 0.8.2: -2^31, whose absolute value exceeds 32 bits, counts as 0 (KAFKA-1469).
        return 0 if value == _INT32.start else abs(value) % partition_count


def java_hash(key: object) -> int:
    """Return `hashCode` of the matching Java type; bytes are hashed by content, like 0.8's ByteArrayPartitioner."""
    if isinstance(key, bytes | bytearray | memoryview):
        # Bytes are signed in Java.
        return _polynomial(1, [byte - 256 if byte > 127 else byte for byte in bytes(key)])
    if isinstance(key, str):
        return _polynomial(0, memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H").tolist())
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int) and key in _INT64:
        return key if key in _INT32 else _signed((key ^ (key >> 32)) & _MASK)
    raise TypeError(
        f"invalid key: {type(key).__qualname__} has no stable hash; use bytes, str, bool or a 64-bit int as key or "
        "partition key, or set partitioner.class"
    )


def _polynomial(start: int, digits: list[int]) -> int:
    value = start
    for digit in digits:
        value = (31 * value + digit) & _MASK
    return _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & _SIGN else value


def _adapt(value: object) -> Partitioner | None:
    return _PartitionerAdapter(value) if hasattr(value, "partition") else None


class _PartitionerAdapter(Partitioner):
    """Adapts an object with a `partition` method that does not derive from Partitioner."""

    def __init__(self, target: object) -> None:
        for method in ("configure", "partition", "close"):
            if hasattr(target, method):
                setattr(self, method, getattr(target, method))


KIND = PluginKind(
    "partitioner",
    Partitioner,
    {
        "kafka.producer.DefaultPartitioner": DefaultPartitioner,
        "kafka.producer.ByteArrayPartitioner": DefaultPartitioner,
    },
    _adapt,
)


ByPartition = dict[TopicPartition, SerializedMessages]


class Collator:
    """Groups messages by leader and partition. One thread at a time."""

    def __init__(self, partition_info: BrokerPartitionInfo, partitioner: Partitioner, rng: random.Random) -> None:
        self._partition_info = partition_info
        self._partitioner = partitioner
        self._rng = rng
        self._keyless_index: dict[str, int] = {}  # an index into the partitions, by topic

    def reset_keyless_partitions(self) -> None:
        """Choose new partitions for messages without a key; called with every metadata refresh."""
        self._keyless_index.clear()

    def collate(
        self, messages: SerializedMessages, reasons: dict[str, str]
    ) -> tuple[dict[int, ByPartition], SerializedMessages]:
        """Return the messages by leader and partition, and those without a partition; `reasons` gets the causes."""
        by_broker: dict[int, ByPartition] = {}
        failed: SerializedMessages = Messages([], [], [], [])
        for topic, of_topic in _by_topic(messages).items():
            try:
                partitions = self._partition_info.partitions(topic)
            except HeadraceError as error:
                reasons[topic] = str(error)
                failed.extend(of_topic)
                continue
            for index, some in self._by_partition(topic, partitions, of_topic, failed, reasons).items():
                partition, leader_id = partitions[index]
                by_broker.setdefault(leader_id, {})[TopicPartition(topic, partition)] = some
        return by_broker, failed

    def _by_partition(
        self,
        topic: str,
        partitions: list[PartitionAndLeader],
        messages: SerializedMessages,
        failed: SerializedMessages,
        reasons: dict[str, str],
    ) -> dict[int, SerializedMessages]:
        if messages.partition_keys.count(None) == len(messages):
            return {self._keyless_partition(topic, partitions): messages}
        rows: defaultdict[int, list[int]] = defaultdict(list)
        for row, key in enumerate(messages.partition_keys):
            try:
                rows[self._partition_index(topic, partitions, key)].append(row)
            except Exception as error:  # a user-defined partitioner may raise anything
                reasons[topic] = str(error)
                failed.extend(messages.rows([row]))
        return {index: messages.rows(some) for index, some in rows.items()}

    def _partition_index(self, topic: str, partitions: list[PartitionAndLeader], key: object) -> int:
        if key is None:
            return self._keyless_partition(topic, partitions)
        index = self._partitioner.partition(key, len(partitions))
        if index not in range(len(partitions)):
            name = type(self._partitioner).__qualname__
            raise ValueError(
                f"{name} returned partition {index!r}, but topic {topic!r} has {len(partitions)} partitions"
            )
        return index

    def _keyless_partition(self, topic: str, partitions: list[PartitionAndLeader]) -> int:
        """Return a random partition with a leader, the same until the next refresh, for fewer and larger requests."""
        index = self._keyless_index.get(topic)
        if index is None:
            led = [index for index, each in enumerate(partitions) if each.leader_id != NO_LEADER]
            index = self._keyless_index[topic] = self._rng.choice(led or range(len(partitions)))
        return index


def _by_topic(messages: SerializedMessages) -> dict[str, SerializedMessages]:
    topics = messages.topics
    if topics.count(topics[0]) == len(topics):
        return {topics[0]: messages}
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, topic in enumerate(topics):
        rows[topic].append(row)
    return {topic: messages.rows(some) for topic, some in rows.items()}
