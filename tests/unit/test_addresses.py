"""bootstrap.servers and DNS."""

from __future__ import annotations

import socket

import pytest

from headrace.client.addresses import (
    RESOLVE_CANONICAL,
    Address,
    Endpoint,
    bootstrap_endpoints,
    parse,
    resolve,
)
from headrace.errors import ConfigError

V4, V6 = socket.AF_INET, socket.AF_INET6
DNS = {
    "alias": [(V4, "10.0.0.1"), (V4, "10.0.0.2"), (V6, "fd00::1")],
    "one": [(V4, "10.0.0.1"), (V4, "10.0.0.1")],
    "empty": [],
}
NAMES = {"10.0.0.1": "b1.example", "10.0.0.2": "b2.example"}


def getaddrinfo(host, port, type):
    if host not in DNS:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(family, type, 6, "", (ip, port) if family == V4 else (ip, port, 0, 0)) for family, ip in DNS[host]]


def getnameinfo(sockaddr, flags):
    if sockaddr[0] not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "no name")
    return NAMES[sockaddr[0]], str(sockaddr[1])


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        (" a:1 , b.c-d_e.f:65535 ,", [("a", 1), ("b.c-d_e.f", 65535)]),
        ("[::1]:9092,10.0.0.1:9093", [("::1", 9092), ("10.0.0.1", 9093)]),
        ("[fe80::1%eth0]:9092", [("fe80::1%eth0", 9092)]),
        ("PLAINTEXT://a:9092,SASL_SSL://[::1]:9", [("a", 9092), ("::1", 9)]),
        ("a:1,b:1,a:1", [("a", 1), ("b", 1)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_servers_are_read(servers, expected):
    assert parse(servers) == expected


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ("", "bootstrap.servers is empty"),
        (" , ", "bootstrap.servers is empty"),
        ([], "bootstrap.servers is empty"),
        ("localhost", "expected host:port, got 'localhost'"),
        ("a:1,b:", "expected host:port, got 'b:'"),
        (":9092", "expected host:port, got ':9092'"),
        ("a:x", "expected host:port, got 'a:x'"),
        ("a:-1", "expected host:port, got 'a:-1'"),
        ("a b:1", "expected host:port, got 'a b:1'"),
        ("::1:9092", r"expected host:port \(\[address\]:port for IPv6\), got '::1:9092'"),
        ("[::1]", "got '\\[::1\\]'"),
        ("a:0", "expected a port of 1 to 65535, got 0 in 'a:0'"),
        ("a:65536", "expected a port of 1 to 65535, got 65536 in 'a:65536'"),
    ],
)
def test_an_invalid_entry_is_named_in_the_error(servers, message):
    with pytest.raises(ConfigError, match=message):
        parse(servers)


def test_endpoints_and_addresses_are_shown_as_they_are_written():
    assert str(Endpoint("a", 1)) == "a:1"
    assert str(Endpoint("::1", 1)) == "[::1]:1"
    assert str(Address(V6, ("::1", 1, 0, 0))) == "[::1]:1"


def test_all_addresses_of_a_name_keep_the_order_of_dns():
    assert resolve(Endpoint("alias", 9), getaddrinfo) == [
        (V4, ("10.0.0.1", 9)),
        (V4, ("10.0.0.2", 9)),
        (V6, ("fd00::1", 9, 0, 0)),
    ]
    assert resolve(Endpoint("one", 9), getaddrinfo) == [(V4, ("10.0.0.1", 9))]


@pytest.mark.parametrize(
    ("host", "reason"), [("nowhere", "Name or service not known"), ("empty", "no address")], ids=["unknown", "empty"]
)
def test_a_name_that_does_not_resolve_is_an_error_that_names_it(host, reason):
    with pytest.raises(socket.gaierror) as caught:
        resolve(Endpoint(host, 9), getaddrinfo)
    assert caught.value.strerror == f"cannot resolve {host!r} of {host}:9: {reason}"
    assert isinstance(caught.value, OSError)


def test_a_name_that_the_system_cannot_encode_is_an_error_like_any_other():
    with pytest.raises(socket.gaierror, match="invalid host name"):
        resolve(Endpoint("a" * 70 + ".example", 9))


def test_the_system_resolver_knows_loopback():
    assert (V4, ("127.0.0.1", 9)) in resolve(Endpoint("127.0.0.1", 9))


def test_servers_that_do_not_resolve_are_left_out_and_reported():
    endpoints, unresolved = bootstrap_endpoints(parse("alias:9,nowhere:9"), getaddrinfo=getaddrinfo)
    assert endpoints == [("alias", 9)]
    assert unresolved == ["cannot resolve 'nowhere' of nowhere:9: Name or service not known"]


def test_with_no_server_left_the_error_names_them_all():
    with pytest.raises(ConfigError, match=r"no server can be resolved; .*'nowhere'.*'empty'"):
        bootstrap_endpoints(parse("nowhere:1,empty:2"), getaddrinfo=getaddrinfo)


def test_canonical_names_replace_the_alias_if_the_address_has_one():
    endpoints, _ = bootstrap_endpoints(parse("alias:9,one:9"), RESOLVE_CANONICAL, getaddrinfo, getnameinfo)
    assert endpoints == [("b1.example", 9), ("b2.example", 9), ("fd00::1", 9)]
