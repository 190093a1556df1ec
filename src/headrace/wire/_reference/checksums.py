"""CRC32C and murmur2 in plain Python."""

from __future__ import annotations

import contextlib
from typing import Any

from headrace.wire.primitives import Buffer

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _table() -> list[int]:
    table = []
    for index in range(256):
        value = index
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()

_library: Any = None
with contextlib.suppress(ImportError):
    import google_crc32c as _library


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC32C of `data`, going on from `value`; by google-crc32c where that is installed."""
    if _library is not None:
        return int(_library.extend(value, bytes(data)))
    table = _TABLE
    value ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Kafka's hash of a key, as a signed 32-bit integer."""
    view = memoryview(data).cast("B")
    length = len(view)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ length
    whole = length & ~3
    for pos in range(0, whole, 4):
        k = int.from_bytes(view[pos : pos + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if whole < length:
        h = (h ^ int.from_bytes(view[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h
