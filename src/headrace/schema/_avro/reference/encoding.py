"""Encoding: plans interpreted, values taken from columns. A row that cannot be encoded is null, with an error."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from headrace.schema._avro.layout import (
    INT_RANGE,
    LONG_RANGE,
    EncodedColumn,
    EncodeNode,
    EncodeOp,
    ErrorCode,
    InputColumn,
    KernelError,
    Kind,
    zigzag,
)
from headrace.schema._avro.reference.common import (
    DOUBLE,
    FLOAT,
    RowFailedError,
    check_size,
    pack_bits,
)


class PlanEncoder:
    """Encodes columns as Avro values by a plan. Column 0 is the root; the last node is the root."""

    def __init__(self, nodes: Sequence[EncodeNode], constants: Sequence[bytes]) -> None:
        self._nodes = nodes
        self._constants = constants

    def encode(
        self, columns: Sequence[InputColumn], row_count: int, prefix: bytes
    ) -> tuple[EncodedColumn, list[KernelError]]:
        """Encode rows, with `prefix` before each value. A row that is null stays null.

        Return the buffers of a binary column, and an error for each row that could not be encoded, which is null.
        """
        rows = _Rows(self._nodes, columns, self._constants)
        values: list[bytes] = []
        valid: list[bool] = []
        errors = []
        total = 0
        for row in range(row_count):
            value = b""
            is_valid = not rows.is_null(0, row)
            if is_valid:
                try:
                    value = prefix + rows.encode(len(self._nodes) - 1, row)
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


class _Rows:
    """One call of `encode`: the columns to read."""

    def __init__(self, nodes: Sequence[EncodeNode], columns: Sequence[InputColumn], constants: Sequence[bytes]) -> None:
        self.nodes, self.columns, self.constants = nodes, columns, constants
        self.data = [None if c.data is None else memoryview(c.data).cast("B") for c in columns]
        self.ends = [None if c.offsets is None else memoryview(c.offsets).cast("B").cast("i") for c in columns]
        self.validity = [None if c.validity is None else memoryview(c.validity).cast("B") for c in columns]

    def is_null(self, column: int, row: int) -> bool:
        row += self.columns[column].first
        validity = self.validity[column]
        return validity is not None and not validity[row >> 3] >> (row & 7) & 1

    def encode(self, index: int, row: int) -> bytes:
        try:
            return self.encode_node(self.nodes[index], row)
        except RowFailedError as error:
            if error.node < 0:
                error.node = index
            raise

    def encode_node(self, node: EncodeNode, row: int) -> bytes:
        if node.op == EncodeOp.NULL:
            return b""
        if node.op == EncodeOp.CONSTANT:
            return self.constants[node.size]
        if node.op == EncodeOp.MEMBERS:
            return self.members(node, row)
        if node.op == EncodeOp.NULLABLE:
            if self.is_null(node.column, row):
                return zigzag(node.size)
            return zigzag(node.multiplier) + self.encode(node.children[0], row)
        if self.is_null(node.column, row):
            raise RowFailedError(ErrorCode.NULL)
        if node.op == EncodeOp.RECORD:
            return b"".join(self.encode(child, row) for child in node.children)
        if node.op == EncodeOp.BRANCH:
            return zigzag(node.size) + self.encode(node.children[0], row)
        if node.op in (EncodeOp.ARRAY, EncodeOp.MAP):
            start, end = self.span(node, row)
            items = b"".join(self.encode(child, item) for item in range(start, end) for child in node.children)
            return (zigzag(end - start) if end > start else b"") + items + b"\0"
        return self.simple(node, row)

    def members(self, node: EncodeNode, row: int) -> bytes:
        chosen = []
        if not self.is_null(node.column, row):
            chosen = [child for child in node.children if not self.is_null(self.nodes[child].column, row)]
        if len(chosen) > 1:
            raise RowFailedError(ErrorCode.MEMBERS)
        if chosen:
            return self.encode(chosen[0], row)
        if node.size < 0:
            raise RowFailedError(ErrorCode.NULL)
        return zigzag(node.size)

    def span(self, node: EncodeNode, row: int) -> tuple[int, int]:
        ends, first = self.ends[node.column], self.columns[node.column].first
        assert ends is not None
        return ends[first + row], ends[first + row + 1]

    def bytes_at(self, node: EncodeNode, row: int) -> bytes:
        column, data = self.columns[node.column], self.data[node.column]
        if column.kind == Kind.BINARY:
            start, end = self.span(node, row)
            return b"" if data is None else bytes(data[start:end])
        assert data is not None
        start = (column.first + row) * column.width
        return bytes(data[start : start + column.width])

    def simple(self, node: EncodeNode, row: int) -> bytes:
        column = self.columns[node.column]
        if node.op == EncodeOp.BOOLEAN:
            bits, bit = self.data[node.column], column.first + row
            assert bits is not None
            return bytes([bits[bit >> 3] >> (bit & 7) & 1])
        data = self.bytes_at(node, row)
        if node.op in (EncodeOp.INT, EncodeOp.LONG):
            return self.integer(node, int.from_bytes(data, "little", signed=column.signed))
        if node.op == EncodeOp.FLOAT_TO_DOUBLE:
            return DOUBLE.pack(*FLOAT.unpack(data))
        if node.op == EncodeOp.ENUM:
            symbols = [self.constants[child] for child in node.children]
            if data not in symbols:
                raise RowFailedError(ErrorCode.SYMBOL)
            return zigzag(symbols.index(data))
        if node.op in (EncodeOp.BYTES, EncodeOp.STRING):
            try:
                if node.op == EncodeOp.STRING:
                    data.decode()
            except UnicodeDecodeError:
                raise RowFailedError(ErrorCode.UTF8) from None
            return zigzag(len(data)) + data
        if node.op in (EncodeOp.DECIMAL_BYTES, EncodeOp.DECIMAL_FIXED):
            return self.decimal(node, int.from_bytes(data, "little", signed=True))
        if column.kind == Kind.BINARY and len(data) != node.size:
            raise RowFailedError(ErrorCode.SIZE)
        return data

    def integer(self, node: EncodeNode, value: int) -> bytes:
        value *= node.multiplier
        if value not in LONG_RANGE:
            raise RowFailedError(ErrorCode.INTEGER)
        value //= node.divisor
        if node.op == EncodeOp.INT and value not in INT_RANGE:
            raise RowFailedError(ErrorCode.INTEGER)
        return zigzag(value)

    def decimal(self, node: EncodeNode, number: int) -> bytes:
        if abs(number) >= int.from_bytes(self.constants[node.children[0]], "little"):
            raise RowFailedError(ErrorCode.DECIMAL)
        if node.op == EncodeOp.DECIMAL_FIXED:
            return number.to_bytes(node.size, "big", signed=True)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return zigzag(size) + number.to_bytes(size, "big", signed=True)
