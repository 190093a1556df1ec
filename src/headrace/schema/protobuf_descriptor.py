"""FileDescriptorProto: the form in which registries return Protobuf schemas with format=serialized, and in which
Confluent's Python serializer registers them.

    read_descriptor: bytes → FileDefinition, type names with a leading dot
    to_descriptor: ProtobufSchema → bytes, as protoc writes them

Options of Google's are translated; of others only Confluent's field_meta, for the precision of decimals. The numbers
below are those of google/protobuf/descriptor.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.errors import SchemaError
from headrace.schema._protobuf.layout import WireType, varint
from headrace.schema.protobuf_schema import (
    DEFINITIONS_MAX,
    DEPTH_MAX,
    FIELD_NUMBER_MAX,
    TEXT_CHARS_MAX,
    EnumDefinition,
    EnumValue,
    FieldDefinition,
    FileDefinition,
    Import,
    MessageDefinition,
    MethodDefinition,
    Option,
    ProtobufSchema,
    ServiceDefinition,
    json_name,
    qualified,
)
from headrace.schema.protobuf_tokens import quoted, unescape

_TYPES = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_LABELS = ("", "optional", "required", "repeated")
_TARGETS = (
    *("UNKNOWN", "FILE", "EXTENSION_RANGE", "MESSAGE", "FIELD"),
    *("ONEOF", "ENUM", "ENUM_ENTRY", "SERVICE", "METHOD"),
)
_FIXED_BYTES: dict[int, int] = {WireType.FIXED64: 8, WireType.FIXED32: 4}
_META_NUMBER = 1088
_META_PARAM = re.compile(r'key\s*:?\s*"([^"]*)"\s*[,;]?\s*value\s*:?\s*"([^"]*)"')
FIELD_META = "(confluent.field_meta)"


class _OptionType(NamedTuple):
    """How an option is stored: a boolean, a string, or the number of one of the names."""

    number: int
    kind: str  # "bool", "string", "enum", "enums"
    names: tuple[str, ...] = ()


def _booleans(**numbers: int) -> dict[str, _OptionType]:
    return {name: _OptionType(number, "bool") for name, number in numbers.items()}


def _strings(**numbers: int) -> dict[str, _OptionType]:
    return {name: _OptionType(number, "string") for name, number in numbers.items()}


_FILE_OPTIONS = {
    **_strings(java_package=1, java_outer_classname=8, go_package=11, objc_class_prefix=36, csharp_namespace=37),
    **_strings(swift_prefix=39, php_class_prefix=40, php_namespace=41, php_metadata_namespace=44, ruby_package=45),
    **_booleans(java_multiple_files=10, cc_generic_services=16, java_generic_services=17, py_generic_services=18),
    **_booleans(java_generate_equals_and_hash=20, deprecated=23, java_string_check_utf8=27, cc_enable_arenas=31),
    "optimize_for": _OptionType(9, "enum", ("", "SPEED", "CODE_SIZE", "LITE_RUNTIME")),
}
_MESSAGE_OPTIONS = {
    **_booleans(message_set_wire_format=1, no_standard_descriptor_accessor=2, deprecated=3, map_entry=7),
    **_booleans(deprecated_legacy_json_field_conflicts=11),
}
_FIELD_OPTIONS = {
    **_booleans(packed=2, deprecated=3, lazy=5, weak=10, unverified_lazy=15, debug_redact=16),
    "ctype": _OptionType(1, "enum", ("STRING", "CORD", "STRING_PIECE")),
    "jstype": _OptionType(6, "enum", ("JS_NORMAL", "JS_STRING", "JS_NUMBER")),
    "retention": _OptionType(17, "enum", ("RETENTION_UNKNOWN", "RETENTION_RUNTIME", "RETENTION_SOURCE")),
    "targets": _OptionType(
        19,
        "enums",
        tuple(f"TARGET_TYPE_{name}" for name in _TARGETS),
    ),
}
_ENUM_OPTIONS = _booleans(allow_alias=2, deprecated=3, deprecated_legacy_json_field_conflicts=6)
_ENUM_VALUE_OPTIONS = _booleans(deprecated=1, debug_redact=3)
_SERVICE_OPTIONS = _booleans(deprecated=33)
_METHOD_OPTIONS = {
    **_booleans(deprecated=33),
    "idempotency_level": _OptionType(34, "enum", ("IDEMPOTENCY_UNKNOWN", "NO_SIDE_EFFECTS", "IDEMPOTENT")),
}


def meta_params(options: Sequence[Option]) -> dict[str, str]:
    """Return the parameters in Confluent's field_meta: those of a decimal are precision and scale."""
    params: dict[str, str] = {}
    for option in options:
        if option.name in (FIELD_META, f"{FIELD_META}.params"):
            params.update(_META_PARAM.findall(option.value))
    return params


