"""Operations and errors of the Protobuf codec, and how nodes of plans are packed.

A message is a node FIELDS, whose children are nodes of fields, by number. In `size`, the node of a field has its tag
(32 bits), its oneof plus 1 (15 bits; 0: none) and its presence: see `pack`. The numbers are also in `codec.h`; a test
compares them.
"""

from __future__ import annotations

from enum import IntEnum

GROUP_DEPTH_MAX = 100
"""Unknown groups in unknown groups: the limit of Google's parsers."""
ITEM_CELLS_MAX = 1 << 22
"""Values in the columns of the items of one record, apart from the first column of each item.

An empty message of two bytes takes a value in each column of its type.
"""
BATCH_CELLS_MAX = 1 << 27
"""The same of a batch."""
ONEOFS_MAX = (1 << 15) - 2


class WireType(IntEnum):
    """How a value is encoded: the lower three bits of a tag."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    GROUP = 3
    END_GROUP = 4
    FIXED32 = 5


class Presence(IntEnum):
    """What an absent field is, and which values are written."""

    IMPLICIT = 0  # the default; the default is not written
    EXPLICIT = 1  # null
    REQUIRED = 2  # an error; written even if it is the default. Also keys and values of maps, and items
    PACKED = 3  # encoding only: an item without a tag


class Op(IntEnum):
    """An operation of a decoding plan."""

    BOOLEAN = 0
    INT32 = 1  # also sfixed32 and float: the lower four bytes
    INT64 = 2  # also sfixed64 and double
    UINT32 = 3  # also fixed32; to int64
    UINT64 = 4  # also fixed64; to decimal128
    SINT32 = 5
    SINT64 = 6
    ENUM = 7  # children: the constant with the numbers in order, the default, the constant of each name
    CLOSED_ENUM = 8  # the same; an unknown number is an unknown field
    BYTES = 9
    STRING = 10  # checks UTF-8
    MESSAGE = 11  # child: FIELDS
    OPAQUE = 12  # a message as its bytes
    TIME = 13  # child: FIELDS of a Timestamp or Duration; to microseconds
    DECIMAL = 14  # children: FIELDS of Confluent's Decimal, the constant with the limit, the scale
    LIST = 15  # children: the item, its values in columns minus 1
    MAP = 16  # children: FIELDS of the entry, its values in columns minus 1
    SKIP = 17  # a member of a oneof that is not decoded
    FIELDS = 18  # size: the number of oneofs; column -1: no struct is appended


class EncodeOp(IntEnum):
    """An operation of an encoding plan."""

    BOOLEAN = 0
    INT32 = 1  # from any integer, in the range of an int32
    INT64 = 2
    UINT32 = 3
    UINT64 = 4  # from any integer or a decimal128 without scale
    SINT32 = 5
    SINT64 = 6
    FLOAT = 7
    DOUBLE = 8
    FLOAT_TO_DOUBLE = 9
    ENUM = 10  # children: the constant with the numbers by name, the constants of the names in order
    CLOSED_ENUM = 11  # the same; numbers without a name are refused
    BYTES = 12
    STRING = 13  # checks UTF-8
    MESSAGE = 14  # child: FIELDS
    GROUP = 15  # the same
    TIME = 16  # multiplier: units in a second; divisor: 1 if seconds and nanos have the same sign (Duration)
    DECIMAL = 17  # child: the constant with the limit; multiplier: scale
    LIST = 18  # child: the item
    PACKED_LIST = 19  # the same
    MAP = 20  # children: key, value
    ONEOF = 21  # children: the members, of which at most one has a value; writes nothing
    FIELDS = 22


class ErrorCode(IntEnum):
    """Why a row could not be decoded or encoded."""

    TRUNCATED = 1
    VARINT = 2
    TAG = 3
    GROUP = 4
    UTF8 = 5
    REQUIRED = 6
    COUNT = 7
    TIME = 8
    DECIMAL = 9
    RANGE = 10
    SYMBOL = 11
    NULL = 12
    ONEOF = 13
    SKIP = 14


def pack(tag: int, presence: Presence, oneof: int = -1) -> int:
    """Return the `size` of the node of a field."""
    return tag | (oneof + 1) << 32 | presence << 48


def tag_of(size: int) -> int:
    return size & 0xFFFFFFFF


def oneof_of(size: int) -> int:
    return (size >> 32 & 0x7FFF) - 1


def presence_of(size: int) -> int:
    return size >> 48


def varint(value: int) -> bytes:
    """Return a number as Protobuf encodes integers: negative ones as those of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
