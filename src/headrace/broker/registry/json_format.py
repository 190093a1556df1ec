"""JSON Schema in the registry: valid keywords, references resolved, one text for all that differ only in spaces.

Drafts 4 to 2020-12 are read alike: a keyword of another draft has its meaning there. What `$ref` names must be in the
schema itself or in one of its references; nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote, urljoin

from headrace.broker.registry.changes import dump
from headrace.broker.registry.formats import Incompatibility, load_json
from headrace.errors import SchemaError

JsonNode: TypeAlias = dict[str, Any] | bool
"""A schema or a part of it."""
DEPTH_MAX = 100
NODES_MAX = 50_000
TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
_META_SCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")

SCHEMA_MAPS = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas")
SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMAS = (
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_KEYWORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
        (_is_count, "a number from 0"),
    ),
    **dict.fromkeys(("maximum", "minimum"), (_is_number, "a number")),
    **dict.fromkeys(
        ("exclusiveMaximum", "exclusiveMinimum"),
        (lambda value: _is_number(value) or isinstance(value, bool), "a number, or a boolean in draft 4"),
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "pattern": (lambda value: isinstance(value, str), "a text"),
    "required": (lambda value: _is_text_list(value) or isinstance(value, bool), "a list of names"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "uniqueItems": (lambda value: isinstance(value, bool), "a boolean"),
    "$ref": (lambda value: isinstance(value, str), "a text"),
}


class ParsedJson:
    """A valid JSON Schema."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        self.document = JsonDocument(text, references)
        self.text = self.identity = dump(self.document.root)

    def normalized(self) -> str:
        return json.dumps(self.document.root, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def rendered(self, format: str) -> str:
        return self.text

    def unreadable(self, writer: ParsedJson) -> list[Incompatibility]:
        from headrace.broker.registry.json_compatibility import find_incompatibilities  # it imports this module

        return find_incompatibilities(self.document, writer.document)


class JsonDocument:
    """A schema with what it refers to."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        self.root: JsonNode = _load(text)
        self._references = references
        self._documents: dict[str, JsonDocument] = {}  # references that were used
        self._by_id: dict[str, JsonNode] = {}  # absolute `$id`, and anchors as #name
        self._base = _text_of(self.root, "$id") or _text_of(self.root, "id")
        nodes = [*_walk(self.root)]
        for node, path in nodes:
            _check(node, path)
            self._index(node)
        for node, path in nodes:
            if isinstance(node, dict) and "$ref" in node:
                try:
                    self.resolve(node["$ref"])
                except SchemaError as error:
                    raise SchemaError(f"{path}: {error}") from None

    def _index(self, node: JsonNode) -> None:
        for keyword in ("$id", "id", "$anchor", "$dynamicAnchor"):
            name = _text_of(node, keyword)
            if not name:
                continue
            if keyword.endswith("nchor"):
                self._by_id.setdefault(f"#{name}", node)
            elif name.startswith("#"):
                self._by_id.setdefault(name, node)
            else:
                self._by_id.setdefault(urljoin(self._base, name).removesuffix("#"), node)

    def resolve(self, reference: str) -> tuple[JsonDocument, JsonNode]:
        """Return what a `$ref` names, and the document that has it."""
        base, _, fragment = reference.partition("#")
        if not base:
            return self, self._at(self.root, fragment, reference)
        absolute = urljoin(self._base, base)
        if absolute in self._by_id:
            return self, self._at(self._by_id[absolute], fragment, reference)
        for name in (base, absolute, reference):
            if name in self._references:
                document = self._document(name)
                return document, document._at(document.root, fragment, reference)
        for name in self._references:
            document = self._document(name)
            if document._base and document._base.removesuffix("#") in (base, absolute):
                return document, document._at(document.root, fragment, reference)
        if absolute.startswith(_META_SCHEMAS):
            return self, True  # a schema of schemas: not compared
        raise SchemaError(
            f"$ref {reference[:100]!r} is neither in the schema nor the name of a reference: add it to the references"
        )

    def _document(self, name: str) -> JsonDocument:
        if name not in self._documents:
            others = {other: text for other, text in self._references.items() if other != name}
            self._documents[name] = JsonDocument(self._references[name], others)
        return self._documents[name]

    def _at(self, node: JsonNode, fragment: str, reference: str) -> JsonNode:
        """Return the part of a schema that a fragment names: a JSON pointer or an anchor."""
        if not fragment:
            return node
        if f"#{fragment}" in self._by_id:
            return self._by_id[f"#{fragment}"]
        current: Any = node if fragment.startswith("/") else None
        for part in unquote(fragment).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(current, dict):
                current = current.get(part)
            elif isinstance(current, list) and part.isdecimal() and len(part) < 10 and int(part) < len(current):
                current = current[int(part)]
            else:
                current = None
        if not isinstance(current, dict | bool):
            raise SchemaError(f"$ref {reference[:100]!r} names nothing in the schema: correct it")
        return current


def _load(text: str) -> JsonNode:
    try:
        node = load_json(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise SchemaError(f"not JSON: {error}") from None
    if not isinstance(node, dict | bool):
        raise SchemaError("expected a JSON object, or true or false")
    _check_depth(node)
    return node


def _check_depth(node: object) -> None:
    levels, nodes = 0, [node]
    while nodes:
        levels += 1
        if levels > DEPTH_MAX:
            raise _too_deep()
        nodes = [
            item
            for each in nodes
            for item in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]


def _too_deep() -> SchemaError:
    return SchemaError(f"the JSON is nested deeper than {DEPTH_MAX} levels: flatten it")


def _text_of(node: JsonNode, keyword: str) -> str:
    value = node.get(keyword) if isinstance(node, dict) else None
    return value if isinstance(value, str) else ""


def _walk(root: JsonNode) -> Iterator[tuple[JsonNode, str]]:
    """Yield all schemas in a schema with their paths; raise SchemaError for what should be one and is not."""
    pending: list[tuple[Any, str]] = [(root, "#")]
    count = 0
    while pending:
        node, path = pending.pop()
        count += 1
        if count > NODES_MAX:
            raise SchemaError(f"the schema has more than {NODES_MAX:,} parts: simplify it")
        if not isinstance(node, dict | bool):
            raise SchemaError(f"{path}: expected a schema (an object, true or false), got {str(node)[:50]!r}")
        yield node, path
        if isinstance(node, dict):
            pending += _children(node, path)


def _children(node: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    for keyword in SCHEMA_MAPS:
        children = node.get(keyword, {})
        if not isinstance(children, dict):
            raise SchemaError(f"{path}/{keyword}: expected an object of schemas")
        yield from ((child, f"{path}/{keyword}/{name}") for name, child in children.items())
    for name, child in _dependencies(node, path).items():
        if not isinstance(child, list):
            yield child, f"{path}/dependencies/{name}"
    for keyword in SCHEMA_LISTS:
        children = node.get(keyword, [])
        if not isinstance(children, list):
            raise SchemaError(f"{path}/{keyword}: expected a list of schemas")
        yield from ((child, f"{path}/{keyword}/{index}") for index, child in enumerate(children))
    items = node.get("items", True)
    if isinstance(items, list):
        yield from ((child, f"{path}/items/{index}") for index, child in enumerate(items))
    else:
        yield items, f"{path}/items"
    yield from ((node[keyword], f"{path}/{keyword}") for keyword in SCHEMAS if keyword in node)


def _dependencies(node: dict[str, Any], path: str) -> dict[str, Any]:
    dependencies = node.get("dependencies", {})
    if not isinstance(dependencies, dict):
        raise SchemaError(f"{path}/dependencies: expected an object")
    return dependencies


def _check(node: JsonNode, path: str) -> None:
    """Raise SchemaError if a keyword has an invalid value."""
    if not isinstance(node, dict):
        return
    kinds = node.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            raise SchemaError(f"{path}/type: expected {', '.join(TYPES)}, got {str(kind)[:50]!r}")
    for keyword, (is_valid, expected) in _KEYWORDS.items():
        if keyword in node and not is_valid(node[keyword]):
            raise SchemaError(f"{path}/{keyword}: expected {expected}, got {str(node[keyword])[:50]!r}")
