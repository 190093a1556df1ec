"""The internal topics of the coordinators: their partitions, and the records of `__transaction_state`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from headrace.errors import MalformedError
from headrace.wire.fields import array, int8, int16, int32, int64, string
from headrace.wire.schema import Message, Struct

_INT32_MIN = -(2**31)


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, as a signed 32-bit integer."""
    value = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@lru_cache(maxsize=4096)  # several requests of a transaction need it
def coordinator_partition(key: str, count: int) -> int:
    """Return the partition of an internal topic, out of `count`, for a group or a transactional id."""
    value = java_string_hash(key)
    return 0 if value == _INT32_MIN else abs(value) % count  # as Kafka does: Java's abs(INT_MIN) is negative


class TransactionLogKey(Message, versions="0-0"):
    """The key of a record: one per transactional id."""

    transactional_id: str = string()


class PartitionsOfTopic(Struct):
    """Partitions of a transaction in one topic."""

    topic: str = string()
    partition_ids: Sequence[int] = array(int32)


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """The value of a record: the state of a transactional id after a transition."""

    producer_id: int = int64()
    previous_producer_id: int = int64("1+", tag=0, default=-1)
    next_producer_id: int = int64("1+", tag=1, default=-1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16("1+", tag=3, default=-1)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: Sequence[PartitionsOfTopic] | None = array(PartitionsOfTopic, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", tag=2)


def split_version(data: bytes) -> tuple[int, bytes]:
    """Return the version at the start of a key or value, and the bytes after it."""
    if len(data) < 2:
        raise MalformedError(f"expected a version of 2 bytes, got {len(data)} bytes", offset=0)
    return int.from_bytes(data[:2], signed=True), data[2:]
