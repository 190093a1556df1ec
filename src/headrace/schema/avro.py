"""Avro values in Arrow columns, without a Python object for each row.

    AvroDecoder(writer's schema, reader's schema, columns).decode(binary column) → column, errors of rows
    AvroEncoder(schema, Arrow type).encode(column, prefix) → binary column, errors of rows

Schemas are resolved and checked when a decoder or encoder is made; make one for each schema, and keep it. Threads can
share it. Rows that fail are null, with an error each, and do not affect others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Self

import pyarrow as pa

from headrace.schema._avro import PlanDecoder, PlanEncoder
from headrace.schema._avro.layout import ZERO_BYTE_ITEMS_MAX, ErrorCode
from headrace.schema.avro_encoding import plan_encoding
from headrace.schema.avro_resolution import project, resolve
from headrace.schema.avro_schema import AvroSchema, parse_schema
from headrace.schema.avro_types import arrow_type, derive_schema
from headrace.schema.avro_values import value_encoder
from headrace.schema.codec import ColumnDecoder, ColumnEncoder, ParsedSchema, RowError
from headrace.schema.types import CompleteSchema, Schema, SchemaFormat
from headrace.schema.values import ValueEncoder

__all__ = [
    "AvroDecoder",
    "AvroEncoder",
    "AvroSchema",
    "ErrorCode",
    "RowError",
    "arrow_type",
    "derive_schema",
    "parse_schema",
]

_TEXTS: dict[IntEnum, str] = {
    ErrorCode.TRUNCATED: "the value ends too early",
    ErrorCode.INTEGER: "an integer is out of range",
    ErrorCode.LENGTH: "a length is negative",
    ErrorCode.COUNT: (
        f"a block has more items than the value has bytes for, or more than {ZERO_BYTE_ITEMS_MAX:,} items without bytes"
    ),
    ErrorCode.BRANCH: "the union has no such branch",
    ErrorCode.SYMBOL: "the enum has no such symbol",
    ErrorCode.BOOLEAN: "a boolean is neither 0 nor 1",
    ErrorCode.UTF8: "a string is not UTF-8",
    ErrorCode.DECIMAL: "a decimal has more digits than its precision",
    ErrorCode.UNRESOLVED: "the reader's schema has no type or symbol for the value",
    ErrorCode.NULL: "null in a field that is not nullable",
    ErrorCode.SIZE: "the bytes are not as many as the fixed type has",
    ErrorCode.MEMBERS: "several members of a union have a value",
    ErrorCode.SKIP: "the value is shorter than its prefix",
}


class AvroDecoder(ColumnDecoder):
    """Decodes Avro values of one writer's schema. Bytes after a value are ignored, as in Java.

    `reader_schema` is the schema to convert the values to. `columns` names the fields to decode (`a.b` for a field of a
    record in a field); others are skipped.
    """

    def __init__(
        self,
        writer_schema: str | AvroSchema,
        reader_schema: str | AvroSchema | None = None,
        columns: Iterable[str] | None = None,
    ) -> None:
        writer = _parsed(writer_schema)
        reader = writer if reader_schema is None else _parsed(reader_schema)
        plan = resolve(writer, reader if columns is None else project(reader, columns))
        super().__init__(plan, PlanDecoder(plan.nodes, plan.columns, plan.constants), _TEXTS)


class AvroEncoder(ColumnEncoder):
    """Encodes columns of one Arrow type as Avro values of one schema."""

    def __init__(self, schema: str | AvroSchema, arrow_type: pa.DataType) -> None:
        plan = plan_encoding(_parsed(schema), arrow_type)
        super().__init__(arrow_type, plan, PlanEncoder(plan.nodes, plan.constants), _TEXTS)


class ParsedAvroSchema(ParsedSchema):
    """An Avro schema behind the interface of all formats."""

    format = SchemaFormat.AVRO

    def __init__(self, model: AvroSchema) -> None:
        self._model = model

    @classmethod
    def parse(cls, source: CompleteSchema) -> Self:
        texts = [reference.text for reference in source.references.values()]
        return cls(parse_schema(source.schema.text, texts))

    @classmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        namespace, _, name = record_name.rpartition(".")
        return Schema(derive_schema(arrow_type, name, namespace), cls.format)

    def record_name(self, message: str | None = None) -> str | None:
        # A primitive type is named after itself, as in Java's Schema.getFullName.
        return str(getattr(self._model, "name", self._model.kind))

    def _decoder(
        self, reader: Self | None, columns: Sequence[str] | None, message: str | None, reader_message: str | None
    ) -> ColumnDecoder:
        return AvroDecoder(self._model, None if reader is None else reader._model, columns)

    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        return AvroEncoder(self._model, arrow_type)

    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        return value_encoder(self._model)


def _parsed(schema: str | AvroSchema) -> AvroSchema:
    return parse_schema(schema) if isinstance(schema, str) else schema
