"""Encodes the key and value columns of a DataFrame that have a format.

    planning    type of a column, schema of the topic → checked before any row; the schema is pickled for the tasks
    tasks       RecordEncoding.encode(topic, role, column) → bytes; rows that the schema does not allow
    replays     row_bytes(column) → what identifies a row, whatever its schema is by then

If rows name their topics, the schema of a topic is looked up when its first row is written.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client.schema_encoder import SchemaEncoder
from headrace.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SchemaError,
    SchemaNotFoundError,
)
from headrace.schema.avro import AvroEncoder, derive_schema
from headrace.schema.formats import parse
from headrace.schema.types import CompleteSchema, Schema
from headrace.spark.arrow_types import arrow_type
from headrace.spark.errors import PlanError, SinkError
from headrace.spark.format_options import FormatOptions, when_available

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.client.serde import TopicSchema
    from headrace.schema.types import RecordField
    from headrace.spark.read_columns import SchemasByField

ENCODERS_MAX = 32
"""Encoders that a process keeps; beyond that, all are made anew."""
_OF_THE_TOPIC = (SchemaNotFoundError, IncompatibleSchemaError, InvalidSchemaError)
"""Errors of the registry that concern the rows to one topic."""

_encoders: dict[bytes, SchemaEncoder] = {}  # Guarded by _lock.
_lock = threading.Lock()


def find_writer_schemas(formats: FormatOptions, schema: StructType, topic: str | None) -> SchemasByField:
    """Return the schemas with which the columns are written to a topic; raises PlanError if they never fit.

    Without a topic, only a schema that the user has given can be checked. A registry that is unavailable raises
    RegistryUnavailableError.
    """
    schemas: dict[RecordField, dict[str, TopicSchema]] = {}
    by_role = {column.name.lower(): column for column in schema.fields}
    for role, settings in formats.settings.items():
        column = by_role.get(role)
        if column is None:
            if role == "key":
                raise PlanError("key.format is set, but there is no column 'key': add it, or leave key.format out")
            continue
        data_type = arrow_type(column.dataType)
        try:
            if topic is not None:
                schemas[role] = {topic: SchemaEncoder(formats.registry(), settings).prepare(topic, data_type)}
            elif isinstance(settings.writer, Schema):
                parse(CompleteSchema(settings.writer)).encoder(data_type, settings.record_name)
        except RegistryUnavailableError:
            raise
        except SchemaError as error:
            option = "writer.schema" if role == "value" else "key.writer.schema"
            remedy = f"Change the column (cast, rename or add fields), or the schema ({option})"
            if isinstance(error, IncompatibleSchemaError) and settings.writer is None:  # derived from the column
                remedy = (
                    f"The schema was derived from the column. Write with the one of the topic ({option}=latest), name "
                    f"the record as it does ({role}.record.name), or make new fields nullable"
                )
            raise PlanError(
                f"column {role!r} of type {column.dataType.simpleString()[:500]} cannot be written: {error}. {remedy}"
            ) from error
    return schemas


class RecordEncoding:
    """Encodes the rows of one task."""

    def __init__(self, formats: FormatOptions, schemas: SchemasByField, timeout_ms: float) -> None:
        """`timeout_ms`: how long to wait for a schema while the registry is unavailable."""
        self._encoders = {role: _kept_encoder(formats, role, schemas.get(role, {})) for role in formats.settings}
        self._timeout_ms = timeout_ms

    @property
    def roles(self) -> tuple[RecordField, ...]:
        return tuple(self._encoders)

    def encode(self, topic: str, role: RecordField, column: pa.Array, bad: dict[int, str]) -> pa.Array:
        """Return the bytes of a column. Rows that cannot be encoded are null, and added to `bad` with the reason."""
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), pa.binary())
        encoder = self._encoders[role]
        try:
            encoded = when_available(
                lambda: encoder.encode(topic, column),
                self._timeout_ms,
                f"the schema of {role}s of topic {topic!r} (kafka.max.block.ms)",
            )
        except SchemaError as error:
            if isinstance(error, RegistryError) and not isinstance(error, _OF_THE_TOPIC):
                raise SinkError(f"{role}s of topic {topic!r} cannot be encoded: {error}") from error
            bad |= dict.fromkeys(range(len(column)), f"its {role} cannot be encoded: {error}")
            return pa.nulls(len(column), pa.binary())
        for row_error in encoded.errors:
            bad[row_error.row] = f"its {role} cannot be encoded: {row_error.text}"
        return encoded.column


def _kept_encoder(formats: FormatOptions, role: RecordField, schemas: Mapping[str, TopicSchema]) -> SchemaEncoder:
    """Return the encoder of this process for a column."""
    settings, registry = formats.settings[role], sorted(formats.registry_options.items())
    key = pickle.dumps((os.getpid(), registry, settings, sorted(schemas.items(), key=lambda item: item[0])))
    with _lock:
        if key not in _encoders:
            if len(_encoders) >= ENCODERS_MAX:
                _encoders.clear()
            _encoders[key] = SchemaEncoder(formats.registry(), settings, pinned=schemas)
        return _encoders[key]


# -- fingerprints ----------------------------------------------------------------------------------


def row_bytes(column: pa.Array) -> pa.Array | None:
    """Return bytes that are equal for equal rows, also in later versions of the schema; None if there are none.

    They are Avro values of a schema that follows from the column's type. Its fields are all nullable: whether Spark
    knows that a column has no nulls depends on the plan of the query.
    """
    encoder = _row_encoder(column.type)
    return None if encoder is None else encoder.encode(column)[0]


@lru_cache(64)
def _row_encoder(data_type: pa.DataType) -> AvroEncoder | None:
    try:
        return AvroEncoder(derive_schema(_nullable(data_type), "Row"), data_type)
    except SchemaError:  # a type, or a name, that Avro does not have
        return None


def _nullable(data_type: pa.DataType) -> pa.DataType:
    """Return a type that allows nulls everywhere inside."""
    kind = pa.types
    if kind.is_struct(data_type):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in data_type])
    if kind.is_map(data_type):
        return pa.map_(data_type.key_type, _nullable(data_type.item_type))
    if kind.is_list(data_type):
        return pa.list_(_nullable(data_type.value_type))
    return data_type
