"""The built-in serializers on Arrow columns: the bytes that `serialize` returns, without a Python object for each row.

    Serializer.serialize_column(topic, column) → a column of bytes, or None: serialize row by row

None is returned for a column that has a value, or a type, that these functions do not convert. Then `serialize` decides
on each row, and its errors name the row.
"""

from __future__ import annotations

import codecs
import struct
import sys
from array import array

import pyarrow as pa
import pyarrow.compute as pc

_ARROW_TYPES = {"h": pa.int16(), "i": pa.int32(), "q": pa.int64(), "f": pa.float32(), "d": pa.float64()}
"""Arrow's types by the character of `struct`; `array` has the same characters and sizes."""
_ASCII_COMPATIBLE = frozenset({"ascii", "iso8859-1", "cp1252"})
"""Encodings that encode ASCII text as UTF-8 does."""
_JSON_ESCAPES = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\f": "\\f",
    "\b": "\\b",
} | {chr(code): f"\\u{code:04x}" for code in range(0x20) if chr(code) not in "\n\r\t\f\b"}
"""What JSON escapes in text, the backslash first: the others are replaced by text that has one."""
_JSON_SPECIAL = r'[\x00-\x1f\\"]'


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Whether columns of this type are sent as they are: text in Arrow is UTF-8."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
    )


def encoded_text(column: pa.Array, encoding: str) -> pa.Array | None:
    """Return text in an encoding. Bytes are sent as they are, as by the serializer of bytes."""
    kind = column.type
    if not is_text_or_bytes(kind):
        return None
    name = codecs.lookup(encoding).name
    if name == "utf-8" or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    is_ascii = name in _ASCII_COMPATIBLE and pc.all(pc.string_is_ascii(column), min_count=0).as_py()
    return column if is_ascii else None


def packed_numbers(column: pa.Array, layout: struct.Struct) -> pa.Array | None:
    """Return numbers as `layout` packs them; None if one is out of range."""
    order, character = layout.format[:-1], layout.format[-1]
    if character not in _ARROW_TYPES or order not in (">", "!"):
        return None
    target, kind = _ARROW_TYPES[character], column.type
    if pa.types.is_null(kind):
        return column
    if pa.types.is_integer(target):
        if not pa.types.is_integer(kind):
            return None
        try:
            numbers = column.cast(target)
        except pa.ArrowInvalid:
            return None
    else:
        # As Python does: every number becomes a 64-bit float first.
        if not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
            return None
        wide = column.cast(pa.float64(), safe=False)
        numbers = wide.cast(target, safe=False)
        if pa.types.is_float32(target) and pc.any(pc.and_(pc.is_inf(numbers), pc.is_finite(wide))).as_py():
            return None
    swapped = array(character)
    swapped.frombytes(_data(numbers, target.bit_width // 8))
    if sys.byteorder == "little":
        swapped.byteswap()
    return _fixed_size(column, swapped, target.bit_width // 8)


def packed_booleans(column: pa.Array) -> pa.Array | None:
    """Return a byte for each value: 1 or 0."""
    if pa.types.is_null(column.type):
        return column
    if not pa.types.is_boolean(column.type):
        return None
    return _fixed_size(column, _data(column.cast(pa.uint8()), 1), 1)


def json_text(column: pa.Array) -> pa.Array | None:
    """Return text, integers and booleans as JSON."""
    kind = column.type
    if pa.types.is_null(kind):
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false")
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return None
    if pc.any(pc.match_substring_regex(column, _JSON_SPECIAL)).as_py():
        for character, escaped in _JSON_ESCAPES.items():
            column = pc.replace_substring(column, character, escaped)
    quote = pa.scalar('"', column.type)
    return pc.binary_join_element_wise(quote, column, quote, pa.scalar("", column.type))


def only_nulls(column: pa.Array) -> pa.Array | None:
    """Return the column if all its values are null."""
    return column.cast(pa.binary()) if column.null_count == len(column) and is_text_or_bytes(column.type) else None


def _data(numbers: pa.Array, width: int) -> memoryview:
    data = numbers.buffers()[1]
    start = numbers.offset * width
    return memoryview(b"" if data is None else data)[start : start + len(numbers) * width]


def _fixed_size(column: pa.Array, data: array[int] | array[float] | memoryview, width: int) -> pa.Array:
    """Return a column of values of the same size, with the nulls of another column."""
    values = pa.Array.from_buffers(pa.binary(width), len(column), [None, pa.py_buffer(data)])
    values = values.cast(pa.binary())
    return pc.if_else(column.is_valid(), values, None) if column.null_count else values
