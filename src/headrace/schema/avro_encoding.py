"""How Arrow columns become Avro values, as a plan for the kernel.

    schema, Arrow type → plan_encoding → EncodePlan → AvroEncoder

Columns are matched with fields by name. A type that never fits is an error here. What fits for some values only is
checked for each row: null where there is no null, integers out of range, long decimals, unknown symbols.
Times of another unit are converted: to a coarser one rounding down, as Spark does.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema import avro_schema as avro
from headrace.schema._avro.layout import EncodeOp, zigzag
from headrace.schema._plan.layout import decimal_limit
from headrace.schema.avro_defaults import encode_default
from headrace.schema.avro_schema import AvroSchema, describe
from headrace.schema.codec import EncodePlan, column_names, join_path, shorten

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LOGICAL_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


def plan_encoding(schema: AvroSchema, data_type: pa.DataType) -> EncodePlan:
    """Return the plan to encode values of an Arrow type."""
    plan = EncodePlan()
    _Planner(plan).root(schema, data_type)
    return plan


class _Planner:
    def __init__(self, plan: EncodePlan) -> None:
        self._plan = plan

    def root(self, schema: AvroSchema, data_type: pa.DataType) -> None:
        column, readable = self._plan.add_source(-1, 0, data_type)
        self._value(schema, column, readable, "")

    def _value(self, schema: AvroSchema, column: int, data_type: pa.DataType, path: str) -> int:
        """Add the nodes that encode a column; return the index of the last."""
        if isinstance(schema, avro.UnionType):
            return self._union(schema, column, data_type, path)
        if isinstance(schema, avro.RecordType):
            return self._record(schema, column, data_type, path)
        if isinstance(schema, avro.ArrayType) and pa.types.is_list(data_type):
            items, item_type = self._plan.add_source(column, "values", data_type.value_type)
            child = self._value(schema.items, items, item_type, f"{path}[]")
            return self._plan.add_node(EncodeOp.ARRAY, column, path, children=[child])
        if isinstance(schema, avro.MapType) and pa.types.is_map(data_type):
            keys, key_type = self._plan.add_source(column, "keys", data_type.key_type)
            items, item_type = self._plan.add_source(column, "items", data_type.item_type)
            children = [
                self._value(avro.PrimitiveType("string"), keys, key_type, f"{path}{{}}"),
                self._value(schema.values, items, item_type, f"{path}{{}}"),
            ]
            return self._plan.add_node(EncodeOp.MAP, column, path, children=children)
        if isinstance(schema, avro.EnumType) and pa.types.is_string(data_type):
            symbols = [self._plan.add_constant(symbol.encode()) for symbol in schema.symbols]
            return self._plan.add_node(EncodeOp.ENUM, column, path, children=symbols)
        if isinstance(schema, avro.FixedType):
            return self._fixed(schema, column, data_type, path)
        if isinstance(schema, avro.PrimitiveType):
            return self._primitive(schema, column, data_type, path)
        raise self._error(schema, data_type, path)

    def _union(self, schema: avro.UnionType, column: int, data_type: pa.DataType, path: str) -> int:
        null_index, members = schema.null_index, schema.members
        if pa.types.is_null(data_type) and null_index >= 0:
            return self._plan.add_node(EncodeOp.CONSTANT, column, path, self._plan.add_constant(zigzag(null_index)))
        if len(members) > 1 and pa.types.is_struct(data_type):
            names = [entry.name for entry in data_type]
            if names == [f"member{i}" for i in range(len(members))]:
                children = []
                for i, index in enumerate(members):
                    member, member_type = self._plan.add_source(column, i, data_type.field(i).type)
                    child = self._value(schema.branches[index], member, member_type, path)
                    children.append(self._plan.add_node(EncodeOp.BRANCH, member, path, index, [child]))
                return self._plan.add_node(EncodeOp.MEMBERS, column, path, null_index, children)
        for index in members:
            try:
                with self._plan.attempt():
                    child = self._value(schema.branches[index], column, data_type, path)
            except SchemaError:
                if len(members) == 1:
                    raise
                continue
            if null_index < 0:
                return self._plan.add_node(EncodeOp.BRANCH, column, path, index, [child])
            return self._plan.add_node(EncodeOp.NULLABLE, column, path, null_index, [child], factors=(index, 1))
        raise self._error(schema, data_type, path)

    def _record(self, schema: avro.RecordType, column: int, data_type: pa.DataType, path: str) -> int:
        if not pa.types.is_struct(data_type):
            raise self._error(schema, data_type, path)
        names = column_names(data_type, schema.fields, f"fields of Avro record {schema.name}")
        children = []
        for entry in schema.fields:
            inner = join_path(path, entry.name)
            if entry.name in names:
                index = names.index(entry.name)
                child, child_type = self._plan.add_source(column, index, data_type.field(index).type)
                children.append(self._value(entry.type, child, child_type, inner))
            elif isinstance(entry.default, avro.NoDefault):
                raise SchemaError(
                    f"no column for field {inner} of the Avro schema, which has no default; add the column"
                )
            else:
                constant = self._plan.add_constant(encode_default(entry.type, entry.default))
                children.append(self._plan.add_node(EncodeOp.CONSTANT, column, inner, constant))
        return self._plan.add_node(EncodeOp.RECORD, column, path, children=children)

    def _fixed(self, schema: avro.FixedType, column: int, data_type: pa.DataType, path: str) -> int:
        if schema.logical is not None and schema.logical.name == "decimal" and pa.types.is_decimal(data_type):
            return self._decimal(schema, column, data_type, path)
        if pa.types.is_binary(data_type) or (
            pa.types.is_fixed_size_binary(data_type) and data_type.byte_width == schema.size
        ):
            return self._plan.add_node(EncodeOp.FIXED, column, path, schema.size)
        raise self._error(schema, data_type, path)

    def _decimal(
        self, schema: avro.PrimitiveType | avro.FixedType, column: int, data_type: pa.DataType, path: str
    ) -> int:
        logical = schema.logical
        assert logical is not None
        if data_type.scale != logical.scale or data_type.bit_width not in (128, 256):
            raise self._error(schema, data_type, path)
        limit = self._plan.add_constant(decimal_limit(logical.precision))
        if isinstance(schema, avro.FixedType):
            return self._plan.add_node(EncodeOp.DECIMAL_FIXED, column, path, schema.size, [limit])
        return self._plan.add_node(EncodeOp.DECIMAL_BYTES, column, path, 0, [limit])

    def _primitive(self, schema: avro.PrimitiveType, column: int, data_type: pa.DataType, path: str) -> int:
        types, kind, logical = pa.types, schema.kind, schema.logical
        if kind in ("int", "long"):
            op = EncodeOp.INT if kind == "int" else EncodeOp.LONG
            factors = _factors(logical.name if logical else "", data_type)
            if factors is not None:
                return self._plan.add_node(op, column, path, factors=factors)
        elif kind == "null" and types.is_null(data_type):
            return self._plan.add_node(EncodeOp.NULL, column, path)
        elif kind == "boolean" and types.is_boolean(data_type):
            return self._plan.add_node(EncodeOp.BOOLEAN, column, path)
        elif kind == "float" and types.is_float32(data_type):
            return self._plan.add_node(EncodeOp.FLOAT, column, path)
        elif kind == "double" and types.is_float64(data_type):
            return self._plan.add_node(EncodeOp.DOUBLE, column, path)
        elif kind == "double" and types.is_float32(data_type):
            return self._plan.add_node(EncodeOp.FLOAT_TO_DOUBLE, column, path)
        elif kind == "bytes" and logical is not None and types.is_decimal(data_type):
            return self._decimal(schema, column, data_type, path)
        elif kind in ("bytes", "string") and (types.is_string(data_type) or types.is_binary(data_type)):
            checked = kind == "string" and types.is_binary(data_type)
            return self._plan.add_node(EncodeOp.STRING if checked else EncodeOp.BYTES, column, path)
        raise self._error(schema, data_type, path)

    def _error(self, schema: AvroSchema, data_type: pa.DataType, path: str) -> SchemaError:
        where = f"column {path}: " if path else ""
        return SchemaError(
            f"{where}Arrow type {shorten(str(data_type))} cannot be written as Avro {shorten(describe(schema))}; "
            f"cast the column"
        )


def _factors(logical: str, data_type: pa.DataType) -> tuple[int, int] | None:
    """Return what to multiply an integer or time by, and then to divide by; None if the types do not fit."""
    types = pa.types
    if types.is_integer(data_type):
        return (1, 1)
    if logical in ("", "date"):
        return (1, 1) if logical and types.is_date32(data_type) else None
    kind, _, unit = logical.rpartition("-")
    fits = types.is_time(data_type) if kind == "time" else types.is_timestamp(data_type)
    # A time without a zone is none of UTC, and the other way round.
    if not fits or (kind != "time" and (data_type.tz is None) != (kind == "local-timestamp")):
        return None
    ours, theirs = _PER_SECOND[_LOGICAL_UNITS[unit]], _PER_SECOND[data_type.unit]
    return (ours // theirs, 1) if ours >= theirs else (1, theirs // ours)
