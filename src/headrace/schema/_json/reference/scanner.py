"""A scanner of JSON text (RFC 8259): tokens and values of any shape, at a position that moves.

After an error the position is that of the token that is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from headrace.schema._json.layout import NUMBER_CHARS_MAX, SKIP_DEPTH_MAX, ErrorCode, Token
from headrace.schema._plan.reference import RowFailedError

_SPACE = re.compile(rb"[ \n\r\t]*")
_PLAIN = re.compile(rb'[^\x00-\x1f"\\]*')
_NUMBER = re.compile(rb"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_NUMBER_STARTS = re.compile(rb"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE][+-]?)?)?|[eE][+-]?)?)?\Z")
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|(.))", re.DOTALL)
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_EXPONENT_MAX = 100_000

_TOKENS = {
    **dict.fromkeys(b"-0123456789", Token.NUMBER),
    **dict.fromkeys(b"tf", Token.BOOLEAN),
    ord("{"): Token.OBJECT,
    ord("["): Token.ARRAY,
    ord('"'): Token.STRING,
    ord("n"): Token.NULL,
}


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written: digits * 10^exponent."""

    text: str
    is_negative: bool
    digits: int
    exponent: int

    def to_scale(self, scale: int) -> int | None:
        """Return the number times 10^scale; None if this is not an integer, or a huge one."""
        exponent = self.exponent + scale
        if self.digits == 0:
            return 0
        if exponent > NUMBER_CHARS_MAX or exponent < -NUMBER_CHARS_MAX:
            return None
        value = Fraction(self.digits) * Fraction(10) ** exponent
        if value.denominator != 1:
            return None
        return -value.numerator if self.is_negative else value.numerator


class Scanner:
    def __init__(self) -> None:
        self.value = b""
        self.at = 0

    def skip_space(self) -> None:
        match = _SPACE.match(self.value, self.at)
        assert match is not None
        self.at = match.end()

    def next_char(self) -> int:
        """Return the next character that is not white space, without reading it."""
        self.skip_space()
        if self.at == len(self.value):
            raise RowFailedError(ErrorCode.TRUNCATED)
        return self.value[self.at]

    def expect(self, char: bytes) -> None:
        if self.next_char() != char[0]:
            raise RowFailedError(ErrorCode.SYNTAX)
        self.at += 1

    def token(self) -> Token:
        token = _TOKENS.get(self.next_char())
        if token is None:
            raise RowFailedError(ErrorCode.SYNTAX)
        return token

    def literal(self, text: bytes) -> None:
        part = self.value[self.at : self.at + len(text)]
        if not text.startswith(part):
            raise RowFailedError(ErrorCode.SYNTAX)
        if len(part) < len(text):
            raise RowFailedError(ErrorCode.TRUNCATED)
        self.at += len(text)

    def boolean(self) -> bool:
        is_true = self.value[self.at] == ord("t")
        self.literal(b"true" if is_true else b"false")
        return is_true

    def string(self) -> bytes:
        """Read a string, and resolve its escapes."""
        position = self.at + 1
        while True:
            match = _PLAIN.match(self.value, position)
            assert match is not None
            position = match.end()
            rest = self.value[position : position + 2]
            if not rest or rest == b"\\":
                raise RowFailedError(ErrorCode.TRUNCATED)
            if rest[0] == ord('"'):
                break
            if rest[0] < 0x20:
                raise RowFailedError(ErrorCode.SYNTAX)
            position += 2
        raw = self.value[self.at + 1 : position]
        try:
            raw.decode()
        except UnicodeDecodeError:
            raise RowFailedError(ErrorCode.UTF8) from None
        text = _ESCAPE.sub(_unescape, raw) if b"\\" in raw else raw
        self.at = position + 1
        return text

    def number(self) -> Number:
        match = _NUMBER.match(self.value, self.at)
        if match is None or self._goes_on(match.end()):
            is_truncated = _NUMBER_STARTS.match(self.value, self.at) is not None
            raise RowFailedError(ErrorCode.TRUNCATED if is_truncated else ErrorCode.SYNTAX)
        if match.end() - self.at > NUMBER_CHARS_MAX:
            raise RowFailedError(ErrorCode.NUMBER)
        sign, whole, fraction, written = match.groups(b"")
        exponent = max(-_EXPONENT_MAX, min(_EXPONENT_MAX, int(written or b"0")))
        self.at = match.end()
        return Number(match[0].decode(), bool(sign), int(whole + fraction), exponent - len(fraction))

    def _goes_on(self, position: int) -> bool:
        """Return whether a number ends with a point or an exponent that has no digits."""
        text = self.value[self.at : position]
        rest = self.value[position : position + 1]
        return (rest == b"." and b"." not in text and b"e" not in text.lower()) or (
            rest in (b"e", b"E") and b"e" not in text.lower()
        )

    def skip_value(self) -> None:
        """Skip a value, and check its syntax."""
        open_objects: list[bool] = []
        while True:
            token = self.token()
            if token in (Token.OBJECT, Token.ARRAY):
                if len(open_objects) == SKIP_DEPTH_MAX:
                    raise RowFailedError(ErrorCode.DEPTH)
                self.at += 1
                is_object = token == Token.OBJECT
                if self.next_char() != (ord("}") if is_object else ord("]")):
                    open_objects.append(is_object)
                    if is_object:
                        self._skip_name()
                    continue
                self.at += 1
            elif token == Token.STRING:
                self.string()
            elif token == Token.NUMBER:
                self.number()
            elif token == Token.BOOLEAN:
                self.boolean()
            else:
                self.literal(b"null")
            while open_objects and self.next_char() != ord(","):
                if self.value[self.at] != (ord("}") if open_objects[-1] else ord("]")):
                    raise RowFailedError(ErrorCode.SYNTAX)
                self.at += 1
                open_objects.pop()
            if not open_objects:
                return
            self.at += 1
            if open_objects[-1]:
                self._skip_name()

    def _skip_name(self) -> None:
        self.name()
        self.expect(b":")

    def name(self) -> bytes:
        if self.next_char() != ord('"'):
            raise RowFailedError(ErrorCode.SYNTAX)
        return self.string()


def _unescape(match: re.Match[bytes]) -> bytes:
    high, low, char = match.groups()
    if char is not None:
        if char not in _ESCAPED:
            raise RowFailedError(ErrorCode.ESCAPE)
        return _ESCAPED[char]
    code = int(high, 16)
    if 0xD800 <= code < 0xE000:
        if code >= 0xDC00 or low is None:
            raise RowFailedError(ErrorCode.ESCAPE)
        return chr(0x10000 + ((code - 0xD800) << 10) + int(low, 16) - 0xDC00).encode()
    second = b"" if low is None else _ESCAPE.sub(_unescape, b"\\u" + low)
    return chr(code).encode() + second
