"""JSON values with a JSON schema in Arrow columns, without a Python object for each row.

    JsonDecoder(schema, reader's schema, columns).decode(binary column) → column, errors of rows
    JsonEncoder(schema, Arrow type).encode(column, prefix) → binary column, errors of rows

Schemas are checked when a decoder or encoder is made; make one for each schema, and keep it. Threads can share it. Rows
that fail are null, with an error each, and do not affect others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Self

import pyarrow as pa

from headrace.schema._json import PlanDecoder, PlanEncoder
from headrace.schema._json.layout import NUMBER_CHARS_MAX, SKIP_DEPTH_MAX, ErrorCode
from headrace.schema.codec import ColumnDecoder, ColumnEncoder, ParsedSchema, RowError
from headrace.schema.json_decoding import check_readable, plan_decoding
from headrace.schema.json_encoding import plan_encoding
from headrace.schema.json_parsing import parse_schema
from headrace.schema.json_types import JsonSchema, arrow_type, derive_schema, project
from headrace.schema.json_validation import Validator
from headrace.schema.types import CompleteSchema, Schema, SchemaFormat
from headrace.schema.values import ValueEncoder

__all__ = [
    "ErrorCode",
    "JsonDecoder",
    "JsonEncoder",
    "JsonSchema",
    "RowError",
    "arrow_type",
    "derive_schema",
    "parse_schema",
]

_TEXTS: dict[IntEnum, str] = {
    ErrorCode.TRUNCATED: "the value ends too early",
    ErrorCode.SYNTAX: "not JSON",
    ErrorCode.TYPE: "the value has another type than the schema says",
    ErrorCode.INTEGER: "not an integer, or out of range",
    ErrorCode.NUMBER: f"a number is out of range, not finite, or has more than {NUMBER_CHARS_MAX:,} characters",
    ErrorCode.DECIMAL: "a decimal has more digits than its precision or scale",
    ErrorCode.UTF8: "a string is not UTF-8",
    ErrorCode.ESCAPE: "a string has an invalid escape, or half a surrogate pair",
    ErrorCode.BASE64: "a string is not base64",
    ErrorCode.NULL: "null in a field that is not nullable",
    ErrorCode.REQUIRED: "the required property is missing",
    ErrorCode.MISSING: "too many properties are missing for the size of the value",
    ErrorCode.DEPTH: f"nested deeper than {SKIP_DEPTH_MAX} levels",
    ErrorCode.TRAILING: "more text after the value",
    ErrorCode.MEMBERS: "several members of a union have a value",
    ErrorCode.SKIP: "the value is shorter than its prefix",
    ErrorCode.REPEATED: "keys of maps in maps are repeated too often",
}


class JsonDecoder(ColumnDecoder):
    """Decodes JSON values of one schema.

    `reader_schema` is the schema to convert the values to. `columns` names the properties to decode (`a.b` for a
    property of an object in a property); others are skipped. `references` has the texts of schemas that the schemas
    refer to, by name. `validate` checks each value against the whole schema of the writer first, which is slow.
    """

    def __init__(
        self,
        schema: str | JsonSchema,
        reader_schema: str | JsonSchema | None = None,
        columns: Iterable[str] | None = None,
        *,
        references: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None:
        writer = _parsed(schema, references)
        reader = writer if reader_schema is None else _parsed(reader_schema, references)
        check_readable(writer, reader)
        plan = plan_decoding(reader if columns is None else project(reader, columns))
        self._validator = _validator(schema, references) if validate else None
        super().__init__(plan, PlanDecoder(plan.nodes, plan.columns, plan.constants), _TEXTS)

    def decode(self, values: pa.Array, skip: int = 0) -> tuple[pa.Array, Sequence[RowError]]:
        """Decode a binary column, from byte `skip` of each value on.

        A value that is null, or that cannot be decoded, is null.
        """
        if self._validator is None or skip < 0:
            return super().decode(values, skip)
        values, invalid = self._validator.check(values, skip)
        column, errors = super().decode(values, skip)
        return column, sorted([*invalid, *errors], key=lambda error: error.row)


class JsonEncoder(ColumnEncoder):
    """Encodes columns of one Arrow type as JSON values of one schema.

    `validate` checks each value against the whole schema afterwards, which is slow.
    """

    def __init__(
        self,
        schema: str | JsonSchema,
        arrow_type: pa.DataType,
        *,
        references: Mapping[str, str] | None = None,
        validate: bool = False,
    ) -> None:
        plan = plan_encoding(_parsed(schema, references), arrow_type)
        self._validator = _validator(schema, references) if validate else None
        super().__init__(arrow_type, plan, PlanEncoder(plan.nodes, plan.constants), _TEXTS)

    def encode(self, values: pa.Array, prefix: bytes = b"") -> tuple[pa.Array, Sequence[RowError]]:
        """Encode a column, with `prefix` before each value.

        A row that is null, or that cannot be encoded, is null.
        """
        column, errors = super().encode(values, prefix)
        if self._validator is None:
            return column, errors
        column, invalid = self._validator.check(column, len(prefix))
        return column, sorted([*errors, *invalid], key=lambda error: error.row)


class ParsedJsonSchema(ParsedSchema):
    """A JSON schema behind the interface of all formats."""

    format = SchemaFormat.JSON

    def __init__(self, model: JsonSchema, title: str | None) -> None:
        self._model = model
        self._title = title

    @classmethod
    def parse(cls, source: CompleteSchema) -> Self:
        model = parse_schema(source.schema.text, source.reference_texts)
        document = json.loads(source.schema.text)
        title = document.get("title") if isinstance(document, dict) else None
        return cls(model, title if isinstance(title, str) else None)

    @classmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        return Schema(derive_schema(arrow_type, record_name), cls.format)

    def record_name(self, message: str | None = None) -> str | None:
        return self._title  # as Confluent's serializers name it

    def _decoder(
        self, reader: Self | None, columns: Sequence[str] | None, message: str | None, reader_message: str | None
    ) -> ColumnDecoder:
        return JsonDecoder(self._model, None if reader is None else reader._model, columns)

    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        return JsonEncoder(self._model, arrow_type)

    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        from headrace.schema.json_values import value_encoder  # it encodes text with JsonEncoder

        return value_encoder(self._model)


def _parsed(schema: str | JsonSchema, references: Mapping[str, str] | None) -> JsonSchema:
    return parse_schema(schema, references) if isinstance(schema, str) else schema


def _validator(schema: str | JsonSchema, references: Mapping[str, str] | None) -> Validator:
    if not isinstance(schema, str):
        raise ValueError("validate=True needs the text of the schema, got a parsed one; pass the text")
    return Validator(schema, references or {})
