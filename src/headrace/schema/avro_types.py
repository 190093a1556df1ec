"""Avro types and Arrow types: what a schema becomes, and a schema for a type.

    AvroSchema → arrow_type, arrow_field → pa.DataType
    pa.DataType → derive_schema → JSON text

An enum becomes a string, not a dictionary: dictionaries would differ between the schemas of one batch, and Spark has no
such type. A union of null and one type is that type, nullable. Any other union is a struct with a nullable field for
each branch that is not null, named member0, member1, …, as in Spark's `from_avro`; one of them has the value.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema import avro_schema as avro
from headrace.schema.avro_schema import AvroSchema

DECIMAL128_DIGITS_MAX = 38

_PRIMITIVE_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL_TYPES: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("ns", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_UNIT_NAMES = {"ms": "millis", "us": "micros", "ns": "nanos"}


def is_nullable(schema: AvroSchema) -> bool:
    """Return whether a value may be null in Arrow."""
    return schema.kind == "null" or (isinstance(schema, avro.UnionType) and schema.null_index >= 0)


def arrow_type(schema: AvroSchema) -> pa.DataType:
    """Return the Arrow type of the values of a schema."""
    if isinstance(schema, avro.PrimitiveType | avro.FixedType):
        return _simple_type(schema)
    if isinstance(schema, avro.EnumType):
        return pa.string()
    if isinstance(schema, avro.RecordType):
        return pa.struct([arrow_field(field.name, field.type) for field in schema.fields])
    if isinstance(schema, avro.ArrayType):
        return pa.list_(arrow_field("item", schema.items))
    if isinstance(schema, avro.MapType):
        return pa.map_(pa.string(), arrow_field("value", schema.values))
    members = [schema.branches[index] for index in schema.members]
    if not members:
        return pa.null()
    if len(members) == 1:
        return arrow_type(members[0])
    return pa.struct([pa.field(f"member{i}", arrow_type(member)) for i, member in enumerate(members)])


def arrow_field(name: str, schema: AvroSchema) -> pa.Field:
    return pa.field(name, arrow_type(schema), nullable=is_nullable(schema))


def decimal_type(logical: avro.Logical) -> pa.DataType:
    make = pa.decimal128 if logical.precision <= DECIMAL128_DIGITS_MAX else pa.decimal256
    return make(logical.precision, logical.scale)


def _simple_type(schema: avro.PrimitiveType | avro.FixedType) -> pa.DataType:
    logical = schema.logical
    if logical is not None:
        if logical.name == "decimal":
            return decimal_type(logical)
        if logical.name in _LOGICAL_TYPES:
            return _LOGICAL_TYPES[logical.name]
    return pa.binary(schema.size) if isinstance(schema, avro.FixedType) else _PRIMITIVE_TYPES[schema.kind]


def derive_schema(data_type: pa.DataType, name: str = "Record", namespace: str = "") -> str:
    """Return an Avro schema for an Arrow type, as JSON.

    A nullable field becomes a union with null, whose default is null. Records
    inside are named after the path of their field: Record_address.
    """
    derived = _derive(data_type, name)
    if namespace and isinstance(derived, dict) and "name" in derived:
        derived = {"type": derived["type"], "name": derived["name"], "namespace": namespace, **derived}
    return json.dumps(derived)


def _derive(data_type: pa.DataType, name: str) -> Any:
    types = pa.types
    if types.is_dictionary(data_type):
        return _derive(data_type.value_type, name)
    for test, simple in _DERIVED:
        if test(data_type):
            return simple
    if types.is_decimal(data_type):
        if not 0 <= data_type.scale <= data_type.precision:
            raise _not_derivable(data_type, name)
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": data_type.precision,
            "scale": data_type.scale,
        }
    if types.is_fixed_size_binary(data_type):
        return {"type": "fixed", "name": name, "size": data_type.byte_width}
    if types.is_time(data_type):
        return _logical("int", "time-millis") if data_type.unit in ("s", "ms") else _logical("long", "time-micros")
    if types.is_timestamp(data_type):
        unit = _UNIT_NAMES["ms" if data_type.unit == "s" else data_type.unit]
        return _logical("long", f"timestamp-{unit}" if data_type.tz else f"local-timestamp-{unit}")
    if types.is_map(data_type):
        return {"type": "map", "values": _derive_field(data_type.item_field, f"{name}_value")}
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        return {"type": "array", "items": _derive_field(data_type.value_field, f"{name}_item")}
    if types.is_struct(data_type):
        fields = []
        for field in data_type:
            derived: dict[str, Any] = {"name": field.name, "type": _derive_field(field, f"{name}_{field.name}")}
            if field.nullable:
                derived["default"] = None
            fields.append(derived)
        return {"type": "record", "name": name, "fields": fields}
    raise _not_derivable(data_type, name)


def _derive_field(field: pa.Field, name: str) -> Any:
    derived = _derive(field.type, name)
    return ["null", derived] if field.nullable and derived != "null" else derived


def _logical(base: str, name: str) -> dict[str, str]:
    return {"type": base, "logicalType": name}


def _not_derivable(data_type: pa.DataType, name: str) -> SchemaError:
    return SchemaError(
        f"no Avro type for Arrow type {data_type} ({name}): cast the column, or write the schema yourself"
    )


_DERIVED = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (lambda t: pa.types.is_integer(t) and (t.bit_width < 32 or t == pa.int32()), "int"),
    (pa.types.is_integer, "long"),
    (lambda t: pa.types.is_float16(t) or pa.types.is_float32(t), "float"),
    (pa.types.is_float64, "double"),
    (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t), "string"),
    (lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t), "bytes"),
    (pa.types.is_date, _logical("int", "date")),
)
