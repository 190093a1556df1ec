"""Decoding Avro: the operations of plans."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from headrace.schema._avro.layout import ZERO_BYTE_ITEMS_MAX, ErrorCode, Op
from headrace.schema._plan import reference
from headrace.schema._plan.layout import INT_RANGE, Column, Node
from headrace.schema._plan.reference import RowFailedError, check_size

FLOAT = struct.Struct("<f")
DOUBLE = struct.Struct("<d")


class _Batch(reference.BatchDecoder):
    SKIP = ErrorCode.SKIP

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        super().__init__(nodes, columns, constants)
        self.zero_byte_items = 0

    def start_row(self) -> None:
        self.zero_byte_items = 0

    def decode_node(self, node: Node) -> None:
        _DECODERS[node.op](self, node)

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


class PlanDecoder(reference.PlanDecoder):
    """Decodes Avro values by a plan."""

    _batch_decoder = _Batch
