"""Random Avro schemas with values: as fastavro takes them, and as Arrow returns them."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1)
Pair = tuple[Any, Any]  # what fastavro writes, what Arrow has


@dataclass(slots=True)
class RandomType:
    schema: Any
    values: st.SearchStrategy[Pair]

    @property
    def text(self) -> str:
        return json.dumps(self.schema)


def fastavro_bytes(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def fastavro_value(data: bytes, writer: Any, reader: Any = None) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), writer, reader)


def same(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return strategy.map(lambda value: (value, value))


INTS = st.one_of(st.sampled_from([0, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31)]), st.integers(-(2**31), 2**31 - 1))
LONGS = st.one_of(st.sampled_from([2**63 - 1, -(2**63)]), INTS, st.integers(-(2**63), 2**63 - 1))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NAIVE = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2100, 1, 1))

PRIMITIVES: dict[str, st.SearchStrategy[Pair]] = {
    "boolean": same(st.booleans()),
    "int": same(INTS),
    "long": same(LONGS),
    "float": same(st.floats(width=32, allow_nan=False)),
    "double": same(st.floats(allow_nan=False)),
    "bytes": same(st.binary(max_size=12)),
    "string": same(TEXTS),
}


def milliseconds(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


LOGICAL: list[tuple[str, str, st.SearchStrategy[Pair]]] = [
    ("int", "date", same(st.dates())),
    ("int", "time-millis", same(NAIVE.map(lambda t: milliseconds(t).time()))),
    ("long", "time-micros", same(NAIVE.map(lambda t: t.time()))),
    ("long", "timestamp-millis", same(NAIVE.map(lambda t: milliseconds(t).replace(tzinfo=UTC)))),
    ("long", "timestamp-micros", same(NAIVE.map(lambda t: t.replace(tzinfo=UTC)))),
    ("long", "local-timestamp-millis", same(NAIVE.map(milliseconds))),
    ("long", "local-timestamp-micros", same(NAIVE)),
    ("string", "uuid", st.uuids().map(lambda value: (value, str(value)))),
]


def decimal_of(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


@dataclass(slots=True)
class Names:
    """Names that are used once."""

    count: int = 0

    def next(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


def simple_type(draw: Callable[[Any], Any], names: Names) -> RandomType:
    choice = draw(st.sampled_from(["primitive", "primitive", "logical", "fixed", "enum", "decimal"]))
    if choice == "primitive":
        kind = draw(st.sampled_from(sorted(PRIMITIVES)))
        return RandomType(kind, PRIMITIVES[kind])
    if choice == "logical":
        base, logical, values = draw(st.sampled_from(LOGICAL))
        return RandomType({"type": base, "logicalType": logical}, values)
    if choice == "fixed":
        size = draw(st.integers(1, 20))
        schema = {"type": "fixed", "name": names.next("Fixed"), "size": size}
        return RandomType(schema, same(st.binary(min_size=size, max_size=size)))
    if choice == "enum":
        symbols = [f"S{i}" for i in range(draw(st.integers(1, 5)))]
        return RandomType(
            {"type": "enum", "name": names.next("Enum"), "symbols": symbols}, same(st.sampled_from(symbols))
        )
    precision = draw(st.integers(1, 76))
    scale = draw(st.integers(0, precision))
    # fastavro writes -128 in two bytes, where Java and headrace need one: -2^(8k-1) is left out.
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1).filter(
        lambda n: n >= 0 or (-n).bit_length() % 8 != 0 or -n & (-n - 1) != 0
    )
    logical_schema: dict[str, Any] = {"logicalType": "decimal", "precision": precision, "scale": scale}
    if draw(st.booleans()):
        logical_schema |= {"type": "fixed", "name": names.next("Fixed"), "size": precision // 2 + 1}
    else:
        logical_schema |= {"type": "bytes"}
    return RandomType(logical_schema, same(numbers.map(lambda n: decimal_of(n, scale))))


@st.composite
def record_types(draw: Callable[[Any], Any], depth: int = 3) -> RandomType:
    return _record(draw, Names(), depth)


def _record(draw: Callable[[Any], Any], names: Names, depth: int) -> RandomType:
    name = names.next("Record")
    fields = {names.next("f"): _any_type(draw, names, depth - 1) for _ in range(draw(st.integers(0, 4)))}
    schema = {"type": "record", "name": name, "fields": [{"name": n, "type": t.schema} for n, t in fields.items()]}
    values = st.fixed_dictionaries({n: t.values for n, t in fields.items()}).map(
        lambda pairs: ({n: p[0] for n, p in pairs.items()}, {n: p[1] for n, p in pairs.items()})
    )
    return RandomType(schema, values)


def _any_type(draw: Callable[[Any], Any], names: Names, depth: int) -> RandomType:
    kinds = ["simple", "simple", "nullable"]
    kind = draw(st.sampled_from(kinds + (["record", "array", "map", "union"] if depth > 0 else [])))
    if kind == "simple":
        return simple_type(draw, names)
    if kind == "record":
        return _record(draw, names, depth)
    if kind == "union":
        return _union(draw, names, depth)
    inner = _any_type(draw, names, depth - 1) if kind != "nullable" else simple_type(draw, names)
    if kind == "array":
        values = st.lists(inner.values, max_size=3).map(lambda pairs: ([p[0] for p in pairs], [p[1] for p in pairs]))
        return RandomType({"type": "array", "items": inner.schema}, values)
    if kind == "map":
        entries = st.dictionaries(TEXTS, inner.values, max_size=3).map(
            lambda pairs: ({k: p[0] for k, p in pairs.items()}, [(k, p[1]) for k, p in pairs.items()])
        )
        return RandomType({"type": "map", "values": inner.schema}, entries)
    branches = ["null", inner.schema] if draw(st.booleans()) else [inner.schema, "null"]
    return RandomType(branches, st.one_of(st.just((None, None)), inner.values))


def _union(draw: Callable[[Any], Any], names: Names, depth: int) -> RandomType:
    """A union of several types. Values have the names of their branches: fastavro would take the first that fits."""
    kinds = draw(
        st.lists(st.sampled_from(["null", "record", *sorted(PRIMITIVES)]), min_size=3, max_size=4, unique=True)
    )
    members = [kind for kind in kinds if kind != "null"]
    schema: list[Any] = []
    values: list[st.SearchStrategy[Pair]] = []
    for kind in kinds:
        if kind == "null":
            schema.append("null")
            values.append(st.just((None, None)))
            continue
        branch = _record(draw, names, depth - 1) if kind == "record" else RandomType(kind, PRIMITIVES[kind])
        name = branch.schema["name"] if kind == "record" else kind
        values.append(branch.values.map(_member(name, members.index(kind), len(members))))
        schema.append(branch.schema)
    return RandomType(schema, st.one_of(values))


def _member(name: str, index: int, count: int) -> Callable[[Pair], Pair]:
    return lambda pair: ((name, pair[0]), {f"member{i}": pair[1] if i == index else None for i in range(count)})


PROMOTIONS = [
    *(("int", to) for to in ("int", "long", "float", "double")),
    *(("long", to) for to in ("long", "float", "double")),
    ("float", "double"),
    ("string", "bytes"),
]
DEFAULTS = {"boolean": True, "int": 5, "long": -7, "float": 0.5, "double": 1.5, "string": "x"}
"""A default of each type, for fields that a reader adds."""


@st.composite
def changed_records(draw: Callable[[Any], Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A record's schema, one that it was changed to, and a value of the first."""
    writer_fields: list[Any] = []
    reader_fields: list[Any] = []
    values = {}
    for index in range(draw(st.integers(0, 6))):
        name = f"f{index}"
        change = draw(st.sampled_from(["same", "promoted", "removed", "added", "renamed", "nullable", "array"]))
        kind = draw(st.sampled_from(sorted(DEFAULTS)))
        if change == "added":
            reader_fields.append({"name": name, "type": kind, "default": DEFAULTS[kind]})
            continue
        target: object = kind
        if change == "promoted":
            kind, target = draw(st.sampled_from(PROMOTIONS))
        written: object = kind
        value = draw(PRIMITIVES[kind])[0]
        if change == "array":
            written, target, value = (
                {"type": "array", "items": kind},
                {"type": "array", "items": ["null", kind]},
                [value],
            )
        writer_fields.append({"name": name, "type": written})
        values[name] = value
        if change == "renamed":
            reader_fields.append({"name": f"new_{name}", "type": target, "aliases": [name]})
        elif change == "nullable":
            reader_fields.append({"name": name, "type": ["null", target]})
        elif change != "removed":
            reader_fields.append({"name": name, "type": target})
    writer = {"type": "record", "name": "a.R", "fields": writer_fields}
    reader = {"type": "record", "name": "b.R", "fields": draw(st.permutations(reader_fields))}
    return writer, reader, values
