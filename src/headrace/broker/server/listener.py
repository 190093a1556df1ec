"""Listeners: the addresses that the broker binds, and those that it advertises to clients."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config import Config
from headrace.errors import ConfigError

PORT_MAX = 65535
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ADDRESS = re.compile(r"(?P<name>[A-Za-z0-9_-]+)://(?:\[(?P<ipv6>[^\]]*)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d{1,5})")
_ANY_ADDRESS = ("", "0.0.0.0", "::")


@dataclass(slots=True)
class Listener:
    """A listener: name, bound address, security protocol and advertised address."""

    name: str
    host: str  # empty: all addresses
    port: int  # 0 until the operating system has assigned one
    security_protocol: str
    advertised_host: str
    advertised_port: int  # 0: the bound port
    tls: ssl.SSLContext | None = None

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def address(self) -> str:
        """The address for bootstrap.servers."""
        host = f"[{self.advertised_host}]" if ":" in self.advertised_host else self.advertised_host
        return f"{host}:{self.advertised_port or self.port}"


def listeners_of(config: Config) -> list[Listener]:
    """Return the listeners of the configuration, without controller listeners."""
    protocols = _protocol_map(config.of(str, "listener.security.protocol.map"))
    advertised = dict(_addresses("advertised.listeners", config.optional(tuple, "advertised.listeners") or ()))
    controller_listeners = config.of(tuple, "controller.listener.names")
    listeners: list[Listener] = []
    for name, (host, port) in _addresses("listeners", config.of(tuple, "listeners")):
        if name in controller_listeners:
            continue
        if name not in protocols:
            raise ConfigError(
                f"listener {name} has no protocol: add {name}:PLAINTEXT, or another, to listener.security.protocol.map"
            )
        advertised_host, advertised_port = advertised.pop(name, (_reachable(host), 0))
        if advertised_host in _ANY_ADDRESS:
            raise ConfigError(
                f"invalid advertised.listeners: clients cannot connect to {advertised_host!r}: set a host for {name}"
            )
        listeners.append(Listener(name, host, port, protocols[name], advertised_host, advertised_port))
    for name in advertised:
        raise ConfigError(f"invalid advertised.listeners: listener {name} is not in listeners")
    if not listeners:
        raise ConfigError("invalid listeners: no listener for clients")
    return listeners


def _addresses(option: str, texts: Iterable[str]) -> list[tuple[str, tuple[str, int]]]:
    rows: dict[str, tuple[str, int]] = {}
    for text in texts:
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > PORT_MAX:
            raise ConfigError(f"invalid {option} entry {text!r}: expected NAME://host:port")
        name = match["name"].upper()
        if name in rows:
            raise ConfigError(f"invalid {option}: duplicate listener {name}")
        rows[name] = (match["host"] if match["ipv6"] is None else match["ipv6"], int(match["port"]))
    return list(rows.items())


def _protocol_map(text: str) -> dict[str, str]:
    rows: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = item.partition(":")
        if protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"invalid listener.security.protocol.map entry {item!r}: expected NAME:protocol with one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        rows[name.upper()] = protocol.upper()
    return rows


def _reachable(host: str) -> str:
    """Return the host to advertise: for a listener on all addresses, the name of this machine."""
    if host not in _ANY_ADDRESS:
        return host
    return socket.getfqdn()
