"""CRC32C, murmur2 and the row hash in plain Python."""

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
    """Return the CRC32C of `data`, continued from `value`; uses google-crc32c if it is installed."""
    if _library is not None:
        return int(_library.extend(value, bytes(data)))
    table = _TABLE
    value ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Return Kafka's hash of a key, as a signed 32-bit integer."""
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


# From the fractional parts of the golden ratio and of the square roots of 2, 3 and 5: odd, and about half the bits set.
_HASH_A, _HASH_B, _HASH_C, _HASH_D = 0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B
_HASH_MASK = (1 << 64) - 1
HASH_START = _HASH_A
"""The initial value. Not 0, because a product with 0 stays 0."""


def _fold(a: int, b: int) -> int:
    product = a * b
    return product & _HASH_MASK ^ product >> 64


def hash_cell(value: int, cell: bytes | None) -> int:
    """Return a 64-bit hash continued over a cell of a row: its length, its bytes, and whether it is null.

    It detects accidental differences; it does not protect against deliberate collisions.
    """
    data = cell or b""
    lane1 = lane2 = value
    pos, size = 0, len(data)

    def word(start: int, width: int = 8) -> int:
        return int.from_bytes(data[start : start + width], "little")

    while size - pos > 32:
        lane1 = _fold(word(pos) ^ _HASH_A, word(pos + 8) ^ lane1)
        lane2 = _fold(word(pos + 16) ^ _HASH_B, word(pos + 24) ^ lane2)
        pos += 32
    if size - pos > 16:
        lane1 = _fold(word(pos) ^ _HASH_A, word(pos + 8) ^ lane1)
    first = last = 0
    if size >= 16:
        first, last = word(size - 16), word(size - 8)
    elif size >= 8:
        first, last = word(0), word(size - 8)
    elif size >= 4:
        first, last = word(0, 4), word(size - 4, 4)
    elif size > 0:
        first = data[0] | data[size >> 1] << 8 | data[size - 1] << 16
    lane1 = _fold(first ^ _HASH_C, last ^ lane1)
    return _fold(lane1 ^ lane2, (0 if cell is None else size + 1) ^ _HASH_D)
