"""Which JSON Schemas accept what others accept: the rules of Confluent's registry, with its names for differences.

A schema is reduced to a shape: one type with its keywords, an enum, or a combination (allOf, anyOf, oneOf). A schema
with several of these at once is a combination of them with allOf.

    properties    An object is open if it allows further properties (the default), closed if not, partly open if they
                  have a schema. A property may be added if the writer's object was closed, or open and the property
                  allows everything; it may be removed if the reader's object is open. In between, the schema of further
                  properties decides.
    required      may be dropped; may be added with a default
    limits        may be relaxed: larger maximum, smaller minimum, fewer required, more symbols of an enum
    types         integer → number
    combinations  anyOf and oneOf may get more members, allOf may lose some; the others are matched pairwise

Not compared, as in Confluent's registry: format, propertyNames, contains, if/then/else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.broker.registry.formats import Comparison, Incompatibility
from headrace.broker.registry.json_format import JsonDocument, JsonNode
from headrace.broker.registry.json_shapes import (
    CRITERIA,
    ArrayItems,
    Shape,
    Shapes,
    dependencies_of,
    family,
    is_open,
    required_names,
)

_TEXTS = {
    "TYPE_CHANGED": "the type changed from {old} in {writer} to {new} in {reader}",
    "TYPE_NARROWED": "{reader} allows integers only, {writer} all numbers",
    "COMBINED_TYPE_CHANGED": "{old} of {writer} became {new} in {reader}",
    "PRODUCT_TYPE_EXTENDED": "allOf has more members in {reader} than in {writer}",
    "SUM_TYPE_NARROWED": "anyOf or oneOf has fewer members in {reader} than in {writer}",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": "not all members of the combination in {writer} have a compatible one in "
    "{reader}",
    "REQUIRED_ATTRIBUTE_ADDED": "the property is required in {reader}, not in {writer}; give it a default",
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": "{reader} has a new property, and {writer} allowed any value for it; give "
    "it no type, or start with additionalProperties: false",
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": "{reader} has a new required property; give it a default, or "
    "make it optional",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL": "{reader} lacks a property of {writer} and allows no further ones",
}
_LIMITS: dict[str, tuple[tuple[str, str, bool], ...]] = {
    # keyword, the name in differences, whether it is a maximum
    "string": (("maxLength", "MAX_LENGTH", True), ("minLength", "MIN_LENGTH", False)),
    "number": (
        ("maximum", "MAXIMUM", True),
        ("minimum", "MINIMUM", False),
        ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM", True),
        ("exclusiveMinimum", "EXCLUSIVE_MINIMUM", False),
    ),
    "object": (("maxProperties", "MAX_PROPERTIES", True), ("minProperties", "MIN_PROPERTIES", False)),
    "array": (
        ("maxItems", "MAX_ITEMS", True),
        ("minItems", "MIN_ITEMS", False),
        ("maxContains", "MAX_CONTAINS", True),
        ("minContains", "MIN_CONTAINS", False),
    ),
}
_ANY = object()


def find_incompatibilities(reader: JsonDocument, writer: JsonDocument) -> list[Incompatibility]:
    """Return why values that the writer's schema accepts are not accepted by the reader's; empty if they are."""
    checker = _Checker()
    checker.compare(checker.shape(writer, writer.root), checker.shape(reader, reader.root), "#")
    return checker.comparison.reasons


class _Checker:
    """Compares old shapes (the writer's) with new ones (the reader's)."""

    def __init__(self) -> None:
        self.comparison = Comparison()
        self._shapes = Shapes()

    def shape(self, document: JsonDocument, node: JsonNode) -> Shape:
        return self._shapes.shape(document, node)

    # -- comparing -------------------------------------------------------------------------------

    def compare(self, old: Shape, new: Shape, path: str) -> None:
        self.comparison.count()
        if not self.comparison.enter((id(new), id(old))):
            return
        if self._is_member(old, new):
            return
        if old.kind in CRITERIA and new.kind in CRITERIA:
            self._compare_combinations(old, new, path)
        elif old.kind == "false" or new.kind == "empty":
            return
        elif family(old.kind) != family(new.kind):
            if not (old.node.get("connect.type") == new.node.get("connect.type") == "bytes"):
                self._add("TYPE_CHANGED", path, old.kind, new.kind)
        else:
            self._compare_same_kind(old, new, path)

    def _is_member(self, old: Shape, new: Shape) -> bool:
        """Return whether one member of a combination suffices, because the other side has no combination."""
        if old.kind not in CRITERIA and new.kind in CRITERIA:
            return (len(new.parts) == 1 or new.kind != "allOf") and any(self._accepts(part, old) for part in new.parts)
        if old.kind in CRITERIA and new.kind not in CRITERIA:
            return (len(old.parts) == 1 or old.kind == "allOf") and any(self._accepts(new, part) for part in old.parts)
        return False

    def _compare_same_kind(self, old: Shape, new: Shape, path: str) -> None:
        kind = family(old.kind)
        if kind == "string":
            self._compare_limits(old, new, path, _LIMITS["string"])
            before, after = old.node.get("pattern"), new.node.get("pattern")
            if after is not None and before != after:
                self._add("PATTERN_ADDED" if before is None else "PATTERN_CHANGED", f"{path}/pattern", before, after)
        elif kind == "number":
            self._compare_numbers(old, new, path)
        elif kind == "enum":
            self._compare_enums(old, new, path)
        elif kind == "const" and not _equal(old.node["const"], new.node["const"]):
            self._add("ENUM_ARRAY_CHANGED", f"{path}/const", old.node["const"], new.node["const"])
        elif kind == "not":
            inner_old, inner_new = (self.shape(each.document, each.node["not"]) for each in (old, new))
            if not self._accepts(inner_old, inner_new):  # the other way round: less is excluded
                self._add("NOT_TYPE_EXTENDED", f"{path}/not")
        elif kind == "object":
            self._compare_objects(old, new, path)
        elif kind == "array":
            self._compare_arrays(old, new, path)

    def _accepts(self, new: Shape, old: Shape) -> bool:
        """Return whether a shape accepts what another one does, without reporting why not."""
        return self.comparison.attempt((id(new), id(old)), lambda: self.compare(old, new, ""))

    def _add(self, kind: str, path: str, old: object = _ANY, new: object = _ANY) -> None:
        text = _TEXTS.get(kind, "{reader} does not accept all values of {writer}")
        if "{old}" in text:
            text = text.replace("{old}", _short(old)).replace("{new}", _short(new))
        elif old is not _ANY:
            text += f" ({_short(old)} became {_short(new)})"
        self.comparison.add(kind, path, text)

    def _compare_limits(self, old: Shape, new: Shape, path: str, limits: Sequence[tuple[str, str, bool]]) -> None:
        """Report limits that were added or became stricter."""
        for keyword, name, is_maximum in limits:
            before, after = _limit(old.node, keyword), _limit(new.node, keyword)
            if after is None or before == after:
                continue
            if before is None:
                self._add(f"{name}_ADDED", f"{path}/{keyword}", before, after)
            elif is_maximum and after < before:
                self._add(f"{name}_DECREASED", f"{path}/{keyword}", before, after)
            elif not is_maximum and after > before:
                self._add(f"{name}_INCREASED", f"{path}/{keyword}", before, after)

    def _compare_numbers(self, old: Shape, new: Shape, path: str) -> None:
        self._compare_limits(old, new, path, _LIMITS["number"])
        if old.kind == "number" and new.kind == "integer":
            self._add("TYPE_NARROWED", path)
        before, after = old.node.get("multipleOf"), new.node.get("multipleOf")
        if after is None or before == after:
            return
        if before is None:
            self._add("MULTIPLE_OF_ADDED", f"{path}/multipleOf", before, after)
        elif Decimal(str(before)) % Decimal(str(after)) != 0:
            is_multiple = Decimal(str(after)) % Decimal(str(before)) == 0
            kind = "MULTIPLE_OF_EXPANDED" if is_multiple else "MULTIPLE_OF_CHANGED"
            self._add(kind, f"{path}/multipleOf", before, after)

    def _compare_enums(self, old: Shape, new: Shape, path: str) -> None:
        before, after = ({_key(value) for value in shape.node["enum"]} for shape in (old, new))
        if not before <= after:
            kind = "ENUM_ARRAY_NARROWED" if after < before else "ENUM_ARRAY_CHANGED"
            self._add(kind, f"{path}/enum", old.node["enum"], new.node["enum"])

    # -- combinations ----------------------------------------------------------------------------

    def _compare_combinations(self, old: Shape, new: Shape, path: str) -> None:
        is_single_old, is_single_new = len(old.parts) == 1, len(new.parts) == 1
        if old.kind != new.kind and not (
            new.kind == "anyOf"
            or (is_single_old and (is_single_new or new.kind == "oneOf"))
            or (is_single_new and old.kind == "allOf")
        ):
            self._add("COMBINED_TYPE_CHANGED", path, old.kind, new.kind)
            return
        if len(old.parts) < len(new.parts) and new.kind == "allOf":
            self._add("PRODUCT_TYPE_EXTENDED", path)
        elif len(old.parts) > len(new.parts) and old.kind != "allOf":
            self._add("SUM_TYPE_NARROWED", path)
        edges = [
            [index for index, part in enumerate(new.parts) if self._accepts(part, old_part)] for old_part in old.parts
        ]
        if _matching_size(edges) < min(len(old.parts), len(new.parts)):
            self._add("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path)

    # -- objects ---------------------------------------------------------------------------------

    def _compare_objects(self, old: Shape, new: Shape, path: str) -> None:
        old_properties, new_properties = old.node.get("properties", {}), new.node.get("properties", {})
        old_required, new_required = required_names(old.node), required_names(new.node)
        for name, node in new_properties.items():
            property_path = f"{path}/properties/{name}"
            shape = self.shape(new.document, node)
            if name in old_properties:
                if name in new_required - old_required and not shape.has_default:
                    self._add("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}")
                self.compare(self.shape(old.document, old_properties[name]), shape, property_path)
            else:
                self._compare_added(old, shape, name, property_path, is_required=name in new_required)
        for name, node in old_properties.items():
            if name not in new_properties:
                self._compare_removed(new, self.shape(old.document, node), name, f"{path}/properties/{name}")
        self._compare_dependencies(old, new, f"{path}/dependencies")
        self._compare_further(old, new, path, "additionalProperties", "ADDITIONAL_PROPERTIES")
        self._compare_unevaluated(old, new, path, "unevaluatedProperties", "UNEVALUATED_PROPERTIES")
        self._compare_limits(old, new, path, _LIMITS["object"])

    def _compare_added(self, old: Shape, added: Shape, name: str, path: str, *, is_required: bool) -> None:
        if is_open(old.node, "Properties"):
            if added.kind != "empty":
                required = ("REQUIRED_PROPERTY_WITH_DEFAULT" if added.has_default else "REQUIRED_PROPERTY") + "_ADDED"
                kind = (required if is_required else "OPTIONAL_PROPERTY_ADDED") + "_TO_OPEN_CONTENT_MODEL"
                self.comparison.add(kind, path, _TEXTS["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"])
            return
        covering = self._covering(old, "Properties", name)
        if covering is not None and not self._accepts(added, covering):
            self._add("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)
        if is_required and not added.has_default:
            self._add("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path)

    def _compare_removed(self, new: Shape, removed: Shape, name: str, path: str) -> None:
        if is_open(new.node, "Properties"):
            return
        covering = self._covering(new, "Properties", name)
        if covering is None:
            if removed.kind != "false":
                self._add("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)
        elif not self._accepts(covering, removed):
            self._add("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)

    def _covering(self, shape: Shape, what: str, name: str) -> Shape | None:
        """Return the schema of properties or items that are not declared; None if there is none."""
        for pattern, node in shape.node.get("patternProperties", {}).items() if what == "Properties" else ():
            if _matches(pattern, name):
                return self.shape(shape.document, node)
        further = shape.node.get(f"additional{what}")
        if isinstance(further, dict) and self.shape(shape.document, further).kind != "empty":
            return self.shape(shape.document, further)
        unevaluated = shape.node.get(f"unevaluated{what}")
        if further is None and isinstance(unevaluated, dict) and unevaluated:
            return self.shape(shape.document, unevaluated)
        return None

    def _compare_dependencies(self, old: Shape, new: Shape, path: str) -> None:
        before, after = dependencies_of(old.node), dependencies_of(new.node)
        for name, needed in after.items():
            if isinstance(needed, list):
                known = before.get(name)
                known_names = set(known) if isinstance(known, list) else None
                if known_names is None:
                    self._add("DEPENDENCY_ARRAY_ADDED", f"{path}/{name}")
                elif not set(needed) <= known_names:
                    kind = "DEPENDENCY_ARRAY_EXTENDED" if known_names <= set(needed) else "DEPENDENCY_ARRAY_CHANGED"
                    self._add(kind, f"{path}/{name}")
            elif isinstance(before.get(name), dict | bool):
                self.compare(self.shape(old.document, before[name]), self.shape(new.document, needed), f"{path}/{name}")
            else:
                self._add("DEPENDENCY_SCHEMA_ADDED", f"{path}/{name}")

    def _compare_further(self, old: Shape, new: Shape, path: str, keyword: str, name: str) -> None:
        """Compare what is allowed beyond the declared properties or items."""
        before, after = old.node.get(keyword, True), new.node.get(keyword, True)
        if before is not False and after is False:
            self._add(f"{name}_REMOVED", f"{path}/{keyword}")
        elif before is False or after is True:
            return
        elif before is True:
            if self.shape(new.document, after).kind != "empty":
                self._add(f"{name}_NARROWED", f"{path}/{keyword}")
        else:
            self.compare(self.shape(old.document, before), self.shape(new.document, after), f"{path}/{keyword}")

    def _compare_unevaluated(self, old: Shape, new: Shape, path: str, keyword: str, name: str) -> None:
        if keyword in old.node or keyword in new.node:
            self._compare_further(old, new, path, keyword, name)

    # -- arrays ----------------------------------------------------------------------------------

    def _compare_arrays(self, old: Shape, new: Shape, path: str) -> None:
        old_node, new_node = ArrayItems(old.node), ArrayItems(new.node)
        if new_node.every is not None:
            if old_node.every is not None:
                self.compare(
                    self.shape(old.document, old_node.every),
                    self.shape(new.document, new_node.every),
                    f"{path}/items",
                )
            elif self.shape(new.document, new_node.every).kind != "empty":
                self._add("SCHEMA_ADDED", f"{path}/items")
        old_shape = Shape(old.document, "array", old_node.further)
        new_shape = Shape(new.document, "array", new_node.further)
        for index in range(max(len(old_node.leading), len(new_node.leading))):
            item_path = f"{path}/items/{index}"
            if index >= len(new_node.leading):
                self._compare_removed_item(new_shape, self.shape(old.document, old_node.leading[index]), item_path)
            elif index >= len(old_node.leading):
                self._compare_added_item(old_shape, self.shape(new.document, new_node.leading[index]), item_path)
            else:
                before, after = old_node.leading[index], new_node.leading[index]
                self.compare(self.shape(old.document, before), self.shape(new.document, after), item_path)
        self._compare_further(old_shape, new_shape, path, "additionalItems", "ADDITIONAL_ITEMS")
        self._compare_unevaluated(old_shape, new_shape, path, "unevaluatedItems", "UNEVALUATED_ITEMS")
        self._compare_limits(old, new, path, _LIMITS["array"])
        if new.node.get("uniqueItems") is True and old.node.get("uniqueItems") is not True:
            self._add("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems")

    def _compare_added_item(self, old: Shape, added: Shape, path: str) -> None:
        if is_open(old.node, "Items"):
            if added.kind != "empty":
                self._add("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path)
        else:
            covering = self._covering(old, "Items", "")
            if covering is not None and not self._accepts(added, covering):
                self._add("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)

    def _compare_removed_item(self, new: Shape, removed: Shape, path: str) -> None:
        if is_open(new.node, "Items"):
            return
        covering = self._covering(new, "Items", "")
        if covering is None:
            if removed.kind != "false":
                self._add("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)
        elif not self._accepts(covering, removed):
            self._add("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)


def _limit(node: dict[str, Any], keyword: str) -> float | None:
    """Return the value of a limit. In draft 4, exclusiveMaximum is a flag that makes the maximum exclusive."""
    if keyword in ("maximum", "minimum") and node.get(f"exclusive{keyword.capitalize()}") is True:
        return None
    value = node.get(keyword)
    if keyword.startswith("exclusive") and value is True:
        value = node.get(keyword.removeprefix("exclusive").lower())
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern occurs in a name, in linear time (RE2); False if RE2 does not know its syntax."""
    try:
        return bool(pc.match_substring_regex(pa.array([name]), pattern)[0].as_py())
    except pa.ArrowException:
        return False


def _matching_size(edges: Sequence[Sequence[int]]) -> int:
    """Return how many on the left can have a partner of their own; `edges` has the candidates of each."""
    partners: dict[int, int] = {}  # right → left

    def assign(left: int, visited: set[int]) -> bool:
        for right in edges[left]:
            if right not in visited:
                visited.add(right)
                if right not in partners or assign(partners[right], visited):
                    partners[right] = left
                    return True
        return False

    return sum(assign(left, set()) for left in range(len(edges)))


def _key(value: object) -> str:
    """Return a text that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _equal(old: object, new: object) -> bool:
    return _key(old) == _key(new)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
