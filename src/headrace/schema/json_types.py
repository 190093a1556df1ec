"""What a JSON schema means for columns, and the Arrow types of it.

    JsonSchema → arrow_type, arrow_field → pa.DataType
    pa.DataType → derive_schema → text of a JSON schema
    JsonSchema, names of columns → project → JsonSchema with these properties only

A type is nullable if `null` is one of its values. What cannot be told apart by the first character of a value (two
kinds of objects), or has no declared shape (an object without properties), is a string that holds the JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema.codec import choose_fields, join_path

CONNECT_NAMES: Final = "org.apache.kafka.connect.data."
"""Kafka Connect names its logical types in `title`: Date, Time, Timestamp, Decimal."""
DECIMAL128_DIGITS_MAX = 38
TOKENS = ("object", "array", "string", "number", "boolean")
"""What a value can be, by its first character; null aside."""


class NoDefault:
    """The type of `NO_DEFAULT`; None is a default."""


NO_DEFAULT: Final = NoDefault()


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A value without parts: null, boolean, integer, number, decimal, string or bytes (base64 in a string)."""

    kind: str
    data_type: pa.DataType
    nullable: bool = False

    @property
    def token(self) -> str:
        return {"integer": "number", "decimal": "number", "bytes": "string"}.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True)
class TextType:
    """A value of any shape, kept as JSON text. `tokens` are those that are allowed."""

    tokens: tuple[str, ...] = TOKENS
    nullable: bool = True
    kind: str = "JSON text"


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    type: JsonSchema
    required: bool
    default: Any = NO_DEFAULT  # as in the schema

    @property
    def nullable(self) -> bool:
        return self.type.nullable or not self.required


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object with declared properties. `closed`: others are not allowed."""

    properties: tuple[Property, ...]
    closed: bool = False
    nullable: bool = False
    kind: str = "object"
    token: ClassVar[str] = "object"


@dataclass(frozen=True, slots=True)
class MapType:
    """An object with any properties, whose values have one type."""

    values: JsonSchema
    nullable: bool = False
    kind: str = "map"
    token: ClassVar[str] = "object"


@dataclass(frozen=True, slots=True)
class ArrayType:
    items: JsonSchema
    nullable: bool = False
    kind: str = "array"
    token: ClassVar[str] = "array"


@dataclass(frozen=True, slots=True)
class UnionType:
    """Values of several types, each recognized by its first character. No member is nullable, or a union."""

    members: tuple[MemberType, ...]
    nullable: bool = False
    kind: str = "union"


MemberType: TypeAlias = ScalarType | ObjectType | MapType | ArrayType
JsonSchema: TypeAlias = ScalarType | TextType | ObjectType | MapType | ArrayType | UnionType

NULL = ScalarType("null", pa.null(), nullable=True)


def describe(schema: JsonSchema) -> str:
    """Return a schema in a few words, for errors."""
    if isinstance(schema, ScalarType):
        is_plain = schema.kind in ("null", "boolean", "string", "bytes")
        text = schema.kind if is_plain else f"{schema.kind} ({schema.data_type})"
    elif isinstance(schema, ArrayType):
        text = f"array of {describe(schema.items)}"
    elif isinstance(schema, MapType):
        text = f"map of {describe(schema.values)}"
    elif isinstance(schema, UnionType):
        text = f"union of {', '.join(map(describe, schema.members))}"
    else:
        text = schema.kind
    return f"{text} or null" if schema.nullable and schema.kind not in ("null", "JSON text") else text


def arrow_type(schema: JsonSchema) -> pa.DataType:
    """Return the Arrow type of the values of a schema."""
    if isinstance(schema, ScalarType):
        return schema.data_type
    if isinstance(schema, TextType):
        return pa.string()
    if isinstance(schema, ObjectType):
        return pa.struct([pa.field(p.name, arrow_type(p.type), nullable=p.nullable) for p in schema.properties])
    if isinstance(schema, MapType):
        return pa.map_(pa.string(), arrow_field("value", schema.values))
    if isinstance(schema, ArrayType):
        return pa.list_(arrow_field("item", schema.items))
    return pa.struct([pa.field(f"member{i}", arrow_type(member)) for i, member in enumerate(schema.members)])


def arrow_field(name: str, schema: JsonSchema) -> pa.Field:
    return pa.field(name, arrow_type(schema), nullable=schema.nullable)


def project(schema: JsonSchema, columns: Iterable[str]) -> JsonSchema:
    """Return a schema with the named properties only. `a.b` names property b of the objects in property a."""
    if not isinstance(schema, ObjectType):
        raise SchemaError(f"columns can be chosen of an object only, not of {describe(schema)}")
    return _project(schema, [name.split(".") for name in columns], "")


def _project(schema: JsonSchema, names: Sequence[Sequence[str]], path: str) -> JsonSchema:
    if any(not name for name in names):
        return schema  # chosen as a whole
    if isinstance(schema, ObjectType):
        chosen = choose_fields(schema.properties, names, path, "property", "the JSON schema")
        properties = [
            replace(entry, type=_project(entry.type, inner, join_path(path, entry.name))) for entry, inner in chosen
        ]
        return replace(schema, properties=tuple(properties))
    if isinstance(schema, ArrayType):
        return replace(schema, items=_project(schema.items, names, path))
    if isinstance(schema, MapType):
        return replace(schema, values=_project(schema.values, names, path))
    raise SchemaError(f"{path} is {describe(schema)}, without the property {names[0][0]}; choose {path} as a whole")


def json_bytes(value: object) -> bytes:
    """Return the JSON text of a name or default."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decimal_type(precision: int, scale: int) -> pa.DataType:
    return (pa.decimal128 if precision <= DECIMAL128_DIGITS_MAX else pa.decimal256)(precision, scale)


