"""Single Python values as Avro: a function for each type of the schema.

    AvroSchema → value_encoder → dict → bytes

The bytes are those of `AvroEncoder` for a column of one row. What a dict leaves out, at any level, gets the default of
the field, else null. A value of a union belongs to the first branch that takes it: a branch of the value's own type
goes first. `(name of the branch, value)` and `{"member0": value}` choose one.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace.errors import SchemaError
from headrace.schema import avro_schema as avro
from headrace.schema import values
from headrace.schema._avro.layout import zigzag
from headrace.schema._plan.layout import INT_RANGE, LONG_RANGE
from headrace.schema.avro_defaults import encode_default
from headrace.schema.avro_schema import AvroSchema, describe
from headrace.schema.codec import join_path
from headrace.schema.values import MISSING, ValueEncoder, encode_varint, failed, mismatch

_DOUBLE = struct.Struct("<d").pack
_FLOAT = struct.Struct("<f").pack
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_NULL_TEXT = "null in a field that is not nullable"


def value_encoder(schema: AvroSchema) -> ValueEncoder:
    """Return the function that encodes values of a schema; it raises SchemaError if a value does not fit."""
    return _encoder(schema, "")


def _encoder(schema: AvroSchema, path: str) -> ValueEncoder:
    if isinstance(schema, avro.UnionType):
        return _union(schema, path)
    if isinstance(schema, avro.RecordType):
        return _record(schema, path)
    if isinstance(schema, avro.ArrayType):
        return _array(schema, path)
    if isinstance(schema, avro.MapType):
        return _map(schema, path)
    if isinstance(schema, avro.EnumType):
        return _enum(schema, path)
    if schema.logical is not None and schema.logical.name == "decimal":
        return _decimal(schema, path)
    return _fixed(schema, path) if isinstance(schema, avro.FixedType) else _primitive(schema, path)


# -- types with parts ------------------------------------------------------------------------------


def _record(schema: avro.RecordType, path: str) -> ValueEncoder:
    fields: list[tuple[str, ValueEncoder, bytes | None]] = []
    for entry in schema.fields:
        inner = join_path(path, entry.name)
        missing = None
        if not isinstance(entry.default, avro.NoDefault):
            missing = encode_default(entry.type, entry.default)
        elif isinstance(entry.type, avro.UnionType) and entry.type.null_index >= 0:
            missing = zigzag(entry.type.null_index)
        elif entry.type.kind == "null":
            missing = b""
        fields.append((entry.name, _encoder(entry.type, inner), missing))
    expected = describe(schema)

    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        if type(value) is not dict:
            value = values.to_mapping(path, value, expected)
        get = value.get
        parts = []
        known = 0
        for name, encode_field, missing in fields:
            item = get(name, MISSING)
            if item is not MISSING:
                parts.append(encode_field(item))
                known += 1
            elif missing is not None:
                parts.append(missing)
            else:
                inner = join_path(path, name)
                raise failed(inner, "no value, and the Avro schema has no default; add the field")
        if known != len(value):
            names = [name for name, _, _ in fields]
            raise values.unknown_field(path, next(name for name in value if name not in names), names)
        return b"".join(parts)

    return encode


def _array(schema: avro.ArrayType, path: str) -> ValueEncoder:
    encode_item = _encoder(schema.items, f"{path}[]")

    def encode(value: Any) -> bytes:
        if type(value) is not list:
            if value is None:
                raise failed(path, _NULL_TEXT)
            value = values.to_items(path, value)
        if not value:
            return b"\0"
        return b"".join([encode_varint(len(value) << 1), *map(encode_item, value), b"\0"])

    return encode


def _map(schema: avro.MapType, path: str) -> ValueEncoder:
    encode_key = _primitive(avro.PrimitiveType("string"), f"{path}{{}}")
    encode_item = _encoder(schema.values, f"{path}{{}}")

    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        pairs = list(value.items()) if type(value) is dict else values.to_pairs(path, value)
        if not pairs:
            return b"\0"
        parts = [encode_varint(len(pairs) << 1)]
        for key, item in pairs:
            parts += (encode_key(key), encode_item(item))
        parts.append(b"\0")
        return b"".join(parts)

    return encode


# -- unions ----------------------------------------------------------------------------------------

Branch: TypeAlias = tuple[bytes, ValueEncoder]
"""The index of a branch as it is encoded, and the function for its values."""
_VALUE_TYPES_MAX = 1_000


def _union(schema: avro.UnionType, path: str) -> ValueEncoder:
    null = None if schema.null_index < 0 else zigzag(schema.null_index)
    members = [(zigzag(index), _encoder(schema.branches[index], path)) for index in schema.members]
    by_name = _branch_names(schema, members)
    if len(members) == 1:
        return _nullable(null, members[0], by_name, path)
    names = [f"member{i}" for i in range(len(members))]
    types = [schema.branches[index] for index in schema.members]
    by_type: dict[type, list[Branch]] = {}  # Made for each type of value on its first use.
    expected = describe(schema)

    def encode(value: Any) -> bytes:
        if value is None:
            if null is None:
                raise failed(path, _NULL_TEXT)
            return null
        if isinstance(value, tuple) and (named := _named(by_name, value)) is not None:
            prefix, encode_branch = named
            return prefix + encode_branch(value[1])
        if isinstance(value, Mapping) and (member := values.member_of(path, value, names)) is not None:
            if member < 0:
                return encode(None)
            prefix, encode_branch = members[member]
            return prefix + encode_branch(value[names[member]])
        branches = by_type.get(type(value))
        if branches is None:
            branches = _branches_for(value, types, members)
            if len(by_type) < _VALUE_TYPES_MAX:
                by_type[type(value)] = branches
        for prefix, encode_branch in branches:
            try:
                return prefix + encode_branch(value)
            except SchemaError:
                if len(branches) == 1:
                    raise
        raise mismatch(path, f"a value of a branch of the {expected}, or (name of the branch, value)", value)

    return encode


def _nullable(null: bytes | None, member: Branch, by_name: Mapping[str, Branch | None], path: str) -> ValueEncoder:
    prefix, encode_member = member

    def encode(value: Any) -> bytes:
        if value is None:
            if null is None:
                raise failed(path, _NULL_TEXT)
            return null
        if type(value) is tuple and _named(by_name, value) is not None:
            value = value[1]
        return prefix + encode_member(value)

    return encode


def _branch_names(schema: avro.UnionType, members: list[Branch]) -> dict[str, Branch | None]:
    """Return branches by full name, and by name without namespace, if only one has it."""
    by_name: dict[str, Branch | None] = {}
    full_names = [getattr(schema.branches[index], "name", schema.branches[index].kind) for index in schema.members]
    for full_name, member in zip(full_names, members, strict=True):
        short = full_name.rpartition(".")[2]
        by_name[short] = None if short in by_name else member
    return {**by_name, **dict(zip(full_names, members, strict=True))}


def _named(by_name: Mapping[str, Branch | None], value: tuple[Any, ...]) -> Branch | None:
    return by_name.get(value[0]) if len(value) == 2 and isinstance(value[0], str) else None


def _branches_for(value: object, types: list[AvroSchema], members: list[Branch]) -> list[Branch]:
    """Return the branches to try for a value: those of its own type first, each in the order of the schema."""
    native: list[Branch] = []
    others: list[Branch] = []
    for branch_type, member in zip(types, members, strict=True):
        (native if isinstance(value, _native_types(branch_type)) else others).append(member)
    if isinstance(value, bool):  # an int in Python
        native = [m for t, m in zip(types, members, strict=True) if t.kind == "boolean"]
        others = []
    return native + others


def _native_types(schema: AvroSchema) -> tuple[type, ...]:
    logical = getattr(schema, "logical", None)
    if logical is not None and schema.kind in ("int", "long", "bytes", "fixed"):
        for prefix, types in _LOGICAL_NATIVE.items():
            if logical.name.startswith(prefix):
                return types
    return _NATIVE[schema.kind]


_LOGICAL_NATIVE: dict[str, tuple[type, ...]] = {
    "date": (datetime.date,),
    "time-": (datetime.time,),
    "timestamp-": (datetime.datetime,),
    "local-timestamp-": (datetime.datetime,),
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
}
_NATIVE: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes, bytearray, memoryview),
    "fixed": (bytes, bytearray, memoryview),
    "string": (str, uuid.UUID),
    "enum": (str,),
    "array": (list, tuple),
    "map": (Mapping,),
    "record": (Mapping,),
}


# -- simple types ----------------------------------------------------------------------------------


def _enum(schema: avro.EnumType, path: str) -> ValueEncoder:
    encoded = {symbol: zigzag(index) for index, symbol in enumerate(schema.symbols)}

    def encode(value: Any) -> bytes:
        data = encoded.get(value) if isinstance(value, str) else None
        if data is not None:
            return data
        if value is None:
            raise failed(path, _NULL_TEXT)
        values.to_text(path, value)
        raise failed(path, f"the enum has no such symbol, only {', '.join(schema.symbols)}")

    return encode


def _decimal(schema: avro.PrimitiveType | avro.FixedType, path: str) -> ValueEncoder:
    assert schema.logical is not None
    convert = values.decimal_converter(path, schema.logical.precision, schema.logical.scale)
    fixed_size = schema.size if isinstance(schema, avro.FixedType) else 0

    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        number = convert(value)
        if fixed_size:
            return number.to_bytes(fixed_size, "big", signed=True)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return encode_varint(size << 1) + number.to_bytes(size, "big", signed=True)

    return encode


def _fixed(schema: avro.FixedType, path: str) -> ValueEncoder:
    size = schema.size

    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        data = values.to_bytes(path, value)
        if len(data) != size:
            raise failed(path, f"the bytes are not as many as the fixed type has ({size})")
        return data

    return encode


def _primitive(schema: avro.PrimitiveType, path: str) -> ValueEncoder:
    kind, logical = schema.kind, schema.logical.name if schema.logical else ""
    if kind in ("int", "long"):
        return _integer(kind, _converter(logical, path), path)
    if kind in ("bytes", "string"):
        return _sized(path, values.to_bytes if kind == "bytes" else values.to_text_bytes)
    return {"null": _null, "boolean": _boolean, "float": _float, "double": _double}[kind](path)


def _converter(logical: str, path: str) -> Callable[[Any], int] | None:
    """Return the function from a time to the number that is encoded."""
    if logical == "date":
        return lambda value: values.to_days(path, value)
    kind, _, unit = logical.rpartition("-")
    if kind == "time":
        return values.time_converter(path, _UNITS[unit])
    return values.timestamp_converter(path, _UNITS[unit]) if kind else None


def _integer(kind: str, convert: Callable[[Any], int] | None, path: str) -> ValueEncoder:
    allowed = INT_RANGE if kind == "int" else LONG_RANGE
    low, high = allowed.start, allowed.stop - 1

    def encode(value: Any) -> bytes:
        if type(value) is not int:
            if value is None:
                raise failed(path, _NULL_TEXT)
            value = values.to_integer(path, value) if convert is None else convert(value)
        if low <= value <= high:
            return encode_varint((value << 1) ^ (value >> 63))
        raise failed(path, "an integer is out of range")

    return encode


def _null(path: str) -> ValueEncoder:
    def encode(value: Any) -> bytes:
        if value is not None:
            raise mismatch(path, "None", value)
        return b""

    return encode


def _boolean(path: str) -> ValueEncoder:
    def encode(value: Any) -> bytes:
        if value is True:
            return b"\1"
        if value is False:
            return b"\0"
        if value is None:
            raise failed(path, _NULL_TEXT)
        return b"\1" if values.to_boolean(path, value) else b"\0"

    return encode


def _float(path: str) -> ValueEncoder:
    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        try:
            return _FLOAT(values.to_float(path, value, values.FLOAT_INTEGER_MAX))
        except OverflowError:
            raise failed(path, "a number is out of the range of a float") from None

    return encode


def _double(path: str) -> ValueEncoder:
    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        return _DOUBLE(value if type(value) is float else values.to_float(path, value))

    return encode


def _sized(path: str, convert: Callable[[str, Any], bytes]) -> ValueEncoder:
    """Return the function for bytes, with their length before them."""

    def encode(value: Any) -> bytes:
        if value is None:
            raise failed(path, _NULL_TEXT)
        data = convert(path, value)
        return encode_varint(len(data) << 1) + data

    return encode
