"""Plans to encode Protobuf: how columns of an Arrow type become a message.

    schema, message, Arrow type → plan_encoding → EncodePlan → _protobuf.PlanEncoder

Columns are matched with fields by name. A field without a column is not written. Fields are written by number, as
Google's libraries do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema._plan.layout import decimal_limit
from headrace.schema._protobuf.layout import EncodeOp, Presence, WireType, pack
from headrace.schema.codec import EncodePlan, column_names, join_path, shorten
from headrace.schema.protobuf_decoding import wire_type
from headrace.schema.protobuf_schema import FieldDefinition, MessageDefinition, ProtobufSchema
from headrace.schema.protobuf_types import DECIMAL, ValueType, map_parts, special_type

_INTEGER_OPS = {
    **dict.fromkeys(("int32", "sfixed32"), EncodeOp.INT32),
    **dict.fromkeys(("int64", "sfixed64"), EncodeOp.INT64),
    **dict.fromkeys(("uint32", "fixed32"), EncodeOp.UINT32),
    **dict.fromkeys(("uint64", "fixed64"), EncodeOp.UINT64),
    "sint32": EncodeOp.SINT32,
    "sint64": EncodeOp.SINT64,
    "enum": EncodeOp.INT32,
}
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def plan_encoding(schema: ProtobufSchema, message: MessageDefinition, data_type: pa.DataType) -> EncodePlan:
    """Return the plan to encode columns of a struct type as a message."""
    if not pa.types.is_struct(data_type):
        raise SchemaError(f"a Protobuf message is encoded from an Arrow struct, not from {data_type}")
    plan = EncodePlan()
    column, data_type = plan.add_source(-1, 0, data_type)
    _Planner(plan, schema).message(message, column, data_type, "")
    return plan


class _Planner:
    def __init__(self, plan: EncodePlan, schema: ProtobufSchema) -> None:
        self._plan = plan
        self._schema = schema

    def message(self, message: MessageDefinition, column: int, data_type: pa.DataType, path: str) -> int:
        """Add the nodes of a message and its fields; return the index of the message's."""
        names = column_names(data_type, message.fields, f"fields of Protobuf message {message.full_name}")
        fields: list[int] = []
        members: dict[int, list[int]] = {}
        for entry in sorted(message.fields, key=lambda entry: entry.number):
            inner = join_path(path, entry.name)
            index = names.index(entry.name) if entry.name in names else -1
            if index < 0 or pa.types.is_null(data_type.field(index).type):
                if entry.label == "required":
                    raise SchemaError(f"no column for field {inner} of the Protobuf schema, which is required; add it")
                continue
            child, child_type = self._plan.add_source(column, index, data_type.field(index).type)
            node = self._field(entry, child, child_type, inner)
            fields.append(node)
            if entry.is_in_oneof:
                members.setdefault(entry.oneof, []).append(node)
        oneofs = [
            self._add(EncodeOp.ONEOF, column, join_path(path, name), 0, nodes)
            for name, nodes in ((message.oneofs[oneof], nodes) for oneof, nodes in members.items())
            if len(nodes) > 1
        ]
        return self._add(EncodeOp.FIELDS, column, path, 0, [*oneofs, *fields])

    def _field(self, entry: FieldDefinition, column: int, data_type: pa.DataType, path: str) -> int:
        number = entry.number << 3
        parts = map_parts(self._schema, entry)
        if parts is not None:
            return self._map(entry, parts, column, data_type, path)
        if entry.is_repeated:
            if not pa.types.is_list(data_type):
                raise self._error(entry, data_type, path)
            item, item_type = self._plan.add_source(column, "values", data_type.value_type)
            presence = Presence.PACKED if entry.is_packed else Presence.REQUIRED
            child = self._value(entry, item, item_type, pack(number | wire_type(entry.type), presence), path)
            op = EncodeOp.PACKED_LIST if entry.is_packed else EncodeOp.LIST
            return self._add(op, column, path, pack(number | WireType.BYTES, Presence.IMPLICIT), [child])
        presence = Presence.EXPLICIT if entry.has_presence else Presence.IMPLICIT
        if entry.label == "required":
            presence = Presence.REQUIRED
        return self._value(entry, column, data_type, pack(number | wire_type(entry.type), presence), path)

    def _map(
        self,
        entry: FieldDefinition,
        parts: tuple[FieldDefinition, FieldDefinition],
        column: int,
        data_type: pa.DataType,
        path: str,
    ) -> int:
        if not pa.types.is_map(data_type):
            raise self._error(entry, data_type, path)
        nodes = []
        for part, child, child_type in zip(
            parts, ("keys", "items"), (data_type.key_type, data_type.item_type), strict=True
        ):
            source, readable = self._plan.add_source(column, child, child_type)
            size = pack(part.number << 3 | wire_type(part.type), Presence.REQUIRED)
            nodes.append(self._value(part, source, readable, size, path))
        return self._add(EncodeOp.MAP, column, path, pack(entry.number << 3 | WireType.BYTES, Presence.IMPLICIT), nodes)

    def _value(self, entry: FieldDefinition, column: int, data_type: pa.DataType, size: int, path: str) -> int:
        types, value = pa.types, special_type(entry)
        if entry.type_name == DECIMAL and types.is_struct(data_type):
            value = None  # a decimal as a struct with its parts
        elif entry.type_name == DECIMAL and value is None and types.is_decimal(data_type):
            value = ValueType("decimal", data_type, DECIMAL, precision=data_type.precision, scale=data_type.scale)
        if value is None:
            if not types.is_struct(data_type):
                raise self._error(entry, data_type, path)
            message = self._schema.messages[entry.type_name]
            op = EncodeOp.GROUP if entry.type == "group" else EncodeOp.MESSAGE
            return self._add(op, column, path, size, [self.message(message, column, data_type, path)])
        if value.kind == "wrapper":
            inner = pack(1 << 3 | wire_type(value.scalar), Presence.IMPLICIT)
            scalar = FieldDefinition("value", 1, type=value.scalar)
            node = self._scalar(scalar, column, data_type, inner, path)
            fields = self._add(EncodeOp.FIELDS, column, path, 0, [node])
            return self._add(EncodeOp.MESSAGE, column, path, size, [fields])
        if value.kind in ("timestamp", "duration"):
            is_duration = value.kind == "duration"
            fits = types.is_duration(data_type) if is_duration else types.is_timestamp(data_type) and data_type.tz
            if not fits:
                raise self._error(entry, data_type, path)
            return self._add(EncodeOp.TIME, column, path, size, factors=(_UNITS[data_type.unit], int(is_duration)))
        if value.kind == "decimal":
            is_decimal = types.is_decimal(data_type) and data_type.bit_width in (128, 256)
            if not is_decimal or data_type.scale != value.scale:
                raise self._error(entry, data_type, path)
            limit = self._plan.add_constant(decimal_limit(value.precision))
            return self._add(EncodeOp.DECIMAL, column, path, size, [limit], factors=(value.scale, 0))
        if value.kind == "opaque":
            if not types.is_binary(data_type):
                raise self._error(entry, data_type, path)
            return self._add(EncodeOp.BYTES, column, path, size)
        return self._scalar(entry, column, data_type, size, path)

    def _scalar(self, entry: FieldDefinition, column: int, data_type: pa.DataType, size: int, path: str) -> int:
        types, kind = pa.types, entry.type
        is_text, is_binary = types.is_string(data_type), types.is_binary(data_type)
        if kind in _INTEGER_OPS and types.is_integer(data_type):
            return self._add(_INTEGER_OPS[kind], column, path, size)
        if kind in ("uint64", "fixed64") and types.is_decimal128(data_type) and data_type.scale == 0:
            return self._add(EncodeOp.UINT64, column, path, size)
        if kind == "enum" and is_text:
            enum = self._schema.enums[entry.type_name]
            op = EncodeOp.CLOSED_ENUM if enum.is_closed else EncodeOp.ENUM
            return self._add(op, column, path, size, self._enum(entry.type_name))
        if kind == "bool" and types.is_boolean(data_type):
            return self._add(EncodeOp.BOOLEAN, column, path, size)
        if kind == "float" and types.is_float32(data_type):
            return self._add(EncodeOp.FLOAT, column, path, size)
        if kind == "double" and types.is_floating(data_type):
            op = EncodeOp.DOUBLE if types.is_float64(data_type) else EncodeOp.FLOAT_TO_DOUBLE
            return self._add(op, column, path, size)
        if kind in ("string", "bytes") and (is_text or is_binary):
            is_checked = kind == "string" and is_binary
            return self._add(EncodeOp.STRING if is_checked else EncodeOp.BYTES, column, path, size)
        raise self._error(entry, data_type, path)

    def _enum(self, name: str) -> list[int]:
        """Return the children of an enum's node: the numbers in the order of the names, and the names."""
        values = sorted((value.name.encode(), value.number) for value in self._schema.enums[name].values)
        numbers = self._plan.add_constant(struct.pack(f"={len(values)}i", *(number for _, number in values)))
        return [numbers, *(self._plan.add_constant(text) for text, _ in values)]

    def _add(
        self,
        op: EncodeOp,
        column: int,
        path: str,
        size: int,
        children: Sequence[int] = (),
        *,
        factors: tuple[int, int] = (0, 0),
    ) -> int:
        return self._plan.add_node(op, column, path, size, children, factors=factors)

    def _error(self, entry: FieldDefinition, data_type: pa.DataType, path: str) -> SchemaError:
        kind = f"repeated {entry.type_name or entry.type}" if entry.is_repeated else entry.type_name or entry.type
        return SchemaError(
            f"column {path}: Arrow type {shorten(str(data_type))} cannot be written as Protobuf {kind}; cast the column"
        )
