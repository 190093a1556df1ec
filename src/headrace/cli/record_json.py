"""A record as a line of JSON, and back, with nothing lost on the way.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1760000000000, "timestamp_type": "create",
     "key": "k", "value": {"base64": "//4="}, "headers": [["trace", null]]}

Keys, values and values of headers are null, text where the bytes are UTF-8, and base64 where they are not. So nothing
is encoded twice, and null, empty and binary stay what they are.
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
    """What of a line is for the producer; None: it is not said, or null."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    timestamp_ms: int | None


def to_json(topic: str, partition: int, record: Record, *, is_append_time: bool) -> dict[str, Any]:
    """A record that was read, as a JSON object."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "append" if is_append_time else "create",
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": [[name, _shown(value)] for name, value in record.headers],
    }


def to_line(topic: str, partition: int, record: Record, *, is_append_time: bool) -> bytes:
    """A record that was read, as a line."""
    return _encode(to_json(topic, partition, record, is_append_time=is_append_time)).encode() + b"\n"


def _shown(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(data).decode()}


def from_line(line: bytes) -> ParsedRecord:
    """A line that is to be sent; ValueError says what is wrong with it.

    Only the value has to be there. Topic, offset and kind of timestamp are the business of where it goes.
    """
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply for a record") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:  # bytes that are no text
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"a record is an object, and this is {_kind(found)}")
    for name in found.keys() - {*_FIELDS}:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_FIELDS)}"
        raise ValueError(f"a record has no field {name!r}{hint}")
    if "value" not in found:
        raise ValueError('"value" is missing; null says that there is none')
    return ParsedRecord(
        _bytes(found.get("key"), "key"),
        _bytes(found["value"], "value"),
        _headers(found.get("headers")),
        _whole(found.get("partition"), "partition"),
        _timestamp(found.get("timestamp")),
    )


def _bytes(given: object, what: str) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise ValueError(f'"{what}" has half a surrogate pair, which is no text') from None
    if isinstance(given, dict) and given.keys() == {BASE64} and isinstance(given[BASE64], str):
        try:
            return base64.b64decode(given[BASE64], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f'"{what}" is no base64: {error}') from None
    raise ValueError(
        f'"{what}" is {_kind(given)}; it may be a text, null, or {{"base64": "…"}}; JSON within goes in as a text'
    )


def _headers(given: object) -> tuple[Header, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise ValueError(f'"headers" is {_kind(given)}; it may be a list of [name, value]')
    headers: list[Header] = []
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f'"headers" has {json.dumps(pair)}; each is [name, value]')
        headers.append((pair[0], _bytes(pair[1], f"header {pair[0]}")))
    return tuple(headers)


def _timestamp(given: object) -> int | None:
    # Kafka's oldest records have none, which readers show as -1.
    return None if given == NO_TIMESTAMP and not isinstance(given, bool) else _whole(given, "timestamp")


def _whole(given: object, what: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f'"{what}" is {json.dumps(given)}; it may be a whole number of 0 or more')
    return given


def _kind(value: object) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")
