"""Formats of numbers, sizes, durations and times: always with a unit, times with their zone."""

from __future__ import annotations

import time

from headrace.client import text_formats

UNKNOWN = "–"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LARGE = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
"""The smallest number that a unit is used for, its scale, and its name."""


def count(number: float | None, unit: str = "") -> str:
    """12,345 records or 1 record: all digits"""
    if number is None:
        return UNKNOWN
    return f"{number:,.0f} {unit.removesuffix('s') if number == 1 else unit}".rstrip()


def plural(number: float, singular: str, many: str = "") -> str:
    """1 batch, 12,345 batches"""
    return f"{number:,.0f} {singular if number == 1 else many or singular + 's'}"


def short_count(number: float | None) -> str:
    """12.3 k: three digits or so"""
    if number is None:
        return UNKNOWN
    scale, name = next(((scale, f" {name}") for least, scale, name in _LARGE if abs(number) >= least), (1.0, ""))
    value = number / scale
    digits = 0 if value == int(value) or abs(value) >= 100 else 1
    return f"{value:,.{digits}f}{name}"


def size(number_bytes: float | None) -> str:
    """1.5 MiB"""
    if number_bytes is None:
        return UNKNOWN
    value, index = float(number_bytes), 0
    while abs(value) >= 1024 and index < len(_SIZES) - 1:
        value, index = value / 1024, index + 1
    return f"{value:,.0f} {_SIZES[index]}" if index == 0 or value >= 100 else f"{value:,.1f} {_SIZES[index]}"


def rate(per_second: float | None, unit: str = "records") -> str:
    """1,234 records/s"""
    return UNKNOWN if per_second is None else f"{short_count(per_second)} {unit}/s"


def size_rate(bytes_per_second: float | None) -> str:
    """1.5 MiB/s"""
    return UNKNOWN if bytes_per_second is None else f"{size(bytes_per_second)}/s"


def duration(seconds: float | None) -> str:
    """850 ms, 12.3 s, 4 m 10 s, 3 h 5 m, 2 d 4 h"""
    return UNKNOWN if seconds is None else text_formats.format_duration(seconds)


def milliseconds(ms: float | None) -> str:
    """A duration, with one more digit below 10 ms"""
    if ms is None:
        return UNKNOWN
    return f"{ms:.1f} ms" if ms < 10 else duration(ms / 1000)


def moment(seconds: float | None) -> str:
    """2026-11-16 06:05:11 UTC"""
    return UNKNOWN if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def moment_ms(ms: int | None) -> str:
    """2026-11-16 06:05:11.123 UTC; also accepts record timestamps that are out of range"""
    if ms is None or ms < 0:
        return "no timestamp"
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms // 1000))
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return f"{text}.{ms % 1000:03d} UTC"


def clock(seconds: float | None) -> str:
    """06:05:11 UTC"""
    return UNKNOWN if seconds is None else time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def ago(seconds: float | None) -> str:
    """3 s ago"""
    return UNKNOWN if seconds is None else f"{duration(max(0.0, time.time() - seconds))} ago"
