"""Decoders and encoders by plans in plain Python, which define what `codec.pxi` compiles.

    PlanDecoder → BatchDecoder, a subclass for each format: its operations append to ColumnBuilders
    PlanEncoder → BatchEncoder, a subclass for each format: its operations read values from columns

A damaged row does not fail the batch: everything it has left in the columns is removed, the row is null, and its error
is returned. An error's position is where the value begins that could not be decoded.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from headrace.schema._plan.layout import (
    COLUMN_BYTES_MAX,
    Column,
    ColumnBuffers,
    EncodedColumn,
    EncodeNode,
    InputColumn,
    KernelError,
    Kind,
    Node,
)
from headrace.wire.layout import BytesColumn


class RowFailedError(Exception):
    """A row that cannot be decoded or encoded, with the error code of the format."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        self.node = -1


def check_size(count: int) -> None:
    if count > COLUMN_BYTES_MAX:
        raise OverflowError("a column of the batch has more than 2 GiB or 2^31 items; pass fewer rows at a time")


def pack_bits(values: Sequence[int]) -> bytes:
    packed = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        packed[i >> 3] |= value << (i & 7)
    return bytes(packed)


class ColumnBuilder:
    """A column while it is filled: a list of bytes objects or numbers, and where they end."""

    def __init__(self, column: Column) -> None:
        self.kind, self.width, self.nullable, self.children = column
        self.valid: list[bool] = []
        self.data = bytearray()  # of a boolean column a byte for each value
        self.ends: list[int] = [0]  # offsets

    @property
    def length(self) -> int:
        return len(self.valid)

    def append(self, data: bytes = b"") -> None:
        self.data += data
        if self.kind == Kind.BINARY:
            check_size(len(self.data))
            self.ends.append(len(self.data))
        self.valid.append(True)

    def finish(self) -> ColumnBuffers:
        null_count = self.valid.count(False) if self.nullable else 0
        validity = pack_bits(self.valid) if null_count and self.kind != Kind.NULL else None
        offsets = struct.pack(f"={len(self.ends)}i", *self.ends) if self.kind in (Kind.BINARY, Kind.LIST) else None
        data = None
        if self.kind == Kind.BOOLEAN:
            data = pack_bits(self.data)
        elif self.kind in (Kind.FIXED, Kind.BINARY):
            data = bytes(self.data)
        return ColumnBuffers(self.length, null_count, validity, offsets, data)


class BatchDecoder(ABC):
    """One call of `decode`: the columns, and the value that is read."""

    SKIP: ClassVar[int]
    """The format's code of the error that a value is shorter than its prefix."""

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        self.nodes, self.constants = nodes, constants
        self.builders = [ColumnBuilder(column) for column in columns]
        self.value = b""
        self.at = 0

    @abstractmethod
    def decode_node(self, node: Node) -> None:
        """Decode a value at the current position, and append it to its column."""

    @abstractmethod
    def start_row(self) -> None:
        """Reset what a format counts for each row."""

    def decode_row(self, value: bytes, skip: int) -> None:
        self.value, self.at = value, skip
        self.start_row()
        if len(value) < skip:
            self.at = len(value)
            error = RowFailedError(self.SKIP)
            error.node = len(self.nodes) - 1
            raise error
        self.decode(len(self.nodes) - 1)

    def decode(self, index: int) -> None:
        try:
            self.decode_node(self.nodes[index])
        except RowFailedError as error:
            if error.node < 0:
                error.node = index
            raise

    def append_null(self, index: int) -> None:
        builder = self.builders[index]
        if builder.kind in (Kind.BOOLEAN, Kind.FIXED):
            builder.data += bytes(builder.width)
        elif builder.kind in (Kind.BINARY, Kind.LIST):
            builder.ends.append(builder.ends[-1])
        elif builder.kind == Kind.STRUCT:
            for child in builder.children:
                self.append_null(child)
        builder.valid.append(False)

    def truncate(self, index: int, length: int) -> None:
        """Remove everything after the first `length` values, also what an unfinished value has left in the children."""
        builder = self.builders[index]
        if builder.kind in (Kind.BINARY, Kind.LIST):
            del builder.ends[length + 1 :]
        if builder.kind == Kind.BINARY:
            del builder.data[builder.ends[-1] :]
        elif builder.kind == Kind.LIST:
            self.truncate(builder.children[0], builder.ends[-1])
        elif builder.kind == Kind.STRUCT:
            for child in builder.children:
                self.truncate(child, length)
        else:
            del builder.data[length * builder.width :]
        del builder.valid[length:]


