"""Single Python values as Protobuf messages: a function for each field of the message.

    ProtobufSchema, message → value_encoder → dict → bytes

The bytes are those of `ProtobufEncoder` for a column of one row: fields by number, those that are None or missing not
written, nor those without presence that have their default. An enum is a name or a number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from headrace.schema import values
from headrace.schema._plan.layout import INT_RANGE, LONG_RANGE
from headrace.schema._protobuf.layout import WireType, varint
from headrace.schema.codec import join_path
from headrace.schema.protobuf_decoding import wire_type
from headrace.schema.protobuf_schema import FieldDefinition, MessageDefinition, ProtobufSchema
from headrace.schema.protobuf_types import ValueType, map_parts, resolve_message, special_type
from headrace.schema.values import ValueEncoder, encode_varint, failed

_NULL_TEXT = "null in a required field, or in a list or map"
_UINT32_RANGE, _UINT64_RANGE = range(1 << 32), range(1 << 64)
_RANGES = {
    **dict.fromkeys(("int32", "sint32", "sfixed32", "enum"), INT_RANGE),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), LONG_RANGE),
    **dict.fromkeys(("uint32", "fixed32"), _UINT32_RANGE),
    **dict.fromkeys(("uint64", "fixed64"), _UINT64_RANGE),
}
_FIXED_FORMATS = {"fixed32": "<I", "sfixed32": "<i", "fixed64": "<Q", "sfixed64": "<q", "double": "<d", "float": "<f"}


def value_encoder(schema: ProtobufSchema, message: MessageDefinition) -> ValueEncoder:
    """Return the function that encodes a message; it raises SchemaError if a value does not fit."""
    resolve_message(schema, message)  # checks the limits of nesting and of the number of fields
    return _Compiler(schema).message(message, "")


class _Compiler:
    """Makes the functions. Those of values return what follows the tag: a length, too, if it has one."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema

    def message(self, message: MessageDefinition, path: str) -> ValueEncoder:
        """Return the function from a dict to the fields of a message."""
        entries = sorted(message.fields, key=lambda entry: entry.number)
        fields = [(entry.name, self._field(entry, join_path(path, entry.name))) for entry in entries]
        required = frozenset(entry.name for entry in entries if entry.label == "required")
        names = frozenset(entry.name for entry in entries)
        oneofs: dict[int, list[str]] = {}
        for entry in entries:
            if entry.is_in_oneof:
                oneofs.setdefault(entry.oneof, []).append(entry.name)
        exclusive = [(message.oneofs[index], members) for index, members in oneofs.items() if len(members) > 1]
        expected = f"message {message.full_name}"

        def encode(value: Any) -> bytes:
            if type(value) is not dict:
                value = values.to_mapping(path, value, expected)
            get = value.get
            parts = []
            for name, encode_field in fields:
                item = get(name)
                if item is not None:
                    parts.append(encode_field(item))
                elif name in required:
                    text = _NULL_TEXT if name in value else "no value, and the field is required; add it"
                    raise failed(join_path(path, name), text)
            for oneof, members in exclusive:
                if sum(get(name) is not None for name in members) > 1:
                    raise failed(join_path(path, oneof), "several fields of a oneof have a value")
            if not names.issuperset(value):
                unknown = next(name for name in value if name not in names)
                raise values.unknown_field(path, unknown, [entry.name for entry in message.fields])
            return b"".join(parts)

        return encode

    def _field(self, entry: FieldDefinition, path: str) -> ValueEncoder:
        """Return the function from a value that is not None to the bytes of its field."""
        parts = map_parts(self._schema, entry)
        if parts is not None:
            return self._map(entry, parts, path)
        encode_value = self._value(entry, path)
        tag = varint(entry.number << 3 | wire_type(entry.type))
        if entry.is_repeated:
            return _packed_list(entry, encode_value, path) if entry.is_packed else _list(tag, encode_value, path)
        if entry.has_presence or entry.label == "required":
            return lambda value: tag + encode_value(value)
        default = _encoded_default(entry.type)

        def encode(value: Any) -> bytes:
            data = encode_value(value)
            return b"" if data == default else tag + data

        return encode

    def _map(self, entry: FieldDefinition, parts: tuple[FieldDefinition, FieldDefinition], path: str) -> ValueEncoder:
        tag = varint(entry.number << 3 | WireType.BYTES)
        key_part, value_part = parts
        key_tag = varint(key_part.number << 3 | wire_type(key_part.type))
        value_tag = varint(value_part.number << 3 | wire_type(value_part.type))
        encode_key, encode_item = self._value(key_part, path), self._value(value_part, path)

        def encode(value: Any) -> bytes:
            written = []
            for key, item in value.items() if type(value) is dict else values.to_pairs(path, value):
                if key is None or item is None:
                    raise failed(path, _NULL_TEXT)
                data = key_tag + encode_key(key) + value_tag + encode_item(item)
                written.append(tag + encode_varint(len(data)) + data)
            return b"".join(written)

        return encode

    def _value(self, entry: FieldDefinition, path: str) -> ValueEncoder:
        special = special_type(entry)
        if special is None:
            encode_message = self.message(self._schema.messages[entry.type_name], path)
            if entry.type == "group":
                end = varint(entry.number << 3 | WireType.END_GROUP)
                return lambda value: encode_message(value) + end
            return _sized(encode_message)
        if special.kind == "wrapper":
            scalar = FieldDefinition("value", 1, type=special.scalar)
            return _sized(self._field(scalar, path))
        if special.kind in ("timestamp", "duration"):
            return _sized(_time(special.kind, path))
        if special.kind == "decimal":
            return _sized(_decimal(special, path))
        if special.kind == "opaque":
            return _sized(lambda value: values.to_bytes(path, value))
        return self._scalar(entry, path)

    def _scalar(self, entry: FieldDefinition, path: str) -> ValueEncoder:
        kind = entry.type
        if kind == "enum":
            return self._enum(entry.type_name, path)
        if kind == "bool":
            return lambda value: b"\1" if value is True or values.to_boolean(path, value) else b"\0"
        if kind == "string":
            return _sized(lambda value: values.to_text_bytes(path, value))
        if kind == "bytes":
            return _sized(lambda value: values.to_bytes(path, value))
        if kind == "double":
            pack = struct.Struct("<d").pack
            return lambda value: pack(value if type(value) is float else values.to_float(path, value))
        return _float(path) if kind == "float" else _integer(kind, path)

    def _enum(self, type_name: str, path: str) -> ValueEncoder:
        enum = self._schema.enums[type_name]
        encoded = {value.name: varint(value.number) for value in enum.values}
        encode_number = _integer("enum", path)

        def encode(value: Any) -> bytes:
            if not isinstance(value, str):
                return encode_number(value)
            data = encoded.get(value)
            if data is not None:
                return data
            digits = value.removeprefix("-")
            is_number = digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(value) in INT_RANGE
            if is_number and not enum.is_closed:
                return varint(int(value))
            raise failed(path, f"the enum has no such value, only {', '.join(encoded)}")

        return encode


