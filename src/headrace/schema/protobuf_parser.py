"""Texts of .proto files: proto2 and proto3 to a `FileDefinition`, with type names as they are written.

Extensions, services and options are read too, so that no valid file is refused. Editions are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.errors import SchemaError
from headrace.schema.protobuf_schema import (
    DEFINITIONS_MAX,
    DEPTH_MAX,
    ENUM_RANGE,
    FIELD_NUMBER_MAX,
    MESSAGE_SET_NUMBER_MAX,
    SCALAR_TYPES,
    TEXT_CHARS_MAX,
    EnumDefinition,
    EnumValue,
    FieldDefinition,
    FileDefinition,
    Import,
    MessageDefinition,
    MethodDefinition,
    Option,
    ServiceDefinition,
    json_name,
    qualified,
)
from headrace.schema.protobuf_tokens import INTEGER, TokenReader, escape, float_of, float_text, integer_of, unescape

_LABELS = ("optional", "required", "repeated")


@dataclass(slots=True)
class _Body:
    """The content of a message while it is read."""

    full_name: str
    fields: list[FieldDefinition] = field(default_factory=list)
    oneofs: list[str] = field(default_factory=list)
    messages: list[MessageDefinition] = field(default_factory=list)
    enums: list[EnumDefinition] = field(default_factory=list)
    extensions: list[FieldDefinition] = field(default_factory=list)
    extension_ranges: list[tuple[int, int]] = field(default_factory=list)
    reserved_ranges: list[tuple[int, int]] = field(default_factory=list)
    reserved_names: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


def parse_file(text: str, name: str = "") -> FileDefinition:
    """Parse the text of a .proto file; `name` is that under which others import it."""
    if len(text) > TEXT_CHARS_MAX:
        raise SchemaError(f"Protobuf schema has {len(text):,} characters; at most {TEXT_CHARS_MAX:,} are read")
    return _Parser(text, name).file()


class _Parser(TokenReader):
    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self._definitions = 0
        self._syntax = "proto2"

    # -- files

    def file(self) -> FileDefinition:
        self._read_syntax()
        body = _Body("")
        package = ""
        imports: list[Import] = []
        services: list[ServiceDefinition] = []
        while self.token.kind != "end":
            if self.accept(";"):
                continue
            position = self.token.position
            keyword = self.identifier("a definition")
            if keyword == "import":
                kind = self.take().text if self.token.text in ("public", "weak") else ""
                imports.append(Import(self.string(), kind))
                self.expect(";")
            elif keyword == "package":
                if package or body.messages or body.enums or body.extensions or services:
                    raise self.error("a package is stated once, before all definitions", position)
                package = body.full_name = self.type_name()
                self.expect(";")
            elif keyword == "service":
                services.append(self._service())
            elif not self._definition(keyword, body, 0):
                raise self.error(f"unexpected {keyword!r}; expected a definition", position)
        return FileDefinition(
            self._name,
            package,
            self._syntax,
            tuple(imports),
            tuple(body.messages),
            tuple(body.enums),
            tuple(body.extensions),
            tuple(services),
            tuple(body.options),
        )

    def _read_syntax(self) -> None:
        while self.accept(";"):
            pass
        if self.token.text == "edition":
            raise self.error("editions of Protobuf are not supported; use syntax proto3 or proto2")
        if not self.accept("syntax"):
            return
        self.expect("=")
        position = self.token.position
        self._syntax = self.string()
        if self._syntax not in ("proto2", "proto3"):
            raise self.error(f"unknown syntax {self._syntax!r}; expected proto2 or proto3", position)
        self.expect(";")

    def _definition(self, keyword: str, body: _Body, depth: int) -> bool:
        """Read what a file and a message can both contain; return False if the keyword starts something else."""
        if keyword == "message":
            name = self.identifier()
            body.messages.append(self._message(name, body.full_name, depth + 1))
        elif keyword == "enum":
            body.enums.append(self._enum(body.full_name))
        elif keyword == "extend":
            self._extend(body, depth)
        elif keyword == "option":
            body.options.append(self.option())
            self.expect(";")
        else:
            return False
        return True

    def _count_definition(self) -> None:
        self._definitions += 1
        if self._definitions > DEFINITIONS_MAX:
            raise self.error(f"more than {DEFINITIONS_MAX:,} messages and enums; split the schema")

    # -- messages

    def _message(self, name: str, scope: str, depth: int) -> MessageDefinition:
        if depth > DEPTH_MAX:
            raise self.error(f"messages are nested deeper than {DEPTH_MAX} levels; flatten them")
        self._count_definition()
        body = _Body(qualified(scope, name))
        self.expect("{")
        while not self.accept("}"):
            self._message_entry(body, depth)
        self._add_proto3_oneofs(body)
        if Option("message_set_wire_format", "true") in body.options:  # numbers of its extensions may be larger
            ends = {FIELD_NUMBER_MAX: MESSAGE_SET_NUMBER_MAX}
            body.extension_ranges = [(first, ends.get(last, last)) for first, last in body.extension_ranges]
        return MessageDefinition(
            name,
            body.full_name,
            tuple(body.fields),
            tuple(body.oneofs),
            tuple(body.messages),
            tuple(body.enums),
            tuple(body.extensions),
            tuple(body.extension_ranges),
            tuple(body.reserved_ranges),
            tuple(body.reserved_names),
            tuple(body.options),
        )

    def _message_entry(self, body: _Body, depth: int) -> None:
        if self.accept(";"):
            return
        numbers = range(1, FIELD_NUMBER_MAX + 1)
        keyword = self.token.text if self.token.kind == "name" else ""
        if keyword in ("message", "enum", "extend", "option"):
            self.take()
            self._definition(keyword, body, depth)
        elif keyword == "oneof":
            self.take()
            self._oneof(body, depth)
        elif keyword == "extensions":
            self.take()
            body.extension_ranges += self._ranges(numbers)
            self.options()
            self.expect(";")
        elif keyword == "reserved":
            self.take()
            self._reserved(numbers, body.reserved_ranges, body.reserved_names)
        else:
            body.fields.append(self._field(body, depth))

    def _add_proto3_oneofs(self, body: _Body) -> None:
        """Add the oneofs that stand for `optional` in proto3: they follow all others."""
        names = {*body.oneofs, *(entry.name for entry in body.fields)}
        for index, entry in enumerate(body.fields):
            if entry.is_proto3_optional:
                name = entry.name if entry.name.startswith("_") else f"_{entry.name}"
                while name in names:
                    name = f"X{name}"
                names.add(name)
                body.fields[index] = replace(entry, oneof=len(body.oneofs))
                body.oneofs.append(name)

    def _field(self, body: _Body, depth: int, oneof: int = -1, extendee: str = "") -> FieldDefinition:
        position = self.token.position
        label = "optional"
        has_label = self.token.text in _LABELS and self.token.kind == "name"
        if has_label:
            label = self.take().text
        if self._syntax == "proto3" and label == "required":
            raise self.error("proto3 has no required fields", position)
        if oneof >= 0 and has_label:
            raise self.error("fields of a oneof have no label", position)
        type_name = self.type_name()
        if type_name == "map" and self.accept("<"):
            if has_label or oneof >= 0 or extendee:
                raise self.error("a map has no label, and is not in a oneof or extension", position)
            return self._map(body)
        if not has_label and self._syntax == "proto2" and oneof < 0:
            raise self.error("a field of proto2 begins with optional, required or repeated", position)
        is_group = type_name == "group" and self._syntax == "proto2" and self.token.text != "="
        name = self.identifier()
        self.expect("=")
        number = self.integer(range(1, FIELD_NUMBER_MAX + 1), "a field number")
        options = self.options()
        if is_group:
            if not name[0].isupper():
                raise self.error(f"the name of a group begins with a capital letter, unlike {name!r}", position)
            body.messages.append(self._message(name, body.full_name, depth + 1))
            self.accept(";")
            kind, type_name, name = "group", name, name.lower()
        else:
            self.expect(";")
            kind = type_name if type_name in SCALAR_TYPES else ""
        entry = FieldDefinition(
            name,
            number,
            label,
            kind,
            "" if kind and not is_group else type_name,
            oneof,
            has_label and label == "optional" and self._syntax == "proto3",
            extendee=extendee,
        )
        return self._with_options(entry, options, position)

    def _with_options(self, entry: FieldDefinition, options: list[Option], position: int) -> FieldDefinition:
        """Return the field with its options; default and json_name are not options in a descriptor."""
        default, name, others = None, json_name(entry.name), []
        for option in options:
            if option.name == "default":
                if self._syntax == "proto3":
                    raise self.error("proto3 has no explicit defaults", position)
                if entry.is_repeated:
                    raise self.error("a repeated field has no default", position)
                default = self._default(entry, option.value, position)
            elif option.name == "json_name":
                name = unescape(option.value[1:-1]).decode(errors="replace")
            else:
                others.append(option)
        return replace(entry, default=default, json_name=name, options=tuple(others))

    def _default(self, entry: FieldDefinition, value: str, position: int) -> str:
        """Return a default as a FileDescriptorProto has it."""
        kind = entry.type
        try:
            if kind in ("string", "bytes"):
                if value[:1] != '"':
                    raise ValueError(value)
                data = unescape(value[1:-1])
                return escape(data) if kind == "bytes" else data.decode(errors="replace")
            if kind == "bool" and value not in ("true", "false"):
                raise ValueError(value)
            if kind in ("float", "double"):
                return float_text(float_of(value), kind)
            if kind not in ("bool", "", "message", "group"):
                digits = value.removeprefix("-")
                if not INTEGER.fullmatch(digits):
                    raise ValueError(value)
                return str(integer_of(digits) * (-1 if value[0] == "-" else 1))
        except (ValueError, OverflowError):
            raise self.error(
                f"invalid default {value[:40]} of {kind or entry.type_name} {entry.name}", position
            ) from None
        return value

    def _map(self, body: _Body) -> FieldDefinition:
        position = self.token.position
        key = self.type_name()
        self.expect(",")
        value = self.type_name()
        self.expect(">")
        name = self.identifier()
        self.expect("=")
        number = self.integer(range(1, FIELD_NUMBER_MAX + 1), "a field number")
        options = self.options()
        self.expect(";")
        entry_name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
        self._count_definition()
        parts = []
        for part_number, (part, part_type) in enumerate((("key", key), ("value", value)), 1):
            kind = part_type if part_type in SCALAR_TYPES else ""
            type_name = "" if kind else part_type
            parts.append(FieldDefinition(part, part_number, "optional", kind, type_name, json_name=part))
        body.messages.append(
            MessageDefinition(
                entry_name,
                qualified(body.full_name, entry_name),
                tuple(parts),
                options=(Option("map_entry", "true"),),
            )
        )
        entry = FieldDefinition(name, number, "repeated", "", f".{qualified(body.full_name, entry_name)}")
        return self._with_options(entry, options, position)

    def _oneof(self, body: _Body, depth: int) -> None:
        index = len(body.oneofs)
        body.oneofs.append(self.identifier())
        self.expect("{")
        count = len(body.fields)
        while not self.accept("}"):
            if self.accept(";"):
                continue
            if self.accept("option"):
                self.option()
                self.expect(";")
            else:
                body.fields.append(self._field(body, depth, index))
        if len(body.fields) == count:
            raise self.error(f"oneof {body.oneofs[index]} has no field")

    def _extend(self, body: _Body, depth: int) -> None:
        extendee = self.type_name()
        self.expect("{")
        while not self.accept("}"):
            if self.accept(";"):
                continue
            body.extensions.append(self._field(body, depth, extendee=extendee))

    def _ranges(self, allowed: range) -> list[tuple[int, int]]:
        ranges = []
        while True:
            first = last = self.integer(allowed, "a number")
            if self.accept("to"):
                last = allowed[-1] if self.accept("max") else self.integer(allowed, "a number")
            if last < first:
                raise self.error(f"the range {first} to {last} is empty")
            ranges.append((first, last))
            if not self.accept(","):
                return ranges

    def _reserved(self, allowed: range, ranges: list[tuple[int, int]], names: list[str]) -> None:
        if self.token.kind == "string":
            names.append(self.string())
            while self.accept(","):
                names.append(self.string())
        else:
            ranges += self._ranges(allowed)
        self.expect(";")

    # -- enums and services

    def _enum(self, scope: str) -> EnumDefinition:
        self._count_definition()
        name = self.identifier()
        values: list[EnumValue] = []
        options: list[Option] = []
        ranges: list[tuple[int, int]] = []
        names: list[str] = []
        self.expect("{")
        while not self.accept("}"):
            if self.accept(";"):
                continue
            word = self.identifier()
            if word == "option" and self.token.text != "=":
                options.append(self.option())
                self.expect(";")
            elif word == "reserved" and self.token.text != "=":
                self._reserved(ENUM_RANGE, ranges, names)
            else:
                self.expect("=")
                number = self.integer(ENUM_RANGE, "the number of an enum value")
                values.append(EnumValue(word, number, tuple(self.options())))
                self.expect(";")
        is_closed = self._syntax == "proto2"
        return EnumDefinition(
            name, qualified(scope, name), tuple(values), tuple(ranges), tuple(names), tuple(options), is_closed
        )

    def _service(self) -> ServiceDefinition:
        name = self.identifier()
        methods: list[MethodDefinition] = []
        options: list[Option] = []
        self.expect("{")
        while not self.accept("}"):
            if self.accept(";"):
                continue
            if self.accept("option"):
                options.append(self.option())
                self.expect(";")
            else:
                self.expect("rpc")
                methods.append(self._method())
        return ServiceDefinition(name, tuple(methods), tuple(options))

    def _method(self) -> MethodDefinition:
        name = self.identifier()
        takes, is_client_streaming = self._method_type()
        self.expect("returns")
        returns, is_server_streaming = self._method_type()
        options: list[Option] = []
        if self.accept("{"):
            while not self.accept("}"):
                if self.accept(";"):
                    continue
                self.expect("option")
                options.append(self.option())
                self.expect(";")
        else:
            self.expect(";")
        return MethodDefinition(name, takes, returns, is_client_streaming, is_server_streaming, tuple(options))

    def _method_type(self) -> tuple[str, bool]:
        self.expect("(")
        is_streaming = self.accept("stream")
        name = self.type_name()
        self.expect(")")
        return name, is_streaming
