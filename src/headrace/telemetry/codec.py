"""Reports as JSON. What is decoded came over a network: every value is checked against its declared type and bounded.

Texts that are too long are cut; everything else that does not fit is a `ReportError` that names the field. Fields that
are missing or null take their default. Unknown fields are ignored, so that newer senders can report to older views.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from headrace.errors import HeadraceError
from headrace.telemetry.models import REPORT_TYPES, AnyReport, Report

TEXT_CHARACTERS_MAX = 600
ITEMS_MAX = 200
NUMBER_MAX = 2.0**62

Decoder = Callable[[Any, str], Any]
"""Decodes a value; the text is its path in the report, for errors."""


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
    report_type: Any = REPORT_TYPES.get(kind) if isinstance(kind, str) else None
    if report_type is None:
        raise ReportError(f"invalid report: kind: expected {', '.join(REPORT_TYPES)}, got {kind!r}")
    report: AnyReport = _decoder_of(report_type)(value, "")
    return report


@cache
def _decoder_of(declared: Any) -> Decoder:
    """Return the decoder of a declared type: a dataclass, a tuple of items, a scalar, or one of these or None."""
    if get_origin(declared) is UnionType:  # X | None; null was replaced by the default
        (declared,) = (option for option in get_args(declared) if option is not NoneType)
    if get_origin(declared) is tuple:
        return _list_decoder(_decoder_of(get_args(declared)[0]))
    return _object_decoder(declared) if is_dataclass(declared) else _SCALARS[declared]


def _object_decoder(cls: Any) -> Decoder:
    hints = get_type_hints(cls)
    decoders = [
        (field.name, _decoder_of(hints[field.name]), field.default is MISSING and field.default_factory is MISSING)
        for field in fields(cls)
    ]

    def decode_object(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise _invalid(path, "an object", value)
        prefix = f"{path}." if path else ""
        arguments = {}
        for name, decode_field, is_required in decoders:
            item = value.get(name)
            if item is not None or is_required:
                arguments[name] = decode_field(item, prefix + name)
        return cls(**arguments)

    return decode_object


def _list_decoder(decode_item: Decoder) -> Decoder:
    def decode_list(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            raise _invalid(path, f"a list of at most {ITEMS_MAX} items", value)
        return tuple(decode_item(item, f"{path}[{index}]") for index, item in enumerate(value))

    return decode_list


def _decode_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _invalid(path, "a string", value)
    return value[:TEXT_CHARACTERS_MAX]


def _decode_bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(path, "true or false", value)
    return value


def _decode_float(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(path, "a number", value)
    if not abs(value) <= NUMBER_MAX:  # NaN included
        raise _invalid(path, "a finite number below 2^62", value)
    return float(value)


def _decode_int(value: Any, path: str) -> int:
    _decode_float(value, path)
    return int(value)


_SCALARS: dict[Any, Decoder] = {str: _decode_text, bool: _decode_bool, int: _decode_int, float: _decode_float}


def _invalid(path: str, expected: str, value: Any) -> ReportError:
    got = f"{type(value).__name__} of {len(value)}" if isinstance(value, list | Mapping | str) else repr(value)
    return ReportError(f"invalid report: {path}: expected {expected}, got {got}")
