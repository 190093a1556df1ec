"""Protobuf values in Arrow columns, without a Python object for each row.

    ProtobufDecoder(schema, message, reader's schema, columns).decode(binary column) → column, errors of rows
    ProtobufEncoder(schema, Arrow type, message).encode(column, prefix) → binary column, errors of rows

Schemas are checked when a decoder or encoder is made; make one for each message type, and keep it. Threads can share
it. Rows that fail are null, with an error each, and do not affect others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Self

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema._protobuf import PlanDecoder, PlanEncoder
from headrace.schema._protobuf.layout import GROUP_DEPTH_MAX, ITEM_CELLS_MAX, ErrorCode
from headrace.schema.codec import ColumnDecoder, ColumnEncoder, ParsedSchema, RowError
from headrace.schema.protobuf_decoding import check_readable, find_reader_message, plan_decoding
from headrace.schema.protobuf_descriptor import to_descriptor
from headrace.schema.protobuf_encoding import plan_encoding
from headrace.schema.protobuf_linking import parse_schema
from headrace.schema.protobuf_schema import ProtobufSchema
from headrace.schema.protobuf_text import normal_form
from headrace.schema.protobuf_types import arrow_type, derive_schema
from headrace.schema.protobuf_values import value_encoder
from headrace.schema.types import CompleteSchema, Schema, SchemaFormat
from headrace.schema.values import ValueEncoder

__all__ = [
    "ErrorCode",
    "ProtobufDecoder",
    "ProtobufEncoder",
    "ProtobufSchema",
    "RowError",
    "arrow_type",
    "derive_schema",
    "normal_form",
    "parse_schema",
    "to_descriptor",
]

_TEXTS: dict[IntEnum, str] = {
    ErrorCode.TRUNCATED: "the value ends too early",
    ErrorCode.VARINT: "an integer has more than ten bytes",
    ErrorCode.TAG: "a field has no valid number or type",
    ErrorCode.GROUP: f"a group does not end where it should, or groups are nested deeper than {GROUP_DEPTH_MAX} levels",
    ErrorCode.UTF8: "a string is not UTF-8",
    ErrorCode.REQUIRED: "a required field is absent",
    ErrorCode.COUNT: f"the items have more than {ITEM_CELLS_MAX:,} values in their columns",
    ErrorCode.TIME: "a time is out of the range of microseconds in 64 bits",
    ErrorCode.DECIMAL: "a decimal has more digits than its precision, or another scale",
    ErrorCode.RANGE: "an integer is out of range",
    ErrorCode.SYMBOL: "the enum has no such value",
    ErrorCode.NULL: "null in a required field, or in a list or map",
    ErrorCode.ONEOF: "several fields of a oneof have a value",
    ErrorCode.SKIP: "the value is shorter than its prefix",
}


class ProtobufDecoder(ColumnDecoder):
    """Decodes Protobuf values of one message type: by default the first one of the schema.

    `reader_schema` is the schema to convert the values to, by field numbers. `columns` names the fields to decode
    (`a.b` for a field of a message in a field); others are skipped. `reader_message` is the message of the reader's
    schema: by default the one with the writer's name, or the only one of the file.
    """

    def __init__(
        self,
        schema: str | ProtobufSchema,
        message: str | None = None,
        reader_schema: str | ProtobufSchema | None = None,
        columns: Iterable[str] | None = None,
        *,
        reader_message: str | None = None,
    ) -> None:
        reader = writer = _parsed(schema)
        definition = writer.message(message)
        if reader_schema is not None:
            reader = _parsed(reader_schema)
            readable = find_reader_message(reader, definition, reader_message)
            check_readable((writer, definition), (reader, readable))
            definition = readable
        plan = plan_decoding(reader, definition, None if columns is None else list(columns))
        super().__init__(plan, PlanDecoder(plan.nodes, plan.columns, plan.constants), _TEXTS)


class ProtobufEncoder(ColumnEncoder):
    """Encodes columns of one Arrow type as Protobuf values of one message type: by default the schema's first."""

    def __init__(self, schema: str | ProtobufSchema, arrow_type: pa.DataType, message: str | None = None) -> None:
        parsed = _parsed(schema)
        plan = plan_encoding(parsed, parsed.message(message), arrow_type)
        super().__init__(arrow_type, plan, PlanEncoder(plan.nodes, plan.constants), _TEXTS)


class ParsedProtobufSchema(ParsedSchema):
    """A Protobuf schema behind the interface of all formats."""

    format = SchemaFormat.PROTOBUF

    def __init__(self, model: ProtobufSchema) -> None:
        self._model = model

    @classmethod
    def parse(cls, source: CompleteSchema) -> Self:
        return cls(parse_schema(source.schema.text, source.reference_texts))

    @classmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        package, _, name = record_name.rpartition(".")
        return Schema(derive_schema(arrow_type, name, package), cls.format)

    def record_name(self, message: str | None = None) -> str | None:
        return self._model.message(message).full_name

    def _decoder(
        self, reader: Self | None, columns: Sequence[str] | None, message: str | None, reader_message: str | None
    ) -> ColumnDecoder:
        if reader is None:
            return ProtobufDecoder(self._model, message, columns=columns)
        model = reader._model
        target = model.message(reader_message).full_name
        self._check_message(self._model.message(message).full_name, target, model)
        return ProtobufDecoder(self._model, message, model, columns, reader_message=target)

    def _check_message(self, name: str, target: str, reader: ProtobufSchema) -> None:
        """Raise if a message would be read as another one: the wire format does not tell them apart."""
        is_renamed = len(self._model.file.messages) == len(reader.file.messages) == 1
        if name.rpartition(".")[2] != target.rpartition(".")[2] and not is_renamed:
            raise SchemaError(f"the message type is {name}, the reader's is {target}; choose another one to read these")

    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        return ProtobufEncoder(self._model, arrow_type, message)

    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        return value_encoder(self._model, self._model.message(message))

    def message_indexes(self, message: str | None = None) -> tuple[int, ...] | None:
        return self._model.message_indexes(message)

    def message_at(self, indexes: Sequence[int]) -> str | None:
        return self._model.message_by_indexes(indexes).full_name


def _parsed(schema: str | ProtobufSchema) -> ProtobufSchema:
    return parse_schema(schema) if isinstance(schema, str) else schema
