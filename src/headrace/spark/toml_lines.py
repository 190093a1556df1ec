"""Where in a TOML file a key stands: the standard library's parser does not say.

A statement (a table's head, or a key with its value) begins on a line of its own and ends where the parser is content
with it: so each is found by parsing, and its path is what came out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

Path = tuple[str | int, ...]

_CLOSERS = ('"""', "'''", "]", "}")


class TomlLines:
    """Lines by path, for a text that is known to be TOML: `("steps", 1, "sql")` → 17."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}  # of arrays of tables, so far
        self._read(text.split("\n"))

    def line_of(self, path: Path) -> int | None:
        """The line of a key; if it has none of its own (an inline table's), that of what it is in."""
        for length in range(len(path), 0, -1):
            if (line := self._lines.get(path[:length])) is not None:
                return line
        return None

    def _read(self, lines: list[str]) -> None:
        table: Path = ()
        number = 0
        while number < len(lines):
            head = lines[number].strip()
            if not head or head.startswith("#"):
                number += 1
                continue
            found, end = _statement(lines, number)
            if head.startswith("["):
                table = self._table(_only_path(found), is_array=head.startswith("[["))
                self._note(table, number + 1)
            else:
                path = _only_path(found)
                for length in range(1, len(path) + 1):  # a.b = 1 makes the table a as well
                    self._note(table + path[:length], number + 1)
            number = end

    def _table(self, names: Path, is_array: bool) -> Path:
        """A table's path with the indexes of the arrays on the way: `[[steps]]` the second time is ("steps", 1)."""
        path: Path = ()
        for position, name in enumerate(names):
            path += (name,)
            if is_array and position == len(names) - 1:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path += (self._counts[path] - 1,)
        return path

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)


def _statement(lines: list[str], begin: int) -> tuple[Mapping[str, Any], int]:
    """What the statement that begins on a line parses to, and the line after it."""
    for end in range(begin + 1, len(lines) + 1):
        if end > begin + 1 and not any(closer in lines[end - 1] for closer in _CLOSERS):
            continue  # parsing a long text anew for each of its lines would take its square
        try:
            return tomllib.loads("\n".join(lines[begin:end])), end
        except tomllib.TOMLDecodeError:
            continue
    raise ValueError(f"line {begin + 1} begins no statement")


def _only_path(found: Any) -> Path:
    """The names on the way down a mapping that has one entry on each level; not into the value."""
    path: Path = ()
    while isinstance(found, dict) and len(found) == 1:
        name, found = next(iter(found.items()))
        path += (name,)
        if isinstance(found, list):
            break
    return path
