"""What the registry needs to know of a schema of any format.

    Schema, texts of its references → parse → ParsedSchema: one text for equal schemas, and what it can read

Texts come from anybody: parsers limit size and depth, and comparisons are counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from headrace.errors import SchemaError
from headrace.schema.types import Schema, SchemaFormat

COMPARISONS_MAX = 100_000
"""Pairs of types that are compared for one check: a bound for its time."""
INCOMPATIBILITIES_MAX = 100
"""Reasons that are collected for one pair of schemas."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why a schema cannot read what another one wrote. `{reader}` and `{writer}` in the text stand for the two."""

    kind: str
    path: str
    text: str

    def describe(self, reader: str, writer: str) -> str:
        """Return a sentence with names for the two schemas."""
        text = self.text.replace("{reader}", reader).replace("{writer}", writer)
        return f"{self.kind} at '{self.path}': {text}"


class ParsedSchema(Protocol):
    """A valid schema."""

    @property
    def text(self) -> str:
        """The text in the form that the registry keeps."""
        ...

    @property
    def identity(self) -> str:
        """A text that is the same for schemas that differ only in spaces and the like."""
        ...

    def normalized(self) -> str:
        """Return a text that is the same for all schemas of the same meaning, as far as that is easy to say."""
        ...

    def rendered(self, format: str) -> str:
        """Return the text in a format that a client requests; an unknown one has no effect."""
        ...

    def unreadable(self, writer: Self) -> list[Incompatibility]:
        """Return why this schema cannot read what `writer` wrote; empty if it can."""
        ...


Pair = tuple[int, int]
"""The ids of two types that are compared: the reader's and the writer's."""


class Comparison:
    """A comparison of two schemas: the reasons so far, and the pairs of types that were compared.

    Types may contain themselves, so a pair that is being compared counts as compatible where it occurs again. An
    attempt is a comparison that may fail without consequences, such as that with a branch of a union.
    """

    def __init__(self) -> None:
        self.reasons: list[Incompatibility] = []
        self._count = 0
        self._layers: list[set[Pair]] = [set()]  # pairs that are being compared, or were; one layer for each attempt
        self._failed: set[Pair] = set()  # attempts

    def count(self) -> None:
        """Count a pair of types; raise SchemaError beyond the limit."""
        self._count += 1
        if self._count > COMPARISONS_MAX:
            raise SchemaError(f"there are more than {COMPARISONS_MAX:,} pairs of types to compare: simplify the schema")

    def enter(self, pair: Pair) -> bool:
        """Return whether a pair has to be compared; False if it is being compared, or was."""
        if any(pair in layer for layer in self._layers):
            return False
        self._layers[-1].add(pair)
        return True

    def attempt(self, pair: Pair, compare: Callable[[], None]) -> bool:
        """Return whether a comparison finds no reason; reasons that it finds are dropped."""
        if pair in self._failed:
            return False
        reported = len(self.reasons)
        self._layers.append(set())
        compare()
        layer = self._layers.pop()
        is_compatible = len(self.reasons) == reported
        if is_compatible:
            self._layers[-1] |= layer
        else:
            self._failed.add(pair)  # for good: what counted as compatible meanwhile cannot make it better
            del self.reasons[reported:]
        return is_compatible

    def add(self, kind: str, path: str, text: str) -> None:
        # Within an attempt, a reason is what makes it fail.
        if len(self.reasons) < INCOMPATIBILITIES_MAX or len(self._layers) > 1:
            self.reasons.append(Incompatibility(kind, path or "/", text))


def load_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError also for NaN and for numbers that are infinite as a double."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:30]} is too large")
    return number


def parse(schema: Schema, references: Mapping[str, str]) -> ParsedSchema:
    """Parse a schema; raise SchemaError. `references` has the texts by name, each after those that it refers to."""
    parsed = _parse(schema, references)
    try:
        parsed.text.encode()
    except UnicodeEncodeError as error:  # the topic could not be read again
        raise SchemaError(f"lone surrogate at character {error.start:,} of the schema: remove it") from None
    return parsed


def _parse(schema: Schema, references: Mapping[str, str]) -> ParsedSchema:
    # Imported here: most registries have schemas of one format.
    if schema.format is SchemaFormat.AVRO:
        from headrace.broker.registry.avro_format import ParsedAvro

        return ParsedAvro(schema.text, [*references.values()])
    if schema.format is SchemaFormat.JSON:
        from headrace.broker.registry.json_format import ParsedJson

        return ParsedJson(schema.text, references)
    from headrace.broker.registry.protobuf_format import ParsedProtobuf

    return ParsedProtobuf(schema.text, references)
