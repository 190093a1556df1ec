"""Reports as JSON. What is decoded came over a network: every value is checked against its declared type and bounded.

Texts that are too long are cut; everything else that does not fit is a `ReportError` that names the field. Fields that
are missing or null take their default. Unknown fields are ignored, so that newer senders can report to older views.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from headrace.errors import HeadraceError
from headrace.telemetry.models import REPORT_TYPES, AnyReport, Report

TEXT_CHARACTERS_MAX = 600
ITEMS_MAX = 200
NUMBER_MAX = 2.0**62


class ReportError(HeadraceError):
    """A report that cannot be decoded."""


def encode(report: Report) -> bytes:
    """Encode a report as JSON."""
    return json.dumps({"kind": report.kind, **asdict(report)}, separators=(",", ":"), allow_nan=False).encode()


def decode(body: bytes) -> AnyReport:
    """Decode a report; raise ReportError if it is not valid."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"invalid report: not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise _invalid("report", "an object", value)
    kind = value.get("kind")
    report_type = REPORT_TYPES.get(kind) if isinstance(kind, str) else None
    if report_type is None:
        raise ReportError(f"invalid report: kind: expected {', '.join(REPORT_TYPES)}, got {kind!r}")
    report: AnyReport = _decode_object(report_type, value, "")
    return report


def _decode_object(cls: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise _invalid(path, "an object", value)
    arguments = {}
    for name, (declared, is_required) in _schema(cls).items():
        item = value.get(name)
        if item is not None or is_required:
            arguments[name] = _decode_value(declared, item, f"{path}.{name}" if path else name)
    return cls(**arguments)


@cache
def _schema(cls: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field of a dataclass, and whether it is required."""
    hints = get_type_hints(cls)
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    }


def _decode_value(declared: Any, value: Any, path: str) -> Any:
    if get_origin(declared) is UnionType:  # X | None; null was replaced by the default
        (declared,) = (option for option in get_args(declared) if option is not NoneType)
    if get_origin(declared) is tuple:
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise _invalid(path, f"a list of at most {ITEMS_MAX} items", value)
        item_type = get_args(declared)[0]
        return tuple(_decode_value(item_type, item, f"{path}[{index}]") for index, item in enumerate(value))
    if is_dataclass(declared):
        return _decode_object(declared, value, path)
    if declared is str and isinstance(value, str):
        return value[:TEXT_CHARACTERS_MAX]
    if declared is bool and isinstance(value, bool):
        return value
    if declared in (int, float):
        return declared(_checked_number(value, path))
    raise _invalid(path, {str: "a string", bool: "true or false"}[declared], value)


def _checked_number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(path, "a number", value)
    if not abs(value) <= NUMBER_MAX:  # NaN included
        raise _invalid(path, "a finite number below 2^62", value)
    return value


def _invalid(path: str, expected: str, value: Any) -> ReportError:
    got = f"{type(value).__name__} of {len(value)}" if isinstance(value, list | Mapping | str) else repr(value)
    return ReportError(f"invalid report: {path}: expected {expected}, got {got}")
