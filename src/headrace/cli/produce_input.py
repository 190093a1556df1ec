"""The input of `headrace produce`: files or stdin, parsed to records in chunks.

    bytes → lines → key and value       --format lines
    bytes → lines → record_json         --format json
    bytes → one record                  --format raw

At most one chunk and one incomplete line are in memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.cli.errors import CommandError, InvalidUsageError
from headrace.cli.record_json import ParsedRecord

STDIN = "-"
CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 128 * 1024 * 1024
"""Far more than any broker accepts; keeps a file without line ends from being read into memory."""


class InvalidInputError(CommandError):
    """Input that is not a valid record."""


class Chunk(NamedTuple):
    """The records of a part of the input."""

    records: list[ParsedRecord]
    size: int
    """Bytes of input."""
    error: InvalidInputError | None = None
    """The error in the input after the records."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line of text is parsed to a record."""

    key_separator: bytes | None = None
    null_marker: bytes | None = None
    """A key or value equal to this is null."""

    def parse(self, line: bytes) -> ParsedRecord:
        key: bytes | None = None
        value: bytes | None = line
        if self.key_separator is not None:
            head, separator, tail = line.partition(self.key_separator)
            if separator:
                key, value = head, tail
        if self.null_marker is not None:
            key = None if key == self.null_marker else key
            value = None if value == self.null_marker else value
        return ParsedRecord(key, value, (), None, None)


class Input:
    """Files that are read in order; `-` is stdin."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names or (STDIN,)
        if self._names.count(STDIN) > 1:
            raise InvalidUsageError("stdin (-) is given twice, but can be read only once")
        for name in self._names:
            if name != STDIN and Path(name).is_dir():
                raise InvalidUsageError(f"{name} is a directory; pass the files in it")
            if name != STDIN and not Path(name).exists():
                raise InvalidUsageError(f"file {name} does not exist; use {STDIN} for stdin")

    @property
    def size(self) -> int | None:
        """The total number of bytes, or None if it is not known in advance."""
        total = 0
        for name in self._names:
            fd = sys.stdin.fileno() if name == STDIN else None
            status = os.stat(name) if fd is None else os.fstat(fd)
            if not os.path.isfile(name if fd is None else f"/dev/fd/{fd}"):
                return None
            total += status.st_size
        return total

    @property
    def is_interactive(self) -> bool:
        """Whether the input is typed at a terminal."""
        return STDIN in self._names and sys.stdin.isatty()

    def lines(self, parse: Callable[[bytes], ParsedRecord]) -> Iterator[Chunk]:
        """Yield a record for each line; the last one may lack a line end."""
        for name in self._names:
            with ExitStack() as opened:
                yield from _read_lines(_label(name), _open(name, opened), parse)

    def whole(self, bytes_max: int) -> Iterator[Chunk]:
        """Yield a record for each file."""
        for name in self._names:
            with ExitStack() as opened:
                yield _read_whole(_label(name), _open(name, opened), bytes_max)


def _open(name: str, opened: ExitStack) -> Callable[[int], bytes]:
    """Return a function that reads available bytes without waiting for a full buffer: typed lines are sent at once."""
    if name == STDIN:
        fd = sys.stdin.fileno()
    else:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
    return lambda size: os.read(fd, size)


def _label(name: str) -> str:
    return "stdin" if name == STDIN else name


def _read_lines(label: str, read: Callable[[int], bytes], parse: Callable[[bytes], ParsedRecord]) -> Iterator[Chunk]:
    number = 0
    incomplete: list[bytes] = []  # parts of the last line
    incomplete_bytes = 0
    while data := read(CHUNK_BYTES):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*incomplete, lines[0]])
            incomplete, incomplete_bytes = [], 0
        records, error = _parse_lines(label, number, lines, parse)
        number += len(lines)
        yield Chunk(records, len(data), error)
        incomplete.append(rest)
        incomplete_bytes += len(rest)
        if incomplete_bytes > LINE_BYTES_MAX:
            raise InvalidInputError(
                f"{label}, line {number + 1}: no line end in {incomplete_bytes:,} bytes; --format raw sends a file as "
                "one record"
            )
    if last := b"".join(incomplete):
        records, error = _parse_lines(label, number, [last], parse)
        yield Chunk(records, 0, error)


def _parse_lines(
    label: str, before: int, lines: list[bytes], parse: Callable[[bytes], ParsedRecord]
) -> tuple[list[ParsedRecord], InvalidInputError | None]:
    records: list[ParsedRecord] = []
    for line in lines:
        try:
            records.append(parse(line))
        except ValueError as error:
            return records, InvalidInputError(f"{label}, line {before + len(records) + 1}: {error}")
    return records, None


def _read_whole(label: str, read: Callable[[int], bytes], bytes_max: int) -> Chunk:
    parts: list[bytes] = []
    size = 0
    while data := read(CHUNK_BYTES):
        parts.append(data)
        size += len(data)
        if size > bytes_max:
            raise InvalidInputError(
                f"{label} is larger than {bytes_max:,} bytes (max.request.size): raise it with -X max.request.size=…, "
                "and max.message.bytes of the topic"
            )
    return Chunk([ParsedRecord(None, b"".join(parts), (), None, None)], size)
