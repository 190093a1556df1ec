"""What an audit has found, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """Where in a topic."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Example:
    """A row that is not as it should be."""

    key: str | None
    value: str | None
    """The beginning of it, as text; bytes that are none as \\xNN."""
    records: tuple[Record, ...] = ()
    order: str | None = None

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "records": [asdict(record) for record in self.records]}
        return {name: value for name, value in found.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit has found. It is true if source and topic are equal."""

    source_rows: int
    topic_rows: int
    matched: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int | None = None
    """None if no order was asked for."""
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected or self.out_of_order)

    def __bool__(self) -> bool:
        return self.is_equal

    def to_json(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name != "examples" and value is not None}
        shown = {kind: [example.to_json() for example in examples] for kind, examples in self.examples.items()}
        return {"equal": self.is_equal, **found, "examples": shown}
