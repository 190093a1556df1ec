"""What the codecs of all formats share: plans, decoders and encoders of Arrow columns, and errors of rows.

    DecodePlan → ColumnDecoder.decode(binary column) → column, errors of rows
    EncodePlan → ColumnEncoder.encode(column, prefix) → binary column, errors of rows

A format makes the plans (avro_resolution.py, avro_encoding.py, …) and has the loops that carry them out (_avro/, …).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema._plan.layout import (
    Column,
    ColumnBuffers,
    EncodedColumn,
    EncodeNode,
    InputColumn,
    KernelError,
    Kind,
    Node,
)
from headrace.schema.types import CompleteSchema, Schema, SchemaFormat
from headrace.wire.columns import bytes_column
from headrace.wire.layout import BytesColumn

if TYPE_CHECKING:
    from headrace.schema.values import ValueEncoder


@dataclass(frozen=True, slots=True)
class RowError:
    """A row that could not be decoded or encoded. `position` is that of a byte in the value; -1 when encoding."""

    row: int
    code: IntEnum
    """The format's ErrorCode."""
    position: int
    path: str
    text: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.text}"


@dataclass(slots=True)
class DecodePlan:
    """Nodes, columns and constants for the kernel; the path of the field of each node, for errors."""

    arrow_type: pa.DataType
    nodes: list[Node] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
    _constant_indexes: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The root is nullable, whatever the schema says: a row that cannot be decoded is null.
        self._add_column(self.arrow_type, True)

    def add_node(self, op: IntEnum, column: int, path: str, size: int = 0, children: Sequence[int] = ()) -> int:
        """Add a node for the field at `path`; return its index."""
        self.nodes.append(Node(op, column, size, tuple(children)))
        self.paths.append(path)
        return len(self.nodes) - 1

    def add_constant(self, data: bytes) -> int:
        """Return the index of a constant, which is added if it is new."""
        index = self._constant_indexes.setdefault(data, len(self.constants))
        if index == len(self.constants):
            self.constants.append(data)
        return index

    def _add_column(self, data_type: pa.DataType, nullable: bool) -> int:
        index = len(self.columns)
        kind, width = kind_of(data_type)
        self.columns.append(Column(kind, width, nullable, ()))
        children = tuple(self._add_column(child.type, child.nullable) for child in fields_of(data_type))
        self.columns[index] = Column(kind, width, nullable and kind != Kind.NULL, children)
        return index


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Where a column comes from: a child of another one; cast to a type that the kernel can read, if necessary."""

    parent: int
    child: int | str  # the index of a field, or "values", "keys", "items"
    cast: pa.DataType | None


@dataclass(slots=True)
class EncodePlan:
    """Nodes and constants for the kernel, and the columns that it reads."""

    nodes: list[EncodeNode] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)
    sources: list[ColumnSource] = field(default_factory=list)

    def add_source(self, parent: int, child: int | str, data_type: pa.DataType) -> tuple[int, pa.DataType]:
        """Add a column to read; return its index, and its type after the cast."""
        readable = readable_type(data_type)
        self.sources.append(ColumnSource(parent, child, None if readable == data_type else readable))
        return len(self.sources) - 1, readable

    def add_node(
        self,
        op: IntEnum,
        column: int,
        path: str,
        size: int = 0,
        children: Sequence[int] = (),
        *,
        factors: tuple[int, int] = (1, 1),
    ) -> int:
        """Add a node for the field at `path`; return its index. `factors`: multiplier and divisor."""
        self.nodes.append(EncodeNode(op, column, size, *factors, tuple(children)))
        self.paths.append(path)
        return len(self.nodes) - 1

    def add_constant(self, data: bytes) -> int:
        self.constants.append(data)
        return len(self.constants) - 1

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Remove the nodes and columns that were added meanwhile if the attempt raises a SchemaError."""
        nodes, sources = len(self.nodes), len(self.sources)
        try:
            yield
        except SchemaError:
            del self.nodes[nodes:], self.paths[nodes:], self.sources[sources:]
            raise


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Field = TypeVar("_Field", bound=_Named)


class _DecodeKernel(Protocol):
    def decode(
        self, values: BytesColumn, row_count: int, skip: int
    ) -> tuple[list[ColumnBuffers], list[KernelError]]: ...


class _EncodeKernel(Protocol):
    def encode(
        self, columns: Sequence[InputColumn], row_count: int, prefix: bytes
    ) -> tuple[EncodedColumn, list[KernelError]]: ...


