"""Default values of Avro schemas, from JSON to bytes: a missing field is decoded from the bytes of its default."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from headrace.errors import SchemaError
from headrace.schema import avro_schema as avro
from headrace.schema._avro.layout import zigzag
from headrace.schema._plan.layout import INT_RANGE, LONG_RANGE
from headrace.schema.avro_schema import AvroSchema, describe

_RANGES = {"int": INT_RANGE, "long": LONG_RANGE}


def encode_default(schema: AvroSchema, value: Any) -> bytes:
    """Encode a default value. That of a union belongs to the first branch that accepts it."""
    return b"".join(_encode(schema, value))


def _encode(schema: AvroSchema, value: Any) -> Iterator[bytes]:
    if isinstance(schema, avro.UnionType):
        for index, branch in enumerate(schema.branches):
            try:
                encoded = encode_default(branch, value)
            except SchemaError:
                continue
            yield zigzag(index) + encoded
            return
        raise _invalid(schema, value)
    if isinstance(schema, avro.RecordType):
        if not isinstance(value, dict):
            raise _invalid(schema, value)
        for field in schema.fields:
            part = value.get(field.name, field.default)
            if isinstance(part, avro.NoDefault):
                raise _invalid(schema, value)
            yield from _encode(field.type, part)
    elif isinstance(schema, avro.ArrayType):
        if not isinstance(value, list):
            raise _invalid(schema, value)
        if value:
            yield zigzag(len(value))
        for item in value:
            yield from _encode(schema.items, item)
        yield b"\0"
    elif isinstance(schema, avro.MapType):
        if not isinstance(value, dict):
            raise _invalid(schema, value)
        if value:
            yield zigzag(len(value))
        for key, item in value.items():
            yield _sized(_text(schema, key))
            yield from _encode(schema.values, item)
        yield b"\0"
    elif isinstance(schema, avro.EnumType):
        if value not in schema.symbols:
            raise _invalid(schema, value)
        yield zigzag(schema.symbols.index(value))
    elif isinstance(schema, avro.FixedType):
        data = _latin1(schema, value)
        if len(data) != schema.size:
            raise _invalid(schema, value)
        yield data
    else:
        yield _primitive(schema, value)


def _primitive(schema: avro.PrimitiveType, value: Any) -> bytes:
    kind = schema.kind
    if kind == "null" and value is None:
        return b""
    if kind == "boolean" and isinstance(value, bool):
        return bytes([value])
    if kind in _RANGES and type(value) is int and value in _RANGES[kind]:
        return zigzag(value)
    if kind in ("float", "double") and type(value) in (int, float):
        try:
            return struct.pack("<f" if kind == "float" else "<d", value)
        except OverflowError:
            raise _invalid(schema, value) from None
    if kind == "bytes":
        return _sized(_latin1(schema, value))
    if kind == "string":
        return _sized(_text(schema, value))
    raise _invalid(schema, value)


def _text(schema: AvroSchema, value: Any) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else _fail(schema, value)
    except UnicodeEncodeError:
        raise _invalid(schema, value) from None


def _latin1(schema: AvroSchema, value: Any) -> bytes:
    """Return the bytes that a text stands for: one for each character."""
    try:
        return value.encode("latin-1") if isinstance(value, str) else _fail(schema, value)
    except UnicodeEncodeError:
        raise _invalid(schema, value) from None


def _fail(schema: AvroSchema, value: Any) -> bytes:
    raise _invalid(schema, value)


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _invalid(schema: AvroSchema, value: Any) -> SchemaError:
    return SchemaError(f"invalid default {value!r:.80} of an Avro {describe(schema)}; correct it in the schema")
