"""Protobuf types and Arrow types: what a message becomes, and a schema for a type.

    ProtobufSchema, message → resolve_message → FieldTypes, with the Arrow type of each field → struct_type
    pa.DataType → derive_schema → .proto text

A field without presence is not nullable; others are null if they are absent. An enum is a string; a number without a
name is its decimal digits. uint32 becomes int64, and uint64 decimal128(20, 0): Spark has no unsigned types, and a large
number as a negative int64 would be another number. Timestamps and durations are in microseconds, as in Spark: these
reach 290,000 years, nanoseconds 292.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema.codec import choose_fields, join_path
from headrace.schema.protobuf_builtin import WRAPPER_TYPES
from headrace.schema.protobuf_descriptor import meta_params
from headrace.schema.protobuf_schema import DEPTH_MAX, FieldDefinition, MessageDefinition, ProtobufSchema

TYPES_MAX = 20_000
"""Fields after expansion of messages: a bound for columns and for the time to plan."""
DECIMAL_DIGITS_MAX = 76
DECIMAL128_DIGITS_MAX = 38

TIMESTAMP = "google.protobuf.Timestamp"
DURATION = "google.protobuf.Duration"
DECIMAL = "confluent.type.Decimal"
OPAQUE_MESSAGES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""Messages that contain themselves; their bytes are a binary column."""

_SCALAR_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), pa.int32()),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), pa.int64()),
    **dict.fromkeys(("uint64", "fixed64"), pa.decimal128(20, 0)),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}


