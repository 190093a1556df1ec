"""Plans to decode Protobuf: how bytes of a message become columns.

    schema, message, reader's schema, names of columns → plan_decoding → DecodePlan → _protobuf.PlanDecoder

Values are decoded by the reader's message: fields are matched by number. The writer's message is compared with it, so
that a field whose type was changed to one of another encoding is an error here, and not silently absent.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema._plan.layout import decimal_limit
from headrace.schema._protobuf.layout import ONEOFS_MAX, Op, Presence, WireType, pack
from headrace.schema.codec import DecodePlan, fields_of, join_path
from headrace.schema.protobuf_schema import FieldDefinition, MessageDefinition, ProtobufSchema
from headrace.schema.protobuf_types import FieldType, ValueType, map_parts, resolve_message, struct_type

_OPS = {
    **dict.fromkeys(("int32", "sfixed32", "float"), Op.INT32),
    **dict.fromkeys(("int64", "sfixed64", "double"), Op.INT64),
    **dict.fromkeys(("uint32", "fixed32"), Op.UINT32),
    **dict.fromkeys(("uint64", "fixed64"), Op.UINT64),
    "bool": Op.BOOLEAN,
    "sint32": Op.SINT32,
    "sint64": Op.SINT64,
    "string": Op.STRING,
    "bytes": Op.BYTES,
    "message": Op.MESSAGE,
    "group": Op.MESSAGE,
    "wrapper": Op.MESSAGE,
    "opaque": Op.OPAQUE,
    "timestamp": Op.TIME,
    "duration": Op.TIME,
    "decimal": Op.DECIMAL,
}
_WIRE_TYPES = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), WireType.VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), WireType.FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), WireType.FIXED32),
    "group": WireType.GROUP,
}
_ENCODINGS = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag varint"),
    **dict.fromkeys(("fixed32", "sfixed32"), "32 bits"),
    **dict.fromkeys(("fixed64", "sfixed64"), "64 bits"),
    **dict.fromkeys(("string", "bytes", "message"), "bytes"),
}
"""Types with the same encoding can be read as each other; types that are not here as themselves only."""


def wire_type(kind: str) -> WireType:
    """Return the wire type of a scalar type, "message" or "group"."""
    return _WIRE_TYPES.get(kind, WireType.BYTES)


def plan_decoding(
    schema: ProtobufSchema, message: MessageDefinition, columns: Sequence[str] | None = None
) -> DecodePlan:
    """Return the plan to decode a message; `columns` chooses fields."""
    fields = resolve_message(schema, message, columns)
    plan = DecodePlan(struct_type(fields))
    _Planner(plan, schema).message(fields, message, 0, "")
    return plan


class _Planner:
    def __init__(self, plan: DecodePlan, schema: ProtobufSchema) -> None:
        self._plan = plan
        self._schema = schema
        self._enums: dict[str, tuple[int, ...]] = {}  # constants by full name

    def message(self, fields: Sequence[FieldType], message: MessageDefinition, column: int, path: str) -> int:
        """Add the nodes of a message and its fields; return the index of the message's."""
        children = self._plan.columns[column].children
        oneofs = {entry.definition.oneof for entry in fields if entry.definition.is_in_oneof}
        numbers = {oneof: number for number, oneof in enumerate(sorted(oneofs))}
        if len(numbers) > ONEOFS_MAX:
            raise SchemaError(f"Protobuf message {message.full_name} has more than {ONEOFS_MAX:,} oneofs")
        nodes: list[tuple[int, int]] = []
        for entry, child in zip(fields, children, strict=True):
            oneof = numbers[entry.definition.oneof] if entry.definition.is_in_oneof else -1
            name = entry.definition.name
            node = self._field(entry, child, oneof, join_path(path, name))
            nodes.append((entry.definition.number, node))
        chosen = {number for number, _ in nodes}
        for definition in message.fields:
            # A member that is not decoded clears the others all the same.
            if definition.is_in_oneof and definition.oneof in numbers and definition.number not in chosen:
                tag = definition.number << 3 | wire_type(definition.type)
                size = pack(tag, Presence.EXPLICIT, numbers[definition.oneof])
                nodes.append((definition.number, self._plan.add_node(Op.SKIP, -1, path, size)))
        return self._plan.add_node(Op.FIELDS, column, path, len(numbers), [node for _, node in sorted(nodes)])

    def _field(self, entry: FieldType, column: int, oneof: int, path: str) -> int:
        definition = entry.definition
        number = definition.number << 3
        if entry.key is not None:
            (entries,) = self._plan.columns[column].children
            key_column, value_column = self._plan.columns[entries].children
            key_wire, value_wire = wire_type(entry.key.kind), wire_type(entry.value.kind)
            key = self._value(entry.key, key_column, pack(1 << 3 | key_wire, Presence.IMPLICIT), path)
            value = self._value(entry.value, value_column, pack(2 << 3 | value_wire, Presence.IMPLICIT), path)
            parts = self._plan.add_node(Op.FIELDS, -1, path, 0, [key, value])
            size = pack(number | WireType.BYTES, Presence.IMPLICIT)
            return self._plan.add_node(Op.MAP, column, path, size, [parts, 1 + _cells(entry.value.arrow_type)])
        wire = wire_type(definition.type)
        if definition.is_repeated:
            (items,) = self._plan.columns[column].children
            item = self._value(entry.value, items, pack(number | wire, Presence.IMPLICIT), path)
            size = pack(number | (WireType.BYTES if definition.is_packed else wire), Presence.IMPLICIT)
            return self._plan.add_node(Op.LIST, column, path, size, [item, _cells(entry.value.arrow_type) - 1])
        presence = Presence.EXPLICIT if definition.has_presence else Presence.IMPLICIT
        if definition.label == "required":
            presence = Presence.REQUIRED
        return self._value(entry.value, column, pack(number | wire, presence, oneof), path)

    def _value(self, value: ValueType, column: int, size: int, path: str) -> int:
        if value.kind == "enum":
            enum = self._schema.enums[value.type_name]
            op = Op.CLOSED_ENUM if enum.is_closed else Op.ENUM
            return self._plan.add_node(op, column, path, size, self._enum(value.type_name))
        children: list[int] = []
        if value.kind in ("message", "group"):
            children = [self.message(value.fields, self._schema.messages[value.type_name], column, path)]
        elif value.kind == "wrapper":
            inner = pack(1 << 3 | wire_type(value.scalar), Presence.IMPLICIT)
            node = self._value(ValueType(value.scalar, value.arrow_type), column, inner, path)
            children = [self._plan.add_node(Op.FIELDS, -1, path, 0, [node])]
        elif value.kind in ("timestamp", "duration"):
            children = [self._parts(path, ("int64", "int32"))]
        elif value.kind == "decimal":
            limit = self._plan.add_constant(decimal_limit(value.precision))
            children = [self._parts(path, ("bytes", "uint32", "int32")), limit, value.scale]
        return self._plan.add_node(_OPS[value.kind], column, path, size, children)

    def _parts(self, path: str, kinds: Sequence[str]) -> int:
        """Add a message whose fields, numbered from 1 on, are combined to one value."""
        nodes = [
            self._plan.add_node(_OPS[kind], -1, path, pack(number << 3 | wire_type(kind), Presence.IMPLICIT))
            for number, kind in enumerate(kinds, 1)
        ]
        return self._plan.add_node(Op.FIELDS, -1, path, 0, nodes)

    def _enum(self, name: str) -> tuple[int, ...]:
        """Return the children of an enum's node: numbers, default, names. Of names with the same number, the first."""
        if name not in self._enums:
            enum = self._schema.enums[name]
            names: dict[int, str] = {}
            for value in enum.values:
                names.setdefault(value.number, value.name)
            numbers = sorted(names)
            constants = [self._plan.add_constant(names[number].encode()) for number in numbers]
            packed = self._plan.add_constant(struct.pack(f"={len(numbers)}i", *numbers))
            self._enums[name] = (packed, enum.values[0].number, *constants)
        return self._enums[name]


