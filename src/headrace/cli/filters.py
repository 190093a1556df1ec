"""What the flags of `headrace consume` filter by: see `client.facts.filters`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from headrace.cli.output import WrongUsageError
from headrace.client.facts import filters
from headrace.client.facts.filters import Matches
from headrace.errors import ConfigError

__all__ = ["Matches", "filters_of"]

T = TypeVar("T")


def filters_of(key_match: str | None, value_match: str | None, headers: tuple[str, ...]) -> list[Matches]:
    """All of them have to hold. None: everything matches."""
    key = None if key_match is None else _pattern(key_match, "--key-match")
    value = None if value_match is None else _pattern(value_match, "--value-match")
    return filters.filters_of(key, value, [_named("--header", filters.header_of, text) for text in headers])


def _pattern(text: str, flag: str) -> re.Pattern[bytes]:
    return _named(flag, filters.pattern_of, text)


def _named(flag: str, parse: Callable[[str], T], text: str) -> T:
    """What a flag says; if it makes no sense, which flag it was."""
    try:
        return parse(text)
    except ConfigError as error:
        raise WrongUsageError(f"{flag}: {error}") from error
