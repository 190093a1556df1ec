"""Decoding Protobuf: messages are scanned, then their fields are appended to columns.

Each field of a message gets its last value, or all of its occurrences if it is repeated or a message. So fields may be
in any order, the last value of a field wins, and occurrences of a message are merged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.schema._plan import reference
from headrace.schema._plan.layout import LONG_RANGE, Column, Node
from headrace.schema._plan.reference import RowFailedError
from headrace.schema._protobuf.layout import (
    BATCH_CELLS_MAX,
    GROUP_DEPTH_MAX,
    ITEM_CELLS_MAX,
    ErrorCode,
    Op,
    Presence,
    WireType,
    oneof_of,
    presence_of,
    tag_of,
)

_CHAINED = (Op.MESSAGE, Op.OPAQUE, Op.TIME, Op.DECIMAL, Op.LIST, Op.MAP)
_VARINT_BYTES_MAX = 10
_TAG_BYTES_MAX = 5
_FIXED_BYTES = {WireType.FIXED64: 8, WireType.FIXED32: 4}


@dataclass(slots=True)
class _Occurrence:
    """A value of a field: a number, or where its bytes are."""

    number: int = 0
    start: int = -1  # -1: a number
    end: int = -1

    @property
    def is_number(self) -> bool:
        return self.start < 0


@dataclass(slots=True)
class _Slot:
    """What was read of a field."""

    occurrences: list[_Occurrence] = field(default_factory=list)
    is_unknown: bool = False  # a number that its closed enum lacks


class _Batch(reference.BatchDecoder):
    SKIP = ErrorCode.SKIP

    def __init__(self, nodes: Sequence[Node], columns: Sequence[Column], constants: Sequence[bytes]) -> None:
        super().__init__(nodes, columns, constants)
        self.cells = self.batch_cells = 0

    def start_row(self) -> None:
        self.cells = 0

    def decode_node(self, node: Node) -> None:
        """Decode the value of a row; the node is the root."""
        self.fields(len(self.nodes) - 1, [_Occurrence(0, self.at, len(self.value))])

    # -- the wire format

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Return the number at a position, and where it ends; as Google's parsers, without bits above the 64th."""
        bits = 0
        for index in range(_VARINT_BYTES_MAX):
            if position == end:
                raise RowFailedError(ErrorCode.TRUNCATED)
            byte = self.value[position]
            position += 1
            bits |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return bits & 0xFFFFFFFFFFFFFFFF, position
        raise RowFailedError(ErrorCode.VARINT)

    def tag(self, start: int, end: int) -> tuple[int, int]:
        try:
            tag, position = self.varint(start, end)
        except RowFailedError as error:
            is_short = error.code == ErrorCode.TRUNCATED and end - start < _TAG_BYTES_MAX
            raise RowFailedError(ErrorCode.TRUNCATED if is_short else ErrorCode.TAG) from None
        if position - start > _TAG_BYTES_MAX or not 8 <= tag < 1 << 32 or tag & 7 > WireType.FIXED32:
            raise RowFailedError(ErrorCode.TAG)
        return tag, position

    def read(self, position: int, end: int, tag: int) -> tuple[_Occurrence, int]:
        """Return the value after a tag, and where it ends."""
        wire = tag & 7
        if wire == WireType.VARINT:
            number, position = self.varint(position, end)
            return _Occurrence(number), position
        if wire in _FIXED_BYTES:
            size = _FIXED_BYTES[WireType(wire)]
            if end - position < size:
                raise RowFailedError(ErrorCode.TRUNCATED)
            return _Occurrence(int.from_bytes(self.value[position : position + size], "little")), position + size
        if wire == WireType.BYTES:
            size, position = self.varint(position, end)
            if size > end - position:
                raise RowFailedError(ErrorCode.TRUNCATED)
            return _Occurrence(0, position, position + size), position + size
        if wire == WireType.END_GROUP:
            raise RowFailedError(ErrorCode.GROUP)
        content_end, after = self.skip_group(position, end, tag)
        return _Occurrence(0, position, content_end), after

    def skip_group(self, position: int, end: int, tag: int) -> tuple[int, int]:
        """Return where the content of a group ends, and where the group ends."""
        pending = [tag >> 3]
        while True:
            content_end = position
            if position == end:
                raise RowFailedError(ErrorCode.TRUNCATED)
            tag, position = self.tag(position, end)
            if tag & 7 == WireType.GROUP:
                if len(pending) == GROUP_DEPTH_MAX:
                    raise RowFailedError(ErrorCode.GROUP)
                pending.append(tag >> 3)
            elif tag & 7 == WireType.END_GROUP:
                if pending.pop() != tag >> 3:
                    raise RowFailedError(ErrorCode.GROUP)
                if not pending:
                    return content_end, position
            else:
                position = self.read(position, end, tag)[1]

    # -- scanning

    def scan(self, index: int, chunks: Sequence[_Occurrence]) -> list[_Slot]:
        """Return the fields of a message, in the order of its children."""
        message = self.nodes[index]
        slots = [_Slot() for _ in message.children]
        current: dict[int, int] = {}  # the member that each oneof has
        for chunk in chunks:
            position = chunk.start
            while position < chunk.end:
                self.at = position
                failed = index
                try:
                    tag, position = self.tag(position, chunk.end)
                    child = self.find(message, tag)
                    failed = message.children[child] if child >= 0 else index
                    occurrence, position = self.read(position, chunk.end, tag)
                except RowFailedError as error:
                    error.node = failed
                    raise
                if child >= 0:
                    self.scan_field(self.nodes[failed], child, slots, current, occurrence)
        return slots

    def scan_field(
        self, node: Node, child: int, slots: list[_Slot], current: dict[int, int], occurrence: _Occurrence
    ) -> None:
        if self.is_unknown_number(node, occurrence):
            slots[child].is_unknown = True
            return
        oneof = oneof_of(node.size)
        if oneof >= 0:
            if current.setdefault(oneof, child) != child:
                slots[current[oneof]] = _Slot()
            current[oneof] = child
        if node.op in _CHAINED:
            slots[child].occurrences.append(occurrence)
        else:
            slots[child] = _Slot([occurrence])

    def find(self, message: Node, tag: int) -> int:
        """Return which child of a message has a tag; -1 if the field is unknown, or has another type."""
        for child, index in enumerate(message.children):
            node = self.nodes[index]
            if tag_of(node.size) >> 3 != tag >> 3:
                continue
            wires = [tag_of(node.size) & 7]
            if node.op == Op.LIST:
                item_wire = tag_of(self.nodes[node.children[0]].size) & 7
                wires += [item_wire] if item_wire == WireType.GROUP else [item_wire, WireType.BYTES]
            return child if tag & 7 in wires else -1
        return -1

    def is_unknown_number(self, node: Node, occurrence: _Occurrence) -> bool:
        return node.op == Op.CLOSED_ENUM and self.enum_name(node, _signed(occurrence.number, 32)) is None

    def enum_name(self, node: Node, number: int) -> bytes | None:
        packed = self.constants[node.children[0]]
        numbers = struct.unpack(f"={len(packed) // 4}i", packed)
        return self.constants[node.children[2 + numbers.index(number)]] if number in numbers else None

    # -- appending

    def emit(self, index: int, occurrences: Sequence[_Occurrence]) -> None:
        """Append a value to its column; without an occurrence, the default."""
        try:
            _EMITTERS[self.nodes[index].op](self, self.nodes[index], occurrences)
        except RowFailedError as error:
            if error.node < 0:
                error.node = index
            raise

    def fields(self, index: int, chunks: Sequence[_Occurrence]) -> None:
        message = self.nodes[index]
        for child, slot in zip(message.children, self.scan(index, chunks), strict=True):
            node = self.nodes[child]
            if node.op == Op.SKIP:
                continue
            if slot.occurrences or node.op in (Op.LIST, Op.MAP) or presence_of(node.size) == Presence.IMPLICIT:
                self.emit(child, slot.occurrences)
            elif presence_of(node.size) == Presence.EXPLICIT:
                self.append_null(node.column)
            else:
                if chunks:
                    self.at = chunks[0].start
                error = RowFailedError(ErrorCode.REQUIRED)
                error.node = child
                raise error
        if message.column >= 0:
            self.builders[message.column].append()

    def message(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        self.fields(node.children[0], occurrences)

    def number(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        bits = occurrences[-1].number if occurrences else 0
        if node.op == Op.BOOLEAN:
            data = bytes([bits != 0])
        elif node.op == Op.UINT32:
            data = (bits & 0xFFFFFFFF).to_bytes(8, "little")
        elif node.op == Op.UINT64:
            data = bits.to_bytes(16, "little")
        else:
            width = 4 if node.op in (Op.INT32, Op.SINT32) else 8
            bits &= (1 << 8 * width) - 1
            if node.op in (Op.SINT32, Op.SINT64):
                bits = ((bits >> 1) ^ -(bits & 1)) & ((1 << 8 * width) - 1)
            data = bits.to_bytes(width, "little")
        self.builders[node.column].append(data)

    def enum(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        number = _signed(occurrences[-1].number, 32) if occurrences else node.children[1]
        name = self.enum_name(node, number)
        self.builders[node.column].append(str(number).encode() if name is None else name)

    def text(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        data = self.value[occurrences[-1].start : occurrences[-1].end] if occurrences else b""
        if node.op == Op.STRING:
            try:
                data.decode()
            except UnicodeDecodeError:
                self.at = occurrences[-1].start
                raise RowFailedError(ErrorCode.UTF8) from None
        self.builders[node.column].append(data)

    def opaque(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        self.builders[node.column].append(b"".join(self.value[part.start : part.end] for part in occurrences))

    def parts(self, node: Node, occurrences: Sequence[_Occurrence]) -> list[_Occurrence]:
        """Return the fields of a message that are combined to one value."""
        slots = self.scan(node.children[0], occurrences)
        if occurrences:
            self.at = occurrences[0].start
        return [slot.occurrences[-1] if slot.occurrences else _Occurrence() for slot in slots]

    def time(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        seconds, nanos = self.parts(node, occurrences)
        micros = _signed(seconds.number, 64) * 1_000_000
        rest = _signed(nanos.number, 32)
        time = micros + (rest // 1000 if rest >= 0 else -(-rest // 1000))
        if micros not in LONG_RANGE or time not in LONG_RANGE:
            raise RowFailedError(ErrorCode.TIME)
        self.builders[node.column].append(time.to_bytes(8, "little", signed=True))

    def decimal(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        digits, _, scale = self.parts(node, occurrences)
        data = b"" if digits.is_number else self.value[digits.start : digits.end]
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= int.from_bytes(self.constants[node.children[1]], "little"):
            raise RowFailedError(ErrorCode.DECIMAL)
        if data and _signed(scale.number, 32) != node.children[2]:
            raise RowFailedError(ErrorCode.DECIMAL)
        self.builders[node.column].append(number.to_bytes(self.builders[node.column].width, "little", signed=True))

    def count_item(self, cells: int, occurrence: _Occurrence) -> None:
        self.cells += cells
        self.batch_cells += cells
        if self.cells > ITEM_CELLS_MAX:
            self.at = occurrence.start
            raise RowFailedError(ErrorCode.COUNT)
        if self.batch_cells > BATCH_CELLS_MAX:
            raise OverflowError("a column of the batch has more than 2 GiB or 2^31 items; pass fewer rows at a time")

    def items(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        item, cells = node.children
        item_node = self.nodes[item]
        has_numbers = tag_of(item_node.size) & 7 not in (WireType.BYTES, WireType.GROUP)
        for occurrence in occurrences:
            if has_numbers and not occurrence.is_number:
                self.packed(item, occurrence)
            elif not self.is_unknown_number(item_node, occurrence):
                if cells:
                    self.count_item(cells, occurrence)
                self.emit(item, [occurrence])
        self.end_list(node)

    def packed(self, item: int, occurrence: _Occurrence) -> None:
        position = occurrence.start
        while position < occurrence.end:
            self.at = position
            number, position = self.read(position, occurrence.end, tag_of(self.nodes[item].size))
            if not self.is_unknown_number(self.nodes[item], number):
                self.emit(item, [number])

    def end_list(self, node: Node) -> None:
        builder = self.builders[node.column]
        builder.ends.append(self.builders[builder.children[0]].length)
        builder.append()

    def map(self, node: Node, occurrences: Sequence[_Occurrence]) -> None:
        parts, cells = node.children
        key_node, value_node = self.nodes[parts].children
        entries: dict[bytes | int, tuple[list[_Occurrence], list[_Occurrence]]] = {}
        for occurrence in occurrences:
            self.count_item(cells, occurrence)
            key, value = self.scan(parts, [occurrence])
            if value.is_unknown and not value.occurrences:
                continue
            identity = self.key_identity(self.nodes[key_node], key.occurrences)
            first = entries[identity][0] if identity in entries else key.occurrences
            entries[identity] = first, value.occurrences
        builder = self.builders[self.builders[node.column].children[0]]
        for key_occurrences, value_occurrences in entries.values():
            self.emit(key_node, key_occurrences)
            self.emit(value_node, value_occurrences)
            builder.append()
        self.end_list(node)

    def key_identity(self, node: Node, occurrences: Sequence[_Occurrence]) -> bytes | int:
        """Return a key in a form that is the same for equal keys."""
        if node.op == Op.STRING:
            return self.value[occurrences[-1].start : occurrences[-1].end] if occurrences else b""
        number = occurrences[-1].number if occurrences else 0
        if node.op == Op.BOOLEAN:
            return number != 0
        return number if node.op in (Op.INT64, Op.UINT64, Op.SINT64) else number & 0xFFFFFFFF


def _signed(bits: int, width: int) -> int:
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> (width - 1) else bits


_EMITTERS: dict[int, Callable[[_Batch, Node, Sequence[_Occurrence]], None]] = {
    **dict.fromkeys(
        (Op.BOOLEAN, Op.INT32, Op.INT64, Op.UINT32, Op.UINT64, Op.SINT32, Op.SINT64),
        _Batch.number,
    ),
    Op.ENUM: _Batch.enum,
    Op.CLOSED_ENUM: _Batch.enum,
    Op.BYTES: _Batch.text,
    Op.STRING: _Batch.text,
    Op.MESSAGE: _Batch.message,
    Op.OPAQUE: _Batch.opaque,
    Op.TIME: _Batch.time,
    Op.DECIMAL: _Batch.decimal,
    Op.LIST: _Batch.items,
    Op.MAP: _Batch.map,
}


class PlanDecoder(reference.PlanDecoder):
    """Decodes Protobuf values by a plan."""

    _batch_decoder = _Batch
