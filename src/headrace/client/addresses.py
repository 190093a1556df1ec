"""From `bootstrap.servers` to socket addresses.

    "a:9092,[::1]:9093" → parse → Endpoints → bootstrap_endpoints (client.dns.lookup) → Endpoints
    Endpoint → resolve → Addresses, in the order in which to try them

DNS functions are passed in; the default ones are the system's, which may block.
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

# As in Kafka, a listener name in front is accepted.
_ENTRY = re.compile(
    r"(?:[A-Za-z0-9_]+://)?(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.\-]+)?)\]|(?P<name>[\w.\-]+)):(?P<port>[0-9]+)", re.ASCII
)

SocketAddress: TypeAlias = tuple[Any, ...]  # As for `socket.connect`: (host, port), and for IPv6 flow and scope.
GetAddrInfo: TypeAlias = Callable[..., Iterable[tuple[Any, Any, Any, str, SocketAddress]]]
GetNameInfo: TypeAlias = Callable[[SocketAddress, int], tuple[str, str]]


class Endpoint(NamedTuple):
    """The host name and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A socket address of a broker."""

    family: socket.AddressFamily
    sockaddr: SocketAddress

    def __str__(self) -> str:
        return str(Endpoint(str(self.sockaddr[0]), int(self.sockaddr[1])))


def parse(servers: str | Iterable[str]) -> list[Endpoint]:
    """Return the entries of `bootstrap.servers`, comma-separated or as a list, without duplicates."""
    entries = servers.split(",") if isinstance(servers, str) else servers
    endpoints = dict.fromkeys(_parse_entry(entry.strip()) for entry in entries if entry.strip())
    if not endpoints:
        raise ConfigError("bootstrap.servers is empty: set at least one broker as host:port")
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
    """Return the addresses of a broker in the order of DNS; raises `socket.gaierror` if there are none."""
    try:
        rows = getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        reason = (error.strerror or str(error)).rstrip(".")
        raise socket.gaierror(error.errno, f"cannot resolve {endpoint.host!r} of {endpoint}: {reason}") from None
    except UnicodeError:
        # Labels that are empty or too long.
        raise socket.gaierror(
            socket.EAI_NONAME, f"cannot resolve {endpoint.host!r} of {endpoint}: invalid host name"
        ) from None
    addresses = dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in rows)
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, f"cannot resolve {endpoint.host!r} of {endpoint}: no address")
    return list(addresses)


def bootstrap_endpoints(
    servers: Iterable[Endpoint],
    lookup: str = USE_ALL_DNS_IPS,
    getaddrinfo: GetAddrInfo = socket.getaddrinfo,
    getnameinfo: GetNameInfo = socket.getnameinfo,
) -> tuple[list[Endpoint], list[str]]:
    """Return the endpoints to contact first, and a message for each server that cannot be resolved.

    With `resolve_canonical_bootstrap_servers_only`, each address of a server becomes an endpoint with its canonical
    name, which host name verification behind a shared alias needs. As in Kafka, at least one must be resolvable.
    """
    endpoints: dict[Endpoint, None] = {}
    unresolved: list[str] = []
    for server in servers:
        try:
            addresses = resolve(server, getaddrinfo)
        except socket.gaierror as error:
            unresolved.append(error.strerror or str(error))
            continue
        if lookup == RESOLVE_CANONICAL:
            names = (_canonical(address, getnameinfo) for address in addresses)
            endpoints.update(dict.fromkeys(Endpoint(name, server.port) for name in names))
        else:
            endpoints[server] = None
    if not endpoints:
        raise ConfigError(f"bootstrap.servers: no server can be resolved; {'; '.join(unresolved)}")
    return list(endpoints), unresolved


def _canonical(address: Address, getnameinfo: GetNameInfo) -> str:
    try:
        return getnameinfo(address.sockaddr, 0)[0]
    except OSError:
        return str(address.sockaddr[0])  # it has no name
