"""Options and parsers of option values that several commands share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli import LazyModule
from headrace.cli.errors import InvalidUsageError
from headrace.client import text_formats
from headrace.client.addresses import PORT_MAX
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient
    from headrace.client.queries import topics as topic_queries
    from headrace.types import TopicPartition
else:
    topic_queries = LazyModule("headrace.client.queries.topics")

UI_LISTEN_DEFAULT = "127.0.0.1:9080"
_LOOPBACK_HOSTS = ("localhost", "::1")
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)

T = TypeVar("T")

ui_option = click.option(
    "--ui",
    "ui_listen",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value=UI_LISTEN_DEFAULT,
    help=f"Also start the live view (see `headrace ui`). [default address: {UI_LISTEN_DEFAULT}]",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, yes: bool) -> bool:
    """Return whether to proceed: --yes was given, or the user at the terminal says so."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidUsageError(f"confirmation required: stdin is not a terminal; pass --yes ({question})")
    return click.confirm(question, err=True)


def parse_flag(flag: str, parse: Callable[[str], T], text: str) -> T:
    """Parse the value of a flag; an error names the flag."""
    try:
        return parse(text)
    except ConfigError as error:
        raise InvalidUsageError(f"{flag}: {error}") from error


def parse_time_ms(text: str, flag: str) -> int:
    return parse_flag(flag, text_formats.parse_time_ms, text)


def parse_duration_ms(text: str, flag: str) -> int:
    return parse_flag(flag, text_formats.parse_duration_ms, text)


def parse_key_value(text: str, flag: str) -> tuple[str, str]:
    """Split the key=value argument of a flag such as -X."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidUsageError(f"invalid {flag}: expected KEY=VALUE, got {text!r}")
    return key.strip(), value.strip()


def parse_listen(text: str, flag: str = "--listen") -> tuple[str, int]:
    """Parse HOST:PORT; the host of an IPv6 address is returned without brackets, and may be empty."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise InvalidUsageError(f"invalid {flag}: expected HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in _LOOPBACK_HOSTS


def parse_topic_partitions(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions that --topic names, as TOPIC or TOPIC:0,2; a topic named twice gets the union."""
    selected: dict[str, set[int] | None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        before = selected.get(topic, set())
        selected[topic] = before | _partition_numbers(topic, numbers) if colon and before is not None else None
    return topic_queries.chosen_partitions(admin, selected)


def _partition_numbers(topic: str, text: str) -> set[int]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise InvalidUsageError(f"invalid --topic: expected TOPIC or TOPIC:0,2, got '{topic}:{text}'")
    return {int(number) for number in numbers}


def unescape(text: str, flag: str) -> bytes:
    r"""Return a text as bytes, with \t, \n, \r, \0, \\ and \xNN replaced."""

    def replacement(match: re.Match[str]) -> str:
        code, letter = match[1], match[2]
        if code is not None:
            return bytes([int(code, 16)]).decode("latin-1")
        if letter not in _ESCAPES:
            raise InvalidUsageError(rf"{flag}: unknown escape \{letter}; supported: \t, \n, \r, \0, \\ and \xNN")
        return _ESCAPES[letter].decode()

    # Via latin-1, so that \xff is a byte and not a character.
    return _ESCAPE.sub(replacement, text.encode(errors="surrogateescape").decode("latin-1")).encode("latin-1")
