"""Avro schemas: parsed from JSON, with names resolved and limits checked.

    JSON text, texts of references → parse_schema → AvroSchema

Names are resolved while parsing, so a schema is a tree; a named type that is used twice is one object. A type that
contains itself is an error: Arrow has no recursive type. The number of types after expansion is limited, because each
use of a named type becomes columns of its own, and a short text can use a type exponentially often.

A logical type that Avro's specification calls invalid, or that is unknown, is ignored: the type below it counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from headrace.errors import SchemaError
from headrace.schema.codec import shorten

DEPTH_MAX = 100
TYPES_MAX = 20_000
"""Types in a schema after expansion of named types: a bound for columns and for the time to plan."""
BRANCHES_MAX = 1_000
"""Branches of a union: each of the writer's is compared with each of the reader's."""
TEXT_CHARS_MAX = 4 << 20
FIXED_BYTES_MAX = 1 << 20
DECIMAL_DIGITS_MAX = 76  # of Arrow's decimal256

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

_LOGICAL_BASES = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
}


class NoDefault:
    """The type of `NO_DEFAULT`; None is a default."""


NO_DEFAULT: Final = NoDefault()


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type; precision and scale are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True, slots=True, eq=False)
class PrimitiveType:
    kind: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FixedType:
    name: str
    aliases: tuple[str, ...]
    size: int
    logical: Logical | None = None
    kind: str = "fixed"


@dataclass(frozen=True, slots=True, eq=False)
class EnumType:
    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None
    kind: str = "enum"


@dataclass(frozen=True, slots=True, eq=False)
class RecordField:
    name: str
    aliases: tuple[str, ...]
    type: AvroSchema
    default: Any = NO_DEFAULT  # as in the JSON text


@dataclass(frozen=True, slots=True, eq=False)
class RecordType:
    name: str
    aliases: tuple[str, ...]
    fields: tuple[RecordField, ...]
    kind: str = "record"


@dataclass(frozen=True, slots=True, eq=False)
class ArrayType:
    items: AvroSchema
    kind: str = "array"


@dataclass(frozen=True, slots=True, eq=False)
class MapType:
    values: AvroSchema
    kind: str = "map"


@dataclass(frozen=True, slots=True, eq=False)
class UnionType:
    branches: tuple[AvroSchema, ...]
    kind: str = "union"

    @property
    def null_index(self) -> int:
        """The index of the branch null; -1 if there is none."""
        return next((index for index, branch in enumerate(self.branches) if branch.kind == "null"), -1)

    @property
    def members(self) -> list[int]:
        """The indexes of the branches that are not null."""
        return [index for index, branch in enumerate(self.branches) if branch.kind != "null"]


AvroSchema: TypeAlias = PrimitiveType | FixedType | EnumType | RecordType | ArrayType | MapType | UnionType
NamedType: TypeAlias = FixedType | EnumType | RecordType


def parse_schema(text: str, references: Sequence[str] = (), *, recursive: bool = False) -> AvroSchema:
    """Parse a schema.

    `references` are texts of schemas whose named types it uses. A type is defined before its first
    use. With `recursive`, a record may contain itself; the result is then a graph with cycles.
    """
    parser = _Parser(recursive)
    for reference in references:
        parser.parse(_load(reference), "", 0)
    return parser.parse(_load(text), "", 0)


def describe(schema: AvroSchema) -> str:
    """Return a schema in a few words, for errors."""
    if isinstance(schema, PrimitiveType):
        return f"{schema.kind} ({schema.logical})" if schema.logical else schema.kind
    if isinstance(schema, FixedType):
        logical = f", {schema.logical}" if schema.logical else ""
        return f"fixed {schema.name} ({schema.size} bytes{logical})"
    if isinstance(schema, EnumType | RecordType):
        return f"{schema.kind} {schema.name}"
    if isinstance(schema, ArrayType):
        return f"array of {describe(schema.items)}"
    if isinstance(schema, MapType):
        return f"map of {describe(schema.values)}"
    return f"union of {', '.join(map(describe, schema.branches))}"


def _load(text: str) -> Any:
    if len(text) > TEXT_CHARS_MAX:
        raise SchemaError(f"Avro schema has {len(text):,} characters; at most {TEXT_CHARS_MAX:,} are read")
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise SchemaError(f"Avro schema is not JSON: {error}; a name alone needs quotes: '\"string\"'") from None


def _too_deep() -> SchemaError:
    return SchemaError(f"Avro schema is nested deeper than {DEPTH_MAX} levels; flatten it")


@dataclass(slots=True)
class _Parser:
    recursive: bool = False
    named: dict[str, NamedType] = field(default_factory=dict)
    open_names: set[str] = field(default_factory=set)
    # Types and levels of each type after expansion, by id of the object: `kept` keeps the ids unique.
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    kept: list[AvroSchema] = field(default_factory=list)

    def parse(self, node: Any, namespace: str, depth: int) -> AvroSchema:
        if depth > DEPTH_MAX:
            raise _too_deep()
        if isinstance(node, str):
            return self._by_name(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace, depth)
        if not isinstance(node, dict):
            raise SchemaError(f"invalid Avro schema {node!r}: expected a name, an object or a list")
        kind = node.get("type")
        if kind in ("record", "error"):
            return self._record(node, namespace, depth)
        if kind == "enum":
            return self._enum(node, namespace)
        if kind == "fixed":
            return self._fixed(node, namespace)
        if kind == "array":
            items = self.parse(_need(node, "items", "array"), namespace, depth + 1)
            return self._keep(ArrayType(items), [items])
        if kind == "map":
            values = self.parse(_need(node, "values", "map"), namespace, depth + 1)
            return self._keep(MapType(values), [values])
        if isinstance(kind, str) and kind in PRIMITIVES:
            return self._keep(PrimitiveType(kind, _logical(node, kind, 0)), [])
        if kind is None:
            raise SchemaError(f"invalid Avro schema: an object without a type: {_short(node)}")
        return self.parse(kind, namespace, depth + 1)

    def _keep(self, schema: AvroSchema, parts: Sequence[AvroSchema]) -> AvroSchema:
        """Check the limits of a new type made of `parts`."""
        types = 1 + sum(self.sizes[id(part)][0] for part in parts)
        levels = 1 + max((self.sizes[id(part)][1] for part in parts), default=0)
        if types > TYPES_MAX:
            raise SchemaError(
                f"Avro schema has more than {TYPES_MAX:,} types after expansion of named types; "
                f"use named types less often"
            )
        if levels > DEPTH_MAX + 1:
            raise _too_deep()
        self.sizes[id(schema)] = (types, levels)
        self.kept.append(schema)
        return schema

    def _by_name(self, name: str, namespace: str) -> AvroSchema:
        if name in PRIMITIVES:
            return self._keep(PrimitiveType(name), [])
        candidates = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for full_name in candidates:
            if full_name in self.open_names and not self.recursive:
                raise SchemaError(
                    f"Avro type {full_name} contains itself: Arrow has no recursive type; "
                    f"change the schema so that it refers to other records by a key"
                )
            if full_name in self.named:
                return self.named[full_name]
        raise SchemaError(
            f"unknown Avro type {name!r}: define it before its first use, or add its schema as a reference"
        )

    def _union(self, node: list[Any], namespace: str, depth: int) -> AvroSchema:
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in node)
        if not 0 < len(branches) <= BRANCHES_MAX:
            raise SchemaError(f"invalid Avro union: expected 1 to {BRANCHES_MAX:,} branches, got {len(branches):,}")
        seen = set()
        for branch in branches:
            if isinstance(branch, UnionType):
                raise SchemaError("invalid Avro union: it contains a union directly; merge the two")
            name = branch.name if isinstance(branch, FixedType | EnumType | RecordType) else branch.kind
            if name in seen:
                raise SchemaError(f"invalid Avro union: it has {name} twice; a value could belong to either")
            seen.add(name)
        return self._keep(UnionType(branches), branches)

    def _record(self, node: dict[str, Any], namespace: str, depth: int) -> AvroSchema:
        name, aliases, namespace = self._names(node, namespace)
        declared = _need(node, "fields", f"record {name}")
        if not isinstance(declared, list):
            raise SchemaError(f"invalid Avro record {name}: expected a list of fields, got {_short(declared)}")
        self.open_names.add(name)
        record = RecordType(name, aliases, ())
        if self.recursive:
            self._define(record, [])  # fields may use it
        fields, seen = [], set()
        for entry in declared:
            if not isinstance(entry, dict):
                raise SchemaError(f"invalid field of Avro record {name}: expected an object, got {_short(entry)}")
            field_name = _need(entry, "name", f"a field of record {name}")
            if not (isinstance(field_name, str) and _NAME.fullmatch(field_name)):
                raise SchemaError(f"invalid field name {field_name!r} in Avro record {name}: {_NAME_RULE}")
            if field_name in seen:
                raise SchemaError(f"invalid Avro record {name}: it has the field {field_name} twice")
            seen.add(field_name)
            field_type = self.parse(_need(entry, "type", f"field {name}.{field_name}"), namespace, depth + 1)
            aliases_of_field = _texts(entry, "aliases", f"field {name}.{field_name}")
            fields.append(RecordField(field_name, aliases_of_field, field_type, entry.get("default", NO_DEFAULT)))
        self.open_names.discard(name)
        object.__setattr__(record, "fields", tuple(fields))  # only now: nobody else has seen the record yet
        return self._define(record, [entry.type for entry in fields])

    def _enum(self, node: dict[str, Any], namespace: str) -> AvroSchema:
        name, aliases, _ = self._names(node, namespace)
        symbols = _texts(node, "symbols", f"enum {name}")
        for symbol in symbols:
            if not _NAME.fullmatch(symbol):
                raise SchemaError(f"invalid symbol {symbol!r} in Avro enum {name}: {_NAME_RULE}")
        if len(set(symbols)) != len(symbols) or not symbols:
            raise SchemaError(f"invalid Avro enum {name}: symbols must be unique and at least one")
        default = node.get("default")
        if default is not None and default not in symbols:
            raise SchemaError(f"invalid Avro enum {name}: its default {default!r} is not one of its symbols")
        return self._define(EnumType(name, aliases, symbols, default), [])

    def _fixed(self, node: dict[str, Any], namespace: str) -> AvroSchema:
        name, aliases, _ = self._names(node, namespace)
        size = _need(node, "size", f"fixed {name}")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= FIXED_BYTES_MAX:
            raise SchemaError(f"invalid size {size!r} of Avro fixed {name}: expected 0 to {FIXED_BYTES_MAX:,}")
        return self._define(FixedType(name, aliases, size, _logical(node, "fixed", size)), [])

    def _names(self, node: dict[str, Any], namespace: str) -> tuple[str, tuple[str, ...], str]:
        """Return the full name, the full names of the aliases, and the namespace of what is inside."""
        name = _need(node, "name", f"a {node['type']}")
        if not (isinstance(name, str) and _FULL_NAME.fullmatch(name)):
            raise SchemaError(f"invalid name {name!r} of an Avro {node['type']}: {_NAME_RULE}")
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            declared = node.get("namespace", namespace)
            if not isinstance(declared, str) or (declared and not _FULL_NAME.fullmatch(declared)):
                raise SchemaError(f"invalid namespace {declared!r} of Avro {node['type']} {name}: {_NAME_RULE}")
            namespace = declared
            name = f"{namespace}.{name}" if namespace else name
        if name in PRIMITIVES:
            raise SchemaError(f"invalid name {name!r} of an Avro {node['type']}: it is the name of a primitive type")
        if name in self.named or name in self.open_names:
            raise SchemaError(f"Avro type {name} is defined twice; refer to it by its name instead")
        aliases = _texts(node, "aliases", name)
        return name, tuple(a if "." in a or not namespace else f"{namespace}.{a}" for a in aliases), namespace

    def _define(self, schema: NamedType, parts: Sequence[AvroSchema]) -> AvroSchema:
        self._keep(schema, parts)
        self.named[schema.name] = schema
        return schema


_NAME_RULE = "expected letters, digits and _, not beginning with a digit"


def _need(node: dict[str, Any], key: str, what: str) -> Any:
    if key not in node:
        raise SchemaError(f"invalid Avro schema: {what} has no {key!r}: {_short(node)}")
    return node[key]


def _texts(node: dict[str, Any], key: str, what: str) -> tuple[str, ...]:
    texts = node.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SchemaError(f"invalid {key} of Avro {what}: expected a list of names, got {_short(texts)}")
    return tuple(texts)


def _short(node: Any) -> str:
    return shorten(repr(node))


def _logical(node: dict[str, Any], base: str, size: int) -> Logical | None:
    name = node.get("logicalType")
    if not isinstance(name, str):
        return None
    if name == "decimal" and base in ("bytes", "fixed"):
        precision, scale = node.get("precision"), node.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX:
            return None
        if precision < 1 or (base == "fixed" and (size < 1 or 10**precision > 1 << (8 * size - 1))):
            return None
        return Logical(name, precision, scale)
    if _LOGICAL_BASES.get(name) == base or (name == "uuid" and (base == "string" or (base == "fixed" and size == 16))):
        return Logical(name)
    return Logical(name) if name == "duration" and base == "fixed" and size == 12 else None
