"""OTLP metrics (opentelemetry.proto.metrics.v1.MetricsData): numbers with their names and attributes.

    MetricsData      1 resource_metrics    ResourceMetrics  2 scope_metrics       ScopeMetrics  2 metrics
    Metric           1 name  5 gauge  7 sum                  Gauge, Sum  1 data_points  2 temporality  3 is_monotonic
    NumberDataPoint  4 as_double  6 as_int  7 attributes     KeyValue    1 key  2 value

Other fields are skipped: clients send gauges and sums only. Messages are read where they lie; the only objects are
points, up to a limit, and their texts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from headrace.errors import MalformedError
from headrace.wire.primitives import VARLONG_BYTES_MAX, read_uvarint

POINTS_MAX = 5_000
NAME_BYTES_MAX = 255
ATTRIBUTES_MAX = 20
DELTA = 1  # aggregation temporality

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_double = struct.Struct("<d")
_sfixed64 = struct.Struct("<q")

Attributes = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """The value of a metric."""

    name: str
    attributes: Attributes
    value: float
    is_sum: bool
    is_delta: bool


class _Field(NamedTuple):
    number: int
    kind: int  # the wire type
    start: int
    end: int
    value: int  # of a varint


def decode(data: bytes, points_max: int = POINTS_MAX) -> list[Point]:
    """Return the points of gauges and sums; raise MalformedError if the data are invalid, or have too many points."""
    points: list[Point] = []
    for metric in _nested(data, 0, len(data), (1, 2, 2)):
        points += _points(data, metric, points_max - len(points))
    return points


def _nested(data: bytes, start: int, end: int, path: tuple[int, ...]) -> Iterator[_Field]:
    """Yield the messages at a path of field numbers."""
    for part in _fields(data, start, end):
        if part.number == path[0] and part.kind == _BYTES:
            if len(path) == 1:
                yield part
            else:
                yield from _nested(data, part.start, part.end, path[1:])


def _points(data: bytes, metric: _Field, points_max: int) -> list[Point]:
    name, points = "", list[Point]()
    # Fields may come in any order, so the name is read first.
    for part in _fields(data, metric.start, metric.end):
        if part.number == 1 and part.kind == _BYTES:
            name = _text(data, part)
    for part in _fields(data, metric.start, metric.end):
        if part.number not in (5, 7) or part.kind != _BYTES:
            continue
        is_sum = part.number == 7
        is_delta = is_sum and any(
            entry.number == 2 and entry.value == DELTA for entry in _fields(data, part.start, part.end)
        )
        for point in _nested(data, part.start, part.end, (1,)):
            if len(points) >= points_max:
                raise MalformedError(f"expected at most {POINTS_MAX} data points, got more", offset=point.start)
            value, attributes = _number(data, point)
            points.append(Point(name, attributes, value, is_sum, is_delta))
    return points


def _number(data: bytes, point: _Field) -> tuple[float, Attributes]:
    value, attributes = 0.0, list[tuple[str, str]]()
    for part in _fields(data, point.start, point.end):
        if part.number == 4 and part.kind == _FIXED64:
            (value,) = _double.unpack_from(data, part.start)
        elif part.number == 6 and part.kind == _FIXED64:
            (number,) = _sfixed64.unpack_from(data, part.start)
            value = float(number)
        elif part.number == 7 and part.kind == _BYTES:
            if len(attributes) >= ATTRIBUTES_MAX:
                raise MalformedError(f"expected at most {ATTRIBUTES_MAX} attributes, got more", offset=part.start)
            attributes.append(_attribute(data, part))
    return value, tuple(sorted(attributes))


def _attribute(data: bytes, pair: _Field) -> tuple[str, str]:
    key = value = ""
    for part in _fields(data, pair.start, pair.end):
        if part.number == 1 and part.kind == _BYTES:
            key = _text(data, part)
        elif part.number == 2 and part.kind == _BYTES:
            value = _any_value(data, part)
    return key, value


def _any_value(data: bytes, value: _Field) -> str:
    """Return a text, bool, int or double as text; other values as an empty one."""
    for part in _fields(data, value.start, value.end):
        if part.number == 1 and part.kind == _BYTES:
            return _text(data, part)
        if part.number == 2 and part.kind == _VARINT:
            return "true" if part.value else "false"
        if part.number == 3 and part.kind == _VARINT:
            return str(part.value - (1 << 64) if part.value >> 63 else part.value)
        if part.number == 4 and part.kind == _FIXED64:
            return str(_double.unpack_from(data, part.start)[0])
    return ""


def _text(data: bytes, part: _Field) -> str:
    if part.end - part.start > NAME_BYTES_MAX:
        raise MalformedError(
            f"expected a text of at most {NAME_BYTES_MAX} bytes, got {part.end - part.start}", offset=part.start
        )
    try:
        return data[part.start : part.end].decode()
    except UnicodeDecodeError:
        raise MalformedError("expected UTF-8", offset=part.start) from None


def _fields(data: bytes, start: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message; raise MalformedError if one does not end within it."""
    pos = start
    while pos < end:
        tag, pos = read_uvarint(data, pos, end)
        number, kind, value = tag >> 3, tag & 7, 0
        if kind == _VARINT:
            value, field_end = read_uvarint(data, pos, end, VARLONG_BYTES_MAX)
        elif kind == _BYTES:
            size, pos = read_uvarint(data, pos, end)
            field_end = pos + size
        elif kind in _SIZES:
            field_end = pos + _SIZES[kind]
        else:
            raise MalformedError(f"expected a protobuf field, got wire type {kind}", offset=pos)
        if number == 0 or field_end > end:
            raise MalformedError(f"expected field {number} to end within {end - pos} bytes", offset=pos)
        yield _Field(number, kind, pos, field_end, value)
        pos = field_end
