"""Single Python values as JSON by a schema: a function for each type of the schema.

    JsonSchema → value_encoder → dict → bytes

The bytes are those of `JsonEncoder` for a column of one row: properties in the order of the schema, numbers with the
fewest digits. What the schema gives no shape (JSON text in Arrow) takes Python objects; a str is JSON text, as in a
column. A value of a union belongs to the member of its type; `{"member0": value}` chooses one.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.schema import json_types, values
from headrace.schema._json.reference.encoding import float_text
from headrace.schema.codec import join_path
from headrace.schema.json_schema import JsonEncoder
from headrace.schema.json_types import JsonSchema, describe, json_bytes
from headrace.schema.values import MISSING, ValueEncoder, failed, mismatch

TextWriter: TypeAlias = Callable[[Any], str]
"""Returns the JSON text of a value that is not None."""
_NULL_TEXT = "null in a field that is not nullable"
_quoted: TextWriter = json.encoder.encode_basestring
_FLOAT = struct.Struct("<f").pack


def value_encoder(schema: JsonSchema) -> ValueEncoder:
    """Return the function that encodes values of a schema; it raises SchemaError if a value does not fit."""
    write = _item_writer(schema, "")
    return lambda value: write(value).encode()


def _item_writer(schema: JsonSchema, path: str) -> TextWriter:
    """Return the function for a value that may be None."""
    write, is_nullable = _writer(schema, path), schema.nullable

    def write_item(value: Any) -> str:
        if value is not None:
            return write(value)
        if is_nullable:
            return "null"
        raise failed(path, _NULL_TEXT)

    return write_item


def _writer(schema: JsonSchema, path: str) -> TextWriter:
    if isinstance(schema, json_types.ScalarType):
        return _scalar(schema, path)
    if isinstance(schema, json_types.TextType):
        return _text(schema, path)
    if isinstance(schema, json_types.ObjectType):
        return _object(schema, path)
    if isinstance(schema, json_types.ArrayType):
        write_item = _item_writer(schema.items, f"{path}[]")
        return lambda value: f"[{','.join(map(write_item, values.to_items(path, value)))}]"
    if isinstance(schema, json_types.MapType):
        return _map(schema, path)
    return _union(schema, path)


# -- types with parts ------------------------------------------------------------------------------


def _object(schema: json_types.ObjectType, path: str) -> TextWriter:
    properties = [(entry.name, *_property(entry, join_path(path, entry.name))) for entry in schema.properties]
    names = [entry.name for entry in schema.properties]

    def write(value: Any) -> str:
        if type(value) is not dict:
            value = values.to_mapping(path, value, "an object")
        get = value.get
        parts = []
        known = 0
        for name, prefix, write_value, if_null, if_missing in properties:
            item = get(name, MISSING)
            if item is MISSING:
                text = if_missing
                if text is None:
                    inner = join_path(path, name)
                    raise failed(inner, "no value, the property is required and has no default; add it")
            else:
                known += 1
                text = if_null if item is None else prefix + write_value(item)
                if text is None:
                    raise failed(join_path(path, name), _NULL_TEXT)
            if text:
                parts.append(text)
        if known != len(value):
            raise values.unknown_field(path, next(name for name in value if name not in names), names)
        return f"{{{','.join(parts)}}}"

    return write


def _property(entry: json_types.Property, path: str) -> tuple[str, TextWriter, str | None, str | None]:
    """Return name and colon, the function for the value, and what is written for null and for a missing value.

    Empty: nothing is written; None: an error.
    """
    prefix = f"{json_bytes(entry.name).decode()}:"
    if entry.type.nullable:
        if_null: str | None = f"{prefix}null"
    else:
        if_null = None if entry.required else ""
    if_missing: str | None = ""
    if entry.required:
        if_missing = if_null
        if not isinstance(entry.default, json_types.NoDefault):
            if_missing = prefix + json_bytes(entry.default).decode()
    return prefix, _writer(entry.type, path), if_null, if_missing


def _map(schema: json_types.MapType, path: str) -> TextWriter:
    write_item = _item_writer(schema.values, f"{path}{{}}")
    write_key = _string(f"{path}{{}}")

    def write(value: Any) -> str:
        entries = []
        for key, item in value.items() if type(value) is dict else values.to_pairs(path, value):
            if key is None:
                raise failed(f"{path}{{}}", _NULL_TEXT)
            entries.append(f"{write_key(key)}:{write_item(item)}")
        return f"{{{','.join(entries)}}}"

    return write


def _union(schema: json_types.UnionType, path: str) -> TextWriter:
    writers = [_writer(member, path) for member in schema.members]
    by_token = {member.token: write for member, write in zip(schema.members, writers, strict=True)}
    names = [f"member{i}" for i in range(len(writers))]
    expected = describe(schema)

    def write_value(value: Any) -> str:
        if isinstance(value, Mapping) and (member := values.member_of(path, value, names)) is not None:
            if member >= 0:
                return writers[member](value[names[member]])
            if schema.nullable:
                return "null"
            raise failed(path, _NULL_TEXT)
        write = by_token.get(_token(values.unboxed(value)))
        if write is None:
            raise mismatch(path, expected, value)
        return write(value)

    return write_value


_TOKENS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "boolean"),
    ((int, float, Decimal, datetime.date, datetime.time), "number"),
    ((str, bytes, bytearray, memoryview), "string"),
    ((list, tuple), "array"),
)


def _token(value: object) -> str:
    """Return what the JSON text of a value begins with."""
    return next((token for types, token in _TOKENS if isinstance(value, types)), "object")


def _text(schema: json_types.TextType, path: str) -> TextWriter:
    """Return the function for a value of any shape, which is checked as in a column."""
    column_encoder = JsonEncoder(schema, pa.string())

    def write(value: Any) -> str:
        text = value
        if isinstance(value, str | bytes | bytearray | memoryview):
            text = values.to_text(path, value)
        else:
            try:
                text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            except (TypeError, ValueError, RecursionError) as error:
                raise failed(path, f"not JSON: {error}") from None
        try:
            encoded, errors = column_encoder.encode(pa.array([text], pa.string()))
        except UnicodeEncodeError:
            raise failed(path, "a string is not UTF-8") from None
        if errors:
            raise failed(path, errors[0].text.partition(": ")[2])
        data: bytes = encoded[0].as_py()
        return data.decode()

    return write


# -- scalar types ----------------------------------------------------------------------------------


def _scalar(schema: json_types.ScalarType, path: str) -> TextWriter:
    kind = schema.kind
    if kind == "string":
        return _string(path)
    if kind == "integer":
        return _integer(schema.data_type, path)
    if kind == "number":
        return _number(schema.data_type, path)
    if kind == "decimal":
        return _decimal(schema.data_type, path)
    if kind == "boolean":
        return lambda value: "true" if values.to_boolean(path, value) else "false"
    if kind == "bytes":
        return lambda value: f'"{base64.b64encode(values.to_bytes(path, value)).decode()}"'

    def refuse(value: Any) -> str:
        raise mismatch(path, "None", value)

    return refuse


def _string(path: str) -> TextWriter:
    def write(value: Any) -> str:
        text = value if type(value) is str else values.to_text(path, value)
        if not text.isascii():
            values.to_text_bytes(path, text)  # half a surrogate pair is an error of this field
        return _quoted(text)

    return write


def _integer(data_type: pa.DataType, path: str) -> TextWriter:
    limit = 1 << (data_type.bit_width - 1)
    convert = _converter(data_type, path)

    def write(value: Any) -> str:
        if type(value) is not int:
            value = convert(value)
        if -limit <= value < limit:
            return str(value)
        raise failed(path, "not an integer, or out of range")

    return write


def _converter(data_type: pa.DataType, path: str) -> Callable[[Any], int]:
    if pa.types.is_date(data_type):
        return lambda value: values.to_days(path, value)
    if pa.types.is_time(data_type):
        return values.time_converter(path, data_type.unit)
    if pa.types.is_timestamp(data_type):
        return values.timestamp_converter(path, data_type.unit)
    return lambda value: values.to_integer(path, value)


def _number(data_type: pa.DataType, path: str) -> TextWriter:
    is_single = pa.types.is_float32(data_type)
    exact_max = values.FLOAT_INTEGER_MAX if is_single else values.DOUBLE_INTEGER_MAX

    def write(value: Any) -> str:
        number = value if type(value) is float else values.to_float(path, value, exact_max)
        if not math.isfinite(number):
            raise failed(path, "a number is out of range, or not finite")
        if not is_single:
            return repr(number)
        try:
            return float_text(_FLOAT(number)).decode()
        except OverflowError:
            raise failed(path, "a number is out of range, or not finite") from None

    return write


def _decimal(data_type: pa.DataType, path: str) -> TextWriter:
    convert, scale = values.decimal_converter(path, data_type.precision, data_type.scale), data_type.scale

    def write(value: Any) -> str:
        number = convert(value)
        digits = str(abs(number)).zfill(scale + 1)
        sign = "-" if number < 0 else ""
        return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"

    return write
