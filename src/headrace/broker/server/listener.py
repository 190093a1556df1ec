"""Where the broker listens, and which addresses it tells its clients."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config import Config
from headrace.errors import ConfigError

PORT_MAX = 65535
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ADDRESS = re.compile(r"(?P<name>[A-Za-z0-9_-]+)://(?:\[(?P<ipv6>[^\]]*)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d{1,5})")
_ANYWHERE = ("", "0.0.0.0", "::")


@dataclass(slots=True)
class Listener:
    """A name, where it listens, what is spoken there, and what clients are told."""

    name: str
    host: str  # empty: on all addresses
    port: int  # 0 until the system has picked one
    security_protocol: str
    advertised_host: str
    advertised_port: int  # 0: the port that is listened on
    tls: ssl.SSLContext | None = None

    @property
    def wants_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def wants_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def address(self) -> str:
        """As a client would write it into bootstrap.servers."""
        host = f"[{self.advertised_host}]" if ":" in self.advertised_host else self.advertised_host
        return f"{host}:{self.advertised_port or self.port}"


def listeners_of(config: Config) -> list[Listener]:
    """What `listeners` and its companions say; controller listeners are left out."""
    protocols = _protocol_map(config.of(str, "listener.security.protocol.map"))
    advertised = dict(_addresses("advertised.listeners", config.optional(tuple, "advertised.listeners") or ()))
    skipped = config.of(tuple, "controller.listener.names")
    found: list[Listener] = []
    for name, (host, port) in _addresses("listeners", config.of(tuple, "listeners")):
        if name in skipped:
            continue
        if name not in protocols:
            raise ConfigError(f"listener {name} has no protocol in listener.security.protocol.map: {name}:PLAINTEXT?")
        shown_host, shown_port = advertised.pop(name, (_reachable(host), 0))
        if shown_host in _ANYWHERE:
            raise ConfigError(f"advertised.listeners: clients cannot connect to {shown_host!r}: name a host for {name}")
        found.append(Listener(name, host, port, protocols[name], shown_host, shown_port))
    for name in advertised:
        raise ConfigError(f"advertised.listeners has {name}, which listeners has not")
    if not found:
        raise ConfigError("listeners names no listener that clients could use")
    return found


def _addresses(option: str, texts: Iterable[str]) -> list[tuple[str, tuple[str, int]]]:
    rows: dict[str, tuple[str, int]] = {}
    for text in texts:
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > PORT_MAX:
            raise ConfigError(f"{option} has {text!r}; each must be NAME://host:port")
        name = match["name"].upper()
        if name in rows:
            raise ConfigError(f"{option} names {name} twice")
        rows[name] = (match["host"] if match["ipv6"] is None else match["ipv6"], int(match["port"]))
    return list(rows.items())


def _protocol_map(text: str) -> dict[str, str]:
    rows: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = item.partition(":")
        if protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map has {item!r}; each must be NAME:protocol, the protocol one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        rows[name.upper()] = protocol.upper()
    return rows


def _reachable(host: str) -> str:
    """What to tell clients of a listener that is open to all: the machine's own name."""
    if host not in _ANYWHERE:
        return host
    import socket

    return socket.getfqdn()
