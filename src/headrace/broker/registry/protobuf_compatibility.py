"""Which Protobuf schemas can read what others wrote: the rules of Confluent's registry, with its names for differences.

package     must not change
messages    may be added and moved, not removed; matched by name
fields      matched by number: may be added, removed and renamed, unless they are required
types       within a group whose values have the same form: int32, int64, uint32, uint64, bool and enums; sint32 and
            sint64; string and bytes; fixed32 and sfixed32; fixed64 and sfixed64; messages of the same name
labels      of numbers must not change, if both are written: an implicit one of proto3 matches all
oneofs      a field may move out of one, and into a new one; fields that could be set together must not become
            exclusive; a member must not be removed, unless the whole oneof is
enums       are not compared: unknown numbers are kept
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.registry.formats import Comparison, Incompatibility
from headrace.schema.protobuf_schema import FieldDefinition, MessageDefinition, ProtobufSchema, all_messages

_GROUPS = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "number"),
    **dict.fromkeys(("sint32", "sint64"), "signed number"),
    **dict.fromkeys(("string", "bytes"), "string or bytes"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed 32 bits"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed 64 bits"),
    "float": "float",
    "double": "double",
}


def find_incompatibilities(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Incompatibility]:
    """Return why the reader's schema cannot read what was written with the writer's; empty if it can."""
    checker = _Checker(writer, reader)
    checker.compare_files()
    return checker.comparison.reasons


class _Side:
    """A schema with what its definitions do not say themselves."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self.schema = schema
        files = (*schema.imports.values(), schema.file)
        self._packages = {message.full_name: file.package for file in files for message in all_messages(file.messages)}
        self._proto3 = {
            message.full_name for file in files if file.syntax == "proto3" for message in all_messages(file.messages)
        }

    def local_name(self, message: MessageDefinition) -> str:
        """Return the name of a message without its package."""
        package = self._packages[message.full_name]
        return message.full_name.removeprefix(f"{package}.") if package else message.full_name

    def label(self, message: MessageDefinition, field: FieldDefinition) -> str | None:
        """Return the label of a field as written; None if it is implicit."""
        is_implicit = field.label == "optional" and message.full_name in self._proto3 and not field.is_proto3_optional
        return None if is_implicit else field.label

    def message_of(self, field: FieldDefinition) -> MessageDefinition | None:
        """Return the message type of a field; None if it has another type."""
        return self.schema.messages.get(field.type_name) if field.type in ("message", "group") else None


