"""Random Protobuf schemas with messages of Google's library, and what Arrow has for them."""

from __future__ import annotations

import datetime
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import DESCRIPTOR as DURATION
from google.protobuf.struct_pb2 import DESCRIPTOR as STRUCT
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS

from headrace.schema.protobuf import ProtobufSchema, parse_schema, to_descriptor

SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
    *("sfixed32", "sfixed64", "bool", "string", "bytes"),
)
KEYS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "sfixed64", "bool", "string")
WRAPPED = [f"google.protobuf.{kind}Value" for kind in ("Double", "UInt64", "Int32", "Bool", "String", "Bytes")]
NUMBERS = [*range(1, 30), 1000, 2047, 2048, 300_000, (1 << 29) - 1]
IMPORTED = ("timestamp", "duration", "wrappers", "struct")
IMPORTS = "".join(f'import "google/protobuf/{name}.proto";\n' for name in IMPORTED)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TEXTS = ("", "a", "Reykjavík", "\U0001f600" * 3, "x" * 130)


@dataclass(slots=True)
class RandomSchema:
    text: str
    schema: ProtobufSchema
    message_type: type[Any]


def message_class(schema: ProtobufSchema, name: str | None = None) -> type[Any]:
    """Return Google's class of a message, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for builtin in (TIMESTAMP, DURATION, WRAPPERS, STRUCT):
        pool.AddSerializedFile(builtin.serialized_pb)
    for imported in schema.imports:
        if not imported.startswith("google/protobuf/"):
            pool.AddSerializedFile(to_descriptor(schema, imported))
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(to_descriptor(schema)))
    found: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(schema.message(name).full_name))
    return found


def random_schema(chance: random.Random, *, plain: bool = False) -> RandomSchema:
    """Make a schema of a few messages; the last one is the root, and uses the others.

    A plain one has no maps, times and messages as bytes.
    """
    syntax = chance.choice(["proto2", "proto3"])
    first = chance.choice([0, -3, 7]) if syntax == "proto2" and plain else 0  # enums in maps begin with 0
    lines = [f'syntax = "{syntax}";\n{IMPORTS}package random;\nenum E {{ E0 = {first}; E1 = 1; E5 = 5; EN = -1; }}']
    messages: list[str] = []
    for index in range(chance.randint(1, 3)):
        lines.append(_message(chance, f"M{index}", messages, syntax, plain))
        messages.append(f"M{index}")
    text = "\n".join(lines)
    schema = parse_schema(text, name="random.proto")
    return RandomSchema(text, schema, message_class(schema, messages[-1]))


def _message(chance: random.Random, name: str, messages: Sequence[str], syntax: str, plain: bool) -> str:
    numbers = chance.sample(NUMBERS, chance.randint(0, 8))
    lines = []
    oneof: list[str] = []
    for index, number in enumerate(numbers):
        field = f"f{index}"
        kinds = [*SCALARS, "E", "E", *WRAPPED[:2]] + [message for message in messages for _ in range(4)]
        if not plain:
            kinds += ["google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.Struct", *WRAPPED]
        kind = chance.choice(kinds)
        action = chance.randrange(7)
        label = "" if syntax == "proto3" else "optional "
        if action == 0 and not plain:
            lines.append(f"map<{chance.choice(KEYS)}, {kind}> {field} = {number};")
        elif action == 1:
            oneof.append(f"{kind} {field} = {number};")
        elif action in (2, 3):
            is_packable = kind in SCALARS[:-2] or kind == "E"
            option = chance.choice(["", " [packed = true]", " [packed = false]"]) if is_packable else ""
            lines.append(f"repeated {kind} {field} = {number}{option};")
        elif action == 4:
            lines.append(f"{'optional' if syntax == 'proto3' else 'required'} {kind} {field} = {number};")
        elif action == 5 and syntax == "proto2":
            label = chance.choice(["optional", "repeated"])
            lines.append(f"{label} group G{index} = {number} {{ optional {chance.choice(SCALARS)} x = 3; }}")
        else:
            lines.append(f"{label}{kind} {field} = {number};")
    if oneof:
        lines.append(f"oneof choice {{ {' '.join(oneof)} }}")
    return f"message {name} {{\n  " + "\n  ".join(lines) + "\n}"


# -- messages --------------------------------------------------------------------------------------


def fill(message: Any, chance: random.Random) -> Any:
    """Set random fields of a message, the required ones always."""
    name = message.DESCRIPTOR.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        sign = chance.choice([1, -1]) if name.endswith("Duration") else 1
        message.seconds = sign * chance.choice([0, 1, 127, 10**9, chance.randrange(10**10)])
        message.nanos = sign * chance.choice([0, 1000, 999_999_000])
        return message
    if name == "google.protobuf.Struct":
        if chance.random() < 0.5:
            message["a"] = chance.choice([None, 1.5, "text", [1, True]])
        return message
    for field in message.DESCRIPTOR.fields:
        if field.is_required or chance.random() < 0.7:
            _fill_field(message, field, chance)
    return message


def _fill_field(message: Any, field: FieldDescriptor, chance: random.Random) -> None:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, item = field.message_type.fields
        for _ in range(chance.randrange(4)):
            if item.message_type is not None:
                fill(value[_scalar(key, chance)], chance)
            else:
                value[_scalar(key, chance)] = _scalar(item, chance)
    elif field.is_repeated:
        for _ in range(chance.randrange(4)):
            if field.message_type is not None:
                fill(value.add(), chance)
            else:
                value.append(_scalar(field, chance))
    elif field.message_type is not None:
        value.SetInParent()
        fill(value, chance)
    else:
        setattr(message, field.name, _scalar(field, chance))


def _scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    kind = field.type
    if kind == field.TYPE_BOOL:
        return chance.random() < 0.5
    if kind == field.TYPE_STRING:
        return chance.choice(TEXTS)
    if kind == field.TYPE_BYTES:
        return chance.choice([b"", b"\xff\0", bytes(200)])
    if kind == field.TYPE_DOUBLE:
        return chance.choice([0.0, -0.0, 1.5, -1e300, float("inf"), chance.random()])
    if kind == field.TYPE_FLOAT:
        return struct.unpack("<f", struct.pack("<f", chance.choice([0.0, -0.0, 0.1, 1e30, -chance.random()])))[0]
    if kind == field.TYPE_ENUM:
        numbers = [value.number for value in field.enum_type.values]
        return chance.choice(numbers if field.enum_type.is_closed else [*numbers, 77, -(2**31)])
    bits = 32 if "32" in _type_name(field) else 64
    is_unsigned = kind in (field.TYPE_UINT32, field.TYPE_UINT64, field.TYPE_FIXED32, field.TYPE_FIXED64)
    low, high = (0, (1 << bits) - 1) if is_unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return chance.choice([0, 1, low, high, 127, 128, chance.randint(low, high)])


def _type_name(field: FieldDescriptor) -> str:
    name: str = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
    return name


def arrow_value(message: Any) -> Any:
    """Return a message as Arrow has it, with maps as dicts."""
    descriptor = message.DESCRIPTOR
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return EPOCH + datetime.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    if name == "google.protobuf.Duration":
        return datetime.timedelta(seconds=message.seconds, microseconds=int(message.nanos / 1000))
    if name == "google.protobuf.Struct":
        return message.SerializeToString(deterministic=True)
    if descriptor.file.name == "google/protobuf/wrappers.proto":
        return _scalar_value(descriptor.fields[0], message.value)
    return {field.name: _field_value(message, field) for field in descriptor.fields}


def _field_value(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, item = field.message_type.fields
        return {_scalar_value(key, k): _item_value(item, v) for k, v in value.items()}
    if field.is_repeated:
        return [_item_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _item_value(field, value)


def _item_value(field: FieldDescriptor, value: Any) -> Any:
    return arrow_value(value) if field.message_type is not None else _scalar_value(field, value)


def _scalar_value(field: FieldDescriptor, value: Any) -> Any:
    if field.type == field.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64) else value
