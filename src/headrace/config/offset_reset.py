"""The values of auto.offset.reset, of consumers and of share groups."""

from __future__ import annotations

import re

BY_DURATION = "by_duration"
_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_SECONDS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of an ISO 8601 duration of days and smaller units, as Java's; None if it is none."""
    match = _ISO_DURATION.fullmatch(text.upper())
    if match is None or not any(match.groupdict().values()) or text.upper().endswith("T"):
        return None
    return int(sum(float(value) * _SECONDS[unit] for unit, value in match.groupdict().items() if value) * 1000)


class ResetPolicy:
    """Accepts some words, and by_duration:<ISO 8601 duration>."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __call__(self, value: object) -> object:
        text = str(value)
        if text.lower() in self._words:
            return text.lower()
        kind, _, duration = text.partition(":")
        if kind.lower() != BY_DURATION or duration_ms(duration) is None:
            raise ValueError(str(self))
        return f"{BY_DURATION}:{duration}"

    def __str__(self) -> str:
        return f"{', '.join(self._words)} or {BY_DURATION}:PnDTnHnMn.nS"
