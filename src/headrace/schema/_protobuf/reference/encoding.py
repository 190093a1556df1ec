"""Encoding Protobuf: the operations of plans."""

from __future__ import annotations

import struct

from headrace.schema._plan import reference
from headrace.schema._plan.layout import INT_RANGE, LONG_RANGE, EncodeNode
from headrace.schema._plan.reference import RowFailedError
from headrace.schema._protobuf.layout import (
    EncodeOp,
    ErrorCode,
    Presence,
    WireType,
    presence_of,
    tag_of,
    varint,
)

_RANGES = {
    EncodeOp.INT32: INT_RANGE,
    EncodeOp.SINT32: INT_RANGE,
    EncodeOp.INT64: LONG_RANGE,
    EncodeOp.SINT64: LONG_RANGE,
    EncodeOp.UINT32: range(1 << 32),
    EncodeOp.UINT64: range(1 << 64),
}


class _Batch(reference.BatchEncoder):
    def encode_node(self, node: EncodeNode, row: int) -> bytes:
        if node.op == EncodeOp.FIELDS:
            return b"".join(self.encode(child, row) for child in node.children)
        if node.op == EncodeOp.ONEOF:
            members = [child for child in node.children if not self.is_null(self.nodes[child].column, row)]
            if len(members) > 1:
                raise RowFailedError(ErrorCode.ONEOF)
            return b""
        if self.is_null(node.column, row):
            if presence_of(node.size) in (Presence.REQUIRED, Presence.PACKED):
                raise RowFailedError(ErrorCode.NULL)
            return b""
        if node.op in (EncodeOp.BYTES, EncodeOp.STRING):
            return self.text(node, row)
        if node.op == EncodeOp.MESSAGE:
            return _sized(node, self.encode_node(self.nodes[node.children[0]], row))
        if node.op == EncodeOp.GROUP:
            content = self.encode_node(self.nodes[node.children[0]], row)
            return varint(tag_of(node.size)) + content + varint(tag_of(node.size) + 1)
        if node.op == EncodeOp.TIME:
            return _sized(node, self.time(node, row))
        if node.op == EncodeOp.DECIMAL:
            return _sized(node, self.decimal(node, row))
        if node.op in (EncodeOp.LIST, EncodeOp.PACKED_LIST, EncodeOp.MAP):
            return self.items(node, row)
        return self.number(node, row)

    def items(self, node: EncodeNode, row: int) -> bytes:
        start, end = self.span(node, row)
        if node.op == EncodeOp.MAP:
            key, value = node.children
            return b"".join(_sized(node, self.encode(key, i) + self.encode(value, i)) for i in range(start, end))
        content = b"".join(self.encode(node.children[0], item) for item in range(start, end))
        return _sized(node, content) if node.op == EncodeOp.PACKED_LIST and end > start else content

    def text(self, node: EncodeNode, row: int) -> bytes:
        data = self.bytes_at(node, row)
        if not data and presence_of(node.size) == Presence.IMPLICIT:
            return b""
        if node.op == EncodeOp.STRING:
            try:
                data.decode()
            except UnicodeDecodeError:
                raise RowFailedError(ErrorCode.UTF8) from None
        return _sized(node, data)

    def number(self, node: EncodeNode, row: int) -> bytes:
        bits = self.bits(node, row)
        presence = presence_of(node.size)
        if presence == Presence.IMPLICIT and bits == 0:
            return b""
        wire = tag_of(node.size) & 7
        if wire == WireType.VARINT:
            data = varint(bits)
        else:
            width = 8 if wire == WireType.FIXED64 else 4
            data = (bits & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        return data if presence == Presence.PACKED else varint(tag_of(node.size)) + data

    def bits(self, node: EncodeNode, row: int) -> int:
        """Return a number as it is written: a varint, or the lower bytes of a fixed one."""
        if node.op == EncodeOp.BOOLEAN:
            return self.bit_at(node, row)
        data = self.bytes_at(node, row)
        if node.op in (EncodeOp.FLOAT, EncodeOp.DOUBLE):
            return int.from_bytes(data, "little")
        if node.op == EncodeOp.FLOAT_TO_DOUBLE:
            return int.from_bytes(struct.pack("<d", *struct.unpack("<f", data)), "little")
        if node.op in (EncodeOp.ENUM, EncodeOp.CLOSED_ENUM):
            return self.enum(node, data)
        value = int.from_bytes(data, "little", signed=self.columns[node.column].signed)
        if value not in _RANGES[EncodeOp(node.op)]:
            raise RowFailedError(ErrorCode.RANGE)
        return (value << 1) ^ (value >> 63) if node.op in (EncodeOp.SINT32, EncodeOp.SINT64) else value

    def enum(self, node: EncodeNode, name: bytes) -> int:
        names = [self.constants[child] for child in node.children[1:]]
        if name in names:
            numbers = struct.unpack(f"={len(names)}i", self.constants[node.children[0]])
            return int(numbers[names.index(name)])
        digits = name.removeprefix(b"-")
        if node.op == EncodeOp.ENUM and digits.isdigit() and len(digits) <= 10 and int(name) in INT_RANGE:
            return int(name)
        raise RowFailedError(ErrorCode.SYMBOL)

    def time(self, node: EncodeNode, row: int) -> bytes:
        value = int.from_bytes(self.bytes_at(node, row), "little", signed=True)
        seconds, rest = divmod(value, node.multiplier)
        if node.divisor and rest and seconds < 0:  # seconds and nanos of a duration have the same sign
            seconds, rest = seconds + 1, rest - node.multiplier
        nanos = rest * (1_000_000_000 // node.multiplier)
        return _part(1, seconds) + _part(2, nanos)

    def decimal(self, node: EncodeNode, row: int) -> bytes:
        number = int.from_bytes(self.bytes_at(node, row), "little", signed=True)
        if abs(number) >= int.from_bytes(self.constants[node.children[0]], "little"):
            raise RowFailedError(ErrorCode.DECIMAL)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        data = number.to_bytes(size, "big", signed=True)
        value = varint(1 << 3 | WireType.BYTES) + varint(size) + data
        return value + _part(2, len(str(abs(number)))) + _part(3, node.multiplier)


def _part(number: int, value: int) -> bytes:
    """Return an integer field that is absent if it is 0."""
    return varint(number << 3 | WireType.VARINT) + varint(value) if value else b""


def _sized(node: EncodeNode, data: bytes) -> bytes:
    return varint(tag_of(node.size)) + varint(len(data)) + data


class PlanEncoder(reference.PlanEncoder):
    """Encodes columns as Protobuf values by a plan."""

    _batch_encoder = _Batch
