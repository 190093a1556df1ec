"""A record as a line of JSON, and back, without loss.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1760000000000, "timestamp_type": "create",
     "key": "k", "value": {"base64": "//4="}, "headers": [["trace", null]]}

Keys, values and header values are null, a string if the bytes are UTF-8, or base64 if they are not. Null, empty and
binary values are preserved, and nothing is encoded twice.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from typing import Any, NamedTuple

from headrace.wire.layout import NO_TIMESTAMP, Header, Record

BASE64 = "base64"
_FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


class ParsedRecord(NamedTuple):
    """The fields of a line that are sent; None if a field is missing or null."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    timestamp_ms: int | None


def to_json(topic: str, partition: int, record: Record, *, is_append_time: bool) -> dict[str, Any]:
    """Return a record that was read as a JSON object."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "append" if is_append_time else "create",
        "key": _encoded(record.key),
        "value": _encoded(record.value),
        "headers": [[name, _encoded(value)] for name, value in record.headers],
    }


def to_line(topic: str, partition: int, record: Record, *, is_append_time: bool) -> bytes:
    """Return a record that was read as a line of JSON."""
    return _encode(to_json(topic, partition, record, is_append_time=is_append_time)).encode() + b"\n"


def _encoded(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(data).decode()}


def from_line(line: bytes, typed: frozenset[str] = frozenset()) -> ParsedRecord:
    """Parse a line to send; raise ValueError if it is invalid.

    Only the value is required. Topic, offset and timestamp type are ignored: the destination sets them. `typed` names
    the fields that may be any JSON, `key` and `value`: their text is returned.
    """
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError("invalid JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:  # bytes that are not UTF-8
        raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"invalid record: expected an object, got {_type_name(fields)}")
    for name in fields.keys() - {*_FIELDS}:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(_FIELDS)}"
        raise ValueError(f"unknown field {name!r}; {hint}")
    if "value" not in fields:
        raise ValueError('"value" is missing; write null for a record without a value')
    return ParsedRecord(
        _text(fields.get("key")) if "key" in typed else _bytes(fields.get("key"), "key"),
        _text(fields["value"]) if "value" in typed else _bytes(fields["value"], "value"),
        _headers(fields.get("headers")),
        _non_negative(fields.get("partition"), "partition"),
        _timestamp(fields.get("timestamp")),
    )


def _text(given: object) -> bytes | None:
    return None if given is None else _encode(given).encode()


def _bytes(given: object, name: str) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise ValueError(f'invalid "{name}": it contains an unpaired surrogate') from None
    if isinstance(given, dict) and given.keys() == {BASE64} and isinstance(given[BASE64], str):
        try:
            return base64.b64decode(given[BASE64], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f'invalid "{name}": not base64: {error}') from None
    raise ValueError(
        f'invalid "{name}": expected a string, null or {{"base64": "…"}}, got {_type_name(given)}; encode nested JSON '
        "as a string"
    )


def _headers(given: object) -> tuple[Header, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise ValueError(f'invalid "headers": expected a list of [name, value], got {_type_name(given)}')
    headers: list[Header] = []
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f'invalid "headers": expected [name, value], got {json.dumps(pair)}')
        headers.append((pair[0], _bytes(pair[1], f"header {pair[0]}")))
    return tuple(headers)


def _timestamp(given: object) -> int | None:
    # Records of the oldest message format have no timestamp, which consumers report as -1.
    return None if given == NO_TIMESTAMP and not isinstance(given, bool) else _non_negative(given, "timestamp")


def _non_negative(given: object, name: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f'invalid "{name}": expected an integer of 0 or more, got {json.dumps(given)}')
    return given


def _type_name(value: object) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")
