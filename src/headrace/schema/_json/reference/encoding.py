"""Encoding JSON: the operations of plans."""

from __future__ import annotations

import base64
import json
import math

from headrace.schema._json.layout import EncodeOp, ErrorCode, OnNull
from headrace.schema._json.reference.decoding import DOUBLE, FLOAT
from headrace.schema._json.reference.scanner import Scanner
from headrace.schema._plan import reference
from headrace.schema._plan.layout import LONG_RANGE, EncodeNode, Kind
from headrace.schema._plan.reference import RowFailedError


class _Batch(reference.BatchEncoder):
    def encode_node(self, node: EncodeNode, row: int) -> bytes:
        if node.op == EncodeOp.NULL:
            return b"null"
        if node.op == EncodeOp.CONSTANT:
            return self.constants[node.size]
        if node.op == EncodeOp.PROPERTY:
            return self.property(node, row)
        if node.op == EncodeOp.MEMBERS:
            return self.members(node, row)
        if node.op == EncodeOp.NULLABLE:
            return b"null" if self.is_null(node.column, row) else self.encode(node.children[0], row)
        if self.is_null(node.column, row):
            raise RowFailedError(ErrorCode.NULL)
        if node.op == EncodeOp.OBJECT:
            parts = [self.encode(child, row) for child in node.children]
            return b"{" + b",".join(filter(None, parts)) + b"}"
        if node.op == EncodeOp.ARRAY:
            return b"[" + b",".join(self.encode(node.children[0], item) for item in range(*self.span(node, row))) + b"]"
        if node.op == EncodeOp.MAP:
            key, value = node.children
            entries = [self.encode(key, i) + b":" + self.encode(value, i) for i in range(*self.span(node, row))]
            return b"{" + b",".join(entries) + b"}"
        return self.simple(node, row)

    def property(self, node: EncodeNode, row: int) -> bytes:
        if self.columns[node.column].kind == Kind.NULL or self.is_null(node.column, row):
            if node.multiplier == OnNull.FAIL:
                raise RowFailedError(ErrorCode.NULL)
            return b"" if node.multiplier == OnNull.OMIT else self.constants[node.size] + b"null"
        return self.constants[node.size] + self.encode(node.children[0], row)

    def members(self, node: EncodeNode, row: int) -> bytes:
        member = self.chosen_member(node, row, ErrorCode.MEMBERS)
        if member is not None:
            return self.encode(member, row)
        if not node.size:
            raise RowFailedError(ErrorCode.NULL)
        return b"null"

    def simple(self, node: EncodeNode, row: int) -> bytes:
        column = self.columns[node.column]
        if node.op == EncodeOp.BOOLEAN:
            return b"true" if self.bit_at(node, row) else b"false"
        data = self.bytes_at(node, row)
        if node.op == EncodeOp.INTEGER:
            return self.integer(node, int.from_bytes(data, "little", signed=column.signed))
        if node.op == EncodeOp.NUMBER:
            return float_text(data)
        if node.op == EncodeOp.DECIMAL:
            return self.decimal(node, int.from_bytes(data, "little", signed=True))
        if node.op == EncodeOp.BYTES:
            return b'"' + base64.b64encode(data) + b'"'
        if node.op == EncodeOp.TEXT:
            return _checked(data, node.size)
        try:
            return json.dumps(data.decode(), ensure_ascii=False).encode()
        except UnicodeDecodeError:
            raise RowFailedError(ErrorCode.UTF8) from None

    def integer(self, node: EncodeNode, value: int) -> bytes:
        value *= node.multiplier
        if value not in LONG_RANGE:
            raise RowFailedError(ErrorCode.INTEGER)
        value //= node.divisor
        limit = 1 << (node.size - 1)
        if not -limit <= value < limit:
            raise RowFailedError(ErrorCode.INTEGER)
        return b"%d" % value

    def decimal(self, node: EncodeNode, number: int) -> bytes:
        if abs(number) >= int.from_bytes(self.constants[node.children[0]], "little"):
            raise RowFailedError(ErrorCode.DECIMAL)
        digits = str(abs(number)).zfill(node.size + 1)
        whole, fraction = digits[: len(digits) - node.size], digits[len(digits) - node.size :]
        return f"{'-' if number < 0 else ''}{whole}{'.' if fraction else ''}{fraction}".encode()


def float_text(data: bytes) -> bytes:
    """Return the shortest text of a float or double that gives the same number, written as Python's repr does."""
    (value,) = (FLOAT if len(data) == 4 else DOUBLE).unpack(data)
    if not math.isfinite(value):
        raise RowFailedError(ErrorCode.NUMBER)
    if len(data) == 8:
        return repr(value).encode()
    for digits in range(1, 10):
        near = float(f"{value:.{digits}g}")
        try:
            if FLOAT.pack(near) == data:
                return repr(near).encode()
        except OverflowError:
            continue
    raise AssertionError(f"no text for the float {value!r}; please report this")


def _checked(data: bytes, tokens: int) -> bytes:
    """Return JSON text without white space around it, if it is one value of the tokens that are allowed."""
    scanner = Scanner()
    scanner.value = data
    token = scanner.token()
    start = scanner.at
    scanner.skip_value()
    if not tokens >> token & 1:
        raise RowFailedError(ErrorCode.TYPE)
    end = scanner.at
    scanner.skip_space()
    if scanner.at != len(data):
        raise RowFailedError(ErrorCode.TRAILING)
    return data[start:end]


class PlanEncoder(reference.PlanEncoder):
    """Encodes columns as JSON values by a plan."""

    _batch_encoder = _Batch
