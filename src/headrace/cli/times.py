"""Points and spans of time that a flag takes."""

from __future__ import annotations

from headrace.cli.output import WrongUsageError
from headrace.client.facts import times
from headrace.errors import ConfigError


def parse_time_ms(text: str, flag: str) -> int:
    try:
        return times.parse_time_ms(text)
    except ConfigError as error:
        raise WrongUsageError(f"{flag}: {error}") from None


def parse_duration_ms(text: str, flag: str) -> int:
    try:
        return times.parse_duration_ms(text)
    except ConfigError as error:
        raise WrongUsageError(f"{flag}: {error}") from None