def fits(schema: JsonSchema, value: Any) -> bool:
    """Return whether a default, as parsed from the text of a schema, can be decoded as its type."""
    if value is None:
        return schema.nullable
    if isinstance(schema, TextType):
        return token_of(value) in schema.tokens
    if isinstance(schema, UnionType):
        return any(fits(member, value) for member in schema.members)
    if isinstance(schema, ArrayType):
        return isinstance(value, list) and all(fits(schema.items, item) for item in value)
    if isinstance(schema, MapType):
        return isinstance(value, dict) and all(fits(schema.values, item) for item in value.values())
    if isinstance(schema, ObjectType):
        return isinstance(value, dict) and all(
            fits(entry.type, value[entry.name]) if entry.name in value else _can_be_missing(entry)
            for entry in schema.properties
        )
    return _fits_scalar(schema, value)


def _can_be_missing(entry: Property) -> bool:
    return entry.nullable or not isinstance(entry.default, NoDefault)


def _fits_scalar(schema: ScalarType, value: Any) -> bool:
    if token_of(value) != schema.token:
        return False
    data_type = schema.data_type
    if schema.kind == "integer":
        limit = 1 << data_type.bit_width - 1
        return bool(value == int(value) and -limit <= value < limit)
    if schema.kind == "number":
        try:
            struct.pack("<f" if pa.types.is_float32(data_type) else "<d", value)
        except OverflowError:
            return False
    if schema.kind == "decimal":
        number = Decimal(repr(value)).normalize()
        exponent, digits = number.as_tuple().exponent, number.adjusted() + 1 + data_type.scale
        return isinstance(exponent, int) and -exponent <= data_type.scale and digits <= data_type.precision
    if schema.kind == "bytes":
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return False
    return True


def token_of(value: Any) -> str:
    """Return which of `TOKENS` a parsed JSON value is; "null" for None."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def derive_schema(data_type: pa.DataType, title: str = "") -> str:
    """Return a JSON schema (draft-07) for an Arrow type.

    A field that is not nullable is a required property; a nullable one is not required, and may be null. Types that
    JSON does not have carry Kafka Connect's hints, by which `arrow_type` finds them again.
    """
    derived = {"$schema": "http://json-schema.org/draft-07/schema#", **({"title": title} if title else {})}
    return json.dumps(derived | _derive(data_type, title or "value"))


def _derive(data_type: pa.DataType, path: str) -> dict[str, Any]:
    types = pa.types
    if types.is_dictionary(data_type):
        return _derive(data_type.value_type, path)
    for test, simple in _DERIVED:
        if test(data_type):
            return dict(simple)
    if types.is_decimal(data_type) and 0 <= data_type.scale <= data_type.precision:
        parameters = {"scale": str(data_type.scale), "connect.decimal.precision": str(data_type.precision)}
        return _hint("number", "bytes", "Decimal") | {"connect.parameters": parameters}
    if types.is_timestamp(data_type) and data_type.tz is not None:
        return _hint("integer", "int64", "Timestamp")
    if types.is_map(data_type):
        return {"type": "object", "additionalProperties": _derive_field(data_type.item_field, f"{path}{{}}")}
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        return {"type": "array", "items": _derive_field(data_type.value_field, f"{path}[]")}
    if types.is_struct(data_type):
        properties = {field.name: _derive_field(field, f"{path}.{field.name}") for field in data_type}
        required = [field.name for field in data_type if not field.nullable]
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
    raise SchemaError(
        f"no JSON type for Arrow type {data_type} ({path}): cast the column, or write the schema yourself"
    )


def _derive_field(field: pa.Field, path: str) -> dict[str, Any]:
    derived = _derive(field.type, path)
    if not field.nullable or derived.get("type") == "null":
        return derived
    return {"oneOf": [{"type": "null"}, derived]}


def _hint(json_type: str, connect_type: str, name: str = "") -> dict[str, Any]:
    hint = {"type": json_type, "connect.type": connect_type}
    return hint | ({"title": CONNECT_NAMES + name, "connect.version": 1} if name else {})


_DERIVED = (
    (pa.types.is_null, {"type": "null"}),
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_int8, _hint("integer", "int8")),
    (lambda t: pa.types.is_int16(t) or pa.types.is_uint8(t), _hint("integer", "int16")),
    (lambda t: pa.types.is_int32(t) or pa.types.is_uint16(t), _hint("integer", "int32")),
    (pa.types.is_integer, {"type": "integer"}),
    (lambda t: pa.types.is_float16(t) or pa.types.is_float32(t), _hint("number", "float32")),
    (pa.types.is_float64, {"type": "number"}),
    (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t), {"type": "string"}),
    (
        lambda t: (
            pa.types.is_binary(t)
            or pa.types.is_large_binary(t)
            or pa.types.is_binary_view(t)
            or pa.types.is_fixed_size_binary(t)
        ),
        _hint("string", "bytes") | {"contentEncoding": "base64"},
    ),
    (pa.types.is_date, _hint("integer", "int32", "Date")),
    (lambda t: pa.types.is_time(t), _hint("integer", "int32", "Time")),
)
