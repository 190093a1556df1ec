"""The built-in deserializers on Arrow columns, without a Python object for each row.

    a column of bytes → text, numbers, booleans → a typed column, and the rows that do not fit, which are null in it

Only text in encodings that Arrow does not know is decoded row by row.
"""

from __future__ import annotations

import codecs
import struct
import sys
from array import array

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.schema_decoder import DecodedColumn
from headrace.client.serde import RowCause, SerdeRowError

NUMBER_TYPES = {"h": pa.int16(), "i": pa.int32(), "q": pa.int64(), "f": pa.float32(), "d": pa.float64()}
"""Arrow's types by the character of `struct`; `array` has the same characters and sizes."""


def text(column: pa.Array, encoding: str) -> DecodedColumn:
    """Return text."""
    name = codecs.lookup(encoding).name
    if name in ("utf-8", "ascii"):
        try:
            decoded = column.cast(pa.string())
        except pa.ArrowInvalid:
            pass  # row by row, to find out which
        else:
            if name == "utf-8" or pc.all(pc.string_is_ascii(decoded), min_count=0).as_py():
                return DecodedColumn(decoded, [])
    rows: list[str | None] = []
    errors = []
    for row, data in enumerate(column.to_pylist()):
        try:
            rows.append(None if data is None else data.decode(encoding))
        except UnicodeError as error:
            rows.append(None)
            errors.append(_error(row, str(error)))
    return DecodedColumn(pa.array(rows, pa.string()), errors)


def numbers(column: pa.Array, layout: struct.Struct) -> DecodedColumn:
    """Return numbers that `layout` has packed, big-endian."""
    column, errors = _without(column, pc.not_equal(pc.binary_length(column), layout.size), f"{layout.size} bytes")
    character = layout.format[-1]
    packed = column.cast(pa.binary(layout.size))
    data = packed.buffers()[1]
    start = packed.offset * layout.size
    swapped = array(character)
    swapped.frombytes(memoryview(b"" if data is None else data)[start : start + len(packed) * layout.size])
    if sys.byteorder == "little":
        swapped.byteswap()
    decoded = pa.Array.from_buffers(NUMBER_TYPES[character], len(packed), [None, pa.py_buffer(swapped)])
    if packed.null_count:
        decoded = pc.if_else(packed.is_valid(), decoded, None)
    return DecodedColumn(decoded, errors)


def booleans(column: pa.Array) -> DecodedColumn:
    """Return booleans of one byte each, 0 or 1."""
    is_other = pc.invert(pc.is_in(column, pa.array([b"\0", b"\1"], column.type)))
    column, errors = _without(column, pc.and_(is_other, column.is_valid()), "one byte, 0 or 1")
    return DecodedColumn(pc.equal(column, pa.scalar(b"\1", column.type)), errors)


def nothing(column: pa.Array) -> DecodedColumn:
    """Return a column without values."""
    _, errors = _without(column, column.is_valid(), "no bytes")
    return DecodedColumn(pa.nulls(len(column)), errors)


def _without(column: pa.Array, is_bad: pa.Array, expected: str) -> tuple[pa.Array, list[SerdeRowError]]:
    """Return a column with null for bad rows, and their errors."""
    rows = pc.indices_nonzero(is_bad).to_pylist()
    if not rows:
        return column, []
    errors = [_error(row, f"expected {expected}, got {column[row].as_py()[:20]!r}") for row in rows]
    return pc.if_else(pc.fill_null(is_bad, False), None, column), errors


def _error(row: int, reason: str) -> SerdeRowError:
    return SerdeRowError(row, RowCause.INVALID_DATA, None, reason)
