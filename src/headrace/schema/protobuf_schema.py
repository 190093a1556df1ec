"""Protobuf schemas: what a .proto file defines, with names resolved and limits checked.

    .proto text or base64 of a FileDescriptorProto, references → parse_schema → ProtobufSchema
    ProtobufSchema → to_descriptor → bytes of a FileDescriptorProto
    ProtobufSchema → normal_form → .proto text that is equal for equal schemas

`protobuf_parser.py` reads texts, `protobuf_descriptor.py` reads and writes descriptors, `protobuf_linking.py` resolves
names. Syntaxes are proto2 and proto3. Options other than Google's own are kept as text; extensions are kept, and never
decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import SchemaError

DEPTH_MAX = 100
"""Messages in messages in a text, and imports of imports."""
DEFINITIONS_MAX = 20_000
"""Messages and enums of a schema, those of its imports included."""
TEXT_CHARS_MAX = 4 << 20
LISTED_MAX = 10  # names in an error
FIELD_NUMBER_MAX = (1 << 29) - 1
MESSAGE_SET_NUMBER_MAX = (1 << 31) - 2
FIELD_NUMBERS_RESERVED = range(19_000, 20_000)  # by Protobuf itself
ENUM_RANGE = range(-(1 << 31), 1 << 31)

SCALAR_TYPES = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
)
PACKABLE_TYPES = frozenset(SCALAR_TYPES) - {"string", "bytes"} | {"enum"}
MAP_KEY_TYPES = frozenset(SCALAR_TYPES) - {"double", "float", "bytes"}


@dataclass(frozen=True, slots=True)
class Option:
    """An option with its value as in a text: `deprecated` and `true`, `java_package` and `"shop"`."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FieldDefinition:
    """A field, or an extension if it has an extendee. Full names have no leading dot once they are resolved."""

    name: str
    number: int
    label: str = "optional"  # "required", "repeated"
    type: str = ""  # a scalar type, "message", "enum", "group"; empty until a type name is resolved
    type_name: str = ""
    oneof: int = -1  # the index in the message's oneofs
    is_proto3_optional: bool = False
    default: str | None = None  # as in a FileDescriptorProto
    json_name: str = ""
    extendee: str = ""
    options: tuple[Option, ...] = ()
    has_presence: bool = False  # an unset field differs from one with the default; set when names are resolved
    is_packed: bool = False  # the same

    @property
    def is_repeated(self) -> bool:
        return self.label == "repeated"

    @property
    def is_in_oneof(self) -> bool:
        """Whether the field shares a oneof with others; `optional` in proto3 is a oneof of its own."""
        return self.oneof >= 0 and not self.is_proto3_optional


@dataclass(frozen=True, slots=True)
class EnumValue:
    name: str
    number: int
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class EnumDefinition:
    name: str
    full_name: str
    values: tuple[EnumValue, ...]
    reserved_ranges: tuple[tuple[int, int], ...] = ()  # the ends are included
    reserved_names: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    is_closed: bool = False
    """Unknown numbers are treated as unknown fields: enums of proto2."""


@dataclass(frozen=True, slots=True)
class MessageDefinition:
    name: str
    full_name: str
    fields: tuple[FieldDefinition, ...] = ()
    oneofs: tuple[str, ...] = ()
    messages: tuple[MessageDefinition, ...] = ()
    enums: tuple[EnumDefinition, ...] = ()
    extensions: tuple[FieldDefinition, ...] = ()
    extension_ranges: tuple[tuple[int, int], ...] = ()  # the ends are included
    reserved_ranges: tuple[tuple[int, int], ...] = ()
    reserved_names: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def is_map_entry(self) -> bool:
        return Option("map_entry", "true") in self.options


@dataclass(frozen=True, slots=True)
class MethodDefinition:
    name: str
    input_type: str
    output_type: str
    is_client_streaming: bool = False
    is_server_streaming: bool = False
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    name: str
    methods: tuple[MethodDefinition, ...] = ()
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Import:
    name: str
    kind: str = ""  # "public", "weak"


@dataclass(frozen=True, slots=True)
class FileDefinition:
    """What one .proto file defines."""

    name: str = ""
    package: str = ""
    syntax: str = "proto2"
    imports: tuple[Import, ...] = ()
    messages: tuple[MessageDefinition, ...] = ()
    enums: tuple[EnumDefinition, ...] = ()
    extensions: tuple[FieldDefinition, ...] = ()
    services: tuple[ServiceDefinition, ...] = ()
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufSchema:
    """A .proto file with everything it imports, by name of the import."""

    file: FileDefinition
    imports: Mapping[str, FileDefinition]
    messages: Mapping[str, MessageDefinition] = field(init=False)
    """All messages of the file and of its imports, by full name."""
    enums: Mapping[str, EnumDefinition] = field(init=False)

    def __post_init__(self) -> None:
        messages: dict[str, MessageDefinition] = {}
        enums: dict[str, EnumDefinition] = {}
        for definition in (*self.imports.values(), self.file):
            enums.update((enum.full_name, enum) for enum in definition.enums)
            for message in all_messages(definition.messages):
                messages[message.full_name] = message
                enums.update((enum.full_name, enum) for enum in message.enums)
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "enums", enums)

    def message(self, name: str | None = None) -> MessageDefinition:
        """Return a message by its full name, or its name in the file's package. None: the file's first message."""
        if name is None:
            if not self.file.messages:
                raise SchemaError("the Protobuf schema defines no message; name a message of an import")
            return self.file.messages[0]
        in_package = f"{self.file.package}.{name}" if self.file.package else name
        message = self.messages.get(name.removeprefix(".")) or self.messages.get(in_package)
        if message is None or message.is_map_entry:
            names = [entry.full_name for entry in all_messages(self.file.messages) if not entry.is_map_entry]
            raise SchemaError(f"no message {name} in the Protobuf schema; it has {_listed(names)}")
        return message

    def message_by_indexes(self, indexes: Sequence[int]) -> MessageDefinition:
        """Return the message at the indexes of `headrace.schema.framing`, from the outermost message inwards."""
        messages: Sequence[MessageDefinition] = self.file.messages
        message = None
        for index in indexes:
            if not 0 <= index < len(messages):
                raise SchemaError(
                    f"no message at the indexes {list(indexes)} of the Protobuf schema: "
                    f"{message.full_name if message else 'the file'} has {len(messages)} messages"
                )
            message = messages[index]
            messages = message.messages
        if message is None:
            raise SchemaError("no message without an index; the first one is at the indexes [0]")
        return message

    def message_indexes(self, name: str | None = None) -> tuple[int, ...]:
        """Return where a message is in the file: what `message_by_indexes` takes."""
        target = self.message(name)
        indexes: list[int] = []
        messages: Sequence[MessageDefinition] = self.file.messages
        while messages:
            for index, message in enumerate(messages):
                if target.full_name == message.full_name:
                    return (*indexes, index)
                if target.full_name.startswith(f"{message.full_name}."):
                    indexes.append(index)
                    messages = message.messages
                    break
            else:
                break
        raise SchemaError(f"message {target.full_name} is defined in an import, so it has no indexes in the schema")


def all_messages(messages: Sequence[MessageDefinition]) -> Iterator[MessageDefinition]:
    """Yield messages, and all that are defined in them."""
    for message in messages:
        yield message
        yield from all_messages(message.messages)


def json_name(name: str) -> str:
    """Return the name of a field in JSON: lowerCamelCase."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def qualified(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return (", ".join(names[:LISTED_MAX]) or "none") + more
