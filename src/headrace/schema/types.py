"""Schemas and subjects, under the names of Confluent's schema registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal
from uuid import UUID

from headrace.errors import ConfigError

RecordField = Literal["key", "value"]
"""The part of a record that a schema describes."""


class SchemaFormat(Enum):
    """The language of a schema."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses: its name there, and where the registry keeps it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """The text of a schema, its format, and the schemas that it refers to."""

    text: str
    format: SchemaFormat = SchemaFormat.AVRO
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class CompleteSchema:
    """A schema with the schemas that it refers to, by name: each after those that it refers to itself.

    It can be pickled, and read without a registry.
    """

    schema: Schema
    references: Mapping[str, Schema] = field(default_factory=dict)

    @property
    def reference_texts(self) -> dict[str, str]:
        return {name: reference.text for name, reference in self.references.items()}


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry keeps it. What the registry did not tell is None."""

    schema: Schema
    id: int | None = None
    guid: UUID | None = None
    subject: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The result of a compatibility check. True if the schema is compatible."""

    is_compatible: bool
    messages: tuple[str, ...] = ()
    """Why not, in the registry's words."""

    def __bool__(self) -> bool:
        return self.is_compatible


class SubjectNameStrategy(Enum):
    """How the subject of a schema is named."""

    TOPIC = "TopicNameStrategy"
    """`<topic>-key` or `<topic>-value`: one record type in a topic."""
    RECORD = "RecordNameStrategy"
    """The full name of the record type: the same schema in all topics."""
    TOPIC_RECORD = "TopicRecordNameStrategy"
    """`<topic>-<record name>`: several record types in a topic."""

    @classmethod
    def named(cls, name: str) -> SubjectNameStrategy:
        """Return the strategy of a name, with or without Java's package."""
        try:
            return cls(name.strip().rpartition(".")[2])
        except ValueError:
            names = ", ".join(strategy.value for strategy in cls)
            raise ConfigError(f"invalid subject name strategy: expected {names}, got {name!r}") from None

    def subject(self, topic: str, field: RecordField, record_name: str | None = None) -> str:
        """Return the subject of a schema. `record_name`: its full name, such as `shop.Order`."""
        if self is SubjectNameStrategy.TOPIC:
            return f"{topic}-{field}"
        if not record_name:
            raise ConfigError(
                f"{self.value} needs the name of the record type, and the schema for {field}s of topic {topic!r} has "
                f"none: name it, or use {SubjectNameStrategy.TOPIC.value}"
            )
        return record_name if self is SubjectNameStrategy.RECORD else f"{topic}-{record_name}"
