"""Text forms of times, durations and record filters, as users of the command line and the live view write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.wire.layout import Header

_MILLISECONDS = re.compile(r"\d{10,}", re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str, zone: tzinfo | None = None) -> int:
    """Parse milliseconds since 1970, or ISO 8601 (2026-11-16, 2026-11-16T12:30:05Z, …+01:00).

    The default time zone is `zone`, or the local one.
    """
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"invalid time {text!r}: expected milliseconds since 1970, 2026-11-16T12:30:00 or 2026-11-16T12:30:00Z"
        ) from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Parse a number with a unit: 500ms, 30s, 15m, 2h, 1d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(f"invalid duration {text!r}: expected a number and a unit, such as 500ms, 30s, 15m, 2h or 1d")
    return int(float(match[1]) * _UNIT_MS[match[2]])


def format_time(time_ms: int | None) -> str:
    """Format a time in UTC."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_duration(seconds: float | None) -> str:
    """Format a duration with at most two units: 850 ms, 12.3 s, 4 m 10 s, 3 h 5 m, 2 d 4 h."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for size, inner_size, name, inner in ((60, 1, "m", "s"), (3600, 60, "h", "m"), (86400, 3600, "d", "h")):
        if seconds < size * (60 if size == 60 else 24) or size == 86400:
            return f"{int(seconds // size)} {name} {int(seconds % size // inner_size)} {inner}"
    raise AssertionError(seconds)


def format_duration_ms(span_ms: float | None) -> str:
    """Format a duration in milliseconds."""
    return format_duration(None if span_ms is None else span_ms / 1000)


# -- record filters ----------------------------------------------------------------------------------


class FilterableRecord(Protocol):
    """A record with key, value and headers."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[Header]: ...


RecordFilter = Callable[[FilterableRecord], bool]


def record_filters(
    key: re.Pattern[bytes] | None, value: re.Pattern[bytes] | None, headers: Sequence[tuple[str, bytes | None]]
) -> list[RecordFilter]:
    """Return filters that must all match. A header without a value matches by its name."""
    filters: list[RecordFilter] = []
    if key is not None:
        filters.append(lambda record: record.key is not None and key.search(record.key) is not None)
    if value is not None:
        filters.append(lambda record: record.value is not None and value.search(record.value) is not None)
    return [*filters, *(_header(name, value) for name, value in headers)]


def parse_pattern(text: str, *, is_regex: bool = True) -> re.Pattern[bytes]:
    """Return a pattern for bytes, so that binary data can be searched, too."""
    if not is_regex:
        text = re.escape(text)
    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        raise ConfigError(f"invalid regular expression {text!r}: {error}") from error


def parse_header(text: str) -> tuple[str, bytes | None]:
    """Parse NAME or NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name:
        raise ConfigError(f"invalid header: expected NAME or NAME=VALUE, got {text!r}")
    return name, value.encode(errors="surrogateescape") if equals else None


def _header(name: str, value: bytes | None) -> RecordFilter:
    if value is not None:
        return lambda record: any(header == (name, value) for header in record.headers)
    return lambda record: any(header[0] == name for header in record.headers)
