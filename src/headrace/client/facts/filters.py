"""Which records somebody wants to see: patterns for key and value, headers by name and value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.errors import ConfigError
from headrace.wire.layout import Header


class Filterable(Protocol):
    """A record, however it was read."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[Header]: ...


Matches = Callable[[Filterable], bool]


def filters_of(
    key: re.Pattern[bytes] | None, value: re.Pattern[bytes] | None, headers: Sequence[tuple[str, bytes | None]]
) -> list[Matches]:
    """All of them have to hold. None: everything matches. A header without a value matches by its name."""
    found: list[Matches] = []
    if key is not None:
        found.append(lambda record: record.key is not None and key.search(record.key) is not None)
    if value is not None:
        found.append(lambda record: record.value is not None and value.search(record.value) is not None)
    return [*found, *(_header(name, wanted) for name, wanted in headers)]


def pattern_of(text: str, *, is_regex: bool = True) -> re.Pattern[bytes]:
    """On bytes: what is no text can be looked for too."""
    if not is_regex:
        text = re.escape(text)
    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}") from error


def header_of(text: str) -> tuple[str, bytes | None]:
    """What NAME or NAME=VALUE asks for."""
    name, equals, wanted = text.partition("=")
    if not name:
        raise ConfigError(f"a header is asked for as NAME or NAME=VALUE, not {text!r}")
    return name, wanted.encode(errors="surrogateescape") if equals else None


def _header(name: str, value: bytes | None) -> Matches:
    if value is not None:
        return lambda record: any(header == (name, value) for header in record.headers)
    return lambda record: any(header[0] == name for header in record.headers)
