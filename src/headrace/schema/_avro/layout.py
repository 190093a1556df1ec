"""The operations and errors of the Avro codec. Their numbers are also in `codec.h`; a test compares them."""

from __future__ import annotations

from enum import IntEnum

ZERO_BYTE_ITEMS_MAX = 4096
"""Items of arrays in one value that take no bytes: their count is not limited by the bytes that are there."""


class Op(IntEnum):
    """An operation of a decoding plan. With column -1, the value is skipped: operations after SKIP_FIXED."""

    NULL = 0  # appends null
    BOOLEAN = 1
    INT = 2  # to int32
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    INT_TO_LONG = 6
    LONG_TO_FLOAT = 7  # also from int, in the range of an int
    LONG_TO_DOUBLE = 8
    FLOAT_TO_DOUBLE = 9
    BYTES = 10
    STRING = 11  # checks UTF-8
    FIXED = 12  # of `size` bytes
    ENUM = 13  # children: for each index the constant with the symbol; -1: not in the reader's enum
    DECIMAL_BYTES = 14  # children: the constant with the limit of the absolute value
    DECIMAL_FIXED = 15  # the same, of `size` bytes
    RECORD = 16  # children in the writer's order, then those with defaults
    ARRAY = 17  # size: the least bytes of an item
    MAP = 18  # the same; key and value are children of the column's child
    UNION = 19  # children by branch of the writer
    MEMBER = 20  # of a union in the reader: size: the field, child: its value
    CONSTANT = 21  # size: a constant to read instead of the value; child: how
    FAIL = 22  # the writer's branch does not match the reader's type
    SKIP_FIXED = 23
    SKIP_LONG = 24
    SKIP_BYTES = 25
    SKIP_RECORD = 26
    SKIP_ARRAY = 27
    SKIP_MAP = 28
    SKIP_UNION = 29


class EncodeOp(IntEnum):
    """An operation of an encoding plan."""

    NULL = 0
    BOOLEAN = 1
    INT = 2  # from any integer, times `multiplier`, divided by `divisor`
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    FLOAT_TO_DOUBLE = 6
    BYTES = 7
    STRING = 8  # checks UTF-8
    FIXED = 9  # of `size` bytes, from a column of this width or a binary one
    ENUM = 10  # children: constants with the symbols
    DECIMAL_BYTES = 11  # children: the constant with the limit of the absolute value
    DECIMAL_FIXED = 12
    RECORD = 13
    ARRAY = 14
    MAP = 15
    NULLABLE = 16  # size: the branch null, multiplier: the other one, child: its value
    MEMBERS = 17  # size: the branch null or -1; children: one for each field, of op BRANCH
    BRANCH = 18  # size: the branch; child
    CONSTANT = 19  # size: the constant to write


class ErrorCode(IntEnum):
    """Why a row could not be decoded or encoded."""

    TRUNCATED = 1
    INTEGER = 2
    LENGTH = 3
    COUNT = 4
    BRANCH = 5
    SYMBOL = 6
    BOOLEAN = 7
    UTF8 = 8
    DECIMAL = 9
    UNRESOLVED = 10
    NULL = 11
    SIZE = 12
    MEMBERS = 13
    SKIP = 14


def zigzag(value: int) -> bytes:
    """Return a number as Avro encodes int and long."""
    bits = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while bits >= 0x80:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    encoded.append(bits)
    return bytes(encoded)