def _cells(data_type: pa.DataType) -> int:
    """Return how many columns get a value for each value of a type."""
    return 1 + sum(_cells(field.type) for field in fields_of(data_type) if pa.types.is_struct(data_type))


# -- evolution -------------------------------------------------------------------------------------


def find_reader_message(
    reader: ProtobufSchema, writer_message: MessageDefinition, name: str | None = None
) -> MessageDefinition:
    """Return the reader's message: the named one, else that of the writer's name, else the only one of the file."""
    if name is not None:
        return reader.message(name)
    message = reader.messages.get(writer_message.full_name)
    if message is None and len(reader.file.messages) == 1:
        message = reader.file.messages[0]
    if message is None:
        raise SchemaError(f"the reader's Protobuf schema has no message {writer_message.full_name}; name its message")
    return message


def check_readable(
    writer: tuple[ProtobufSchema, MessageDefinition], reader: tuple[ProtobufSchema, MessageDefinition]
) -> None:
    """Raise a SchemaError if a field has types in two messages that cannot be read as each other."""
    _check_messages(writer, reader, "", set())


def _check_messages(
    writer: tuple[ProtobufSchema, MessageDefinition],
    reader: tuple[ProtobufSchema, MessageDefinition],
    path: str,
    checked: set[tuple[str, str]],
) -> None:
    pair = (writer[1].full_name, reader[1].full_name)
    if pair in checked:
        return
    checked.add(pair)
    ours = {entry.number: entry for entry in reader[1].fields}
    for theirs in writer[1].fields:
        entry = ours.get(theirs.number)
        if entry is None:
            continue
        name = join_path(path, entry.name)
        problem = _field_problem(theirs, entry) or _map_problem(writer[0], theirs, reader[0], entry)
        if problem:
            raise SchemaError(
                f"field {name} = {entry.number} of Protobuf message {pair[1]} cannot be read: {problem}; "
                f"use another number for a new type"
            )
        if theirs.type == entry.type and theirs.type in ("message", "group"):
            inner = writer[0].messages[theirs.type_name], reader[0].messages[entry.type_name]
            _check_messages((writer[0], inner[0]), (reader[0], inner[1]), name, checked)


def _field_problem(theirs: FieldDefinition, ours: FieldDefinition) -> str:
    """Return why values of a field cannot be read as those of another; empty if they can."""
    if _ENCODINGS.get(theirs.type, theirs.type) != _ENCODINGS.get(ours.type, ours.type) or (
        {theirs.type, ours.type} == {"string", "message"}
    ):
        return f"it was written as {theirs.type}, and is read as {ours.type}"
    if theirs.is_packed and not ours.is_repeated:
        return "it was written as a packed list, and is read as one value"
    return ""


def _map_problem(writer: ProtobufSchema, theirs: FieldDefinition, reader: ProtobufSchema, ours: FieldDefinition) -> str:
    is_map = map_parts(writer, theirs) is not None, map_parts(reader, ours) is not None
    return "one of the schemas has a map" if is_map[0] != is_map[1] and theirs.type == ours.type == "message" else ""
