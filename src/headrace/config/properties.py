"""Java's text formats of options: `.properties` files, and JAAS entries (sasl.jaas.config)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headrace.errors import ConfigError

_BLANKS = " \t\f"
_NEWLINE = re.compile(r"\r\n|\n|\r")  # splitlines() would also split at \f
_ESCAPE = re.compile(r"\\(u(?P<code>.{0,4})|(?P<plain>.)|$)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A key ends at the first separator that is not escaped: blanks, with at most one `=` or `:`.
_ENTRY = re.compile(r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)

_JAAS_ENTRY = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL | re.I)
_JAAS_OPTION = re.compile(r'\s+([^\s="]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.DOTALL)


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the entries of a file; the last one of equal keys."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the options in {os.fspath(path)}: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # Java writes Latin-1
        text = data.decode("latin-1")
    try:
        return parse_properties(text)
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


def parse_properties(text: str) -> dict[str, str]:
    """Return the entries of a text; raises ValueError for an invalid escape."""
    entries: dict[str, str] = {}
    for line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None, line  # every part of it may be empty
        entries[_unescape(entry["key"])] = _unescape(entry["value"])
    return entries


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments and blank ones; a backslash at the end joins two lines."""
    lines: list[str] = []
    joined = ""
    for natural in _NEWLINE.split(text):
        line = natural.lstrip(_BLANKS)
        if not joined and line[:1] in ("", "#", "!"):
            continue
        joined += line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined = joined[:-1]
        else:
            lines.append(joined)
            joined = ""
    return [*lines, joined] if joined else lines


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    # Java writes characters beyond 16 bits as two escapes (a surrogate pair).
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _character(escape: re.Match[str]) -> str:
    code = escape["code"]
    if code is None:
        plain = escape["plain"] or ""
        return _ESCAPED.get(plain, plain)
    if not re.fullmatch(r"[0-9A-Fa-f]{4}", code):
        raise ValueError(f"\\u must be followed by four hexadecimal digits, got {code!r}")
    return chr(int(code, 16))


def jaas_options(text: str) -> dict[str, str]:
    """Return the options of a JAAS entry: `<login module> required username="u" password="p";`."""
    entry = _JAAS_ENTRY.fullmatch(text)
    rest = entry[1] if entry else text
    options: dict[str, str] = {}
    while entry is None or rest.strip():
        option = _JAAS_OPTION.match(rest) if entry else None
        if option is None:
            # The text contains secrets: the message must not quote it.
            raise ConfigError('invalid sasl.jaas.config: expected `<login module> required name="value" …;`')
        name, quoted, bare = option.groups()
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        rest = rest[option.end() :]
    return options
