"""How Arrow columns become JSON values, as a plan for the kernel.

    schema, Arrow type → plan_encoding → EncodePlan → _json.PlanEncoder

Columns are matched with properties by name. A type that never fits is an error here. What fits for some values only is
checked for each row: null where there is no null, integers out of range, long decimals, text that is not JSON.

A property whose value is null is left out if it is not required, unless its type allows null: then null is written.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema import json_types
from headrace.schema._json.layout import EncodeOp, OnNull
from headrace.schema._plan.layout import decimal_limit
from headrace.schema.codec import EncodePlan, column_names, join_path
from headrace.schema.json_decoding import token_bits
from headrace.schema.json_types import JsonSchema, describe, json_bytes

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_STRING = json_types.ScalarType("string", pa.string())


def plan_encoding(schema: JsonSchema, data_type: pa.DataType) -> EncodePlan:
    """Return the plan to encode values of an Arrow type."""
    plan = EncodePlan()
    column, readable = plan.add_source(-1, 0, data_type)
    _Planner(plan).value(schema, column, readable, "")
    return plan


class _Planner:
    def __init__(self, plan: EncodePlan) -> None:
        self._plan = plan

    def value(self, schema: JsonSchema, column: int, data_type: pa.DataType, path: str) -> int:
        """Add the nodes that encode the values of a column that are not null; return the index of the last."""
        types = pa.types
        if types.is_null(data_type) and schema.nullable:
            return self._plan.add_node(EncodeOp.NULL, column, path)
        if isinstance(schema, json_types.ScalarType):
            return self._scalar(schema, column, data_type, path)
        if isinstance(schema, json_types.TextType) and (types.is_string(data_type) or types.is_binary(data_type)):
            tokens = token_bits(schema.tokens) | (1 << 5 if schema.nullable else 0)
            return self._plan.add_node(EncodeOp.TEXT, column, path, tokens)
        if isinstance(schema, json_types.ObjectType) and types.is_struct(data_type):
            return self._object(schema, column, data_type, path)
        if isinstance(schema, json_types.ArrayType) and types.is_list(data_type):
            items, item_type = self._plan.add_source(column, "values", data_type.value_type)
            return self._plan.add_node(
                EncodeOp.ARRAY, column, path, 0, [self._item(schema.items, items, item_type, f"{path}[]")]
            )
        if isinstance(schema, json_types.MapType) and types.is_map(data_type):
            inner = f"{path}{{}}"
            keys, key_type = self._plan.add_source(column, "keys", data_type.key_type)
            items, item_type = self._plan.add_source(column, "items", data_type.item_type)
            key = self.value(_STRING, keys, key_type, inner)
            return self._plan.add_node(
                EncodeOp.MAP, column, path, 0, [key, self._item(schema.values, items, item_type, inner)]
            )
        if isinstance(schema, json_types.UnionType):
            return self._union(schema, column, data_type, path)
        raise self._error(schema, data_type, path)

    def _item(self, schema: JsonSchema, column: int, data_type: pa.DataType, path: str) -> int:
        child = self.value(schema, column, data_type, path)
        return self._plan.add_node(EncodeOp.NULLABLE, column, path, 0, [child]) if schema.nullable else child

    def _union(self, schema: json_types.UnionType, column: int, data_type: pa.DataType, path: str) -> int:
        if pa.types.is_struct(data_type):
            names = [entry.name for entry in data_type]
            if names == [f"member{i}" for i in range(len(schema.members))]:
                children = []
                for i, member in enumerate(schema.members):
                    child, child_type = self._plan.add_source(column, i, data_type.field(i).type)
                    children.append(self.value(member, child, child_type, path))
                return self._plan.add_node(EncodeOp.MEMBERS, column, path, int(schema.nullable), children)
        for member in schema.members:
            with suppress(SchemaError), self._plan.attempt():
                return self.value(member, column, data_type, path)
        raise self._error(schema, data_type, path)

    def _object(self, schema: json_types.ObjectType, column: int, data_type: pa.DataType, path: str) -> int:
        where = f" at {path}" if path else ""
        names = column_names(data_type, schema.properties, f"properties of the JSON schema{where}")
        children = []
        for entry in schema.properties:
            inner = join_path(path, entry.name)
            name = json_bytes(entry.name) + b":"
            if entry.name in names:
                index = names.index(entry.name)
                child, child_type = self._plan.add_source(column, index, data_type.field(index).type)
                children.append(self._property(entry, child, child_type, inner))
            elif not isinstance(entry.default, json_types.NoDefault):
                if entry.required:
                    constant = self._plan.add_constant(name + json_bytes(entry.default))
                    children.append(self._plan.add_node(EncodeOp.CONSTANT, column, inner, constant))
            elif entry.required and entry.type.nullable:
                children.append(
                    self._plan.add_node(EncodeOp.CONSTANT, column, inner, self._plan.add_constant(name + b"null"))
                )
            elif entry.required:
                raise SchemaError(
                    f"no column for property {inner} of the JSON schema, which is required and has no default; "
                    f"add the column"
                )
        return self._plan.add_node(EncodeOp.OBJECT, column, path, 0, children)

    def _property(self, entry: json_types.Property, column: int, data_type: pa.DataType, path: str) -> int:
        name = self._plan.add_constant(json_bytes(entry.name) + b":")
        on_null = OnNull.FAIL
        if entry.type.nullable:
            on_null = OnNull.WRITE
        elif not entry.required:
            on_null = OnNull.OMIT
        if pa.types.is_null(data_type) and on_null == OnNull.OMIT:
            children = []
        else:
            children = [self.value(entry.type, column, data_type, path)]
        return self._plan.add_node(EncodeOp.PROPERTY, column, path, name, children, factors=(on_null, 1))

    def _scalar(self, schema: json_types.ScalarType, column: int, data_type: pa.DataType, path: str) -> int:
        types, kind = pa.types, schema.kind
        if kind == "boolean" and types.is_boolean(data_type):
            return self._plan.add_node(EncodeOp.BOOLEAN, column, path)
        if kind == "integer":
            factors = _factors(schema.data_type, data_type)
            if factors is not None:
                return self._plan.add_node(EncodeOp.INTEGER, column, path, schema.data_type.bit_width, factors=factors)
        elif kind == "number" and types.is_floating(data_type):
            return self._plan.add_node(EncodeOp.NUMBER, column, path)
        elif kind == "number" and types.is_integer(data_type):
            return self._plan.add_node(EncodeOp.INTEGER, column, path, 64)
        elif kind in ("number", "decimal") and types.is_decimal(data_type):
            return self._decimal(schema, column, data_type, path)
        elif kind == "string" and (types.is_string(data_type) or types.is_binary(data_type)):
            return self._plan.add_node(EncodeOp.STRING, column, path)
        elif kind == "bytes" and (
            types.is_string(data_type) or types.is_binary(data_type) or types.is_fixed_size_binary(data_type)
        ):
            return self._plan.add_node(EncodeOp.BYTES, column, path)
        raise self._error(schema, data_type, path)

    def _decimal(self, schema: json_types.ScalarType, column: int, data_type: pa.DataType, path: str) -> int:
        target = schema.data_type if schema.kind == "decimal" else data_type
        if data_type.scale != target.scale or data_type.scale < 0 or data_type.bit_width not in (128, 256):
            raise self._error(schema, data_type, path)
        limit = self._plan.add_constant(decimal_limit(target.precision))
        return self._plan.add_node(EncodeOp.DECIMAL, column, path, data_type.scale, [limit])

    def _error(self, schema: JsonSchema, data_type: pa.DataType, path: str) -> SchemaError:
        where = f"column {path}: " if path else ""
        return SchemaError(
            f"{where}Arrow type {data_type} cannot be written as JSON {describe(schema)}; cast the column"
        )


def _factors(target: pa.DataType, data_type: pa.DataType) -> tuple[int, int] | None:
    """Return what to multiply an integer or time by, and then to divide by; None if the types do not fit."""
    types = pa.types
    if types.is_integer(data_type):
        return (1, 1)
    if types.is_date32(target):
        return (1, 1) if types.is_date32(data_type) else None
    is_time = types.is_time(target) and types.is_time(data_type)
    # A time without a zone is none of UTC.
    is_timestamp = types.is_timestamp(target) and types.is_timestamp(data_type) and data_type.tz is not None
    if not is_time and not is_timestamp:
        return None
    ours, theirs = _PER_SECOND[target.unit], _PER_SECOND[data_type.unit]
    return (ours // theirs, 1) if ours >= theirs else (1, theirs // ours)
