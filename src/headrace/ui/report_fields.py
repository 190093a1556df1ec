"""Reading a report: what comes over the network is a value of the right kind and size, or it is refused in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import HeadraceError

TEXT_CHARACTERS_MAX = 600
ITEMS_MAX = 200
NUMBER_MAX = 2.0**62


class ReportError(HeadraceError):
    """A report that makes no sense."""


class Fields:
    """An object of a report."""

    __slots__ = ("_found", "_where")

    def __init__(self, found: Any, where: str = "the report") -> None:
        if not isinstance(found, Mapping):
            raise ReportError(f"{where} is no object")
        self._found = found
        self._where = where

    def text(self, name: str, default: str | None = None) -> str:
        """Cut where it is too long."""
        value = self._found.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value[:TEXT_CHARACTERS_MAX]

    def number(self, name: str, default: float | None = None) -> float:
        value = self._found.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        if not math.isfinite(value) or abs(value) > NUMBER_MAX:
            raise self._wrong(name, "a number of this world")
        return float(value)

    def whole(self, name: str, default: int | None = None) -> int:
        return int(self.number(name, default))

    def flag(self, name: str) -> bool:
        value = self._found.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def has(self, name: str) -> bool:
        return self._found.get(name) is not None

    def inner(self, name: str) -> Fields:
        return Fields(self._found.get(name), f"{name!r} in {self._where}")

    def items(self, name: str) -> Iterator[Fields]:
        for item in self._list(name):
            yield Fields(item, f"an item of {name!r} in {self._where}")

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._list(name)
        if not all(isinstance(item, str) for item in found):
            raise self._wrong(name, "a list of texts")
        return tuple(item[:TEXT_CHARACTERS_MAX] for item in found)

    def _list(self, name: str) -> list[Any]:
        found = self._found.get(name, [])
        if not isinstance(found, list) or len(found) > ITEMS_MAX:
            raise self._wrong(name, f"a list of {ITEMS_MAX} items at most")
        return found

    def _wrong(self, name: str, wanted: str) -> ReportError:
        return ReportError(f"{name!r} in {self._where} is not {wanted}")
