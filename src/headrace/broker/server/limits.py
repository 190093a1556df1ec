"""The limits on connections: options that can be changed while the broker runs."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

from headrace.config import Config
from headrace.errors import ConfigError

OPTIONS = frozenset(
    {
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "max.connection.creation.rate",
    }
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a broker serves, in total and per IP address, and how fast it accepts new ones."""

    connections_max: int
    creations_per_second_max: int
    default_per_host_max: int
    per_host_overrides: dict[str, int]

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the limits of a configuration. Raises ConfigError if an override is invalid."""
        return cls(
            config.of(int, "max.connections"),
            config.of(int, "max.connection.creation.rate"),
            config.of(int, "max.connections.per.ip"),
            _overrides(config.of(str, "max.connections.per.ip.overrides")),
        )

    def per_host_max(self, host: str) -> int:
        """Return the maximum for an IP address."""
        return self.per_host_overrides.get(host, self.default_per_host_max)


def _overrides(text: str) -> dict[str, int]:
    """Parse `host:number,…`; return the numbers by IP address."""
    limits: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = item.rpartition(":")
        if not host or not number.isdecimal():
            raise ConfigError(f"invalid max.connections.per.ip.overrides entry {item!r}: expected host:number")
        try:
            rows = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(f"invalid max.connections.per.ip.overrides: cannot resolve {host!r}: {error}") from error
        limits |= {str(row[4][0]): int(number) for row in rows}
    return limits