@dataclass(frozen=True, slots=True)
class ValueType:
    """A value: a scalar type, "enum", "message", "group", "opaque", "timestamp", "duration", "decimal" or "wrapper"."""

    kind: str
    arrow_type: pa.DataType
    type_name: str = ""
    fields: tuple[FieldType, ...] = ()  # of a message
    scalar: str = ""  # of a wrapper
    precision: int = 0  # of a decimal
    scale: int = 0


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field of a message that is decoded."""

    definition: FieldDefinition
    value: ValueType  # of an item if it is repeated, of a value if it is a map
    key: ValueType | None = None  # of a map

    @property
    def arrow_field(self) -> pa.Field:
        name, data_type = self.definition.name, self.value.arrow_type
        if self.key is not None:
            value = pa.field("value", data_type, nullable=False)
            return pa.field(name, pa.map_(self.key.arrow_type, value), nullable=False)
        if self.definition.is_repeated:
            return pa.field(name, pa.list_(pa.field("item", data_type, nullable=False)), nullable=False)
        is_nullable = self.definition.has_presence and self.definition.label != "required"
        return pa.field(name, data_type, nullable=is_nullable)


def arrow_type(schema: ProtobufSchema, message: str | None = None) -> pa.DataType:
    """Return the Arrow type of a message: by default the first one of the schema."""
    return struct_type(resolve_message(schema, schema.message(message)))


def struct_type(fields: Sequence[FieldType]) -> pa.DataType:
    return pa.struct([entry.arrow_field for entry in fields])


def resolve_message(
    schema: ProtobufSchema, message: MessageDefinition, columns: Sequence[str] | None = None
) -> tuple[FieldType, ...]:
    """Return the fields of a message with their Arrow types. `columns` chooses fields; `a.b` is field b in field a."""
    names = None if columns is None else [name.split(".") for name in columns]
    return _Resolver(schema).fields(message, names, "", ())


class _Resolver:
    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema
        self._count = 0

    def fields(
        self, message: MessageDefinition, names: Sequence[Sequence[str]] | None, path: str, outer: tuple[str, ...]
    ) -> tuple[FieldType, ...]:
        """Return the chosen fields: all if `names` is None."""
        if message.full_name in outer:
            raise SchemaError(
                f"Protobuf message {message.full_name} contains itself (field {path}), and Arrow has no recursive "
                f"type; choose columns without this field"
            )
        if len(outer) >= DEPTH_MAX:
            raise SchemaError(f"Protobuf message {message.full_name} is nested deeper than {DEPTH_MAX} levels")
        chosen: list[tuple[FieldDefinition, list[Sequence[str]]]] = [(entry, [[]]) for entry in message.fields]
        if names is not None:
            chosen = choose_fields(message.fields, names, path, "field", f"Protobuf message {message.full_name}")
        outer = (*outer, message.full_name)
        return tuple(
            self._field(entry, inner if all(inner) else None, join_path(path, entry.name), outer)
            for entry, inner in chosen
        )

    def _field(
        self, entry: FieldDefinition, names: Sequence[Sequence[str]] | None, path: str, outer: tuple[str, ...]
    ) -> FieldType:
        self._count += 1
        if self._count > TYPES_MAX:
            raise SchemaError(
                f"Protobuf schema has more than {TYPES_MAX:,} fields after expansion of messages; choose columns"
            )
        parts = map_parts(self._schema, entry)
        if parts is not None:
            key, value = parts
            return FieldType(entry, self._value(value, names, path, outer), self._value(key, None, path, outer))
        return FieldType(entry, self._value(entry, names, path, outer))

    def _value(
        self, entry: FieldDefinition, names: Sequence[Sequence[str]] | None, path: str, outer: tuple[str, ...]
    ) -> ValueType:
        value = special_type(entry)
        if value is None:
            message = self._schema.messages[entry.type_name]
            fields = self.fields(message, names, path, outer)
            return ValueType(entry.type, struct_type(fields), entry.type_name, fields)
        if names is not None:
            raise SchemaError(f"{path} is {entry.type_name or entry.type}, without columns; choose {path} as a whole")
        return value


def map_parts(schema: ProtobufSchema, entry: FieldDefinition) -> tuple[FieldDefinition, FieldDefinition] | None:
    """Return key and value of a map; None if the field is not a map."""
    if entry.type != "message" or not entry.is_repeated:
        return None
    message = schema.messages[entry.type_name]
    return (message.fields[0], message.fields[1]) if message.is_map_entry else None


def special_type(entry: FieldDefinition) -> ValueType | None:
    """Return the type of a value that is not a message of its own fields; None for such a message."""
    name = entry.type_name
    if entry.type not in ("message", "group"):
        return ValueType(entry.type, _SCALAR_TYPES[entry.type], name)
    if name == TIMESTAMP:
        return ValueType("timestamp", pa.timestamp("us", tz="UTC"), name)
    if name == DURATION:
        return ValueType("duration", pa.duration("us"), name)
    if name in OPAQUE_MESSAGES:
        return ValueType("opaque", pa.binary(), name)
    if name in WRAPPER_TYPES:
        scalar = WRAPPER_TYPES[name]
        return ValueType("wrapper", _SCALAR_TYPES[scalar], name, scalar=scalar)
    return _decimal_type(entry) if name == DECIMAL else None


def _decimal_type(entry: FieldDefinition) -> ValueType | None:
    """Return the type of a decimal with a known precision; None without it: a struct with its parts."""
    params = meta_params(entry.options)
    try:
        precision, scale = int(params["precision"]), int(params.get("scale", "0"))
    except (KeyError, ValueError):
        return None
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        return None
    make = pa.decimal128 if precision <= DECIMAL128_DIGITS_MAX else pa.decimal256
    return ValueType("decimal", make(precision, scale), entry.type_name, precision=precision, scale=scale)


# -- schemas of Arrow types ------------------------------------------------------------------------


def derive_schema(data_type: pa.DataType, name: str = "Record", package: str = "") -> str:
    """Return a proto3 schema for a struct type, as text.

    Fields are numbered in their order. A nullable field becomes `optional`; a list or map is empty instead of null.
    """
    if not pa.types.is_struct(data_type):
        raise SchemaError(f"a Protobuf message needs an Arrow struct, not {data_type}; put the column into a struct")
    deriver = _Deriver()
    lines = list(deriver.message(data_type, name, ""))
    imports = [f'import "{entry}";' for entry in sorted(deriver.imports)]
    head = ['syntax = "proto3";', *([f"package {package};"] if package else []), *imports]
    return "\n".join([*head, *lines]) + "\n"


class _Deriver:
    def __init__(self) -> None:
        self.imports: set[str] = set()

    def message(self, data_type: pa.DataType, name: str, path: str) -> Iterator[str]:
        yield f"message {name} {{"
        for number, field in enumerate(data_type, 1):
            yield from (f"  {line}" for line in self._field(field, number, join_path(path, field.name)))
        yield "}"

    def _field(self, field: pa.Field, number: int, path: str) -> Iterator[str]:
        types, data_type, label = pa.types, field.type, "optional " if field.nullable else ""
        if not field.name.isidentifier() or not field.name.isascii():
            raise SchemaError(f"column {path} has no name that Protobuf allows: rename it to letters, digits and _")
        entry_name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) or "X"
        prefix = ""
        if types.is_map(data_type):
            key, _ = self._value(data_type.key_type, path)
            prefix, data_type = f"map<{key}, ", data_type.item_type
        elif types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
            label, data_type = "repeated ", data_type.value_type
        if types.is_struct(data_type):
            yield from self.message(data_type, f"{entry_name}_", path)
            kind, options = f"{entry_name}_", ""
        else:
            kind, options = self._value(data_type, path)
        yield f"{prefix or label}{kind}{'>' if prefix else ''} {field.name} = {number}{options};"

    def _value(self, data_type: pa.DataType, path: str) -> tuple[str, str]:
        """Return the type of a value, and options of its field."""
        types = pa.types
        if types.is_dictionary(data_type):
            return self._value(data_type.value_type, path)
        for test, name in _DERIVED:
            if test(data_type):
                return name, ""
        if types.is_timestamp(data_type) and data_type.tz is not None:
            self.imports.add("google/protobuf/timestamp.proto")
            return TIMESTAMP, ""
        if types.is_duration(data_type):
            self.imports.add("google/protobuf/duration.proto")
            return DURATION, ""
        if types.is_decimal(data_type) and 0 <= data_type.scale <= data_type.precision:
            self.imports.update(("confluent/meta.proto", "confluent/type/decimal.proto"))
            params = (("precision", data_type.precision), ("scale", data_type.scale))
            texts = ", ".join(f'{{ key: "{key}", value: "{value}" }}' for key, value in params)
            return DECIMAL, f" [(confluent.field_meta) = {{ params: [{texts}] }}]"
        raise SchemaError(
            f"no Protobuf type for Arrow type {data_type} ({path}): cast the column, or write the schema yourself"
        )


_DERIVED = (
    (pa.types.is_boolean, "bool"),
    (lambda t: pa.types.is_signed_integer(t) and t.bit_width <= 32, "int32"),
    (pa.types.is_signed_integer, "int64"),
    (lambda t: pa.types.is_unsigned_integer(t) and t.bit_width <= 32, "uint32"),
    (pa.types.is_unsigned_integer, "uint64"),
    (lambda t: pa.types.is_float16(t) or pa.types.is_float32(t), "float"),
    (pa.types.is_float64, "double"),
    (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t), "string"),
    (lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t), "bytes"),
)
