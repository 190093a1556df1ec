"""Points in time, as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headrace.cli.output import WrongUsageError

_MILLISECONDS = re.compile(r"\d{10,}", re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str, flag: str) -> int:
    """Milliseconds since 1970, or ISO 8601 (2026-11-16, 2026-11-16T12:30:05Z, …+01:00); without a zone, local time."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsageError(
            f"{flag}: {text!r} is no time; write milliseconds since 1970, or as 2026-11-16T12:30:00 or "
            "2026-11-16T12:30:00Z"
        ) from None
    return int(found.timestamp() * 1000)


def parse_duration_ms(text: str, flag: str) -> int:
    """A number and a unit: 500ms, 30s, 15m, 2h, 1d."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise WrongUsageError(f"{flag}: {text!r} is no span of time; write it as 500ms, 30s, 15m, 2h or 1d")
    return int(float(found[1]) * _UNIT_MS[found[2]])


def shown_time(time_ms: int | None) -> str:
    """A time for people, in UTC."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
