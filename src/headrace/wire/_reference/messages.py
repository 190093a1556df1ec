"""Encoding and decoding of messages by their plan, field by field, in plain Python."""

from __future__ import annotations

import struct
from operator import index
from typing import TYPE_CHECKING, Any

from headrace.errors import MalformedError, UnsupportedVersionError
from headrace.wire.primitives import Buffer, read_uvarint, write_uvarint

if TYPE_CHECKING:
    from headrace.wire.schema import FieldPlan, StructPlan

_STRUCT, _ARRAY, _RECORDS, _BYTES, _STRING, _UUID, _BOOLEAN = 12, 13, 11, 10, 9, 8, 0
_FIXED = {
    kind: struct.Struct(code) for kind, code in enumerate([">?", ">b", ">h", ">H", ">i", ">I", ">q", ">d", ">16s"])
}
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")

STRING_BYTES_MAX = 0x7FFF


class MessageCodec:
    """The encoder and decoder of a message in one version."""

    def __init__(self, plan: StructPlan) -> None:
        self.flexible = plan.flexible
        self._plan = plan

    def encode(self, message: Any) -> list[Buffer]:
        """Return a list of buffers: record batches are not copied, the rest is new bytes."""
        if type(message) is not self._plan.cls:
            raise TypeError(f"expected {self._plan.cls.__name__}, got {type(message).__name__}")
        writer = _Writer()
        writer.struct(self._plan, message)
        return writer.finish()

    def encode_frame(self, message: Any, head: bytes) -> list[Buffer]:
        """Encode with a size prefix and `head` before the message."""
        parts = self.encode(message)
        size = len(head) + sum(len(part) for part in parts)
        return [_INT32.pack(size) + head + parts[0], *parts[1:]]

    def decode(self, data: Buffer, pos: int) -> Any:
        """Decode the message at `pos`; bytes after it are ignored."""
        return _Reader(data, pos).struct(self._plan)

    def decode_whole(self, data: Buffer) -> Any:
        """Decode the message that fills `data`."""
        reader = _Reader(data, 0)
        message = reader.struct(self._plan)
        if reader.pos != len(data):
            raise MalformedError(
                f"expected {self._plan.cls.__name__} to end here, {len(data) - reader.pos} bytes are left",
                offset=reader.pos,
            )
        return message


