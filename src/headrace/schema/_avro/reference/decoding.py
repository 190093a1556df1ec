"""Decoding: plans interpreted, values appended to columns.

A damaged row does not fail the batch: everything it has left in the columns is removed, the row is null, and its error
is returned. An error's position is where the value begins that could not be decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from headrace.schema._avro.layout import (
    INT_RANGE,
    ZERO_BYTE_ITEMS_MAX,
    Column,
    ColumnBuffers,
    ErrorCode,
    KernelError,
    Kind,
    Node,
    Op,
)
from headrace.schema._avro.reference.common import DOUBLE, FLOAT, RowFailedError, check_size, pack_bits
from headrace.wire.layout import BytesColumn


class _Builder:
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


class PlanDecoder:
    """Decodes Avro values by a plan. Column 0 is the root, and nullable; the last node is the root."""

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        self._nodes = nodes
        self._columns = columns
        self._constants = constants

    def decode(self, values: BytesColumn, row_count: int, skip: int) -> tuple[list[ColumnBuffers], list[KernelError]]:
        """Decode the values of a binary column, from byte `skip` of each on.

        Return the buffers of all columns, and an error for each row that could not be decoded, which is null.
        """
        batch = _Batch(self._nodes, self._columns, self._constants)
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


class _Batch:
    """One call of `decode`: the columns, and the value that is read."""

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        self.nodes, self.constants = nodes, constants
        self.builders = [_Builder(column) for column in columns]
        self.value = b""
        self.at = 0
        self.zero_byte_items = 0

    def decode_row(self, value: bytes, skip: int) -> None:
        self.value, self.at, self.zero_byte_items = value, skip, 0
        if len(value) < skip:
            self.at = len(value)
            error = RowFailedError(ErrorCode.SKIP)
            error.node = len(self.nodes) - 1
            raise error
        self.decode(len(self.nodes) - 1)

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

    def varint(self, position: int) -> tuple[int, int]:
        """Return the number at a position, and where it ends."""
        bits = shift = 0
        while True:
            if position == len(self.value):
                raise RowFailedError(ErrorCode.TRUNCATED)
            byte = self.value[position]
            position += 1
            if shift == 63 and byte > 1:
                raise RowFailedError(ErrorCode.INTEGER)
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (bits >> 1) ^ -(bits & 1), position
            shift += 7

    def fixed(self, size: int) -> bytes:
        if len(self.value) - self.at < size:
            raise RowFailedError(ErrorCode.TRUNCATED)
        return self.value[self.at : self.at + size]

    def piece(self) -> tuple[bytes, int]:
        """Return the bytes at the current position, after their length, and where they end."""
        size, position = self.varint(self.at)
        if size < 0:
            raise RowFailedError(ErrorCode.LENGTH)
        if size > len(self.value) - position:
            raise RowFailedError(ErrorCode.TRUNCATED)
        return self.value[position : position + size], position + size

    def text(self) -> tuple[bytes, int]:
        data, end = self.piece()
        try:
            data.decode()
        except UnicodeDecodeError:
            raise RowFailedError(ErrorCode.UTF8) from None
        return data, end

    def block(self, least: int) -> tuple[int, int]:
        """Read the head of a block of an array or map; return the count of items, and their bytes or -1."""
        count, position = self.varint(self.at)
        block_bytes = -1
        if count < 0:
            if count == -(1 << 63):
                raise RowFailedError(ErrorCode.COUNT)
            count = -count
            block_bytes, position = self.varint(position)
            if block_bytes < 0:
                raise RowFailedError(ErrorCode.LENGTH)
            if block_bytes > len(self.value) - position:
                raise RowFailedError(ErrorCode.TRUNCATED)
        if least > 0:
            if count > (len(self.value) - position) // least:
                raise RowFailedError(ErrorCode.COUNT)
        else:
            if count > ZERO_BYTE_ITEMS_MAX - self.zero_byte_items:
                raise RowFailedError(ErrorCode.COUNT)
            self.zero_byte_items += count
        self.at = position
        return count, block_bytes

    def decode(self, index: int) -> None:
        try:
            node = self.nodes[index]
            _DECODERS[node.op](self, node)
        except RowFailedError as error:
            if error.node < 0:
                error.node = index
            raise

    def append(self, node: Node, data: bytes, end: int) -> None:
        self.builders[node.column].append(data)
        self.at = end

    def null(self, node: Node) -> None:
        self.append_null(node.column)

    def boolean(self, node: Node) -> None:
        data = self.fixed(1)
        if data[0] > 1:
            raise RowFailedError(ErrorCode.BOOLEAN)
        self.append(node, data, self.at + 1)

    def number(self, node: Node) -> None:
        value, end = self.varint(self.at)
        is_int = node.op in (Op.INT, Op.INT_TO_LONG) or (node.op in (Op.LONG_TO_FLOAT, Op.LONG_TO_DOUBLE) and node.size)
        if is_int and value not in INT_RANGE:
            raise RowFailedError(ErrorCode.INTEGER)
        if node.op == Op.LONG_TO_DOUBLE:
            data = DOUBLE.pack(value)
        elif node.op == Op.LONG_TO_FLOAT:
            data = _float_bytes(value)
        else:
            data = value.to_bytes(4 if node.op == Op.INT else 8, "little", signed=True)
        self.append(node, data, end)

    def plain(self, node: Node) -> None:
        size = self.builders[node.column].width
        self.append(node, self.fixed(size), self.at + size)

    def float_to_double(self, node: Node) -> None:
        self.append(node, DOUBLE.pack(*FLOAT.unpack(self.fixed(4))), self.at + 4)

    def bytes_value(self, node: Node) -> None:
        self.append(node, *self.piece())

    def string(self, node: Node) -> None:
        self.append(node, *self.text())

    def enum(self, node: Node) -> None:
        index, end = self.varint(self.at)
        if not 0 <= index < len(node.children):
            raise RowFailedError(ErrorCode.SYMBOL)
        if node.children[index] < 0:
            raise RowFailedError(ErrorCode.UNRESOLVED)
        self.append(node, self.constants[node.children[index]], end)

    def decimal(self, node: Node) -> None:
        if node.op == Op.DECIMAL_BYTES:
            data, end = self.piece()
        else:
            data, end = self.fixed(node.size), self.at + node.size
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= int.from_bytes(self.constants[node.children[0]], "little"):
            raise RowFailedError(ErrorCode.DECIMAL)
        self.append(node, number.to_bytes(self.builders[node.column].width, "little", signed=True), end)

    def record(self, node: Node) -> None:
        for child in node.children:
            self.decode(child)
        self.builders[node.column].append()

    def items(self, node: Node) -> None:
        builder = self.builders[node.column]
        items = self.builders[builder.children[0]]
        while True:
            count, _ = self.block(node.size)
            if count == 0:
                break
            check_size(items.length + count)
            for _ in range(count):
                if node.op == Op.MAP:
                    key, end = self.text()
                    self.builders[items.children[0]].append(key)
                    self.at = end
                self.decode(node.children[0])
                if node.op == Op.MAP:
                    items.append()
        builder.ends.append(items.length)
        builder.append()

    def union(self, node: Node) -> None:
        index, end = self.varint(self.at)
        if not 0 <= index < len(node.children):
            raise RowFailedError(ErrorCode.BRANCH)
        self.at = end
        self.decode(node.children[index])

    def member(self, node: Node) -> None:
        self.decode(node.children[0])
        builder = self.builders[node.column]
        for i, child in enumerate(builder.children):
            if i != node.size:
                self.append_null(child)
        builder.append()

    def constant(self, node: Node) -> None:
        value, at = self.value, self.at
        self.value, self.at = self.constants[node.size], 0
        try:
            self.decode(node.children[0])
        finally:
            self.value, self.at = value, at

    def fail(self, node: Node) -> None:
        raise RowFailedError(ErrorCode.UNRESOLVED)

    def skip_fixed(self, node: Node) -> None:
        self.fixed(node.size)
        self.at += node.size

    def skip_long(self, node: Node) -> None:
        self.at = self.varint(self.at)[1]

    def skip_bytes(self, node: Node) -> None:
        self.at = self.piece()[1]

    def skip_record(self, node: Node) -> None:
        for child in node.children:
            self.decode(child)

    def skip_items(self, node: Node) -> None:
        while True:
            count, block_bytes = self.block(node.size)
            if count == 0:
                return
            if block_bytes >= 0:
                self.at += block_bytes
                continue
            for _ in range(count):
                if node.op == Op.SKIP_MAP:
                    self.at = self.piece()[1]
                self.decode(node.children[0])


def _float_bytes(value: int) -> bytes:
    """Return the nearest float of an integer, rounded once: a detour over double would round twice."""
    low = value.bit_length() - 24
    if low > 0:
        half, rest = 1 << (low - 1), abs(value) & ((1 << low) - 1)
        magnitude = abs(value) >> low
        magnitude += rest > half or (rest == half and magnitude & 1)
        value = (magnitude << low) * (1 if value >= 0 else -1)
    return FLOAT.pack(value)


_DECODERS: dict[int, Callable[[_Batch, Node], None]] = {
    Op.NULL: _Batch.null,
    Op.BOOLEAN: _Batch.boolean,
    Op.INT: _Batch.number,
    Op.LONG: _Batch.number,
    Op.FLOAT: _Batch.plain,
    Op.DOUBLE: _Batch.plain,
    Op.INT_TO_LONG: _Batch.number,
    Op.LONG_TO_FLOAT: _Batch.number,
    Op.LONG_TO_DOUBLE: _Batch.number,
    Op.FLOAT_TO_DOUBLE: _Batch.float_to_double,
    Op.BYTES: _Batch.bytes_value,
    Op.STRING: _Batch.string,
    Op.FIXED: _Batch.plain,
    Op.ENUM: _Batch.enum,
    Op.DECIMAL_BYTES: _Batch.decimal,
    Op.DECIMAL_FIXED: _Batch.decimal,
    Op.RECORD: _Batch.record,
    Op.ARRAY: _Batch.items,
    Op.MAP: _Batch.items,
    Op.UNION: _Batch.union,
    Op.MEMBER: _Batch.member,
    Op.CONSTANT: _Batch.constant,
    Op.FAIL: _Batch.fail,
    Op.SKIP_FIXED: _Batch.skip_fixed,
    Op.SKIP_LONG: _Batch.skip_long,
    Op.SKIP_BYTES: _Batch.skip_bytes,
    Op.SKIP_RECORD: _Batch.skip_record,
    Op.SKIP_ARRAY: _Batch.skip_items,
    Op.SKIP_MAP: _Batch.skip_items,
    Op.SKIP_UNION: _Batch.union,
}
