"""OTLP metrics as clients encode them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.wire.primitives import write_uvarint

GAUGE, SUM = 5, 7
DELTA, CUMULATIVE = 1, 2


def message(number: int, *parts: bytes) -> bytes:
    """A field that contains a message or a text."""
    out, body = bytearray(), b"".join(parts)
    write_uvarint(out, number << 3 | 2)
    write_uvarint(out, len(body))
    return bytes(out) + body


def number_point(value: float, **attributes: str) -> bytes:
    is_int = isinstance(value, int)
    encoded = (
        bytes([6 << 3 | 1]) + struct.pack("<q", value) if is_int else bytes([4 << 3 | 1]) + struct.pack("<d", value)
    )
    pairs = (message(7, message(1, k.encode()), message(2, message(1, v.encode()))) for k, v in attributes.items())
    return message(1, encoded, *pairs)


def metric(name: str, points: Iterable[bytes], kind: int = GAUGE, temporality: int = 0) -> bytes:
    how = bytes([2 << 3, temporality]) if temporality else b""
    return message(2, message(1, name.encode()), message(kind, *points, how))


def metrics_data(*metrics: bytes) -> bytes:
    return message(1, message(2, *metrics))
