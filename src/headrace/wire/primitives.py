"""Varints in plain Python, for the reference kernel and for code that is not performance-critical.

Kafka has two kinds: unsigned (lengths and tags of flexible messages) and zigzag (inside records). Both store
seven bits per byte, lowest first: up to five bytes for 32 bits, up to ten for 64.
"""

from __future__ import annotations

from headrace.errors import MalformedError

Buffer = bytes | bytearray | memoryview

UVARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint (32 or 64 bits: the encoding is the same)."""
    write_uvarint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def read_uvarint(buf: Buffer, pos: int, end: int, bytes_max: int = UVARINT_BYTES_MAX) -> tuple[int, int]:
    """Return the unsigned varint at `pos` and the position after it; raises if it has more than 32 (64) bits."""
    value = shift = 0
    start = pos
    while True:
        if pos >= end:
            raise MalformedError("expected a varint, but the buffer ends inside it", offset=start)
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if pos - start == bytes_max:
            raise MalformedError(f"expected a varint of at most {bytes_max} bytes, but it is longer", offset=start)
    if value >> (32 if bytes_max == UVARINT_BYTES_MAX else 64):
        raise MalformedError(f"expected a varint of at most {bytes_max} bytes, got {value}", offset=start)
    return value, pos


def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Return the zigzag varint of 32 bits at `pos` and the position after it."""
    raw, pos = read_uvarint(buf, pos, end)
    return raw >> 1 ^ -(raw & 1), pos


def read_varlong(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Return the zigzag varint of 64 bits at `pos` and the position after it."""
    raw, pos = read_uvarint(buf, pos, end, VARLONG_BYTES_MAX)
    return raw >> 1 ^ -(raw & 1), pos
