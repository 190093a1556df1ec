"""The columns that the tasks of a query return. Pickled for the executors.

Made by typed_columns.py, used by record_decoding.py. It imports neither Arrow nor the registry's client, which a query
without formats does not need to plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from headrace.client.serde import SerdeSettings, TopicSchema
    from headrace.schema.types import RecordField

TopicSchemas = Mapping[str, "TopicSchema"]
"""The readers' schemas by topic."""
SchemasByField = Mapping["RecordField", TopicSchemas]

ANY_TOPIC = ""
"""The topic of a schema that the user has given: it is the same for all."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of decoded keys or values."""

    settings: SerdeSettings
    type: DataType
    fields: tuple[str, ...] | None
    """The fields to decode, `a.b` for one inside another; None: all."""
    schemas: TopicSchemas

    def has_schema(self, topic: str) -> bool:
        return ANY_TOPIC in self.schemas or topic in self.schemas

    def schema(self, topic: str) -> TopicSchema:
        return self.schemas[ANY_TOPIC if ANY_TOPIC in self.schemas else topic]


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """The names of the columns in Spark's order; the types of those that have a format."""

    names: tuple[str, ...]
    typed: Mapping[RecordField, TypedColumn] = field(default_factory=dict)

    def with_schemas(self, schemas: SchemasByField | None) -> ReadColumns:
        """Return the columns with the schemas of another topic added."""
        if schemas is None:
            return self
        typed = {
            name: replace(column, schemas={**column.schemas, **schemas[name]}) for name, column in self.typed.items()
        }
        return replace(self, typed=typed)