class _Checker:
    """Compares the old schema (the writer's) with the new one (the reader's)."""

    def __init__(self, old: ProtobufSchema, new: ProtobufSchema) -> None:
        self.comparison = Comparison()
        self._old = _Side(old)
        self._new = _Side(new)

    def compare_files(self) -> None:
        old, new = self._old.schema.file, self._new.schema.file
        if old.package != new.package:
            self.comparison.add(
                "PACKAGE_CHANGED", "#/", f"{{writer}} has the package {old.package!r}, {{reader}} {new.package!r}"
            )
        self._compare_lists(old.messages, new.messages, "#")

    def _compare_lists(self, old: Sequence[MessageDefinition], new: Sequence[MessageDefinition], path: str) -> None:
        known = {message.name: message for message in new}
        for message in old:
            message_path = f"{path}/{message.name}"
            if message.is_map_entry:
                continue  # its field is compared
            if message.name in known:
                self._compare_messages(message, known[message.name], message_path)
            else:
                self.comparison.add(
                    "MESSAGE_REMOVED", message_path, f"message {message.full_name} of {{writer}} is not in {{reader}}"
                )

    def _compare_messages(self, old: MessageDefinition, new: MessageDefinition, path: str) -> None:
        self.comparison.count()
        if not self.comparison.enter((id(new), id(old))):
            return
        old_fields = {field.number: field for field in old.fields}
        new_fields = {field.number: field for field in new.fields}
        self._compare_oneofs(old, new, path)
        lost_oneofs = _lost_oneofs(old, new)
        for number in sorted({*old_fields, *new_fields}):
            before, after = old_fields.get(number), new_fields.get(number)
            if before is None:
                assert after is not None
                if after.label == "required":
                    self._add("REQUIRED_FIELD_ADDED", after, path, "is required in {reader} and not in {writer}")
            elif after is not None:
                self._compare_fields((old, before), (new, after), f"{path}/{number}")
            elif before.label == "required":
                self._add("REQUIRED_FIELD_REMOVED", before, path, "is required in {writer} and not in {reader}")
            elif before.is_in_oneof and before.oneof not in lost_oneofs:
                self._add("ONEOF_FIELD_REMOVED", before, path, "is in a oneof of {writer} and not in {reader}")
        self._compare_lists(old.messages, new.messages, path)

    def _add(self, kind: str, field: FieldDefinition, path: str, text: str) -> None:
        self.comparison.add(kind, f"{path}/{field.number}", f"field {field.name} {text}")

    def _compare_oneofs(self, old: MessageDefinition, new: MessageDefinition, path: str) -> None:
        """Report fields that could be set together and have become exclusive."""
        before = {field.number: field for field in old.fields}
        for index, name in enumerate(new.oneofs):
            members = [field for field in new.fields if field.oneof == index and field.is_in_oneof]
            known = [before[field.number] for field in members if field.number in before]
            alone = [field for field in known if not field.is_in_oneof]
            groups = {field.oneof for field in known if field.is_in_oneof}
            if len(groups) + len(alone) > 1:
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(alone) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                names = ", ".join(field.name for field in known)
                self.comparison.add(
                    kind, f"{path}/{name}", f"fields {names} are exclusive in {{reader}} and were not in {{writer}}"
                )

    def _compare_fields(
        self,
        old: tuple[MessageDefinition, FieldDefinition],
        new: tuple[MessageDefinition, FieldDefinition],
        path: str,
    ) -> None:
        (old_owner, before), (new_owner, after) = old, new
        old_message, new_message = self._old.message_of(before), self._new.message_of(after)
        if _kind(old_message) != _kind(new_message):
            self._changed("FIELD_KIND_CHANGED", before, after, path)
        elif old_message is None or new_message is None:
            if _GROUPS[before.type] != _GROUPS[after.type]:
                self._changed("FIELD_SCALAR_KIND_CHANGED", before, after, path)
            else:
                labels = (self._old.label(old_owner, before), self._new.label(new_owner, after))
                if None not in labels and labels[0] != labels[1] and _GROUPS[before.type] != "string or bytes":
                    text = f"field {after.name} is {labels[0]} in {{writer}} and {labels[1]} in {{reader}}"
                    self.comparison.add("FIELD_NUMERIC_LABEL_CHANGED", path, text)
        elif old_message.is_map_entry:
            for before, after in zip(old_message.fields, new_message.fields, strict=True):
                self._compare_fields((old_message, before), (new_message, after), path)
        else:
            self._compare_types(old_message, new_message, (before, after), path)

    def _compare_types(
        self,
        old: MessageDefinition,
        new: MessageDefinition,
        fields: tuple[FieldDefinition, FieldDefinition],
        path: str,
    ) -> None:
        if self._old.local_name(old) != self._new.local_name(new):
            self._changed("FIELD_NAMED_TYPE_CHANGED", *fields, path)
        else:
            self._compare_messages(old, new, path)

    def _changed(self, kind: str, old: FieldDefinition, new: FieldDefinition, path: str) -> None:
        text = f"field {new.name} has the type {_type(old)} in {{writer}} and {_type(new)} in {{reader}}"
        self.comparison.add(kind, path, text)


def _lost_oneofs(old: MessageDefinition, new: MessageDefinition) -> set[int]:
    """Return the oneofs of which neither the name nor a member is left: deleting one as a whole is compatible."""
    numbers = {field.number for field in new.fields}
    kept = {field.oneof for field in old.fields if field.oneof >= 0 and field.number in numbers}
    return {index for index, name in enumerate(old.oneofs) if index not in kept and name not in new.oneofs}


def _kind(message: MessageDefinition | None) -> str:
    if message is None:
        return "scalar"
    return "map" if message.is_map_entry else "message"


def _type(field: FieldDefinition) -> str:
    return field.type_name or field.type