class PlanDecoder:
    """Decodes values by a plan. Column 0 is the root, and nullable; the last node is the root."""

    _batch_decoder: ClassVar[type[BatchDecoder]]

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        self._nodes = nodes
        self._columns = columns
        self._constants = constants

    def decode(self, values: BytesColumn, row_count: int, skip: int) -> tuple[list[ColumnBuffers], list[KernelError]]:
        """Decode the values of a binary column, from byte `skip` of each on.

        Return the buffers of all columns, and an error for each row that could not be decoded, which is null.
        """
        batch = self._batch_decoder(self._nodes, self._columns, self._constants)
        errors = []
        for row, value in enumerate(_values(values, row_count)):
            if value is None:
                batch.append_null(0)
                continue
            try:
                batch.decode_row(value, skip)
            except RowFailedError as error:
                errors.append(KernelError(row, error.code, batch.at, error.node))
                batch.truncate(0, row)
                batch.append_null(0)
        return [builder.finish() for builder in batch.builders], errors


def _values(column: BytesColumn, row_count: int) -> list[bytes | None]:
    ends = memoryview(column.offsets).cast("B").cast("q" if column.large else "i")
    data = memoryview(column.data)
    validity = None if column.validity is None else memoryview(column.validity)
    rows = range(column.first, column.first + row_count)
    return [
        bytes(data[ends[row] : ends[row + 1]]) if validity is None or validity[row >> 3] >> (row & 7) & 1 else None
        for row in rows
    ]


class BatchEncoder(ABC):
    """One call of `encode`: the columns to read."""

    def __init__(self, nodes: Sequence[EncodeNode], columns: Sequence[InputColumn], constants: Sequence[bytes]) -> None:
        self.nodes, self.columns, self.constants = nodes, columns, constants
        self.data = [None if c.data is None else memoryview(c.data).cast("B") for c in columns]
        self.ends = [None if c.offsets is None else memoryview(c.offsets).cast("B").cast("i") for c in columns]
        self.validity = [None if c.validity is None else memoryview(c.validity).cast("B") for c in columns]

    @abstractmethod
    def encode_node(self, node: EncodeNode, row: int) -> bytes:
        """Return the bytes of a value."""

    def encode(self, index: int, row: int) -> bytes:
        try:
            return self.encode_node(self.nodes[index], row)
        except RowFailedError as error:
            if error.node < 0:
                error.node = index
            raise

    def is_null(self, column: int, row: int) -> bool:
        row += self.columns[column].first
        validity = self.validity[column]
        return validity is not None and not validity[row >> 3] >> (row & 7) & 1

    def chosen_member(self, node: EncodeNode, row: int, several: int) -> int | None:
        """Return the member of a union that has a value; None if none has. `several` is the error of more than one."""
        if self.is_null(node.column, row):
            return None
        chosen = [child for child in node.children if not self.is_null(self.nodes[child].column, row)]
        if len(chosen) > 1:
            raise RowFailedError(several)
        return chosen[0] if chosen else None

    def span(self, node: EncodeNode, row: int) -> tuple[int, int]:
        """Return the first item of a list, and the end."""
        ends, first = self.ends[node.column], self.columns[node.column].first
        assert ends is not None
        return ends[first + row], ends[first + row + 1]

    def bit_at(self, node: EncodeNode, row: int) -> int:
        bits, bit = self.data[node.column], self.columns[node.column].first + row
        assert bits is not None
        return bits[bit >> 3] >> (bit & 7) & 1

    def bytes_at(self, node: EncodeNode, row: int) -> bytes:
        column, data = self.columns[node.column], self.data[node.column]
        if column.kind == Kind.BINARY:
            start, end = self.span(node, row)
            return b"" if data is None else bytes(data[start:end])
        assert data is not None
        start = (column.first + row) * column.width
        return bytes(data[start : start + column.width])


class PlanEncoder:
    """Encodes columns by a plan. Column 0 is the root; the last node is the root."""

    _batch_encoder: ClassVar[type[BatchEncoder]]

    def __init__(self, nodes: Sequence[EncodeNode], constants: Sequence[bytes]) -> None:
        self._nodes = nodes
        self._constants = constants

    def encode(
        self, columns: Sequence[InputColumn], row_count: int, prefix: bytes
    ) -> tuple[EncodedColumn, list[KernelError]]:
        """Encode rows, with `prefix` before each value. A row that is null stays null.

        Return the buffers of a binary column, and an error for each row that could not be encoded, which is null.
        """
        batch = self._batch_encoder(self._nodes, columns, self._constants)
        values: list[bytes] = []
        valid: list[bool] = []
        errors = []
        total = 0
        for row in range(row_count):
            value = b""
            is_valid = not batch.is_null(0, row)
            if is_valid:
                try:
                    value = prefix + batch.encode(len(self._nodes) - 1, row)
                except RowFailedError as error:
                    errors.append(KernelError(row, error.code, -1, error.node))
                    is_valid = False
            total += len(value)
            check_size(total)
            values.append(value)
            valid.append(is_valid)
        ends = accumulate(map(len, values), initial=0)
        offsets = struct.pack(f"={row_count + 1}i", *ends)
        null_count = valid.count(False)
        return EncodedColumn(null_count, pack_bits(valid) if null_count else None, offsets, b"".join(values)), errors
