"""Listeners: bound and advertised addresses; the partition of a coordinator key."""

from __future__ import annotations

import pytest

from headrace.broker.broker_options import resolve
from headrace.broker.server.listener import listeners_of
from headrace.errors import ConfigError
from headrace.wire.internal_topics import coordinator_partition, java_string_hash


def listeners(**options: str):
    return listeners_of(resolve(("argument", {name.replace("_", "."): value for name, value in options.items()})))


def test_by_default_only_localhost_is_bound():
    (listener,) = listeners()
    assert (listener.name, listener.host, listener.port, listener.address) == (
        "PLAINTEXT",
        "127.0.0.1",
        9092,
        "127.0.0.1:9092",
    )
    assert not listener.uses_tls
    assert not listener.uses_sasl


def test_listeners_have_names_protocols_and_addresses():
    result = listeners(
        listeners="INSIDE://127.0.0.1:9092,outside://:9093,SSL://[::1]:0,CONTROLLER://:9099",
        advertised_listeners="OUTSIDE://kafka.example:19093",
        listener_security_protocol_map="INSIDE:PLAINTEXT, outside:sasl_ssl, SSL:SSL",
        controller_listener_names="CONTROLLER",
    )
    assert [(item.name, item.host, item.port, item.security_protocol) for item in result] == [
        ("INSIDE", "127.0.0.1", 9092, "PLAINTEXT"),
        ("OUTSIDE", "", 9093, "SASL_SSL"),
        ("SSL", "::1", 0, "SSL"),
    ]
    assert [item.address for item in result] == ["127.0.0.1:9092", "kafka.example:19093", "[::1]:0"]
    assert [(item.uses_tls, item.uses_sasl) for item in result] == [(False, False), (True, True), (True, False)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listeners": "127.0.0.1:9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:99999"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "duplicate listener PLAINTEXT"),
        ({"listeners": "MINE://a:1"}, "listener.security.protocol.map"),
        ({"listener_security_protocol_map": "PLAINTEXT:KERBEROS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"advertised_listeners": "SSL://a:1"}, "listener SSL is not in listeners"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"}, "cannot connect to '0.0.0.0'"),
        ({"listeners": "CONTROLLER://:1", "controller_listener_names": "CONTROLLER"}, "no listener"),
    ],
)
def test_invalid_listeners_are_rejected(options, said):
    with pytest.raises(ConfigError, match=said):
        listeners(**options)


def test_the_hash_of_a_text_is_javas():
    # From a JShell: "".hashCode(), "a".hashCode(), and so on.
    assert java_string_hash("") == 0
    assert java_string_hash("a") == 97
    assert java_string_hash("hello world") == 1794106052
    assert java_string_hash("polygenelubricants") == -(2**31)
    assert java_string_hash("😀") == 1772899  # two units of UTF-16
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert java_string_hash("my-group") == -1906497762
    assert coordinator_partition("my-group", 50) == 12  # as in Kafka
