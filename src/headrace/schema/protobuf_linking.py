"""Imports and names of Protobuf schemas: texts and descriptors to a `ProtobufSchema`.

    parse_schema: text (or base64 of a descriptor), texts of references by import name → ProtobufSchema

An import is a reference or a built-in file (`protobuf_builtin.py`). Names are resolved as protoc does: from the
innermost scope outwards, by their first part.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from headrace.errors import SchemaError
from headrace.schema.protobuf_builtin import BUILTIN_FILES
from headrace.schema.protobuf_descriptor import read_descriptor
from headrace.schema.protobuf_parser import parse_file
from headrace.schema.protobuf_schema import (
    DEFINITIONS_MAX,
    DEPTH_MAX,
    FIELD_NUMBERS_RESERVED,
    MAP_KEY_TYPES,
    PACKABLE_TYPES,
    TEXT_CHARS_MAX,
    EnumDefinition,
    FieldDefinition,
    FileDefinition,
    MessageDefinition,
    Option,
    ProtobufSchema,
    all_messages,
    qualified,
)

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


def parse_schema(
    text: str | bytes, references: Mapping[str, str | bytes] | None = None, name: str = ""
) -> ProtobufSchema:
    """Parse a schema: a .proto text, or a FileDescriptorProto as bytes or base64.

    `references` are the schemas that it imports, by the name in the import. `name` is its own, for descriptors.
    """
    linker = _Linker(references or {})
    file = _read(text, name)
    linker.load_imports(file, ())
    linked = linker.link(file)
    return ProtobufSchema(linked, linker.linked_imports)


def _read(text: str | bytes, name: str) -> FileDefinition:
    if isinstance(text, str):
        # A .proto text has a character that base64 lacks: at least a semicolon or a brace.
        if len(text) > TEXT_CHARS_MAX or not text.strip() or not _BASE64.fullmatch(text):
            return parse_file(text, name)
        try:
            text = base64.b64decode(text)
        except binascii.Error as error:
            raise SchemaError(f"Protobuf schema is neither a .proto text nor base64: {error}") from None
    file = read_descriptor(text)
    return replace(file, name=name) if name else file


@dataclass(slots=True)
class _Linker:
    references: Mapping[str, str | bytes]
    files: dict[str, FileDefinition] = field(default_factory=dict)  # as they were read, imports before importers
    linked_imports: dict[str, FileDefinition] = field(default_factory=dict)
    count: int = 0

    # -- imports

    def load_imports(self, file: FileDefinition, importers: tuple[str, ...]) -> None:
        self._count(file)
        for entry in file.imports:
            if entry.name in importers or (file.name and entry.name == file.name):
                raise SchemaError(f"Protobuf imports form a cycle: {' → '.join((*importers, entry.name))}")
            if len(importers) >= DEPTH_MAX:
                raise SchemaError(f"Protobuf imports are nested deeper than {DEPTH_MAX} levels")
            if entry.name in self.files:
                continue
            text = self.references.get(entry.name) or BUILTIN_FILES.get(entry.name)
            if text is None:
                if entry.kind == "weak":
                    continue
                raise SchemaError(f"import {entry.name!r} is not known; pass its text as a reference with this name")
            imported = _read(text, entry.name)
            self.load_imports(imported, (*importers, entry.name))
            self.files[entry.name] = imported
            self.linked_imports[entry.name] = self.link(imported)

    def _count(self, file: FileDefinition) -> None:
        self.count += len(file.enums) + sum(1 + len(message.enums) for message in all_messages(file.messages))
        if self.count > DEFINITIONS_MAX:
            raise SchemaError(f"Protobuf schema has more than {DEFINITIONS_MAX:,} messages and enums; split it")

    def link(self, file: FileDefinition) -> FileDefinition:
        """Return a file with names resolved. Its imports are loaded."""
        return _FileLinker(file, self._visible(file)).link()

    def _visible(self, file: FileDefinition) -> list[FileDefinition]:
        """Return the files whose names a file can use: itself, its imports, and what those import publicly."""
        names = [entry.name for entry in file.imports]
        for name in names:
            imports = self.files[name].imports if name in self.files else ()
            names += [entry.name for entry in imports if entry.kind == "public" and entry.name not in names]
        return [file, *(self.files[name] for name in names if name in self.files)]


class _FileLinker:
    """Resolves the names of one file, and checks what protoc checks."""

    def __init__(self, file: FileDefinition, visible: Sequence[FileDefinition]) -> None:
        self._file = file
        self._enums: dict[str, EnumDefinition] = {}
        self._messages: dict[str, MessageDefinition] = {}
        self._scopes: set[str] = set()  # packages
        for other in visible:
            self._add_names(other)

    def link(self) -> FileDefinition:
        file = self._file
        for enum in self._own_enums():
            self._check_enum(enum)
        services = tuple(
            replace(
                service,
                methods=tuple(
                    replace(
                        method,
                        input_type=self._message_name(method.input_type, qualified(file.package, service.name)),
                        output_type=self._message_name(method.output_type, qualified(file.package, service.name)),
                    )
                    for method in service.methods
                ),
            )
            for service in file.services
        )
        return replace(
            file,
            messages=tuple(map(self._message, file.messages)),
            extensions=tuple(self._extension(entry, file.package) for entry in file.extensions),
            services=services,
        )

    def _own_enums(self) -> list[EnumDefinition]:
        return [*self._file.enums, *(enum for message in all_messages(self._file.messages) for enum in message.enums)]

    # -- names

    def _add_names(self, file: FileDefinition) -> None:
        parts = file.package.split(".") if file.package else []
        self._scopes.update(".".join(parts[: count + 1]) for count in range(len(parts)))
        for enum in file.enums:
            self._add_name(enum.full_name)
            self._enums[enum.full_name] = enum
        for message in all_messages(file.messages):
            self._add_name(message.full_name)
            self._messages[message.full_name] = message
            for enum in message.enums:
                self._add_name(enum.full_name)
                self._enums[enum.full_name] = enum

    def _add_name(self, name: str) -> None:
        if name in self._messages or name in self._enums or name in self._scopes:
            raise SchemaError(f"Protobuf schema defines {name} twice; rename one of them")

    def _resolve(self, name: str, scope: str) -> str:
        """Return the full name of a message or enum, as seen from a scope."""
        if name.startswith("."):
            full_name = name[1:]
            if full_name in self._messages or full_name in self._enums:
                return full_name
            raise self._unknown(name, scope)
        first, inner = name.partition(".")[0], scope
        while True:
            candidate = qualified(scope, first)
            is_scope = candidate in self._messages or candidate in self._scopes
            if first == name and (candidate in self._messages or candidate in self._enums):
                return candidate
            if first != name and is_scope:
                full_name = qualified(scope, name)
                if full_name in self._messages or full_name in self._enums:
                    return full_name
                raise self._unknown(name, inner)
            if not scope:
                raise self._unknown(name, inner)
            scope = scope.rpartition(".")[0]

    def _unknown(self, name: str, scope: str) -> SchemaError:
        where = f" in {scope}" if scope else ""
        return SchemaError(f"Protobuf type {name}{where} is not defined; define it, or import its file")

    def _message_name(self, name: str, scope: str) -> str:
        full_name = self._resolve(name, scope)
        if full_name not in self._messages:
            raise SchemaError(f"{full_name} is an enum where a message is expected (in {scope})")
        return full_name

    # -- messages and fields

    def _message(self, message: MessageDefinition) -> MessageDefinition:
        linked = replace(
            message,
            fields=tuple(self._field(entry, message.full_name) for entry in message.fields),
            messages=tuple(map(self._message, message.messages)),
            extensions=tuple(self._extension(entry, message.full_name) for entry in message.extensions),
        )
        _check_fields(linked)
        return linked

    def _extension(self, entry: FieldDefinition, scope: str) -> FieldDefinition:
        return replace(self._field(entry, scope), extendee=self._message_name(entry.extendee, scope))

    def _field(self, entry: FieldDefinition, scope: str) -> FieldDefinition:
        path = qualified(scope, entry.name)
        kind, type_name = entry.type, entry.type_name
        if type_name:
            type_name = self._resolve(type_name, scope)
            if type_name in self._enums:
                if kind not in ("", "enum"):
                    raise SchemaError(f"type {type_name} of field {path} is an enum, not a {kind}")
                kind = "enum"
            elif kind == "enum":
                raise SchemaError(f"type {type_name} of field {path} is a message, not an enum")
            else:
                kind = kind or "message"
        if kind == "enum" and entry.default is not None:
            names = [value.name for value in self._enums[type_name].values]
            if entry.default not in names:
                raise SchemaError(f"default {entry.default} of field {path} is not a value of enum {type_name}")
        if kind in ("message", "group") and entry.default is not None:
            raise SchemaError(f"field {path} is a message, and has no default")
        self._check_map(kind, type_name, path)
        has_presence = entry.oneof >= 0 or kind in ("message", "group") or entry.extendee != ""
        return replace(
            entry,
            type=kind,
            type_name=type_name,
            has_presence=not entry.is_repeated and (self._file.syntax == "proto2" or has_presence),
            is_packed=self._is_packed(entry, kind, path),
        )

    def _is_packed(self, entry: FieldDefinition, kind: str, path: str) -> bool:
        if Option("packed", "true") in entry.options:
            if not entry.is_repeated or kind not in PACKABLE_TYPES:
                raise SchemaError(f"field {path} is not a repeated field of numbers, so it cannot be packed")
            return True
        is_default = self._file.syntax == "proto3" and Option("packed", "false") not in entry.options
        return is_default and entry.is_repeated and kind in PACKABLE_TYPES

    def _check_map(self, kind: str, type_name: str, path: str) -> None:
        entry = self._messages.get(type_name) if kind == "message" else None
        if entry is None or not entry.is_map_entry:
            return
        if [(part.name, part.number) for part in entry.fields] != [("key", 1), ("value", 2)]:
            raise SchemaError(f"the entries of map {path} are not made of a key and a value")
        if entry.fields[0].type not in MAP_KEY_TYPES:
            raise SchemaError(f"the keys of map {path} are neither strings, integers nor booleans")
        value = entry.fields[1].type_name
        enum = self._enums.get(self._resolve(value, entry.full_name)) if value else None
        if enum is not None and enum.values and enum.values[0].number != 0:
            raise SchemaError(f"enum {enum.full_name} of map {path} must have 0 as its first value")

    def _check_enum(self, enum: EnumDefinition) -> None:
        if not enum.values:
            raise SchemaError(f"Protobuf enum {enum.full_name} has no value")
        if not enum.is_closed and enum.values[0].number != 0:
            raise SchemaError(f"the first value of enum {enum.full_name} must be 0 in proto3")
        names: set[str] = set()
        numbers: dict[int, str] = {}
        has_aliases = Option("allow_alias", "true") in enum.options
        reserved, reserved_names = _Ranges(enum.reserved_ranges), set(enum.reserved_names)
        for value in enum.values:
            if value.name in names:
                raise SchemaError(f"enum {enum.full_name} has two values {value.name}")
            if value.number in numbers and not has_aliases:
                raise SchemaError(
                    f"enum {enum.full_name}: {value.name} and {numbers[value.number]} have the number {value.number}; "
                    f"use other numbers, or the option allow_alias"
                )
            names.add(value.name)
            numbers[value.number] = value.name
            if value.name in reserved_names or reserved.has(value.number):
                raise SchemaError(f"value {value.name} = {value.number} of enum {enum.full_name} is reserved")


def _check_fields(message: MessageDefinition) -> None:
    names: set[str] = set()
    numbers: dict[int, str] = {}
    reserved, reserved_names = _Ranges(message.reserved_ranges), set(message.reserved_names)
    extensions = _Ranges(message.extension_ranges)
    for entry in message.fields:
        path = f"{message.full_name}.{entry.name}"
        if entry.name in names:
            raise SchemaError(f"Protobuf message {message.full_name} has two fields {entry.name}; rename one of them")
        if entry.number in numbers:
            raise SchemaError(
                f"fields {numbers[entry.number]} and {entry.name} of Protobuf message {message.full_name} have the "
                f"number {entry.number}; use another one"
            )
        if entry.number in FIELD_NUMBERS_RESERVED:
            raise SchemaError(f"number {entry.number} of field {path} is reserved by Protobuf; use another one")
        if entry.name in reserved_names or reserved.has(entry.number):
            raise SchemaError(f"field {path} = {entry.number} is reserved in its message; use another name and number")
        if extensions.has(entry.number):
            raise SchemaError(f"number {entry.number} of field {path} is one of the message's extensions")
        names.add(entry.name)
        numbers[entry.number] = entry.name


class _Ranges:
    """Ranges of numbers, with their ends: found by bisection, because a text can have many of them and many fields."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        ordered = sorted(ranges)
        self._starts = [first for first, _ in ordered]
        self._ends = list(accumulate((last for _, last in ordered), max))

    def has(self, number: int) -> bool:
        index = bisect_right(self._starts, number)
        return index > 0 and number <= self._ends[index - 1]
