"""What decoder and encoder share: errors of rows, limits, bits."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headrace.schema._avro.layout import COLUMN_BYTES_MAX, ErrorCode

FLOAT = struct.Struct("<f")
DOUBLE = struct.Struct("<d")


class RowFailedError(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code)
        self.code = code
        self.node = -1


def check_size(count: int) -> None:
    if count > COLUMN_BYTES_MAX:
        raise OverflowError("a column of the batch has more than 2 GiB or 2^31 items; pass fewer rows at a time")


def pack_bits(values: Sequence[int]) -> bytes:
    packed = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        packed[i >> 3] |= value << (i & 7)
    return bytes(packed)
