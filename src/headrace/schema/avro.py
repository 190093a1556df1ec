"""Avro values in Arrow columns, without a Python object for each row.

    AvroDecoder(writer's schema, reader's schema, columns).decode(binary column) → column, errors of rows
    AvroEncoder(schema, Arrow type).encode(column, prefix) → binary column, errors of rows

Schemas are resolved and checked when a decoder or encoder is made; make one for each schema, and keep it. Threads can
share it. Rows that fail are null, with an error each, and do not affect others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema._avro import PlanDecoder, PlanEncoder
from headrace.schema._avro.layout import ZERO_BYTE_ITEMS_MAX, ColumnBuffers, ErrorCode, KernelError
from headrace.schema.avro_encoding import input_columns, plan_encoding
from headrace.schema.avro_resolution import fields_of, project, resolve
from headrace.schema.avro_schema import AvroSchema, parse_schema
from headrace.schema.avro_types import arrow_type, derive_schema
from headrace.wire.columns import bytes_column

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

_TEXTS = {
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


@dataclass(frozen=True, slots=True)
class RowError:
    """A row that could not be decoded or encoded. `position` is that of a byte in the value; -1 when encoding."""

    row: int
    code: ErrorCode
    position: int
    path: str
    text: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.text}"


def _row_errors(errors: Iterable[KernelError], paths: Sequence[str]) -> list[RowError]:
    result = []
    for row, number, position, node in errors:
        code, path = ErrorCode(number), paths[node] if node >= 0 else ""
        where = f"field {path}" if path else "value"
        at = f" at byte {position}" if position >= 0 else ""
        result.append(RowError(row, code, position, path, f"{where}{at}: {_TEXTS[code]}"))
    return result


class AvroDecoder:
    """Decodes Avro values of one writer's schema.

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
        self._plan = resolve(writer, reader if columns is None else project(reader, columns))
        self._decoder = PlanDecoder(self._plan.nodes, self._plan.columns, self._plan.constants)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._plan.arrow_type

    def decode(self, values: pa.Array, skip: int = 0) -> tuple[pa.Array, Sequence[RowError]]:
        """Decode a binary column, from byte `skip` of each value on. Bytes after the value are ignored, as in Java.

        A value that is null, or that cannot be decoded, is null.
        """
        if skip < 0:
            raise ValueError(f"invalid skip {skip}: expected 0 or more bytes")
        buffers, errors = self._decoder.decode(bytes_column(values, "value"), len(values), skip)
        return self._array(buffers, 0, self.arrow_type), _row_errors(errors, self._plan.paths)

    def _array(self, buffers: Sequence[ColumnBuffers], index: int, data_type: pa.DataType) -> pa.Array:
        length, null_count, validity, offsets, data = buffers[index]
        if pa.types.is_null(data_type):
            return pa.nulls(length)
        fields = zip(self._plan.columns[index].children, fields_of(data_type), strict=True)
        children = [self._array(buffers, child, field.type) for child, field in fields]
        parts = [None if validity is None else pa.py_buffer(validity)]
        parts += [pa.py_buffer(part) for part in (offsets, data) if part is not None]
        return pa.Array.from_buffers(data_type, length, parts, null_count, 0, children)


class AvroEncoder:
    """Encodes columns of one Arrow type as Avro values of one schema."""

    def __init__(self, schema: str | AvroSchema, arrow_type: pa.DataType) -> None:
        self._arrow_type = arrow_type
        self._plan = plan_encoding(_parsed(schema), arrow_type)
        self._encoder = PlanEncoder(self._plan.nodes, self._plan.constants)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._arrow_type

    def encode(self, values: pa.Array, prefix: bytes = b"") -> tuple[pa.Array, Sequence[RowError]]:
        """Encode a column, with `prefix` before each value.

        A row that is null, or that cannot be encoded, is null.
        """
        if values.type != self._arrow_type:
            raise SchemaError(f"the column has Arrow type {values.type}, the encoder was made for {self._arrow_type}")
        column, errors = self._encoder.encode(input_columns(self._plan, values), len(values), prefix)
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        parts = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        array = pa.Array.from_buffers(pa.binary(), len(values), parts, column.null_count)
        return array, _row_errors(errors, self._plan.paths)


def _parsed(schema: str | AvroSchema) -> AvroSchema:
    return parse_schema(schema) if isinstance(schema, str) else schema
