"""Rows as text, for dead letters: JSON for structs, lists and maps.

Arrow's conversion to Python objects raises for what Spark allows and Python does not: dates and times outside the
years 1 to 9999, and maps whose keys cannot be keys of a dict. JSON has no NaN. Such rows are converted value by value.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date
from datetime import time as time_of_day
from typing import Any

import pyarrow as pa


def row_texts(column: pa.Array) -> list[str | None]:
    """Return each row as text, null as None: never raises, whatever the rows have."""
    to_text = _json_text if pa.types.is_nested(column.type) else str
    try:
        rows = column.to_pylist(maps_as_pydicts="lossy")
        return [None if row is None else to_text(row) for row in rows]
    except (OverflowError, TypeError, ValueError):
        values = map(plain, column)
        return [None if value is None else to_text(value) for value in values]


def plain(value: pa.Scalar) -> Any:
    """Return a value as Python objects; what Python does not have as text, and keys of maps as text."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.StructScalar):
        names = [field.name for field in value.type]
        return {name: plain(value[index]) for index, name in enumerate(names)}
    if isinstance(value, pa.MapScalar):
        return {_key_text(plain(entry[0])): plain(entry[1]) for entry in value.values}
    if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [plain(item) for item in value.values]
    try:
        converted = value.as_py()
    except (OverflowError, ValueError):
        integer = pa.int32() if value.type.bit_width == 32 else pa.int64()
        return f"{value.cast(integer).as_py()} ({value.type})"
    return str(converted) if isinstance(converted, float) and not math.isfinite(converted) else converted


def _key_text(key: object) -> str:
    return key if isinstance(key, str) else _json_text(key) if isinstance(key, dict | list) else _json_value(key)


def _json_text(row: object) -> str:
    return json.dumps(row, default=_json_value, ensure_ascii=False, allow_nan=False)


def _json_value(value: object) -> str:
    """Return a value that JSON does not have: bytes in Base64, times in ISO 8601, decimals as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, time_of_day)) else str(value)
