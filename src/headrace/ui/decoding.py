"""Keys, values and headers as people can read them: text, JSON or hex; and back, for the form that sends one."""

from __future__ import annotations

import json
from enum import Enum

from headrace.errors import ConfigError

PREVIEW_CHARS_MAX = 160
SHOWN_BYTES_MAX = 256 * 1024
"""Of one value, in full: more would only make the browser slow."""
HEX_ROW_BYTES = 16
NULL = "null"


class Form(Enum):
    """How to show bytes."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def preview(data: bytes | None, form: Form) -> str:
    """A line of it."""
    if data is None:
        return NULL
    cut = data[: PREVIEW_CHARS_MAX * 4]
    text = _text(cut, is_cut=len(cut) < len(data))
    if form is Form.HEX or (form is not Form.TEXT and text is None):
        shown = data[: PREVIEW_CHARS_MAX // 3].hex(" ")
        return shown + (" …" if len(data) * 3 > PREVIEW_CHARS_MAX else "")
    line = " ".join((text if text is not None else cut.decode(errors="replace")).split("\n"))
    is_short = len(line) <= PREVIEW_CHARS_MAX and len(cut) == len(data)
    return line if is_short else f"{line[:PREVIEW_CHARS_MAX]} …"


def whole(data: bytes | None, form: Form) -> str:
    """All of it, in lines; what is too long is cut, and says so."""
    if data is None:
        return NULL
    cut = data[:SHOWN_BYTES_MAX]
    left = len(data) - len(cut)
    more = f"\n… and {left:,} bytes more; `headrace consume` prints all of them" if left else ""
    text = _text(cut, is_cut=bool(left))
    if form is Form.HEX or (form is Form.AUTO and text is None):
        return hex_dump(cut) + more
    shown = text if text is not None else cut.decode(errors="replace")
    if form is Form.TEXT or left:
        return shown + more
    try:
        parsed = json.loads(cut)
    except ValueError as error:
        return f"(this is no JSON: {error})\n{shown}" if form is Form.JSON else shown
    if form is Form.AUTO and not isinstance(parsed, dict | list):
        return shown
    return json.dumps(parsed, indent=2, ensure_ascii=False)


def hex_dump(data: bytes) -> str:
    """Offset, bytes, and what of them is text."""
    lines = []
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        seen = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{HEX_ROW_BYTES * 3}} {seen}")
    return "\n".join(lines)


def encoded(text: str, form: Form, what: str) -> bytes:
    """What somebody typed, as bytes. JSON is checked, and sent as it was typed."""
    if form is Form.HEX:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise ConfigError(f"the {what} is no hex: {error}; write it as 0a ff 10") from error
    if form is Form.JSON:
        try:
            json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the {what} is no JSON: {error}") from error
    return text.encode()


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """As text, if it is some: UTF-8, and nothing that is not to be seen. A character may be cut in two at the end."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 4:
            return None
        text = data[: error.start].decode()
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None
