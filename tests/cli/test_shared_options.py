"""Parsers of option values that several commands share, and tables."""

from __future__ import annotations

import pytest

from headrace.cli.errors import InvalidUsageError
from headrace.cli.output import render_table
from headrace.cli.shared_options import is_loopback, parse_key_value, parse_listen, unescape
from tests.support.cli_runner import refused


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:9092", ("localhost", 9092)),
        ("[::1]:65535", ("::1", 65535)),
        (":9092", ("", 9092)),
    ],
)
def test_a_listen_address_is_parsed(text, address):
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["localhost", "9092", "localhost:", "localhost:http", "localhost:65536", "a:-1"])
def test_an_invalid_listen_address_is_refused_by_broker_and_ui(text):
    message = f"invalid --listen: expected HOST:PORT, got {text!r}"
    with pytest.raises(InvalidUsageError) as raised:
        parse_listen(text)
    assert raised.value.message == message
    for command in (("broker", "start"), ("ui",)):
        assert message in refused(2, *command, "--listen", text)


def test_loopback_hosts():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost", "::1")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "localhost.example", "10.0.0.1")))


def test_a_key_may_have_an_empty_value_but_not_an_empty_name():
    assert parse_key_value(" a.b = c=d ", "-X") == ("a.b", "c=d")
    assert parse_key_value("a=", "-X") == ("a", "")
    for text in ("a", "=b", " =b"):
        with pytest.raises(InvalidUsageError, match="invalid -X: expected KEY=VALUE"):
            parse_key_value(text, "-X")


def test_escapes():
    assert unescape(r"\t\n\r\0\\ä\xff", "-K") == b"\t\n\r\0\\" + "ä".encode() + b"\xff"


def test_a_plain_table_aligns_numbers_and_is_never_folded():
    long = "x" * 300
    assert render_table(("name", "count"), [("a", 1234), ("[b]", None), (long, 5)]).splitlines() == [
        f"{'NAME':<300}  COUNT",
        f"{'a':<300}  1,234",
        f"{'[b]':<300}      -",
        f"{long}      5",
    ]
    assert render_table(("name", "count"), []) == "NAME  COUNT"