class _Writer:
    def __init__(self) -> None:
        self._out = bytearray()
        self._parts: list[Buffer] = []

    def finish(self) -> list[Buffer]:
        if self._out or not self._parts:
            self._parts.append(bytes(self._out))
        return self._parts

    def struct(self, plan: StructPlan, value: Any) -> None:
        if type(value) is not plan.cls:
            raise TypeError(f"expected {plan.cls.__name__}, got {type(value).__name__}")
        for absent in plan.absent:
            if value[absent.position] != absent.default:
                raise UnsupportedVersionError(
                    f"{plan.cls.__name__}.{absent.name} is {value[absent.position]!r}, but version {plan.version} does "
                    f"not have the field, only versions {absent.versions}"
                )
        for field in plan.fields:
            self.field(plan, field, value[field.position])
        if plan.flexible:
            self._tags(plan, value)

    def field(self, plan: StructPlan, field: FieldPlan, value: Any) -> None:
        name = f"{plan.cls.__name__}.{field.name}"
        if value is None and field.kind >= _STRING and not field.nullable:
            raise UnsupportedVersionError(f"{name} is None, which version {plan.version} does not allow")
        if field.kind == _ARRAY:
            self._length(None if value is None else len(value), plan.flexible, wide=True)
            for item in value or ():
                self._value(field.element_kind, field.element, item, plan.flexible, name)
        elif field.kind == _STRUCT and field.nullable:
            self._out += b"\xff" if value is None else b"\x01"
            if value is not None:
                self._value(_STRUCT, field.element, value, plan.flexible, name)
        elif value is None and field.kind >= _STRING:
            self._length(None, plan.flexible, wide=field.kind != _STRING)
        else:
            self._value(field.kind, field.element, value, plan.flexible, name)

    def _value(self, kind: int, element: StructPlan | None, value: Any, flexible: bool, name: str) -> None:
        if kind == _STRUCT:
            assert element is not None
            self.struct(element, value)
        elif kind == _RECORDS:
            self._records(value, flexible, name)
        elif kind in (_STRING, _BYTES):
            raw = _string(value, name) if kind == _STRING else _bytes(value, name)
            self._length(len(raw), flexible, wide=kind == _BYTES)
            self._out += raw
        else:
            self._out += _fixed(kind, value, name)

    def _length(self, length: int | None, flexible: bool, wide: bool) -> None:
        if flexible:
            write_uvarint(self._out, 0 if length is None else length + 1)
        else:
            self._out += (_INT32 if wide else _INT16).pack(-1 if length is None else length)

    def _records(self, value: Any, flexible: bool, name: str) -> None:
        buffers = [value] if isinstance(value, (bytes, bytearray, memoryview)) else value
        if not isinstance(buffers, (list, tuple)):
            raise ValueError(f"{name} is of type {type(value).__name__}: expected buffers")
        for buffer in buffers:
            if not isinstance(buffer, (bytes, bytearray, memoryview)) or memoryview(buffer).nbytes != len(buffer):
                raise ValueError(f"{name} has a buffer of type {type(buffer).__name__}: expected bytes")
        self._length(sum(len(buffer) for buffer in buffers), flexible, wide=True)
        if buffers:
            self._parts += [bytes(self._out), *buffers]
            self._out.clear()

    def _tags(self, plan: StructPlan, value: Any) -> None:
        tagged: dict[int, bytes] = dict(value[-1] or {})
        for field in plan.tagged:
            if value[field.position] == field.default:
                continue
            inner = _Writer()
            inner.field(plan, field, value[field.position])
            tagged[field.tag] = b"".join(inner.finish())
        write_uvarint(self._out, len(tagged))
        for tag in sorted(tagged):
            write_uvarint(self._out, tag)
            write_uvarint(self._out, len(tagged[tag]))
            self._out += tagged[tag]


def _string(value: Any, name: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}: expected a string")
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {value!r}: {error.reason}") from None
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"{name} has {len(raw)} bytes; the maximum is {STRING_BYTES_MAX}")
    return raw


def _bytes(value: Any, name: str) -> bytes:
    try:
        return bytes(memoryview(value))
    except TypeError:  # it may be a secret: name the type, not the value
        raise ValueError(f"{name} is of type {type(value).__name__}: expected bytes") from None


def _fixed(kind: int, value: Any, name: str) -> bytes:
    if kind == _UUID:
        if type(value) is not bytes or len(value) != 16:
            raise ValueError(f"{name} is {value!r}: expected 16 bytes")
        return value
    try:
        if kind == _BOOLEAN and not 0 <= index(value) <= 1:
            raise ValueError("expected True or False")
        return _FIXED[kind].pack(value)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise ValueError(f"{name} is {value!r}: {error}") from None


