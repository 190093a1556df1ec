"""Tokens, literals and options of .proto texts."""

from __future__ import annotations

import math
import re
import struct
from typing import NamedTuple

from headrace.errors import SchemaError
from headrace.schema.protobuf_schema import DEPTH_MAX, Option

_TOKEN = re.compile(
    r"""
      (?P<skip> [\s\ufeff]+ | //[^\n]* | /\*.*?\*/ )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<number> 0[xX][0-9A-Fa-f]+ | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]? )
    | (?P<string> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<symbol> [{}\[\]()<>;:,.=+\-/] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    rb"\\(?:([abfnrtv\\'\"?])|([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))"
)
_ESCAPES = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))
INTEGER = re.compile(r"0[xX][0-9A-Fa-f]+|0[0-7]*|[1-9][0-9]*")
_DIGITS_MAX = 400  # of a number: a double has at most 309 before its point
_BLOCK_PAIRS = {"{": "}", "<": ">", "[": "]"}


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def unescape(literal: str) -> bytes:
    """Return the bytes of a string literal without its quotes."""

    def replacement(match: re.Match[bytes]) -> bytes:
        plain, octal, hexadecimal, short, long = match.groups()
        if plain:
            return bytes([_ESCAPES[plain[0]]])
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        return chr(min(int(short or long, 16), 0x10FFFF)).encode(errors="replace")

    return _ESCAPE.sub(replacement, literal.encode(errors="replace"))


def escape(data: bytes) -> str:
    """Return bytes as the content of a string literal, in ASCII: that of a default of a bytes field."""
    names = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(names.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data)


def quoted(text: str) -> str:
    """Return a text as a string literal, with characters other than ASCII as they are."""
    escaped = (escape(char.encode()) if ord(char) < 128 and char != "'" else char for char in text)
    return f'"{"".join(escaped)}"'


class TokenReader:
    """Reads a text token by token, names, numbers, strings and options."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._next_position = 0
        self.token = self._read()

    # -- tokens

    def _read(self) -> _Token:
        while self._next_position < len(self._text):
            position = self._next_position
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self.error(f"unexpected {self._text[position : position + 10]!r}", position)
            self._next_position = match.end()
            if match.lastgroup != "skip":
                return _Token(match.lastgroup or "", match.group(), position)
        return _Token("end", "the end of the text", len(self._text))

    def take(self) -> _Token:
        token = self.token
        self.token = self._read()
        return token

    def accept(self, text: str) -> bool:
        if self.token.text != text or self.token.kind in ("string", "end"):
            return False
        self.take()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.unexpected(repr(text))

    def unexpected(self, expected: str) -> SchemaError:
        return self.error(f"expected {expected}, got {self.token.text[:40]!r}", self.token.position)

    def error(self, problem: str, position: int | None = None) -> SchemaError:
        position = self.token.position if position is None else position
        line = self._text.count("\n", 0, position) + 1
        column = position - (self._text.rfind("\n", 0, position) + 1) + 1
        where = f"{self._name} line" if self._name else "line"
        return SchemaError(f"invalid Protobuf schema, {where} {line}, column {column}: {problem}")

    def identifier(self, what: str = "a name") -> str:
        if self.token.kind != "name":
            raise self.unexpected(what)
        return self.take().text

    def type_name(self) -> str:
        name = "." if self.accept(".") else ""
        name += self.identifier("a type")
        while self.accept("."):
            name += f".{self.identifier()}"
        return name

    def integer(self, allowed: range, what: str) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.token
        if token.kind != "number" or not INTEGER.fullmatch(token.text) or len(token.text) > _DIGITS_MAX:
            raise self.unexpected(what)
        self.take()
        number = sign * integer_of(token.text)
        if number not in allowed:
            raise self.error(f"{what} is {number}; expected {allowed.start} to {allowed.stop - 1}", token.position)
        return number

    def string(self) -> str:
        if self.token.kind != "string":
            raise self.unexpected("a string")
        return self._literals().decode(errors="replace")

    def _literals(self) -> bytes:
        """Return the bytes of string literals, which are joined if several follow each other."""
        parts = []
        while self.token.kind == "string":
            parts.append(unescape(self.take().text[1:-1]))
        return b"".join(parts)

    # -- options

    def options(self) -> list[Option]:
        options: list[Option] = []
        if self.accept("["):
            options.append(self.option())
            while self.accept(","):
                options.append(self.option())
            self.expect("]")
        return options

    def option(self) -> Option:
        """Read the name of an option, as in `a.(b.c).d`, and its value as text."""
        parts = [self._option_name_part()]
        while self.accept("."):
            parts.append(self._option_name_part())
        self.expect("=")
        return Option(".".join(parts), self._option_value())

    def _option_name_part(self) -> str:
        if self.accept("("):
            name = f"({self.type_name().removeprefix('.')})"
            self.expect(")")
            return name
        return self.identifier("the name of an option")

    def _option_value(self) -> str:
        if self.token.kind == "string":
            return _literal(self._literals())
        if self.token.text == "{":
            return self._aggregate()
        sign = "-" if self.accept("-") else ""
        if self.token.kind not in ("name", "number") or len(self.token.text) > _DIGITS_MAX:
            raise self.unexpected("a value")
        return sign + self.take().text

    def _aggregate(self) -> str:
        """Return a message in text format, as it is written apart from white space."""
        words: list[str] = []
        pending: list[str] = []
        while True:
            token = self.take()
            if token.kind == "end" or len(pending) > DEPTH_MAX:
                raise self.error("the value of an option does not end, or is nested too deep", token.position)
            words.append(_literal(unescape(token.text[1:-1])) if token.kind == "string" else token.text)
            if token.kind == "symbol":
                if token.text in _BLOCK_PAIRS:
                    pending.append(_BLOCK_PAIRS[token.text])
                elif pending and token.text == pending[-1]:
                    pending.pop()
            if not pending:
                return " ".join(words)


def _literal(data: bytes) -> str:
    try:
        return quoted(data.decode())
    except UnicodeDecodeError:
        return f'"{escape(data)}"'


def integer_of(text: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    return int(text, 8) if text[0] == "0" else int(text)


def float_of(text: str) -> float:
    if INTEGER.fullmatch(text.removeprefix("-")):
        return float(integer_of(text.removeprefix("-"))) * (-1 if text[0] == "-" else 1)
    return float(text if text.endswith("inf") else text.rstrip("fF"))


def float_text(value: float, kind: str) -> str:
    """Return a float or double as C++ prints it with as many digits as needed."""
    if value != value:
        return "nan"
    digits, more_digits = (15, 17) if kind == "double" else (6, 9)
    narrow = _as_double if kind == "double" else _as_float
    short = f"{narrow(value):.{digits}g}"
    return short if narrow(float(short)) == narrow(value) else f"{narrow(value):.{more_digits}g}"


def _as_double(value: float) -> float:
    return value


def _as_float(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
