"""Encoding Avro: the operations of plans."""

from __future__ import annotations

from headrace.schema._avro.layout import EncodeOp, ErrorCode, zigzag
from headrace.schema._avro.reference.decoding import DOUBLE, FLOAT
from headrace.schema._plan import reference
from headrace.schema._plan.layout import INT_RANGE, LONG_RANGE, EncodeNode, Kind
from headrace.schema._plan.reference import RowFailedError


class _Batch(reference.BatchEncoder):
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
        member = self.chosen_member(node, row, ErrorCode.MEMBERS)
        if member is not None:
            return self.encode(member, row)
        if node.size < 0:
            raise RowFailedError(ErrorCode.NULL)
        return zigzag(node.size)

    def simple(self, node: EncodeNode, row: int) -> bytes:
        column = self.columns[node.column]
        if node.op == EncodeOp.BOOLEAN:
            return bytes([self.bit_at(node, row)])
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


class PlanEncoder(reference.PlanEncoder):
    """Encodes columns as Avro values by a plan."""

    _batch_encoder = _Batch
