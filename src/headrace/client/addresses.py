"""From `bootstrap.servers` to the addresses to dial.

    "a:9092,[::1]:9093" → parse → Endpoints → bootstrap_endpoints (client.dns.lookup) → Endpoints
    Endpoint → resolve → Addresses, in the order in which to try them

DNS is asked through functions that are passed in; by default the system's, which may block for as long as it likes.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import ConfigError

USE_ALL_DNS_IPS = "use_all_dns_ips"
RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"
PORT_MAX = 65535

# As Kafka has it: a listener name in front, as brokers write it in their own settings, does no harm.
_ENTRY = re.compile(
    r"(?:[A-Za-z0-9_]+://)?(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.\-]+)?)\]|(?P<name>[\w.\-]+)):(?P<port>[0-9]+)", re.ASCII
)

SocketAddress: TypeAlias = tuple[Any, ...]  # (host, port), and for IPv6 flow and scope: what `connect` takes
GetAddrInfo: TypeAlias = Callable[..., Iterable[tuple[Any, Any, Any, str, SocketAddress]]]
GetNameInfo: TypeAlias = Callable[[SocketAddress, int], tuple[str, str]]


class Endpoint(NamedTuple):
    """A broker by name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A broker as a socket sees it."""

    family: socket.AddressFamily
    sockaddr: SocketAddress

    def __str__(self) -> str:
        return str(Endpoint(str(self.sockaddr[0]), int(self.sockaddr[1])))


def parse(servers: str | Iterable[str]) -> list[Endpoint]:
    """The entries of `bootstrap.servers`: comma-separated text, or one by one. Doubles are dropped."""
    entries = servers.split(",") if isinstance(servers, str) else servers
    endpoints = dict.fromkeys(_parse_entry(entry.strip()) for entry in entries if entry.strip())
    if not endpoints:
        raise ConfigError("bootstrap.servers is empty: name at least one broker as host:port")
    return list(endpoints)


def _parse_entry(entry: str) -> Endpoint:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        hint = " ([address]:port for IPv6)" if entry.count(":") > 1 else ""
        raise ConfigError(f"bootstrap.servers: expected host:port{hint}, got {entry!r}")
    port = int(match["port"])
    if not 0 < port <= PORT_MAX:
        raise ConfigError(f"bootstrap.servers: expected a port of 1 to {PORT_MAX}, got {port} in {entry!r}")
    return Endpoint(match["v6"] or match["name"], port)


def resolve(endpoint: Endpoint, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> list[Address]:
    """All addresses that DNS has for a broker, in its order. Raises `socket.gaierror`: the next try may find one."""
    try:
        answers = getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        reason = (error.strerror or str(error)).rstrip(".")
        raise socket.gaierror(error.errno, f"cannot resolve {endpoint.host!r} of {endpoint}: {reason}") from None
    except UnicodeError:
        # Labels that are empty or too long never get as far as DNS.
        raise socket.gaierror(
            socket.EAI_NONAME, f"cannot resolve {endpoint.host!r} of {endpoint}: no host name"
        ) from None
    addresses = dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in answers)
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, f"cannot resolve {endpoint.host!r} of {endpoint}: no address")
    return list(addresses)


def bootstrap_endpoints(
    servers: Iterable[Endpoint],
    lookup: str = USE_ALL_DNS_IPS,
    getaddrinfo: GetAddrInfo = socket.getaddrinfo,
    getnameinfo: GetNameInfo = socket.getnameinfo,
) -> tuple[list[Endpoint], list[str]]:
    """Where to begin, and a line for each server that DNS does not know.

    With `resolve_canonical_bootstrap_servers_only`, each address of a server becomes an entry under its own full
    name, as Kerberos and host name checks behind a shared alias want it. None resolvable is an error, as in Kafka.
    """
    found: dict[Endpoint, None] = {}
    unresolved: list[str] = []
    for server in servers:
        try:
            addresses = resolve(server, getaddrinfo)
        except socket.gaierror as error:
            unresolved.append(error.strerror or str(error))
            continue
        if lookup == RESOLVE_CANONICAL:
            found.update(dict.fromkeys(Endpoint(_canonical(at, getnameinfo), server.port) for at in addresses))
        else:
            found[server] = None
    if not found:
        raise ConfigError(f"bootstrap.servers: no server can be resolved; {'; '.join(unresolved)}")
    return list(found), unresolved


def _canonical(address: Address, getnameinfo: GetNameInfo) -> str:
    try:
        return getnameinfo(address.sockaddr, 0)[0]
    except OSError:
        return str(address.sockaddr[0])  # no name for it: the number will do
