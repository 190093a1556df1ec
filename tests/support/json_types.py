"""Random JSON schemas with values: as JSON has them, and as Arrow returns them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Pair = tuple[Any, Any]  # what JSON has, what Arrow has
CONNECT = "org.apache.kafka.connect.data."


@dataclass(slots=True)
class RandomType:
    schema: Any
    values: st.SearchStrategy[Pair]
    token: str  # what a value begins with

    @property
    def text(self) -> str:
        return json.dumps(self.schema)


class RawNumber(float):
    """A number that json.dumps writes with its own digits."""

    def __new__(cls, text: str) -> RawNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str

    def __repr__(self) -> str:
        return self.text


def same(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return strategy.map(lambda value: (value, value))


TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12), st.sampled_from(['"', "\\", "\x00\x1f", "a/b\n", "\u2028😀"])
)
LONGS = st.one_of(st.sampled_from([0, -1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
ANY: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.booleans(), LONGS, TEXTS, st.just([]), st.just({})),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)


def _shortest(value: float) -> float:
    """Return the number with the fewest digits that is this float, as Arrow writes it."""
    return float(pa.scalar(value, pa.float32()).cast(pa.string()).as_py())


def _integer(bits: int) -> RandomType:
    values = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return RandomType({"type": "integer", "connect.type": f"int{bits}"}, same(values), "number")


def _decimal(scale: int) -> RandomType:
    schema = {
        "type": "number",
        "title": f"{CONNECT}Decimal",
        "connect.parameters": {"scale": str(scale), "connect.decimal.precision": "12"},
    }
    numbers = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda value: Decimal(value).scaleb(-scale))
    return RandomType(schema, numbers.map(lambda value: (RawNumber(f"{value:f}"), value)), "number")


SCALARS = [
    RandomType({"type": "boolean"}, same(st.booleans()), "boolean"),
    RandomType({"type": "integer"}, same(LONGS), "number"),
    _integer(8),
    _integer(32),
    RandomType({"type": "number"}, same(st.floats(allow_nan=False, allow_infinity=False)), "number"),
    RandomType(
        {"type": "number", "connect.type": "float32"},
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: (_shortest(value), value)),
        "number",
    ),
    _decimal(0),
    _decimal(3),
    RandomType({"type": "string"}, same(TEXTS), "string"),
    RandomType({"type": "string", "format": "date-time"}, same(TEXTS), "string"),
    RandomType({"enum": ["a", "b"]}, same(st.sampled_from(["a", "b"])), "string"),
    RandomType(
        {"type": "string", "connect.type": "bytes"},
        st.binary(max_size=9).map(lambda data: (base64.b64encode(data).decode(), data)),
        "string",
    ),
]


def types(depth: int = 2) -> st.SearchStrategy[RandomType]:
    scalars = st.sampled_from(SCALARS)
    if depth == 0:
        return scalars
    inner = types(depth - 1)
    return st.one_of(scalars, object_types(depth - 1), inner.map(_array), inner.map(_map), _unions(depth - 1))


def nullable(random_type: RandomType) -> RandomType:
    values = st.one_of(st.just((None, None)), random_type.values)
    return RandomType({"oneOf": [{"type": "null"}, random_type.schema]}, values, random_type.token)


def _array(items: RandomType) -> RandomType:
    return RandomType({"type": "array", "items": items.schema}, _lists(items.values), "array")


def _lists(values: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    return st.lists(values, max_size=3).map(lambda pairs: ([p[0] for p in pairs], [p[1] for p in pairs]))


def _map(values: RandomType) -> RandomType:
    entries = st.dictionaries(TEXTS, values.values, max_size=3)
    pairs = entries.map(lambda d: ({k: p[0] for k, p in d.items()}, [(k, p[1]) for k, p in d.items()]))
    return RandomType({"type": "object", "additionalProperties": values.schema}, pairs, "object")


@st.composite
def _unions(draw: Callable[..., Any], depth: int) -> RandomType:
    inner = types(depth).filter(lambda member: member.token != "union")  # which would be merged
    members = draw(st.lists(inner, min_size=2, max_size=3, unique_by=lambda member: member.token))

    def pair(index: int, value: Pair) -> Pair:
        return value[0], {f"member{i}": value[1] if i == index else None for i in range(len(members))}

    values = st.one_of(*(member.values.map(lambda v, i=i: pair(i, v)) for i, member in enumerate(members)))
    return RandomType({"anyOf": [member.schema for member in members]}, values, "union")


@st.composite
def object_types(draw: Callable[..., Any], depth: int = 2) -> RandomType:
    names = draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
    properties: dict[str, RandomType] = {}
    for name in names:
        inner = draw(types(depth))
        properties[name] = nullable(inner) if draw(st.booleans()) and inner.token != "union" else inner
    required = {name for name in names if draw(st.booleans())}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: entry.schema for name, entry in properties.items()},
        "required": sorted(required),
    }

    @st.composite
    def values(draw: Callable[..., Any]) -> Pair:
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        for name in draw(st.permutations(names)):
            if name not in required and draw(st.booleans()):
                theirs[name] = None
                continue
            ours[name], theirs[name] = draw(properties[name].values)
        return ours, {name: theirs[name] for name in names}

    return RandomType(schema, values(), "object")
