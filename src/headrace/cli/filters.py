"""Which records `headrace consume` prints: patterns for key and value, headers by name and value."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.cli.output import WrongUsageError
from headrace.wire.layout import Record

Matches = Callable[[Record], bool]


def filters_of(key_match: str | None, value_match: str | None, headers: tuple[str, ...]) -> list[Matches]:
    """All of them have to hold. None: everything matches."""
    found: list[Matches] = []
    if key_match is not None:
        key = _pattern(key_match, "--key-match")
        found.append(lambda record: record.key is not None and key.search(record.key) is not None)
    if value_match is not None:
        value = _pattern(value_match, "--value-match")
        found.append(lambda record: record.value is not None and value.search(record.value) is not None)
    return [*found, *map(_header, headers)]


def _pattern(text: str, flag: str) -> re.Pattern[bytes]:
    """On bytes: what is no text can be looked for too."""
    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        raise WrongUsageError(f"{flag}: {text!r} is no regular expression: {error}") from error


def _header(text: str) -> Matches:
    name, equals, wanted = text.partition("=")
    if not name:
        raise WrongUsageError(f"--header takes NAME or NAME=VALUE, not {text!r}")
    value = wanted.encode(errors="surrogateescape")
    if equals:
        return lambda record: any(header == (name, value) for header in record.headers)
    return lambda record: any(header[0] == name for header in record.headers)
