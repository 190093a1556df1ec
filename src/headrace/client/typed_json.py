"""Decoded values as JSON, for people, and back.

    Python object of a column → to_plain → what `json` can write
    what `json` has read, Arrow type → to_row → Python object that pyarrow takes

Times are ISO 8601, decimals text; bytes are text if they are UTF-8, else `{"base64": "…"}`.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

BASE64 = "base64"


def to_plain(value: Any) -> Any:
    """Return a decoded value as JSON has it."""
    if isinstance(value, dict):
        return {name: to_plain(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):  # a map
            return {str(to_plain(key)): to_plain(each) for key, each in value}
        return [to_plain(each) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {BASE64: base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, Decimal) else value


def to_text(value: Any, *, indent: int | None = None) -> str:
    """Return a decoded value as JSON text."""
    return json.dumps(to_plain(value), ensure_ascii=False, indent=indent, default=str)


def to_row(value: Any, data_type: pa.DataType, path: str = "") -> Any:
    """Return a JSON value as pyarrow takes it for an Arrow type; raises ValueError with the path of the field."""
    types = pa.types
    if value is None:
        return None
    try:
        if types.is_struct(data_type):
            return _struct(value, data_type, path)
        if types.is_map(data_type):
            items = _expect(dict, value or {}).items()  # to_plain returns [] for an empty map
            return [(key, to_row(each, data_type.item_type, f"{path}.{key}")) for key, each in items]
        if types.is_list(data_type):
            item_type = data_type.value_type
            return [to_row(each, item_type, f"{path}[{i}]") for i, each in enumerate(_expect(list, value))]
        if types.is_timestamp(data_type) and isinstance(value, str):
            moment = datetime.datetime.fromisoformat(value)
            return moment if moment.tzinfo or not data_type.tz else moment.replace(tzinfo=datetime.UTC)
        if types.is_date(data_type) and isinstance(value, str):
            return datetime.date.fromisoformat(value)
        if types.is_time(data_type) and isinstance(value, str):
            return datetime.time.fromisoformat(value)
        if types.is_decimal(data_type):
            return Decimal(str(value))
        if types.is_floating(data_type) and isinstance(value, str):
            return float(value)
        if types.is_binary(data_type) or types.is_fixed_size_binary(data_type):
            return _bytes(value)
    except _FieldError:
        raise
    except (ValueError, TypeError, InvalidOperation) as error:
        raise _FieldError(f"{path.lstrip('.') or 'value'}: expected {data_type}, got {value!r:.80}: {error}") from error
    return value


class _FieldError(ValueError):
    """A JSON value that does not fit, with its path."""


def _struct(value: Any, data_type: pa.DataType, path: str) -> dict[str, Any]:
    fields = {field.name: field.type for field in data_type}
    row = _expect(dict, value)
    for name in row.keys() - fields.keys():
        raise _FieldError(f"{path.lstrip('.') or 'value'}: unknown field {name!r}; expected {', '.join(fields)}")
    return {name: to_row(each, fields[name], f"{path}.{name}") for name, each in row.items()}


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"not {'an object' if kind is dict else 'an array'}")
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {BASE64} and isinstance(value[BASE64], str):
        try:
            return base64.b64decode(value[BASE64], validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from None
    raise TypeError('expected a string or {"base64": "…"}')