class _Reader:
    def __init__(self, data: Buffer, pos: int) -> None:
        self.data = memoryview(data)
        self.pos = pos
        self.end = len(self.data)

    def struct(self, plan: StructPlan) -> Any:
        values = list(plan.defaults)
        for field in plan.fields:
            values[field.position] = self.field(plan, field)
        if plan.flexible:
            values[-1] = self._tags(plan, values)
        return tuple.__new__(plan.cls, values)

    def field(self, plan: StructPlan, field: FieldPlan) -> Any:
        name = f"{plan.cls.__name__}.{field.name}"
        if field.kind < _STRING:
            return self._fixed(field.kind, name)
        if field.kind == _STRUCT:
            assert field.element is not None
            if field.nullable and self._fixed(1, name) < 0:
                return None
            return self.struct(field.element)
        start = self.pos
        length = self._length(plan.flexible, wide=field.kind != _STRING, name=name)
        if length is None:
            if not field.nullable:
                raise MalformedError(f"{name} is null, which version {plan.version} does not allow", offset=start)
            return None
        if field.kind == _ARRAY:
            return self._array(field, length, start, plan.flexible, name)
        return self._sized(field.kind, length, name)

    def _array(self, field: FieldPlan, length: int, start: int, flexible: bool, name: str) -> tuple[Any, ...]:
        item_bytes = _item_bytes_min(field)
        if length * item_bytes > self.end - self.pos:
            raise MalformedError(
                f"{name}: expected {length} items of {item_bytes} bytes or more, {self.end - self.pos} left",
                offset=start,
            )
        element, kind = field.element, field.element_kind
        if element is not None:
            return tuple(self.struct(element) for _ in range(length))
        if kind < _STRING:
            return tuple(self._fixed(kind, name) for _ in range(length))
        return tuple(self._item(kind, flexible, name) for _ in range(length))

    def _item(self, kind: int, flexible: bool, name: str) -> Any:
        start = self.pos
        length = self._length(flexible, wide=kind != _STRING, name=name)
        if length is None:
            raise MalformedError(f"{name}: an item is null", offset=start)
        return self._sized(kind, length, name)

    def _sized(self, kind: int, length: int, name: str) -> Any:
        start = self.pos
        if length > self.end - start:
            raise MalformedError(f"{name}: expected {length} bytes, {self.end - start} left", offset=start)
        self.pos += length
        view = self.data[start : self.pos]
        if kind == _RECORDS:
            return view
        if kind == _BYTES:
            return bytes(view)
        try:
            return str(view, "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError(f"{name}: expected UTF-8: {error.reason}", offset=start + error.start) from None

    def _fixed(self, kind: int, name: str) -> Any:
        layout = _FIXED[kind]
        start = self.pos
        if layout.size > self.end - start:
            raise MalformedError(f"{name}: expected {layout.size} bytes, {self.end - start} left", offset=start)
        self.pos += layout.size
        return layout.unpack_from(self.data, start)[0]

    def _length(self, flexible: bool, wide: bool, name: str) -> int | None:
        start = self.pos
        if flexible:
            raw, self.pos = read_uvarint(self.data, start, self.end)
            length = raw - 1
        else:
            length = self._fixed(4 if wide else 2, name)
        if length < -1:
            raise MalformedError(f"{name}: expected a length, got {length}", offset=start)
        return None if length < 0 else length

    def _tags(self, plan: StructPlan, values: list[Any]) -> dict[int, bytes] | None:
        count, self.pos = read_uvarint(self.data, self.pos, self.end)
        unknown: dict[int, bytes] = {}
        known = {field.tag: field for field in plan.tagged}
        last = -1
        for _ in range(count):
            start = self.pos
            tag, self.pos = read_uvarint(self.data, start, self.end)
            if tag <= last:
                raise MalformedError(f"{plan.cls.__name__}: expected a tag above {last}, got {tag}", offset=start)
            last = tag
            start = self.pos
            size, self.pos = read_uvarint(self.data, start, self.end)
            body = self.pos
            if size > self.end - body:
                raise MalformedError(
                    f"{plan.cls.__name__}: expected {size} bytes of tag {tag}, {self.end - body} left", offset=start
                )
            if tag in known:
                values[known[tag].position] = self.field(plan, known[tag])
                if self.pos != body + size:
                    raise MalformedError(
                        f"{plan.cls.__name__}.{known[tag].name}: expected {size} bytes, read {self.pos - body}",
                        offset=body,
                    )
            else:
                self.pos += size
                unknown[tag] = bytes(self.data[body : self.pos])
        return unknown or None


def _item_bytes_min(field: FieldPlan) -> int:
    """Return the minimum size of an array item, to check the item count before anything is allocated."""
    if field.element is None:
        return _FIXED[field.element_kind].size if field.element_kind < _STRING else 1
    return max(1, sum(_FIXED[f.kind].size if f.kind < _STRING else 1 for f in field.element.fields))
