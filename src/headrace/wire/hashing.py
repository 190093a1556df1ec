"""Which partition of an internal topic a group, or a transactional id, belongs to."""

from __future__ import annotations

import struct

_LOWEST = -(2**31)


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, as a signed 32-bit integer."""
    value = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def coordinator_partition(key: str, count: int) -> int:
    """The partition of the coordinator of a group or a transactional id, out of `count`, as Kafka has it."""
    value = java_string_hash(key)
    return 0 if value == _LOWEST else abs(value) % count  # Java's abs has none for the lowest number
