"""JSON schemas (draft-04 to 2020-12): from text to the types of columns.

    text, texts of references by name → parse_schema → JsonSchema

What a value looks like counts: `type`, `properties`, `required`, `items`, `additionalProperties`, `allOf`, `oneOf`,
`anyOf`, `$ref`, `enum`, `const`, `default`, and Kafka Connect's hints. Constraints (`pattern`, `minimum`, `if`, …) are
left to `validate=True`. A type that contains itself is an error: Arrow has no recursive type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema.codec import join_path
from headrace.schema.json_references import Documents, load_documents
from headrace.schema.json_types import (
    CONNECT_NAMES,
    NO_DEFAULT,
    NULL,
    TOKENS,
    ArrayType,
    JsonSchema,
    MapType,
    MemberType,
    ObjectType,
    Property,
    ScalarType,
    TextType,
    UnionType,
    decimal_type,
    fits,
    json_bytes,
    token_of,
)

DEPTH_MAX = 100
TYPES_MAX = 20_000
"""Types in a schema after expansion of references: a bound for columns and for the time to plan."""
BRANCHES_MAX = 1_000
DECIMAL_DIGITS_MAX = 76  # of Arrow's decimal256
DECIMAL_DIGITS = 38
"""Precision of a Connect Decimal, which has only a scale."""

_TYPE_NAMES = ("object", "array", "string", "integer", "number", "boolean", "null")
_SHAPE_KEYWORDS = frozenset(
    (
        *("$ref", "type", "properties", "items", "prefixItems", "additionalProperties"),
        *("enum", "const", "allOf", "oneOf", "anyOf"),
    )
)
_CONNECT_INTEGERS = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
_CONNECT_TIMES = {"Date": pa.date32(), "Time": pa.time32("ms"), "Timestamp": pa.timestamp("ms", tz="UTC")}


def parse_schema(text: str, references: Mapping[str, str] | None = None) -> JsonSchema:
    """Parse a JSON schema. `references` has the texts of schemas that it refers to, by the name or URI in `$ref`."""
    documents, base = load_documents(text, references or {})
    try:
        return _Parser(documents).parse([_Subschema(documents.root, base, (), 0)], "")
    except RecursionError:
        raise _too_deep("the root") from None


@dataclass(frozen=True, slots=True)
class _Subschema:
    """A part of a schema, the base of its references, and where it is: in which schemas, and how deep."""

    node: Any
    base: str
    open_ids: tuple[int, ...]
    depth: int

    def inner(self, node: Any, depth: int = 0) -> _Subschema:
        return _Subschema(node, self.base, self.open_ids, self.depth + depth)


@dataclass(slots=True)
class _Shape:
    """Keywords of a schema, merged with those of its `$ref` and `allOf`."""

    types: tuple[str, ...] | None = None
    properties: dict[str, list[_Subschema]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    additional: _Subschema | None = None
    is_closed: bool = False
    items: _Subschema | None = None
    is_array: bool = False
    is_tuple: bool = False
    alternatives: list[list[_Subschema]] = field(default_factory=list)
    value_types: tuple[str, ...] | None = None  # of enum or const
    hints: dict[str, Any] = field(default_factory=dict)

    def branch(self) -> _Shape:
        """Return a copy without the alternatives, to be merged with one of them."""
        return replace(
            self,
            properties={name: list(parts) for name, parts in self.properties.items()},
            required=set(self.required),
            alternatives=[],
            hints=dict(self.hints),
        )

    def narrow_types(self, types: Sequence[str]) -> None:
        known = self.types
        if known is None:
            self.types = tuple(dict.fromkeys(types))
            return
        # An integer is a number.
        both = [name for name in known if name in types or (name == "integer" and "number" in types)]
        both += [name for name in types if name == "integer" and "number" in known and name not in both]
        self.types = tuple(both)


class _Parser:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._type_count = 0

    def parse(self, parts: Sequence[_Subschema], path: str) -> JsonSchema:
        """Parse a schema that is all of `parts`."""
        self._count_type()
        shape = _Shape()
        for part in parts:
            self._collect(part, shape, path)
        return self._build(shape, path)

    def _count_type(self) -> None:
        self._type_count += 1
        if self._type_count > TYPES_MAX:
            raise SchemaError(
                f"JSON schema has more than {TYPES_MAX:,} types after expansion of references; "
                f"use references less often"
            )

    def _collect(self, part: _Subschema, shape: _Shape, path: str) -> None:
        """Merge the keywords of a schema into a shape."""
        node = part.node
        if node is True:
            return
        if node is False:
            raise SchemaError(f"JSON schema allows no value at {path or 'the root'}; remove it from the schema")
        if not isinstance(node, dict):
            raise _invalid(path, f"expected an object or a boolean, got {_short(node)}")
        if id(node) in part.open_ids:
            raise SchemaError(
                f"JSON schema contains itself at {path or 'the root'}: Arrow has no recursive type; "
                f"change the schema so that it refers to other objects by a key"
            )
        if part.depth > DEPTH_MAX or len(part.open_ids) > 2 * DEPTH_MAX:
            raise _too_deep(path)
        here = _Subschema(node, self._documents.base_of(node, part.base), (*part.open_ids, id(node)), part.depth)
        reference = node.get("$ref")
        if isinstance(reference, str):
            target, base = self._documents.resolve(reference, here.base, path)
            self._collect(replace(here, node=target, base=base), shape, path)
            if not self._documents.is_modern:
                return
        for branch in _nodes(node, "allOf", path):
            self._collect(here.inner(branch), shape, path)
        _merge_keywords(here, shape, path)

    def _build(self, shape: _Shape, path: str) -> JsonSchema:
        for alternatives in shape.alternatives:
            if any(_has_shape(branch.node) for branch in alternatives):
                if sum(_has_shape(b.node) for other in shape.alternatives for b in other) > len(alternatives):
                    break
                return self._alternatives(shape, alternatives, path)
        else:
            return self._without_alternatives(shape, path)
        return TextType()

    def _alternatives(self, shape: _Shape, alternatives: Sequence[_Subschema], path: str) -> JsonSchema:
        if len(alternatives) > BRANCHES_MAX:
            raise _invalid(path, f"expected at most {BRANCHES_MAX:,} alternatives, got {len(alternatives):,}")
        members = []
        for alternative in alternatives:
            self._count_type()
            branch = shape.branch()
            self._collect(alternative, branch, path)
            if branch.types is None or branch.types or not shape.types:
                members.append(self._build(branch, path))
        if not members:
            raise SchemaError(f"JSON schema allows no value at {path or 'the root'}; correct its alternatives")
        return _union(members)

    def _without_alternatives(self, shape: _Shape, path: str) -> JsonSchema:
        types = shape.types
        if types is None:
            types = _inferred_types(shape)
        if types is None:
            return TextType()
        if shape.value_types is not None:
            number_types = ("integer", "number")
            has_numbers = not set(number_types).isdisjoint(shape.value_types)
            types = tuple(name for name in types if name in shape.value_types or (name in number_types and has_numbers))
        if not types:
            raise SchemaError(f"JSON schema allows no value at {path or 'the root'}; correct its types")
        return _union([self._typed(name, shape, path) for name in types])

    def _typed(self, name: str, shape: _Shape, path: str) -> JsonSchema:
        if name == "null":
            return NULL
        if name == "object":
            return self._object(shape, path)
        if name == "array":
            if shape.items is None or shape.is_tuple:
                return ArrayType(TextType())
            return ArrayType(self.parse([shape.items], f"{path}[]"))
        return _scalar(name, shape.hints, path)

    def _object(self, shape: _Shape, path: str) -> JsonSchema:
        properties = []
        for name, parts in shape.properties.items():
            if any(part.node is False for part in parts):
                continue
            inner = join_path(path, name)
            if not _is_encodable(name):
                raise _invalid(path, f"expected a property name in Unicode, got {name!r}")
            schema = self.parse(parts, inner)
            properties.append(Property(name, schema, name in shape.required, _default(parts, schema)))
        if properties:
            return ObjectType(tuple(properties), shape.is_closed)
        if shape.additional is not None and not shape.is_closed and _has_shape(shape.additional.node):
            return MapType(self.parse([shape.additional], f"{path}{{}}"))
        return TextType(("object",), nullable=False)


def _default(parts: Sequence[_Subschema], schema: JsonSchema) -> Any:
    """Return the default of a property. One that does not fit is ignored: it is an annotation only."""
    for part in parts:
        if isinstance(part.node, dict) and "default" in part.node:
            default = part.node["default"]
            return default if _is_encodable(default) and fits(schema, default) else NO_DEFAULT
    return NO_DEFAULT


def _merge_keywords(here: _Subschema, shape: _Shape, path: str) -> None:
    node = here.node
    declared = node.get("type")
    if declared is not None:
        types = declared if isinstance(declared, list) else [declared]
        if not types or not all(isinstance(name, str) and name in _TYPE_NAMES for name in types):
            raise _invalid(path, f"expected a type ({', '.join(_TYPE_NAMES)}), got {_short(declared)}")
        shape.narrow_types(types)
    properties = node.get("properties", {})
    if not isinstance(properties, dict):
        raise _invalid(path, f"expected an object of properties, got {_short(properties)}")
    for name, child in properties.items():
        shape.properties.setdefault(name, []).append(here.inner(child, 1))
    required = node.get("required", [])
    if isinstance(required, list):  # draft-03 has a boolean in the property
        shape.required.update(name for name in required if isinstance(name, str))
    additional = node.get("additionalProperties")
    if isinstance(additional, dict):
        shape.additional = here.inner(additional, 1)
    shape.is_closed |= additional is False
    _merge_items(here, shape)
    for keyword in ("oneOf", "anyOf"):
        if branches := _nodes(node, keyword, path):
            shape.alternatives.append([here.inner(branch) for branch in branches])
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list) and values:
        names = tuple(dict.fromkeys(map(_value_type, values)))
        known = shape.value_types
        shape.value_types = names if known is None else tuple(name for name in known if name in names)
    shape.hints.update({key: node[key] for key in ("title", "connect.type", "connect.parameters") if key in node})


def _merge_items(here: _Subschema, shape: _Shape) -> None:
    node = here.node
    items = node.get("items")
    shape.is_array |= items is not None or "prefixItems" in node
    if isinstance(items, list) or "prefixItems" in node:
        shape.is_tuple = True
    elif isinstance(items, dict):
        shape.items = here.inner(items, 1)


def _inferred_types(shape: _Shape) -> tuple[str, ...] | None:
    """Return the types of a schema that does not say; None if it says nothing about the shape."""
    if shape.value_types is not None:
        return shape.value_types
    names = ["object"] if shape.properties or shape.additional is not None else []
    if shape.is_array:
        names.append("array")
    return tuple(names) or None


def _value_type(value: Any) -> str:
    return "integer" if type(value) is int else token_of(value)


def _has_shape(node: Any) -> bool:
    return isinstance(node, dict) and not _SHAPE_KEYWORDS.isdisjoint(node)


def _scalar(name: str, hints: Mapping[str, Any], path: str) -> ScalarType:
    connect_type, title = hints.get("connect.type"), hints.get("title")
    logical = title.removeprefix(CONNECT_NAMES) if isinstance(title, str) and title.startswith(CONNECT_NAMES) else ""
    if name == "integer":
        if logical in _CONNECT_TIMES:
            return ScalarType(name, _CONNECT_TIMES[logical])
        return ScalarType(name, _CONNECT_INTEGERS.get(str(connect_type), pa.int64()))
    if name == "number":
        if logical == "Decimal":
            return _decimal(hints.get("connect.parameters"), path)
        return ScalarType(name, pa.float32() if connect_type == "float32" else pa.float64())
    if name == "string" and connect_type == "bytes":
        return ScalarType("bytes", pa.binary())
    return ScalarType(name, pa.string() if name == "string" else pa.bool_())


def _decimal(parameters: Any, path: str) -> ScalarType:
    declared = parameters if isinstance(parameters, dict) else {}
    texts = [str(declared.get("scale", "")), str(declared.get("connect.decimal.precision", DECIMAL_DIGITS))]
    if not all(text.isdecimal() and len(text) < 4 for text in texts):
        raise _invalid(path, f"expected scale and precision of a Decimal, got {_short(parameters)}")
    scale, precision = map(int, texts)
    if not scale <= precision <= DECIMAL_DIGITS_MAX or precision < 1:
        raise _invalid(path, f"expected scale <= precision <= {DECIMAL_DIGITS_MAX}, got {_short(parameters)}")
    return ScalarType("decimal", decimal_type(precision, scale))


def _union(members: Sequence[JsonSchema]) -> JsonSchema:
    """Return the type of values that are of one of several types."""
    nullable = any(member.nullable for member in members)
    combined: dict[str, MemberType] = {}
    for member in members:
        parts = member.members if isinstance(member, UnionType) else (member,)
        for part in parts:
            if isinstance(part, TextType):
                tokens = {token for other in members for token in _tokens(other)}
                return TextType(tuple(token for token in TOKENS if token in tokens), nullable)
            if part == NULL:
                continue
            plain = replace(part, nullable=False)
            both = _combined(combined[plain.token], plain) if plain.token in combined else plain
            if both is None:
                tokens = {token for other in members for token in _tokens(other)}
                return TextType(tuple(token for token in TOKENS if token in tokens), nullable)
            combined[plain.token] = both
    if not combined:
        return NULL
    if len(combined) == 1:
        (only,) = combined.values()
        return replace(only, nullable=nullable)
    return UnionType(tuple(combined.values()), nullable)


def _tokens(schema: JsonSchema) -> tuple[str, ...]:
    if isinstance(schema, TextType):
        return schema.tokens
    if isinstance(schema, UnionType):
        return tuple(member.token for member in schema.members)
    return () if schema.kind == "null" else (schema.token,)


def _combined(first: MemberType, second: MemberType) -> MemberType | None:
    """Return a type for the values of two types that begin alike; None if there is no such type."""
    if first == second:
        return first
    if isinstance(first, ScalarType) and isinstance(second, ScalarType):
        kinds = {first.kind, second.kind}
        types = {first.data_type, second.data_type}
        if kinds == {"integer"} and types <= set(_CONNECT_INTEGERS.values()):
            return max(first, second, key=lambda scalar: scalar.data_type.bit_width)
        if kinds <= {"integer", "number"} and types <= {*_CONNECT_INTEGERS.values(), pa.float32(), pa.float64()}:
            return ScalarType("number", pa.float64())
    return None


def _nodes(node: dict[str, Any], keyword: str, path: str) -> list[Any]:
    branches = node.get(keyword, [])
    if not isinstance(branches, list):
        raise _invalid(path, f"expected a list in {keyword}, got {_short(branches)}")
    return branches


def _is_encodable(value: Any) -> bool:
    """Return whether all texts in a value are Unicode: JSON can escape half a surrogate pair."""
    try:
        json_bytes(value)
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(path: str) -> SchemaError:
    return SchemaError(f"JSON schema is nested deeper than {DEPTH_MAX} levels at {path}; flatten it")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _invalid(path: str, reason: str) -> SchemaError:
    return SchemaError(f"invalid JSON schema at {path or 'the root'}: {reason}")
