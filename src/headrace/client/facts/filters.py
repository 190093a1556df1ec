"""Record filters: patterns for key and value, headers by name and value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.errors import ConfigError
from headrace.wire.layout import Header


class Filterable(Protocol):
    """A record with key, value and headers."""

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
    """Return filters that must all match. A header without a value matches by its name."""
    filters: list[Matches] = []
    if key is not None:
        filters.append(lambda record: record.key is not None and key.search(record.key) is not None)
    if value is not None:
        filters.append(lambda record: record.value is not None and value.search(record.value) is not None)
    return [*filters, *(_header(name, value) for name, value in headers)]


def pattern_of(text: str, *, is_regex: bool = True) -> re.Pattern[bytes]:
    """Return a pattern for bytes, so that binary data can be searched, too."""
    if not is_regex:
        text = re.escape(text)
    try:
        return re.compile(text.encode(errors="surrogateescape"))
    except re.error as error:
        raise ConfigError(f"invalid regular expression {text!r}: {error}") from error


def header_of(text: str) -> tuple[str, bytes | None]:
    """Parse NAME or NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name:
        raise ConfigError(f"invalid header: expected NAME or NAME=VALUE, got {text!r}")
    return name, value.encode(errors="surrogateescape") if equals else None


def _header(name: str, value: bytes | None) -> Matches:
    if value is not None:
        return lambda record: any(header == (name, value) for header in record.headers)
    return lambda record: any(header[0] == name for header in record.headers)
