"""Avro schemas in the registry: one text for all that differ only in spaces and in the order of attributes.

The text is what Java's `Schema.toString` writes, so that Confluent's registry finds a schema again that this one has
registered: known attributes in a fixed order, then the others as given, and a namespace only where it changes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.broker.registry.avro_compatibility import find_incompatibilities
from headrace.broker.registry.changes import dump
from headrace.broker.registry.formats import Incompatibility, load_json
from headrace.errors import SchemaError
from headrace.schema import avro_schema as avro
from headrace.schema.avro_defaults import encode_default
from headrace.schema.avro_schema import AvroSchema, parse_schema

RESOLVED = "resolved"
"""The format with all referenced types in the text."""

_KNOWN = {
    "record": ("type", "name", "namespace", "doc", "fields", "aliases"),
    "enum": ("type", "name", "namespace", "doc", "symbols", "default", "aliases"),
    "fixed": ("type", "name", "namespace", "doc", "size", "aliases"),
    "array": ("type", "items"),
    "map": ("type", "values"),
}
_KNOWN["error"] = _KNOWN["record"]
_FIELD = ("name", "type", "doc", "default", "order", "aliases")


class ParsedAvro:
    """A valid Avro schema."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        self._references = references
        self.schema = parse_schema(text, references, recursive=True)
        _check_defaults(self.schema, set())
        try:
            self._node = load_json(text)
        except ValueError as error:
            raise SchemaError(f"not JSON: {error}") from None
        self.text = self.identity = dump(_Writer().write(self._node, ""))

    def normalized(self) -> str:
        return dump(_Writer(is_sorted=True).write(self._node, ""))

    def rendered(self, format: str) -> str:
        """Return the text; as `resolved`, with the definitions of referenced types at their first use."""
        if format != RESOLVED or not self._references:
            return self.text
        definitions: dict[str, Any] = {}
        for reference in self._references:
            _collect(json.loads(reference), "", definitions)
        return dump(_Writer(definitions=definitions).write(self._node, ""))

    def unreadable(self, writer: ParsedAvro) -> list[Incompatibility]:
        return find_incompatibilities(self.schema, writer.schema)


def _check_defaults(schema: AvroSchema, seen: set[int]) -> None:
    """Raise SchemaError if a default is not a value of its field's type."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    if isinstance(schema, avro.RecordType):
        for field in schema.fields:
            if not isinstance(field.default, avro.NoDefault):
                try:
                    encode_default(field.type, field.default)
                except SchemaError as error:
                    raise SchemaError(f"field {field.name} of record {schema.name}: {error}") from None
            _check_defaults(field.type, seen)
    elif isinstance(schema, avro.ArrayType):
        _check_defaults(schema.items, seen)
    elif isinstance(schema, avro.MapType):
        _check_defaults(schema.values, seen)
    elif isinstance(schema, avro.UnionType):
        for branch in schema.branches:
            _check_defaults(branch, seen)


def _full_name(node: dict[str, Any], namespace: str) -> str:
    name: str = node["name"]
    if "." in name:
        return name
    space = node.get("namespace", namespace)
    return f"{space}.{name}" if space else name


def _namespace_of(full_name: str) -> str:
    return full_name.rpartition(".")[0]


class _Writer:
    """Writes the JSON of a valid schema in the fixed order."""

    def __init__(self, *, is_sorted: bool = False, definitions: dict[str, Any] | None = None) -> None:
        self._is_sorted = is_sorted
        self._definitions = definitions or {}  # by full name, to be written at their first use
        self._names: set[str] = set()  # of types in this text

    def write(self, node: Any, namespace: str) -> Any:
        if isinstance(node, str):
            return self._use(node, namespace)
        if isinstance(node, list):
            return [self.write(branch, namespace) for branch in node]
        kind = node["type"]
        if not isinstance(kind, str) or (kind not in _KNOWN and kind not in avro.PRIMITIVES):
            return self.write(kind, namespace)  # {"type": {"type": …}}: the inner one counts
        if kind in avro.PRIMITIVES:
            others = self._others(node, ("type",))
            return {"type": kind, **others} if others else kind
        written: dict[str, Any] = {"type": kind}
        if kind == "array":
            written["items"] = self.write(node["items"], namespace)
        elif kind == "map":
            written["values"] = self.write(node["values"], namespace)
        else:
            self._write_named(node, namespace, written)
        written |= self._others(node, _KNOWN[kind])
        if kind not in ("array", "map") and node.get("aliases"):
            written["aliases"] = node["aliases"]
        return written

    def _write_named(self, node: dict[str, Any], namespace: str, written: dict[str, Any]) -> None:
        full_name = _full_name(node, namespace)
        self._names.add(full_name)
        inner, _, written["name"] = full_name.rpartition(".")
        if inner != namespace:
            written["namespace"] = inner
        if isinstance(node.get("doc"), str):
            written["doc"] = node["doc"]
        if "fields" in node and node["type"] in ("record", "error"):
            written["fields"] = [self._field(field, inner) for field in node["fields"]]
        for name in ("symbols", "size", "default"):
            if name in _KNOWN[node["type"]] and name in node:
                written[name] = node[name]

    def _field(self, node: dict[str, Any], namespace: str) -> dict[str, Any]:
        written: dict[str, Any] = {"name": node["name"], "type": self.write(node["type"], namespace)}
        if isinstance(node.get("doc"), str):
            written["doc"] = node["doc"]
        if "default" in node:
            written["default"] = node["default"]
        if node.get("order", "ascending") != "ascending":
            written["order"] = node["order"]
        if node.get("aliases"):
            written["aliases"] = node["aliases"]
        return written | self._others(node, _FIELD)

    def _others(self, node: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
        others = {name: value for name, value in node.items() if name not in known}
        return dict(sorted(others.items())) if self._is_sorted else others

    def _use(self, name: str, namespace: str) -> Any:
        if name in avro.PRIMITIVES:
            return name
        candidates = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        full_name = next((each for each in candidates if each in self._names or each in self._definitions), name)
        if full_name not in self._names and full_name in self._definitions:
            definition, definition_namespace = self._definitions[full_name]
            # With its full name: the namespace here may be another one.
            return self.write({**definition, "name": _full_name(definition, definition_namespace)}, namespace)
        short = full_name.removeprefix(f"{namespace}.") if namespace else full_name
        return short if "." not in short else full_name


def _collect(node: Any, namespace: str, definitions: dict[str, Any]) -> None:
    """Add the named types of a schema to `definitions`, each with the namespace around it."""
    if isinstance(node, list):
        for branch in node:
            _collect(branch, namespace, definitions)
    if not isinstance(node, dict):
        return
    if "name" in node and node.get("type") in _KNOWN:
        full_name = _full_name(node, namespace)
        definitions.setdefault(full_name, (node, namespace))
        for field in node.get("fields", ()):
            _collect(field["type"], _namespace_of(full_name), definitions)
        return
    for name in ("type", "items", "values"):
        _collect(node.get(name), namespace, definitions)
