"""The normal form of a Protobuf schema: a .proto text without comments, with full type names and a fixed order.

Two texts with the same meaning have the same normal form: fields are sorted by number, imports and options by name.
Messages keep their order, because the indexes in framed values depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.schema.protobuf_schema import (
    ENUM_RANGE,
    FIELD_NUMBER_MAX,
    EnumDefinition,
    FieldDefinition,
    FileDefinition,
    MessageDefinition,
    Option,
    ProtobufSchema,
    ServiceDefinition,
    json_name,
)
from headrace.schema.protobuf_tokens import quoted


def normal_form(schema: ProtobufSchema) -> str:
    """Return the text of a schema in a form that is equal for schemas with the same definitions."""
    return "\n".join(_file(schema.file)) + "\n"


def _file(file: FileDefinition) -> Iterator[str]:
    yield f'syntax = "{file.syntax}";'
    if file.package:
        yield f"package {file.package};"
    for entry in sorted(file.imports, key=lambda entry: entry.name):
        yield f"import {entry.kind} {quoted(entry.name)};".replace("  ", " ")
    yield from _options(file.options)
    is_proto3 = file.syntax == "proto3"
    for enum in file.enums:
        yield from _enum(enum)
    groups = {entry.type_name for entry in file.extensions if entry.type == "group"}
    for message in file.messages:
        if message.full_name not in groups:
            yield from _message(message, is_proto3)
    yield from _extensions(file.extensions, file.messages, is_proto3)
    for service in file.services:
        yield from _service(service)


def _options(options: Sequence[Option]) -> Iterator[str]:
    for option in sorted(options, key=lambda option: option.name):
        if option.name != "map_entry":
            yield f"option {option.name} = {option.value};"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _message(message: MessageDefinition, is_proto3: bool) -> Iterator[str]:
    yield f"message {message.name} {{"
    yield from _indented(_message_body(message, is_proto3))
    yield "}"


def _message_body(message: MessageDefinition, is_proto3: bool) -> Iterator[str]:
    yield from _options(message.options)
    yield from _reserved("reserved", message.reserved_ranges, FIELD_NUMBER_MAX)
    yield from _reserved_names(message.reserved_names)
    yield from _reserved("extensions", message.extension_ranges, FIELD_NUMBER_MAX)
    for enum in message.enums:
        yield from _enum(enum)
    nested = {entry.full_name: entry for entry in message.messages}
    done: set[int] = set()
    for entry in _in_order(message):
        if isinstance(entry, MessageDefinition):
            yield from _message(entry, is_proto3)
        elif entry.number in done:
            continue
        elif not entry.is_in_oneof:
            done.add(entry.number)
            yield from _field(entry, nested, is_proto3)
        else:
            members = [other for other in message.fields if other.oneof == entry.oneof]
            done.update(other.number for other in members)
            yield f"oneof {message.oneofs[entry.oneof]} {{"
            for other in sorted(members, key=lambda other: other.number):
                yield from _indented(_field(other, nested, is_proto3))
            yield "}"
    yield from _extensions(message.extensions, message.messages, is_proto3)


def _in_order(message: MessageDefinition) -> Iterator[MessageDefinition | FieldDefinition]:
    """Yield nested messages, then fields by number; a map or group before later messages, whose indexes it raises."""
    owners = {entry.type_name: entry for entry in message.fields}
    extended = {entry.type_name for entry in message.extensions if entry.type == "group"}
    plain = [entry for entry in message.messages if entry.full_name not in extended or entry.full_name in owners]
    is_inline = {entry.full_name for entry in plain if entry.is_map_entry or _is_group(owners.get(entry.full_name))}
    if len(is_inline) < len(plain):
        for entry in plain:
            yield owners[entry.full_name] if entry.full_name in is_inline else entry
    yield from sorted(message.fields, key=lambda entry: entry.number)


def _is_group(entry: FieldDefinition | None) -> bool:
    return entry is not None and entry.type == "group"


def _field(entry: FieldDefinition, nested: dict[str, MessageDefinition], is_proto3: bool) -> Iterator[str]:
    kind = f".{entry.type_name}" if entry.type_name else entry.type
    label = "" if entry.is_in_oneof else f"{entry.label} "
    if is_proto3 and entry.label == "optional" and not entry.is_proto3_optional:
        label = ""
    options = [] if entry.default is None else [Option("default", _default(entry))]
    if entry.json_name not in ("", json_name(entry.name)):
        options.append(Option("json_name", quoted(entry.json_name)))
    options += sorted(entry.options, key=lambda option: option.name)
    texts = ", ".join(f"{option.name} = {option.value}" for option in options)
    suffix = f" [{texts}]" if texts else ""
    target = nested.get(entry.type_name)
    if target is not None and entry.type == "group":
        yield f"{label}group {target.name} = {entry.number}{suffix} {{"
        yield from _indented(_message_body(target, is_proto3))
        yield "}"
        return
    if target is not None and target.is_map_entry:
        types = (f".{part.type_name}" if part.type_name else part.type for part in target.fields)
        label, kind = "", f"map<{', '.join(types)}>"
    yield f"{label}{kind} {entry.name} = {entry.number}{suffix};"


def _default(entry: FieldDefinition) -> str:
    assert entry.default is not None
    if entry.type == "string":
        return quoted(entry.default)
    return f'"{entry.default}"' if entry.type == "bytes" else entry.default


def _extensions(
    extensions: Sequence[FieldDefinition], messages: Sequence[MessageDefinition], is_proto3: bool
) -> Iterator[str]:
    nested = {entry.full_name: entry for entry in messages}
    for entry in sorted(extensions, key=lambda entry: (entry.extendee, entry.number)):
        yield f"extend .{entry.extendee} {{"
        yield from _indented(_field(entry, nested, is_proto3))
        yield "}"


def _reserved(keyword: str, ranges: Sequence[tuple[int, int]], number_max: int) -> Iterator[str]:
    texts = []
    for first, last in sorted(ranges):
        end = "max" if last >= number_max else str(last)
        texts.append(str(first) if first == last else f"{first} to {end}")
    if texts:
        yield f"{keyword} {', '.join(texts)};"


def _reserved_names(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"reserved {', '.join(map(quoted, sorted(names)))};"


def _enum(enum: EnumDefinition) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from _indented(_options(enum.options))
    yield from _indented(_reserved("reserved", enum.reserved_ranges, ENUM_RANGE[-1]))
    yield from _indented(_reserved_names(enum.reserved_names))
    for value in enum.values:
        texts = ", ".join(f"{option.name} = {option.value}" for option in value.options)
        yield f"  {value.name} = {value.number}{f' [{texts}]' if texts else ''};"
    yield "}"


def _service(service: ServiceDefinition) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from _indented(_options(service.options))
    for method in service.methods:
        takes = f"{'stream ' if method.is_client_streaming else ''}.{method.input_type}"
        returns = f"{'stream ' if method.is_server_streaming else ''}.{method.output_type}"
        body = " ".join(_options(method.options))
        yield f"  rpc {method.name} ({takes}) returns ({returns}){f' {{ {body} }}' if body else ';'}"
    yield "}"
