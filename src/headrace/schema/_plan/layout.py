"""What plans are made of, and what the kernels return: nodes, columns, errors; the same for all formats.

A plan is a list of nodes; the last one is the root. Operations and errors are those of a format. The numbers of column
kinds are also in `columns.h`; a test compares them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from headrace.wire.primitives import Buffer

INT_RANGE = range(-(1 << 31), 1 << 31)
LONG_RANGE = range(-(1 << 63), 1 << 63)
COLUMN_BYTES_MAX = (1 << 31) - 1
"""Of Arrow's 32-bit offsets: data of a string column, items of a list column."""
DECIMAL_BYTES = 32  # in which limits are stored


class Kind(IntEnum):
    """How the values of a column are stored."""

    NULL = 0  # not at all
    BOOLEAN = 1  # a bit each
    FIXED = 2  # `width` bytes each
    BINARY = 3  # offsets and data
    LIST = 4  # offsets into the only child
    STRUCT = 5  # one value in each child


class Node(NamedTuple):
    """A node of a decoding plan. Children have lower indexes."""

    op: int
    column: int
    size: int
    children: tuple[int, ...]


class Column(NamedTuple):
    """A column of decoded values."""

    kind: int
    width: int
    nullable: bool
    children: tuple[int, ...]


class ColumnBuffers(NamedTuple):
    """The buffers of a decoded column, as Arrow wants them."""

    length: int
    null_count: int
    validity: Buffer | None
    offsets: Buffer | None
    data: Buffer | None


class EncodeNode(NamedTuple):
    """A node of an encoding plan. Children have lower indexes."""

    op: int
    column: int
    size: int
    multiplier: int
    divisor: int
    children: tuple[int, ...]


class InputColumn(NamedTuple):
    """The buffers of a column of values to encode; `first` is the index of row 0 in the buffers."""

    kind: int
    width: int
    signed: bool
    first: int
    validity: Buffer | None
    offsets: Buffer | None
    data: Buffer | None
    children: tuple[int, ...]


class EncodedColumn(NamedTuple):
    """The buffers of a binary column."""

    null_count: int
    validity: Buffer | None
    offsets: Buffer
    data: Buffer


class KernelError(NamedTuple):
    """A row that failed: `position` is that of the value's byte, or of the element, `node` that of the plan."""

    row: int
    code: int
    position: int
    node: int


def decimal_limit(precision: int) -> bytes:
    """Return the first absolute value with more digits, as the kernel compares it."""
    return int(10**precision).to_bytes(DECIMAL_BYTES, "little")