def _encoded_default(kind: str) -> bytes:
    if kind in _FIXED_FORMATS:
        return struct.pack(_FIXED_FORMATS[kind], 0)
    return b"\0"  # also the length of empty bytes


def _list(tag: bytes, encode_value: ValueEncoder, path: str) -> ValueEncoder:
    def encode(value: Any) -> bytes:
        parts: list[bytes] = []
        for item in values.to_items(path, value):
            if item is None:
                raise failed(path, _NULL_TEXT)
            parts += (tag, encode_value(item))
        return b"".join(parts)

    return encode


def _packed_list(entry: FieldDefinition, encode_value: ValueEncoder, path: str) -> ValueEncoder:
    tag = varint(entry.number << 3 | WireType.BYTES)

    def encode(value: Any) -> bytes:
        items = values.to_items(path, value)
        if any(item is None for item in items):
            raise failed(path, _NULL_TEXT)
        if not items:
            return b""
        data = b"".join(map(encode_value, items))
        return tag + encode_varint(len(data)) + data

    return encode


def _sized(encode_content: ValueEncoder) -> ValueEncoder:
    def encode(value: Any) -> bytes:
        data = encode_content(value)
        return encode_varint(len(data)) + data

    return encode


def _integer(kind: str, path: str) -> ValueEncoder:
    low, high = _RANGES[kind].start, _RANGES[kind].stop - 1
    write: Callable[[int], bytes] = _signed_varint if low < 0 else encode_varint
    if kind in _FIXED_FORMATS:
        write = struct.Struct(_FIXED_FORMATS[kind]).pack
    elif kind in ("sint32", "sint64"):
        write = _zigzag

    def encode(value: Any) -> bytes:
        if type(value) is not int:
            value = values.to_integer(path, value)
        if low <= value <= high:
            return write(value)
        raise failed(path, "an integer is out of range")

    return encode


def _zigzag(value: int) -> bytes:
    return encode_varint((value << 1) ^ (value >> 63))


def _signed_varint(value: int) -> bytes:
    """Return a number that may be negative: as one of 64 bits."""
    return encode_varint(value & 0xFFFFFFFFFFFFFFFF)


def _float(path: str) -> ValueEncoder:
    pack = struct.Struct("<f").pack

    def encode(value: Any) -> bytes:
        try:
            return pack(values.to_float(path, value, values.FLOAT_INTEGER_MAX))
        except OverflowError:
            raise failed(path, "a number is out of the range of a float") from None

    return encode


def _time(kind: str, path: str) -> ValueEncoder:
    is_duration = kind == "duration"
    convert = (values.duration_converter if is_duration else values.timestamp_converter)(path, "us")

    def encode(value: Any) -> bytes:
        micros = convert(value)
        if micros not in LONG_RANGE:
            raise failed(path, "a time is out of the range of microseconds in 64 bits")
        seconds, rest = divmod(micros, 1_000_000)
        if is_duration and rest and seconds < 0:  # seconds and nanos of a duration have the same sign
            seconds, rest = seconds + 1, rest - 1_000_000
        return _part(1, seconds) + _part(2, rest * 1_000)

    return encode


def _decimal(special: ValueType, path: str) -> ValueEncoder:
    convert = values.decimal_converter(path, special.precision, special.scale)
    scale = _part(3, special.scale)

    def encode(value: Any) -> bytes:
        number = convert(value)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        content = varint(size) + number.to_bytes(size, "big", signed=True)
        return varint(1 << 3 | WireType.BYTES) + content + _part(2, len(str(abs(number)))) + scale

    return encode


def _part(number: int, value: int) -> bytes:
    """Return an integer field that is absent if it is 0."""
    return encode_varint(number << 3 | WireType.VARINT) + _signed_varint(value) if value else b""