class ColumnDecoder:
    """Decodes columns by a plan; the base of the decoders of all formats. Threads can share it."""

    def __init__(self, plan: DecodePlan, kernel: _DecodeKernel, error_texts: Mapping[IntEnum, str]) -> None:
        self._plan = plan
        self._kernel = kernel
        self._errors = _ErrorTexts(plan.paths, error_texts)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._plan.arrow_type

    def decode(self, values: pa.Array, skip: int = 0) -> tuple[pa.Array, Sequence[RowError]]:
        """Decode a binary column, from byte `skip` of each value on.

        A value that is null, or that cannot be decoded, is null.
        """
        if skip < 0:
            raise ValueError(f"invalid skip {skip}: expected 0 or more bytes")
        buffers, errors = self._kernel.decode(bytes_column(values, "value"), len(values), skip)
        return self._array(buffers, 0, self.arrow_type), self._errors.row_errors(errors)

    def _array(self, buffers: Sequence[ColumnBuffers], index: int, data_type: pa.DataType) -> pa.Array:
        length, null_count, validity, offsets, data = buffers[index]
        if pa.types.is_null(data_type):
            return pa.nulls(length)
        fields = zip(self._plan.columns[index].children, fields_of(data_type), strict=True)
        children = [self._array(buffers, child, field.type) for child, field in fields]
        parts = [None if validity is None else pa.py_buffer(validity)]
        parts += [pa.py_buffer(part) for part in (offsets, data) if part is not None]
        return pa.Array.from_buffers(data_type, length, parts, null_count, 0, children)


class ColumnEncoder:
    """Encodes columns of one Arrow type by a plan; the base of the encoders of all formats. Threads can share it."""

    def __init__(
        self, arrow_type: pa.DataType, plan: EncodePlan, kernel: _EncodeKernel, error_texts: Mapping[IntEnum, str]
    ) -> None:
        self._arrow_type = arrow_type
        self._plan = plan
        self._kernel = kernel
        self._errors = _ErrorTexts(plan.paths, error_texts)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._arrow_type

    def encode(self, values: pa.Array, prefix: bytes = b"") -> tuple[pa.Array, Sequence[RowError]]:
        """Encode a column, with `prefix` before each value.

        A row that is null, or that cannot be encoded, is null.
        """
        if values.type != self._arrow_type:
            raise SchemaError(f"the column has Arrow type {values.type}, the encoder was made for {self._arrow_type}")
        column, errors = self._kernel.encode(_input_columns(self._plan, values), len(values), prefix)
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        parts = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        array = pa.Array.from_buffers(pa.binary(), len(values), parts, column.null_count)
        return array, self._errors.row_errors(errors)


class ParsedSchema(ABC):
    """A parsed schema of one format.

    `message` is the full name of a message type of a Protobuf schema, by default the first one. The other formats have
    one type in a schema, and ignore it.
    """

    format: SchemaFormat

    @classmethod
    @abstractmethod
    def parse(cls, source: CompleteSchema) -> Self:
        """Return a schema of this format parsed; raises SchemaError if it is invalid."""

    @classmethod
    @abstractmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        """Return a schema of this format for an Arrow type."""

    @abstractmethod
    def record_name(self, message: str | None = None) -> str | None:
        """Return the full name of the type, such as `shop.Order`; None if it has none."""

    def arrow_type(self, columns: Sequence[str] | None = None, message: str | None = None) -> pa.DataType:
        """Return the Arrow type of values; with `columns`, of these fields only."""
        return self.decoder(columns=columns, message=message).arrow_type

    def decoder(
        self,
        reader: ParsedSchema | None = None,
        columns: Sequence[str] | None = None,
        *,
        message: str | None = None,
        reader_message: str | None = None,
    ) -> ColumnDecoder:
        """Return a decoder of values that were written with this schema, to the type of the reader's."""
        if reader is None or isinstance(reader, type(self)):
            return self._decoder(reader, columns, message, reader_message)
        raise SchemaError(
            f"values of {self.format.value} schemas cannot be read as {reader.format.value}; use schemas of one format"
        )

    @abstractmethod
    def _decoder(
        self, reader: Self | None, columns: Sequence[str] | None, message: str | None, reader_message: str | None
    ) -> ColumnDecoder:
        """Return a decoder, to the type of a reader's schema of the same format."""

    @abstractmethod
    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        """Return an encoder of columns of an Arrow type."""

    @abstractmethod
    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        """Return the function from a Python value to its bytes; it raises SchemaError if the value does not fit."""

    def message_indexes(self, message: str | None = None) -> tuple[int, ...] | None:
        """Return the position of a message type, which follows the schema id; None if the format has none."""
        return None

    def message_at(self, indexes: Sequence[int]) -> str | None:
        """Return the full name of the message type at a position; raises SchemaError if there is none."""
        return None


