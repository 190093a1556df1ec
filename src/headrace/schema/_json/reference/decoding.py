"""Decoding JSON: the operations of plans."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Sequence

from headrace.schema._json.layout import (
    MISSING_MAX,
    MISSING_NULL,
    MISSING_PER_BYTE_MAX,
    NULLABLE,
    REPEATED_PER_BYTE_MAX,
    ErrorCode,
    Op,
    Token,
)
from headrace.schema._json.reference.scanner import Scanner
from headrace.schema._plan import reference
from headrace.schema._plan.layout import Column, Node
from headrace.schema._plan.reference import RowFailedError

FLOAT = struct.Struct("<f")
DOUBLE = struct.Struct("<d")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")

_TOKENS: dict[int, Token] = {
    Op.NULL: Token.NULL,
    Op.BOOLEAN: Token.BOOLEAN,
    Op.INTEGER: Token.NUMBER,
    Op.NUMBER: Token.NUMBER,
    Op.DECIMAL: Token.NUMBER,
    Op.STRING: Token.STRING,
    Op.BYTES: Token.STRING,
    Op.OBJECT: Token.OBJECT,
    Op.ARRAY: Token.ARRAY,
    Op.MAP: Token.OBJECT,
}


class _Batch(Scanner, reference.BatchDecoder):
    SKIP = ErrorCode.SKIP

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        reference.BatchDecoder.__init__(self, nodes, columns, constants)
        self.missing_left = 0
        self.repeat_left = 0

    def start_row(self) -> None:
        """Nothing: limits are those of the value, which ROOT knows."""

    def decode_node(self, node: Node) -> None:
        if node.op == Op.ROOT:
            self.root(node)
            return
        token = self.token()
        start = self.at
        try:
            if token == Token.NULL:
                self.literal(b"null")
                if not node.size & NULLABLE:
                    raise _failed_at(self, start, ErrorCode.NULL)
                self.append_null(node.column)
            elif token != _TOKENS.get(node.op, token):
                raise RowFailedError(ErrorCode.TYPE)
            else:
                _DECODERS[node.op](self, node, token)
        except RowFailedError as error:
            # A scalar fails where it begins.
            if error.node < 0 and node.op in _SCALARS:
                self.at = start
            raise

    def root(self, node: Node) -> None:
        size = len(self.value) - self.at
        self.missing_left = MISSING_MAX + MISSING_PER_BYTE_MAX * size
        self.repeat_left = REPEATED_PER_BYTE_MAX * size
        self.decode(node.children[0])
        self.skip_space()
        if self.at != len(self.value):
            raise RowFailedError(ErrorCode.TRAILING)

    def boolean_value(self, node: Node, token: Token) -> None:
        self.builders[node.column].append(bytes([self.boolean()]))

    def integer(self, node: Node, token: Token) -> None:
        builder = self.builders[node.column]
        value = self.number().to_scale(0)
        limit = 1 << (builder.width * 8 - 1)
        if value is None or not -limit <= value < limit:
            raise RowFailedError(ErrorCode.INTEGER)
        builder.append(value.to_bytes(builder.width, "little", signed=True))

    def floating(self, node: Node, token: Token) -> None:
        builder = self.builders[node.column]
        value = float(self.number().text)
        try:
            data = FLOAT.pack(value) if builder.width == 4 else DOUBLE.pack(value)
        except OverflowError:
            raise RowFailedError(ErrorCode.NUMBER) from None
        if math.isinf(value):
            raise RowFailedError(ErrorCode.NUMBER)
        builder.append(data)

    def decimal(self, node: Node, token: Token) -> None:
        builder = self.builders[node.column]
        value = self.number().to_scale(node.size >> 1)
        if value is None or abs(value) >= int.from_bytes(self.constants[node.children[0]], "little"):
            raise RowFailedError(ErrorCode.DECIMAL)
        builder.append(value.to_bytes(builder.width, "little", signed=True))

    def string_value(self, node: Node, token: Token) -> None:
        self.builders[node.column].append(self.string())

    def bytes_value(self, node: Node, token: Token) -> None:
        text = self.string()
        if len(text) % 4 or not _BASE64.fullmatch(text):
            raise RowFailedError(ErrorCode.BASE64)
        self.builders[node.column].append(base64.b64decode(text))

    def text(self, node: Node, token: Token) -> None:
        start = self.at
        if not node.size >> 1 >> token & 1:
            raise RowFailedError(ErrorCode.TYPE)
        self.skip_value()
        self.builders[node.column].append(self.value[start : self.at])

    def object_value(self, node: Node, token: Token) -> None:
        count = len(node.children) // 4
        indexes = {self.constants[node.children[3 * i]]: i for i in range(count)}
        builder = self.builders[node.column]
        length = builder.length
        self.at += 1
        if self.next_char() == ord("}"):
            self.at += 1
        else:
            is_last = False
            while not is_last:
                index = indexes.get(self.name())
                self.expect(b":")
                if index is None:
                    self.skip_value()
                else:
                    child = node.children[3 * index + 1]
                    # Of a property that is there twice, the last value counts.
                    if self.builders[self.nodes[child].column].length > length:
                        self.truncate(self.nodes[child].column, length)
                    self.decode(child)
                is_last = self.is_last(b"}")
        for index in range(count):
            if self.builders[self.nodes[node.children[3 * index + 1]].column].length == length:
                self.missing(node, index)
        builder.append()

    def is_last(self, close: bytes) -> bool:
        """Read what follows a value: the end, or a comma."""
        char = self.next_char()
        if char not in (close[0], ord(",")):
            raise RowFailedError(ErrorCode.SYNTAX)
        self.at += 1
        return char == close[0]

    def missing(self, node: Node, index: int) -> None:
        """Append what a property has that is not in the object."""
        child, action = node.children[3 * index + 1 : 3 * index + 3]
        self.missing_left -= 1
        if self.missing_left < 0:
            raise RowFailedError(ErrorCode.MISSING)
        if action == MISSING_NULL:
            self.append_null(self.nodes[child].column)
        elif action < 0:
            error = RowFailedError(ErrorCode.REQUIRED)
            error.node = child
            raise error
        else:
            value, at = self.value, self.at
            self.value, self.at = self.constants[action], 0
            try:
                self.decode(child)
            finally:
                self.value, self.at = value, at

    def array(self, node: Node, token: Token) -> None:
        builder = self.builders[node.column]
        self.at += 1
        if self.next_char() == ord("]"):
            self.at += 1
        else:
            is_last = False
            while not is_last:
                self.decode(node.children[0])
                is_last = self.is_last(b"]")
        builder.ends.append(self.builders[builder.children[0]].length)
        builder.append()

    def map_value(self, node: Node, token: Token) -> None:
        builder = self.builders[node.column]
        entries = self.builders[builder.children[0]]
        first = entries.length
        self.at += 1
        start = self.at
        if self.next_char() == ord("}"):
            self.at += 1
        else:
            start = self.at
            keys = self.entries(node, [])
            last = {key: index for index, key in enumerate(keys)}
            if len(last) < len(keys):
                self.repeat_left -= self.at - start
                self.at = start
                self.truncate(builder.children[0], first)
                if self.repeat_left < 0:
                    raise RowFailedError(ErrorCode.REPEATED)
                self.entries(node, [last[key] != index for index, key in enumerate(keys)])
        builder.ends.append(entries.length)
        builder.append()

    def entries(self, node: Node, marks: Sequence[bool]) -> list[bytes]:
        """Read the entries of a map, except those that are marked; return the keys."""
        entries = self.builders[self.builders[node.column].children[0]]
        keys: list[bytes] = []
        is_last = False
        while not is_last:
            key = self.name()
            self.expect(b":")
            if marks and marks[len(keys)]:
                self.skip_value()
            else:
                self.builders[entries.children[0]].append(key)
                self.decode(node.children[0])
                entries.append()
            keys.append(key)
            is_last = self.is_last(b"}")
        return keys

    def union(self, node: Node, token: Token) -> None:
        index = node.children[token] if token <= Token.BOOLEAN else -1
        if index < 0:
            raise RowFailedError(ErrorCode.TYPE)
        member = self.nodes[index]
        self.decode(member.children[0])
        builder = self.builders[node.column]
        for i, child in enumerate(builder.children):
            if i != member.size:
                self.append_null(child)
        builder.append()


def _failed_at(batch: _Batch, position: int, code: ErrorCode) -> RowFailedError:
    batch.at = position
    return RowFailedError(code)


_SCALARS = frozenset((Op.NULL, Op.BOOLEAN, Op.INTEGER, Op.NUMBER, Op.DECIMAL, Op.STRING, Op.BYTES))
_DECODERS: dict[int, Callable[[_Batch, Node, Token], None]] = {
    Op.BOOLEAN: _Batch.boolean_value,
    Op.INTEGER: _Batch.integer,
    Op.NUMBER: _Batch.floating,
    Op.DECIMAL: _Batch.decimal,
    Op.STRING: _Batch.string_value,
    Op.BYTES: _Batch.bytes_value,
    Op.TEXT: _Batch.text,
    Op.OBJECT: _Batch.object_value,
    Op.ARRAY: _Batch.array,
    Op.MAP: _Batch.map_value,
    Op.UNION: _Batch.union,
}


class PlanDecoder(reference.PlanDecoder):
    """Decodes JSON values by a plan."""

    _batch_decoder = _Batch