# -- reading ---------------------------------------------------------------------------------------


class _Message:
    """The fields of an encoded message by number: integers and bytes, in order."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(data):
            tag, position = _read_varint(data, position)
            number, wire_type = tag >> 3, tag & 7
            value: int | bytes
            if wire_type == WireType.VARINT:
                value, position = _read_varint(data, position)
            else:
                size = _FIXED_BYTES.get(wire_type, -1)
                if wire_type == WireType.BYTES:
                    size, position = _read_varint(data, position)
                if size < 0 or size > len(data) - position:
                    raise SchemaError("invalid Protobuf descriptor: it is damaged or ends too early; send it again")
                value = data[position : position + size]
                position += size
            self._values.setdefault(number, []).append(value)

    def integers(self, number: int) -> list[int]:
        integers: list[int] = []
        for value in self._values.get(number, ()):
            if isinstance(value, int):
                integers.append(value)
            else:
                position = 0
                while position < len(value):
                    integer, position = _read_varint(value, position)
                    integers.append(integer)
        return integers

    def integer(self, number: int, default: int = 0) -> int:
        return next(reversed(self.integers(number)), default)

    def signed(self, number: int) -> int:
        bits = self.integer(number) & 0xFFFFFFFF
        return bits - (1 << 32) if bits >> 31 else bits

    def messages(self, number: int) -> list[_Message]:
        return [_Message(value) for value in self._values.get(number, ()) if isinstance(value, bytes)]

    def texts(self, number: int) -> tuple[str, ...]:
        values = (value for value in self._values.get(number, ()) if isinstance(value, bytes))
        try:
            return tuple(value.decode() for value in values)
        except UnicodeDecodeError:
            raise SchemaError("invalid Protobuf descriptor: a name is not UTF-8; send it again") from None

    def text(self, number: int) -> str:
        return next(reversed(self.texts(number)), "")

    def has(self, number: int) -> bool:
        return number in self._values


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
    raise SchemaError("invalid Protobuf descriptor: it is damaged or ends too early; send it again")


def read_descriptor(data: bytes) -> FileDefinition:
    """Read a FileDescriptorProto."""
    if len(data) > TEXT_CHARS_MAX:
        raise SchemaError(f"Protobuf descriptor has {len(data):,} bytes; at most {TEXT_CHARS_MAX:,} are read")
    file = _Message(data)
    syntax = file.text(12) or "proto2"
    if syntax not in ("proto2", "proto3"):
        raise SchemaError(f"{syntax} of Protobuf are not supported; use syntax proto3 or proto2")
    return _Reader(syntax).file(file)


class _Reader:
    def __init__(self, syntax: str) -> None:
        self._syntax = syntax
        self._definitions = 0

    def file(self, file: _Message) -> FileDefinition:
        package = file.text(2)
        kinds = dict.fromkeys(file.integers(10), "public") | dict.fromkeys(file.integers(11), "weak")
        imports = tuple(Import(name, kinds.get(index, "")) for index, name in enumerate(file.texts(3)))
        return FileDefinition(
            file.text(1),
            package,
            self._syntax,
            imports,
            tuple(self._message(entry, package, 1) for entry in file.messages(4)),
            tuple(self._enum(entry, package) for entry in file.messages(5)),
            tuple(self._field(entry) for entry in file.messages(7)),
            tuple(self._service(entry) for entry in file.messages(6)),
            _read_options(file, 8, _FILE_OPTIONS),
        )

    def _count(self) -> None:
        self._definitions += 1
        if self._definitions > DEFINITIONS_MAX:
            raise SchemaError(f"Protobuf schema has more than {DEFINITIONS_MAX:,} messages and enums; split it")

    def _message(self, message: _Message, scope: str, depth: int) -> MessageDefinition:
        self._count()
        if depth > DEPTH_MAX:
            raise SchemaError(f"Protobuf messages are nested deeper than {DEPTH_MAX} levels; flatten them")
        full_name = qualified(scope, message.text(1))
        return MessageDefinition(
            message.text(1),
            full_name,
            tuple(self._field(entry) for entry in message.messages(2)),
            tuple(entry.text(1) for entry in message.messages(8)),
            tuple(self._message(entry, full_name, depth + 1) for entry in message.messages(3)),
            tuple(self._enum(entry, full_name) for entry in message.messages(4)),
            tuple(self._field(entry) for entry in message.messages(6)),
            tuple((entry.signed(1), entry.signed(2) - 1) for entry in message.messages(5)),
            tuple((entry.signed(1), entry.signed(2) - 1) for entry in message.messages(9)),
            message.texts(10),
            _read_options(message, 7, _MESSAGE_OPTIONS),
        )

    def _field(self, entry: _Message) -> FieldDefinition:
        name, number, kind, label = entry.text(1), entry.integer(3), entry.integer(5), entry.integer(4, 1)
        is_known = kind < len(_TYPES) and 1 <= label < len(_LABELS) and 1 <= number <= FIELD_NUMBER_MAX
        if not is_known or (kind in (0, 10, 11, 14) and not entry.has(6)):
            raise SchemaError(f"invalid Protobuf descriptor: number, label or type of field {name!r} is unknown")
        return FieldDefinition(
            name,
            number,
            _LABELS[label],
            _TYPES[kind],
            entry.text(6),
            entry.signed(9) if entry.has(9) else -1,
            bool(entry.integer(17)),
            entry.text(7) if entry.has(7) else None,
            entry.text(10) or json_name(name),
            entry.text(2),
            _read_options(entry, 8, _FIELD_OPTIONS),
        )

    def _enum(self, enum: _Message, scope: str) -> EnumDefinition:
        self._count()
        values = tuple(
            EnumValue(value.text(1), value.signed(2), _read_options(value, 3, _ENUM_VALUE_OPTIONS))
            for value in enum.messages(2)
        )
        return EnumDefinition(
            enum.text(1),
            qualified(scope, enum.text(1)),
            values,
            tuple((entry.signed(1), entry.signed(2)) for entry in enum.messages(4)),
            enum.texts(5),
            _read_options(enum, 3, _ENUM_OPTIONS),
            self._syntax == "proto2",
        )

    def _service(self, service: _Message) -> ServiceDefinition:
        methods = tuple(
            MethodDefinition(
                method.text(1),
                method.text(2),
                method.text(3),
                bool(method.integer(5)),
                bool(method.integer(6)),
                _read_options(method, 4, _METHOD_OPTIONS),
            )
            for method in service.messages(2)
        )
        return ServiceDefinition(service.text(1), methods, _read_options(service, 3, _SERVICE_OPTIONS))


def _read_options(owner: _Message, number: int, known: dict[str, _OptionType]) -> tuple[Option, ...]:
    options: list[Option] = []
    for message in owner.messages(number):
        for name, option in known.items():
            if not message.has(option.number):
                continue
            if option.kind == "string":
                options.append(Option(name, quoted(message.text(option.number))))
                continue
            values = message.integers(option.number)
            if option.kind == "bool":
                options.append(Option(name, "true" if values[-1] else "false"))
            else:
                values = values if option.kind == "enums" else values[-1:]
                options += [Option(name, option.names[value]) for value in values if value < len(option.names)]
        for meta in message.messages(_META_NUMBER) if known is _FIELD_OPTIONS else ():
            params = [(entry.text(1), entry.text(2)) for entry in meta.messages(2)]
            texts = (f"{{ key : {quoted(key)} , value : {quoted(value)} }}" for key, value in params)
            options.append(Option(FIELD_META, f"{{ params : [ {' , '.join(texts)} ] }}"))
    return tuple(options)


# -- writing ---------------------------------------------------------------------------------------


def to_descriptor(schema: ProtobufSchema, name: str | None = None) -> bytes:
    """Return the FileDescriptorProto of a schema; of one of its imports if a name is given."""
    if name is None:
        return _write_file(schema.file)
    if name not in schema.imports:
        imports = ", ".join(schema.imports) or "nothing"
        raise SchemaError(f"the Protobuf schema does not import {name!r}; it imports {imports}")
    return _write_file(schema.imports[name])


def _integer(number: int, value: int) -> bytes:
    return varint(number << 3 | WireType.VARINT) + varint(value)


def _bytes(number: int, value: bytes | str) -> bytes:
    data = value.encode(errors="replace") if isinstance(value, str) else value
    return varint(number << 3 | WireType.BYTES) + varint(len(data)) + data


def _all(number: int, values: Iterable[bytes | str]) -> bytes:
    return b"".join(_bytes(number, value) for value in values)


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value) if value else b""


def _write_file(file: FileDefinition) -> bytes:
    indexes = {kind: [i for i, entry in enumerate(file.imports) if entry.kind == kind] for kind in ("public", "weak")}
    return b"".join(
        (
            _text(1, file.name),
            _text(2, file.package),
            _all(3, (entry.name for entry in file.imports)),
            _all(4, map(_write_message, file.messages)),
            _all(5, map(_write_enum, file.enums)),
            _all(6, map(_write_service, file.services)),
            _all(7, map(_write_field, file.extensions)),
            _write_options(8, file.options, _FILE_OPTIONS),
            *(_integer(10, index) for index in indexes["public"]),
            *(_integer(11, index) for index in indexes["weak"]),
            _text(12, file.syntax if file.syntax != "proto2" else ""),
        )
    )


def _write_message(message: MessageDefinition) -> bytes:
    return b"".join(
        (
            _bytes(1, message.name),
            _all(2, map(_write_field, message.fields)),
            _all(3, map(_write_message, message.messages)),
            _all(4, map(_write_enum, message.enums)),
            _all(5, (_integer(1, first) + _integer(2, last + 1) for first, last in message.extension_ranges)),
            _all(6, map(_write_field, message.extensions)),
            _write_options(7, message.options, _MESSAGE_OPTIONS),
            _all(8, (_bytes(1, oneof) for oneof in message.oneofs)),
            _all(9, (_integer(1, first) + _integer(2, last + 1) for first, last in message.reserved_ranges)),
            _all(10, message.reserved_names),
        )
    )


def _write_field(entry: FieldDefinition) -> bytes:
    return b"".join(
        (
            _bytes(1, entry.name),
            _text(2, f".{entry.extendee}" if entry.extendee else ""),
            _integer(3, entry.number),
            _integer(4, _LABELS.index(entry.label)),
            _integer(5, _TYPES.index(entry.type)),
            _text(6, f".{entry.type_name}" if entry.type_name else ""),
            b"" if entry.default is None else _bytes(7, entry.default),
            _write_options(8, entry.options, _FIELD_OPTIONS),
            _integer(9, entry.oneof) if entry.oneof >= 0 else b"",
            _bytes(10, entry.json_name),
            _integer(17, 1) if entry.is_proto3_optional else b"",
        )
    )


def _write_enum(enum: EnumDefinition) -> bytes:
    values = (
        _bytes(1, value.name) + _integer(2, value.number) + _write_options(3, value.options, _ENUM_VALUE_OPTIONS)
        for value in enum.values
    )
    return b"".join(
        (
            _bytes(1, enum.name),
            _all(2, values),
            _write_options(3, enum.options, _ENUM_OPTIONS),
            _all(4, (_integer(1, first) + _integer(2, last) for first, last in enum.reserved_ranges)),
            _all(5, enum.reserved_names),
        )
    )


def _write_service(service: ServiceDefinition) -> bytes:
    methods = (
        b"".join(
            (
                _bytes(1, method.name),
                _bytes(2, f".{method.input_type}"),
                _bytes(3, f".{method.output_type}"),
                _write_options(4, method.options, _METHOD_OPTIONS),
                _integer(5, 1) if method.is_client_streaming else b"",
                _integer(6, 1) if method.is_server_streaming else b"",
            )
        )
        for method in service.methods
    )
    return _bytes(1, service.name) + _all(2, methods) + _write_options(3, service.options, _SERVICE_OPTIONS)


def _write_options(number: int, options: Sequence[Option], known: dict[str, _OptionType]) -> bytes:
    encoded = sorted(_encoded_options(options, known), key=lambda pair: pair[0])
    return _bytes(number, b"".join(data for _, data in encoded)) if encoded else b""


def _encoded_options(options: Sequence[Option], known: dict[str, _OptionType]) -> Iterator[tuple[int, bytes]]:
    for option in options:
        kind = known.get(option.name)
        if kind is None:
            continue
        if kind.kind == "string":
            yield kind.number, _bytes(kind.number, unescape(option.value[1:-1]))
        elif kind.kind == "bool":
            yield kind.number, _integer(kind.number, option.value == "true")
        elif option.value in kind.names:
            yield kind.number, _integer(kind.number, kind.names.index(option.value))
    params = meta_params(options) if known is _FIELD_OPTIONS else {}
    if params:
        entries = (_bytes(1, unescape(key)) + _bytes(2, unescape(value)) for key, value in params.items())
        yield _META_NUMBER, _bytes(_META_NUMBER, _all(2, entries))