class _ErrorTexts:
    """Makes errors of rows from those of a kernel."""

    def __init__(self, paths: Sequence[str], texts: Mapping[IntEnum, str]) -> None:
        self._paths = paths
        self._texts = {int(code): (code, text) for code, text in texts.items()}

    def row_errors(self, errors: Iterable[KernelError]) -> list[RowError]:
        result = []
        for row, number, position, node in errors:
            path = self._paths[node] if node >= 0 else ""
            code, text = self._texts[number]
            where = f"field {path}" if path else "value"
            at = f" at byte {position}" if position >= 0 else ""
            result.append(RowError(row, code, position, path, f"{where}{at}: {text}"))
        return result


def join_path(path: str, name: str) -> str:
    """Return the path of a field in the value at `path`; the path of the whole value is empty."""
    return f"{path}.{name}" if path else name


def choose_fields(
    fields: Sequence[_Field], columns: Iterable[Sequence[str]], path: str, kind: str, owner: str
) -> list[tuple[_Field, list[Sequence[str]]]]:
    """Return the fields that columns name, each with the rest of the names: an empty one stands for the whole field.

    Raises SchemaError for a name without a field; `kind` and `owner` are for its text.
    """
    known = {field.name for field in fields}
    rests: dict[str, list[Sequence[str]]] = {}
    for name, *rest in columns:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise SchemaError(f"no {kind} {join_path(path, name)} in {owner}; it has {names}")
        rests.setdefault(name, []).append(rest)
    return [(field, rests[field.name]) for field in fields if field.name in rests]


def column_names(data_type: pa.DataType, fields: Iterable[_Field], owner: str) -> list[str]:
    """Return the names of a struct's columns; raises SchemaError if one is not among the fields, or is there twice."""
    names = [entry.name for entry in data_type]
    unknown = set(names) - {field.name for field in fields}
    if unknown or len(set(names)) != len(names):
        raise SchemaError(
            f"columns {', '.join(sorted(unknown or names))} are not {owner}, or are there twice; "
            f"select the columns to write"
        )
    return names


def shorten(text: str, chars_max: int = 80) -> str:
    """Return a text for an error, cut if it is long."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."


def kind_of(data_type: pa.DataType) -> tuple[Kind, int]:
    """Return how values of an Arrow type are stored, and in how many bytes if this is fixed."""
    if pa.types.is_null(data_type):
        return Kind.NULL, 0
    if pa.types.is_boolean(data_type):
        return Kind.BOOLEAN, 1
    if pa.types.is_struct(data_type):
        return Kind.STRUCT, 0
    if pa.types.is_list(data_type) or pa.types.is_map(data_type):
        return Kind.LIST, 0
    if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        return Kind.BINARY, 0
    width = data_type.byte_width if pa.types.is_fixed_size_binary(data_type) else data_type.bit_width // 8
    return Kind.FIXED, width


def fields_of(data_type: pa.DataType) -> list[pa.Field]:
    """Return the fields of the child columns of an Arrow type."""
    if pa.types.is_map(data_type):
        entries = pa.struct([pa.field("key", data_type.key_type, nullable=False), data_type.item_field])
        return [pa.field("entries", entries, nullable=False)]
    if pa.types.is_list(data_type):
        return [data_type.value_field]
    return list(data_type) if pa.types.is_struct(data_type) else []


def readable_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type to cast a column to, so that the kernel can read it."""
    types = pa.types
    if types.is_dictionary(data_type):
        return readable_type(data_type.value_type)
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        return pa.list_(data_type.value_field)
    if types.is_float16(data_type):
        return pa.float32()
    return pa.date32() if types.is_date64(data_type) else data_type


def _input_columns(plan: EncodePlan, values: pa.Array) -> list[InputColumn]:
    """Return the buffers of the columns that a plan uses."""
    arrays: list[pa.Array] = []
    columns: list[InputColumn] = []
    for source in plan.sources:
        array = values if source.parent < 0 else _child(arrays[source.parent], source.child)
        if source.cast is not None:
            array = array.cast(source.cast)
        arrays.append(array)
        columns.append(_input_column(array))
    return columns


def _child(array: pa.Array, child: int | str) -> pa.Array:
    if isinstance(child, int):
        return array.field(child)
    return {"values": lambda: array.values, "keys": lambda: array.keys, "items": lambda: array.items}[child]()


def _input_column(array: pa.Array) -> InputColumn:
    kind, width = kind_of(array.type)
    if kind == Kind.NULL:
        return InputColumn(kind, 0, True, 0, None, None, None, ())
    buffers = array.buffers()
    offsets = data = None
    if kind in (Kind.BINARY, Kind.LIST):
        offsets = buffers[1] if buffers[1] is not None and len(buffers[1]) else bytes(4)
    if kind in (Kind.BOOLEAN, Kind.FIXED, Kind.BINARY):
        data = buffers[2 if kind == Kind.BINARY else 1]
        data = b"" if data is None else data
    signed = not pa.types.is_unsigned_integer(array.type)
    return InputColumn(kind, width, signed, array.offset, buffers[0] if array.null_count else None, offsets, data, ())
