"""JSON Schemas reduced to shapes: one type with its keywords, an enum, or a combination (allOf, anyOf, oneOf)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.broker.registry.json_format import JsonDocument, JsonNode
from headrace.errors import SchemaError

REFERENCES_FOLLOWED_MAX = 100
"""A `$ref` to a `$ref`, and so on."""
CRITERIA = ("allOf", "anyOf", "oneOf")

_TYPE_KEYWORDS = {
    "object": (
        "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
        "dependencies", "dependentSchemas", "dependentRequired", "unevaluatedProperties",
    ),
    "array": (
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems",
        "minContains", "maxContains",
    ),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Shape:
    """A schema reduced to one kind, with the keywords of that kind in `node`."""

    document: JsonDocument
    kind: str
    node: dict[str, Any] = field(default_factory=dict)
    parts: list[Shape] = field(default_factory=list)  # of a combination

    @property
    def has_default(self) -> bool:
        return "default" in self.node


class Shapes:
    """The shapes of schemas, each made once: schemas may contain themselves."""

    def __init__(self) -> None:
        self._by_node: dict[int, Shape] = {}  # by id of the node, which its document keeps alive

    def shape(self, document: JsonDocument, node: JsonNode) -> Shape:
        """Return the shape of a schema."""
        for _ in range(REFERENCES_FOLLOWED_MAX):
            if not isinstance(node, dict) or "$ref" not in node:
                break
            document, node = document.resolve(node["$ref"])
        else:
            raise SchemaError("a $ref leads to itself: correct it")
        if isinstance(node, bool):
            return _TRUE if node else _FALSE
        if id(node) not in self._by_node:
            self._by_node[id(node)] = shape = Shape(document, "empty", node)
            self._reduce(shape, node)
        return self._by_node[id(node)]

    def _reduce(self, shape: Shape, node: dict[str, Any]) -> None:
        document = shape.document
        parts = _type_shapes(document, node)
        parts += [Shape(document, keyword, node) for keyword in ("enum", "const", "not") if keyword in node]
        for criterion in CRITERIA:
            if node.get(criterion):
                members = [self.shape(document, member) for member in node[criterion]]
                parts.append(Shape(document, criterion, node, members))
        if len(parts) == 1:
            shape.kind, shape.parts = parts[0].kind, parts[0].parts
        elif parts:
            shape.kind, shape.parts = "allOf", parts


def _type_shapes(document: JsonDocument, node: dict[str, Any]) -> list[Shape]:
    """Return the shapes of the types of a schema; without a type, those that its keywords are for."""
    kinds = node.get("type")
    if isinstance(kinds, str):
        return [Shape(document, kinds, node)]
    if isinstance(kinds, list):
        members = [Shape(document, kind, node) for kind in kinds]
        return members if len(members) == 1 else [Shape(document, "anyOf", node, members)]
    implied = (kind for kind, keywords in _TYPE_KEYWORDS.items() if not node.keys().isdisjoint(keywords))
    return [Shape(document, kind, node) for kind in implied]


def family(kind: str) -> str:
    """Return the kind whose keywords a kind has: integers are numbers."""
    return "number" if kind == "integer" else kind


def is_open(node: dict[str, Any], what: str) -> bool:
    """Return whether an object or array allows anything beyond what it declares. `what`: Properties or Items."""
    if node.get("patternProperties") and what == "Properties":
        return False
    further = node.get(f"additional{what}")
    if further is not None:
        return further is True or further == {}
    return node.get(f"unevaluated{what}", True) in (True, {})


def required_names(node: dict[str, Any]) -> set[str]:
    required = node.get("required")
    return set(required) if isinstance(required, list) else set()


def dependencies_of(node: dict[str, Any]) -> dict[str, Any]:
    """Return the dependencies of properties: a list of names, or a schema."""
    return {
        **node.get("dependencies", {}),
        **(node["dependentRequired"] if isinstance(node.get("dependentRequired"), dict) else {}),
        **node.get("dependentSchemas", {}),
    }


class ArrayItems:
    """The items of an array: leading ones with a schema each, a schema for every item, or for the rest."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.leading: list[JsonNode] = []
        self.every: JsonNode | None = None
        self.further: dict[str, Any] = {
            key: node[key] for key in ("additionalItems", "unevaluatedItems") if key in node
        }
        items = node.get("items")
        if "prefixItems" in node:  # from 2020-12 on
            self.leading = node["prefixItems"]
            self.further.pop("additionalItems", None)
            if items is not None:
                self.further["additionalItems"] = items
        elif isinstance(items, list):
            self.leading = items
        else:
            self.every = items


_ANYWHERE = JsonDocument("true", {})
_TRUE, _FALSE = Shape(_ANYWHERE, "empty"), Shape(_ANYWHERE, "false")
