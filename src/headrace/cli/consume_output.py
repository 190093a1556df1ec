"""How `headrace consume` prints a record: its value, JSON, in full for people, or by a template as kcat's."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime

from headrace.cli.output import WrongUsageError
from headrace.cli.produce_input import unescaped
from headrace.cli.record_json import to_line
from headrace.wire.layout import NO_TIMESTAMP, Record

Printer = Callable[[str, int, Record, bool], bytes]
"""Topic, partition, record, whether its timestamp is the broker's → what is printed."""
FORMATS = ("text", "json", "full")
_NULL_SIZE = -1
_length = struct.Struct(">i")
_DIRECTIVE = re.compile(rb"%(.?)", re.DOTALL)
_DIRECTIVES: dict[bytes, Callable[[str, int, Record], bytes]] = {
    b"%": lambda topic, partition, record: b"%",
    b"t": lambda topic, partition, record: topic.encode(),
    b"p": lambda topic, partition, record: b"%d" % partition,
    b"o": lambda topic, partition, record: b"%d" % record.offset,
    b"T": lambda topic, partition, record: b"%d" % record.timestamp,
    b"k": lambda topic, partition, record: record.key or b"",
    b"K": lambda topic, partition, record: b"%d" % _size(record.key),
    b"s": lambda topic, partition, record: record.value or b"",
    b"S": lambda topic, partition, record: b"%d" % _size(record.value),
    b"R": lambda topic, partition, record: _length.pack(_size(record.value)),
    b"h": lambda topic, partition, record: _headers(record),
}


def printer_for(output_format: str, template: str | None) -> Printer:
    """What prints records."""
    if template is not None:
        return _by_template(template)
    return {"text": _value, "json": _json, "full": _full}[output_format]


def _value(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
    return (record.value or b"") + b"\n"


def _json(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
    return to_line(topic, partition, record, is_append_time=is_append_time)


def _full(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
    """Where it is and when it came, and then all that is in it."""
    lines = [f"{topic}-{partition} at {record.offset}, {_time(record.timestamp, is_append_time)}".encode()]
    lines += [b"  header %s: %s" % (name.encode(), _shown(value)) for name, value in record.headers]
    lines.append(b"  key: " + _shown(record.key))
    lines.append(b"  value: " + _shown(record.value))
    return b"\n".join(lines) + b"\n"


def _time(timestamp: int, is_append_time: bool) -> str:
    if timestamp == NO_TIMESTAMP:
        return "no time"
    try:
        shown = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a producer may send any number
        shown = f"{timestamp} ms"
    return f"{shown} ({'append' if is_append_time else 'create'} time)"


def _shown(data: bytes | None) -> bytes:
    """Text as it is; what is no text as Python would write it."""
    if data is None:
        return b"null"
    try:
        data.decode()
    except UnicodeDecodeError:
        return f"{len(data):,} bytes {data!r}".encode()
    return data


def _size(data: bytes | None) -> int:
    return _NULL_SIZE if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(b"%s=%s" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers)


def _by_template(template: str) -> Printer:
    pattern = unescaped(template, "--template")
    pieces: list[bytes | Callable[[str, int, Record], bytes]] = []
    done = 0
    for found in _DIRECTIVE.finditer(pattern):
        if found[1] not in _DIRECTIVES:
            raise WrongUsageError(
                f"--template: %{found[1].decode('latin-1')} means nothing; there are "
                + " ".join(f"%{name.decode()}" for name in _DIRECTIVES)
            )
        pieces += [pattern[done : found.start()], _DIRECTIVES[found[1]]]
        done = found.end()
    pieces.append(pattern[done:])

    def printed(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in pieces)

    return printed
