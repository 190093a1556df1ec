"""What `headrace produce` sends: files or the standard input → records, a chunk at a time.

    bytes → lines → key and value       lines of text
    bytes → lines → record_json         --format json
    bytes → one record                  --format raw

No more is in memory than a chunk and the line that it cuts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.cli.output import CommandError, WrongUsageError
from headrace.cli.record_json import ParsedRecord

STDIN = "-"
CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 128 * 1024 * 1024
"""Far more than any broker takes; a file without line ends is not read into memory whole."""
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)


class BadInputError(CommandError):
    """A line that is no record."""


class Chunk(NamedTuple):
    """The records of some bytes of input."""

    records: list[ParsedRecord]
    size: int
    """Of the input that was read for them."""
    error: BadInputError | None = None
    """What comes after the records, if it makes no sense."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How a line of text becomes a record."""

    key_separator: bytes | None = None
    null_marker: bytes | None = None
    """A key or value that is just this is null."""

    def parse(self, line: bytes) -> ParsedRecord:
        key: bytes | None = None
        value: bytes | None = line
        if self.key_separator is not None:
            head, found, tail = line.partition(self.key_separator)
            if found:
                key, value = head, tail
        if self.null_marker is not None:
            key = None if key == self.null_marker else key
            value = None if value == self.null_marker else value
        return ParsedRecord(key, value, (), None, None)


class Input:
    """Files, one after another; `-` is the standard input."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names or (STDIN,)
        if self._names.count(STDIN) > 1:
            raise WrongUsageError("the standard input (-) is named twice, and can be read once")
        for name in self._names:
            if name != STDIN and Path(name).is_dir():
                raise WrongUsageError(f"{name} is a folder; name the files in it")
            if name != STDIN and not Path(name).exists():
                raise WrongUsageError(f"there is no file {name}; {STDIN} is the standard input")

    @property
    def size(self) -> int | None:
        """Bytes of it all, if that is known beforehand."""
        total = 0
        for name in self._names:
            fd = sys.stdin.fileno() if name == STDIN else None
            facts = os.stat(name) if fd is None else os.fstat(fd)
            if not os.path.isfile(name if fd is None else f"/dev/fd/{fd}"):
                return None
            total += facts.st_size
        return total

    @property
    def is_typed(self) -> bool:
        """Whether somebody types it in."""
        return STDIN in self._names and sys.stdin.isatty()

    def lines(self, parse: Callable[[bytes], ParsedRecord]) -> Iterator[Chunk]:
        """Records of lines. The last line needs no line end."""
        for name in self._names:
            with ExitStack() as opened:
                yield from _of_lines(_label(name), _open(name, opened), parse)

    def whole(self, bytes_max: int) -> Iterator[Chunk]:
        """A record for each file."""
        for name in self._names:
            with ExitStack() as opened:
                yield _of_file(_label(name), _open(name, opened), bytes_max)


def _open(name: str, opened: ExitStack) -> Callable[[int], bytes]:
    """Reads what there is, without waiting for more: what is typed is sent line by line."""
    if name == STDIN:
        fd = sys.stdin.fileno()
    else:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
    return lambda size: os.read(fd, size)


def _label(name: str) -> str:
    return "standard input" if name == STDIN else name


def _of_lines(label: str, read: Callable[[int], bytes], parse: Callable[[bytes], ParsedRecord]) -> Iterator[Chunk]:
    number = 0
    kept: list[bytes] = []  # of a line that is not whole yet
    kept_bytes = 0
    while data := read(CHUNK_BYTES):
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*kept, whole[0]])
            kept, kept_bytes = [], 0
        records, error = _parsed(label, number, whole, parse)
        number += len(whole)
        yield Chunk(records, len(data), error)
        kept.append(rest)
        kept_bytes += len(rest)
        if kept_bytes > LINE_BYTES_MAX:
            raise BadInputError(
                f"{label}, line {number + 1}: no end after {kept_bytes:,} bytes; does it have lines? --format raw "
                f"sends a file as one record"
            )
    if last := b"".join(kept):
        records, error = _parsed(label, number, [last], parse)
        yield Chunk(records, 0, error)


def _parsed(
    label: str, before: int, lines: list[bytes], parse: Callable[[bytes], ParsedRecord]
) -> tuple[list[ParsedRecord], BadInputError | None]:
    records: list[ParsedRecord] = []
    for line in lines:
        try:
            records.append(parse(line))
        except ValueError as error:
            return records, BadInputError(f"{label}, line {before + len(records) + 1}: {error}")
    return records, None


def _of_file(label: str, read: Callable[[int], bytes], bytes_max: int) -> Chunk:
    parts: list[bytes] = []
    size = 0
    while data := read(CHUNK_BYTES):
        parts.append(data)
        size += len(data)
        if size > bytes_max:
            raise BadInputError(
                f"{label} has more than {bytes_max:,} bytes, the most that a record may have: raise it by "
                f"-X max.request.size=…, and max.message.bytes of the topic"
            )
    return Chunk([ParsedRecord(None, b"".join(parts), (), None, None)], size)


def unescaped(text: str, flag: str) -> bytes:
    r"""A text with \t, \n, \r, \0, \\ and \xNN in it, as bytes."""

    def replaced(found: re.Match[str]) -> str:
        code, letter = found[1], found[2]
        if code is not None:
            return bytes([int(code, 16)]).decode("latin-1")
        if letter not in _ESCAPES:
            raise WrongUsageError(rf"{flag}: \{letter} means nothing; there are \t, \n, \r, \0, \\ and \xNN")
        return _ESCAPES[letter].decode()

    # By way of latin-1, so that \xff is the byte and not the letter.
    return _ESCAPE.sub(replaced, text.encode(errors="surrogateescape").decode("latin-1")).encode("latin-1")
