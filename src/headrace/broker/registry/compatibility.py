"""Compatibility levels: which earlier versions a new schema is compared with, and in which direction.

    level       the new schema reads the earlier one's records    the earlier schema reads the new one's
    BACKWARD    yes                                               –
    FORWARD     –                                                 yes
    FULL        yes                                               yes
    NONE        –                                                 –

…_TRANSITIVE compares with all earlier versions, the others with the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from headrace.broker.registry.formats import Incompatibility, ParsedSchema
from headrace.schema.types import SchemaFormat

NEW_SCHEMA = "the new schema"
MESSAGES_MAX = 200


class CompatibilityLevel(Enum):
    """The compatibility levels of Confluent's registry."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier versions are compared."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def is_backward(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


DEFAULT_LEVEL = CompatibilityLevel.BACKWARD


class EarlierVersion(NamedTuple):
    """A version that a new schema is compared with."""

    version: int
    format: SchemaFormat
    schema: ParsedSchema | None  # None if it has another format than the new one


def check(
    level: CompatibilityLevel, format: SchemaFormat, schema: ParsedSchema, earlier: Sequence[EarlierVersion]
) -> list[str]:
    """Return why a schema is not compatible with earlier versions, given in order; empty if it is."""
    if level is CompatibilityLevel.NONE or not earlier:
        return []
    messages: list[str] = []
    for version in reversed(earlier if level.is_transitive else earlier[-1:]):
        name = f"version {version.version}"
        if version.schema is None:
            messages.append(
                f"{name} has the type {version.format.value} and {NEW_SCHEMA} {format.value}: a subject keeps its type "
                f"unless its compatibility level is NONE"
            )
        else:
            if level.is_backward:
                messages += _describe(schema.unreadable(version.schema), NEW_SCHEMA, name)
            if level.is_forward:
                messages += _describe(version.schema.unreadable(schema), name, NEW_SCHEMA)
        if len(messages) >= MESSAGES_MAX:
            break
    return messages[:MESSAGES_MAX]


def _describe(reasons: Sequence[Incompatibility], reader: str, writer: str) -> list[str]:
    return [reason.describe(reader, writer) for reason in reasons]
