"""The operations and errors of the JSON codec. Their numbers are also in `codec.h`; a test compares them."""

from __future__ import annotations

from enum import IntEnum

SKIP_DEPTH_MAX = 256
"""Levels of objects and arrays in a value that the schema does not describe."""
NUMBER_CHARS_MAX = 2000
"""Characters of a number; the longest exact double has about 1,080."""
MISSING_MAX = 1 << 16
MISSING_PER_BYTE_MAX = 32
"""Properties that may be missing in a value, apart from those for each of its bytes: a short value could otherwise
fill the columns of a large schema many times (an array of empty objects)."""
REPEATED_PER_BYTE_MAX = 8
"""A map with repeated keys is read again; maps in maps would be read exponentially often without this limit."""
NULLABLE = 1
"""Bit 0 of a decoding node's `size`: null is allowed. The bits above are the operation's own."""
PLAIN_NAMES = 2
"""Bit 1 of the `size` of OBJECT: no name has characters that JSON escapes."""
MISSING_NULL = -1
MISSING_ERROR = -2


class Token(IntEnum):
    """What a value is, by its first character."""

    OBJECT = 0
    ARRAY = 1
    STRING = 2
    NUMBER = 3
    BOOLEAN = 4
    NULL = 5
    NONE = 6


class Op(IntEnum):
    """An operation of a decoding plan."""

    ROOT = 0  # child: the value; nothing may follow
    NULL = 1
    BOOLEAN = 2
    INTEGER = 3  # of the column's width
    NUMBER = 4  # to float or double
    DECIMAL = 5  # size above bit 0: the scale; children: the constant with the limit of the absolute value
    STRING = 6
    BYTES = 7  # base64
    TEXT = 8  # any value, as it is written; size above bit 0: a bit for each token that is allowed
    # children: for each property the constant with its name, the node of its value, and the constant with its default,
    # MISSING_NULL or MISSING_ERROR; then the indexes of the properties in the order of their names
    OBJECT = 9
    ARRAY = 10
    MAP = 11
    UNION = 12  # children: a MEMBER for each token; -1: not allowed
    MEMBER = 13  # size: the field; child: its value


class EncodeOp(IntEnum):
    """An operation of an encoding plan."""

    NULL = 0
    BOOLEAN = 1
    INTEGER = 2  # times `multiplier`, divided by `divisor`; size: the bits that the result may have
    NUMBER = 3  # from float or double
    DECIMAL = 4  # size: the scale; children: the constant with the limit of the absolute value
    STRING = 5
    BYTES = 6  # base64
    TEXT = 7  # JSON as it is; size: a bit for each token that is allowed
    OBJECT = 8  # children: PROPERTY and CONSTANT
    PROPERTY = 9  # size: the constant with its name; multiplier: what to do with null, an `OnNull`; child
    CONSTANT = 10  # size: the constant with name and value
    ARRAY = 11
    MAP = 12  # children: key, value
    NULLABLE = 13  # child: the value, if it is not null
    MEMBERS = 14  # size: whether null is allowed; children: one for each field


class OnNull(IntEnum):
    """What becomes of a property whose value is null."""

    FAIL = 0
    OMIT = 1
    WRITE = 2


class ErrorCode(IntEnum):
    """Why a row could not be decoded or encoded."""

    TRUNCATED = 1
    SYNTAX = 2
    TYPE = 3
    INTEGER = 4
    NUMBER = 5
    DECIMAL = 6
    UTF8 = 7
    ESCAPE = 8
    BASE64 = 9
    NULL = 10
    REQUIRED = 11
    MISSING = 12
    DEPTH = 13
    TRAILING = 14
    MEMBERS = 15
    SKIP = 16
    REPEATED = 17
    VALIDATION = 18  # of `validate=True`, not of the kernels
