"""Single Python values as the formats encode them: conversions that the encoders of all formats share.

    schema → value_encoder of a format (avro_values.py, protobuf_values.py, json_values.py) → dict → bytes

A value encoder is a function made of functions, one for each type in the schema, which know the path of their field. It
takes what Arrow takes for a column of the type, if nothing is lost: numbers of numpy, times as numbers of their unit.
Errors name the field and the type of the value, but not the value, which may be confidential.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypeAlias

from headrace.errors import SchemaError
from headrace.schema._protobuf.layout import varint
from headrace.schema.codec import shorten

ValueEncoder: TypeAlias = Callable[[Any], bytes]

MISSING: Final = object()
"""Stands for a field that a dict does not have; None is a value."""
DOUBLE_INTEGER_MAX = 1 << 53
FLOAT_INTEGER_MAX = 1 << 24
"""Integers up to these are exact as double and float."""

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_DIGITS_MAX = 200  # of a decimal with the zeros at its end; a type has at most 76
_EXACT = decimal.Context(prec=_DIGITS_MAX, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])


def encode_varint(bits: int) -> bytes:
    """Return a number from 0 to 2^64 - 1 in groups of seven bits, the lowest first.

    The same as the `varint` of Protobuf's layout, without a loop for numbers below 2^35: ids, lengths, seconds.
    """
    if bits < 0x400:
        return _SMALL[bits]
    if bits < 0x4000:
        return bytes((bits & 0x7F | 0x80, bits >> 7))
    if bits < 0x10000000:
        if bits < 0x200000:
            return bytes((bits & 0x7F | 0x80, bits >> 7 & 0x7F | 0x80, bits >> 14))
        return bytes((bits & 0x7F | 0x80, bits >> 7 & 0x7F | 0x80, bits >> 14 & 0x7F | 0x80, bits >> 21))
    low = (bits & 0x7F | 0x80, bits >> 7 & 0x7F | 0x80, bits >> 14 & 0x7F | 0x80, bits >> 21 & 0x7F | 0x80)
    if bits < 0x800000000:
        return bytes((*low, bits >> 28))
    return bytes(low) + encode_varint(bits >> 28)


_SMALL = tuple(varint(number) for number in range(0x400))


def failed(path: str, text: str) -> SchemaError:
    """Return the error of a value, worded as the errors of rows are."""
    return SchemaError(f"field {path}: {text}" if path else f"value: {text}")


def mismatch(path: str, expected: str, value: object) -> SchemaError:
    """Return the error of a value that has another type than its field."""
    return failed(path, f"expected {shorten(expected)}, got {type(value).__qualname__}")


def unknown_field(path: str, name: object, known: Iterable[str]) -> SchemaError:
    names = shorten(", ".join(known) or "none", 200)
    return failed(path, f"no field {shorten(repr(name))} in the schema, only {names}; remove it, or correct its name")


def unboxed(value: Any) -> Any:
    """Return a scalar of numpy as Python's type; other values, and times of numpy, unchanged."""
    dtype = getattr(value, "dtype", None)
    return value.item() if getattr(dtype, "kind", "") in ("b", "i", "u", "f") and value.shape == () else value


