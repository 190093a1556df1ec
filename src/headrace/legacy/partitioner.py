"""From the key of a message to its partition, by the hashes that Java gives to keys.

So a key goes where the Scala producer of 0.8.2 would put it. Messages without a key never come here.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.producer.plugins import PluginKind

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


class Partitioner:
    """To be subclassed: `partition` at least."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Called once, before anything else."""

    def partition(self, key: object, partition_count: int) -> int:
        """A partition of 0 to `partition_count` - 1 for a key, never None."""
        raise NotImplementedError(f"{type(self).__qualname__} must define partition")

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class DefaultPartitioner(Partitioner):
    """The absolute value of the key's hash, modulo the number of partitions."""

    def partition(self, key: object, partition_count: int) -> int:
        value = java_hash(key)
        # Utils.abs of 0.8.2: the one number that has no absolute value of 32 bits counts as 0 (KAFKA-1469).
        return 0 if value == _INT32.start else abs(value) % partition_count


def java_hash(key: object) -> int:
    """`hashCode` of the Java type nearest to the key's; bytes hash by content, as for 0.8's ByteArrayPartitioner."""
    if isinstance(key, bytes | bytearray | memoryview):
        # Java's bytes have a sign.
        return _polynomial(1, [byte - 256 if byte > 127 else byte for byte in bytes(key)])
    if isinstance(key, str):
        return _polynomial(0, memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H").tolist())
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int) and key in _INT64:
        return key if key in _INT32 else _signed((key ^ (key >> 32)) & _MASK)
    raise TypeError(
        f"a key of type {type(key).__qualname__} has no hash that lasts: "
        "give bytes, str, bool or an int of 64 bits as (partition) key, or set partitioner.class"
    )


def _polynomial(start: int, digits: list[int]) -> int:
    value = start
    for digit in digits:
        value = (31 * value + digit) & _MASK
    return _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & _SIGN else value


def _adapt(value: object) -> Partitioner | None:
    return _Adapted(value) if hasattr(value, "partition") else None


class _Adapted(Partitioner):
    """An object with a `partition` that owes nothing to the base class."""

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