def to_integer(path: str, value: Any, expected: str = "an integer") -> int:
    """Return an integer; also of a float or Decimal without a fraction."""
    value = unboxed(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    # The exponent of a Decimal is bounded: 1E+999999 would be a number of a million digits.
    if isinstance(value, decimal.Decimal) and value.is_finite() and value.adjusted() < _DIGITS_MAX:
        number = int(value)
        if number == value:
            return number
    raise mismatch(path, expected, value)


def to_float(path: str, value: Any, exact_max: int = DOUBLE_INTEGER_MAX) -> float:
    """Return a float; also of an integer that is exact as one."""
    value = unboxed(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if -exact_max <= value <= exact_max:
            return float(value)
        raise failed(path, f"an integer beyond {exact_max:,} is not exact as a floating-point number; pass a float")
    raise mismatch(path, "a number", value)


def to_boolean(path: str, value: Any) -> bool:
    value = unboxed(value)
    if isinstance(value, bool):
        return value
    raise mismatch(path, "a bool", value)


def to_text(path: str, value: Any) -> str:
    """Return a string; also of bytes in UTF-8, and of a UUID."""
    if isinstance(value, str):
        return value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise failed(path, "a string is not UTF-8") from None
    raise mismatch(path, "a str", value)


def to_text_bytes(path: str, value: Any) -> bytes:
    """Return a string in UTF-8."""
    try:
        return to_text(path, value).encode()
    except UnicodeEncodeError:
        raise failed(path, "a string is not UTF-8") from None


def to_bytes(path: str, value: Any) -> bytes:
    """Return bytes; also of a string in UTF-8, and of a UUID."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return to_text_bytes(path, value)
    raise mismatch(path, "bytes", value)


def to_days(path: str, value: Any) -> int:
    """Return the days since 1970 of a date; an integer is their number."""
    if isinstance(value, datetime.date):
        return value.toordinal() - _EPOCH_DAY
    return to_integer(path, value, "a date")


def time_converter(path: str, unit: str) -> Callable[[Any], int]:
    """Return the function from a time of day to a number of units; an integer is that number."""
    divisor, multiplier = _from_micros(unit)

    def convert(value: Any) -> int:
        if isinstance(value, datetime.time):
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return (seconds * 1_000_000 + value.microsecond) * multiplier // divisor
        return to_integer(path, value, "a time")

    return convert


def timestamp_converter(path: str, unit: str) -> Callable[[Any], int]:
    """Return the function from a datetime to units since 1970; without a zone it is UTC. An integer is that number.

    Rounds down to the unit, as Arrow does.
    """
    divisor, multiplier = _from_micros(unit)
    is_nanos = unit == "ns"

    def convert(value: Any) -> int:
        if isinstance(value, datetime.datetime):
            delta = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
            micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
            number = micros * multiplier // divisor
            return number + getattr(value, "nanosecond", 0) if is_nanos else number  # a Timestamp of pandas has it
        return to_integer(path, value, "a datetime")

    return convert


def duration_converter(path: str, unit: str) -> Callable[[Any], int]:
    """Return the function from a timedelta to a number of units; an integer is that number."""
    divisor, multiplier = _from_micros(unit)

    def convert(value: Any) -> int:
        if isinstance(value, datetime.timedelta):
            micros = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
            return micros * multiplier // divisor
        return to_integer(path, value, "a timedelta")

    return convert


def decimal_converter(path: str, precision: int, scale: int) -> Callable[[Any], int]:
    """Return the function from a Decimal or integer to its digits at the scale, as one number."""
    limit = 10**precision
    text = f"a decimal has more digits than decimal({precision}, {scale}) holds; round it"

    def convert(value: Any) -> int:
        value = unboxed(value)
        if isinstance(value, decimal.Decimal):
            try:
                # A value that is too large is refused before it is multiplied out.
                if value and value.adjusted() >= precision - scale:
                    raise failed(path, text)
                scaled = value.scaleb(scale, _EXACT)
                number = int(scaled)
            except (decimal.DecimalException, ValueError, OverflowError):
                raise failed(path, text) from None
            if number != scaled:
                raise failed(path, text)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value * 10**scale
        else:
            raise mismatch(path, "a Decimal", value)
        if not -limit < number < limit:
            raise failed(path, text)
        return number

    return convert


def to_mapping(path: str, value: Any, expected: str) -> Mapping[str, Any]:
    """Return a mapping, or the fields of a dataclass or named tuple."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: dict[str, Any] = value._asdict()
        return fields
    raise mismatch(path, f"{expected} as a dict, a mapping or a dataclass", value)


def to_pairs(path: str, value: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a map, given as a mapping or as pairs."""
    if isinstance(value, Mapping):
        return list(value.items())
    items = to_items(path, value, "a map as a dict or pairs of key and value")
    if all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        return [(key, item) for key, item in items]
    raise failed(path, "invalid entry of a map: expected a pair of key and value; pass a dict, or pairs")


def to_items(path: str, value: Any, expected: str = "a list") -> Sequence[Any]:
    """Return the items of a list, tuple, set or array of numpy."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist"):
        return list(value)
    raise mismatch(path, expected, value)


def member_of(path: str, value: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return which member of a union a dict such as {"member1": …} sets; -1: none, None: another dict."""
    if not value or not all(name in names for name in value):
        return None
    chosen = [name for name, item in value.items() if item is not None]
    if len(chosen) > 1:
        raise failed(path, "several members of a union have a value")
    return names.index(chosen[0]) if chosen else -1


def _from_micros(unit: str) -> tuple[int, int]:
    """Return what to divide microseconds by, and to multiply them by."""
    count = PER_SECOND[unit]
    return (1_000_000 // count, 1) if count <= 1_000_000 else (1, count // 1_000_000)
