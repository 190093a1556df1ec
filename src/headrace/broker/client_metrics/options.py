"""The options of a client metrics subscription (resource type CLIENT_METRICS), and the clients that it matches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from headrace.config import Between, Option, Options
from headrace.errors import ConfigError

METRICS = "metrics"
INTERVAL_MS = "interval.ms"
MATCH = "match"

INTERVAL_MS_DEFAULT = 300_000
ALL_METRICS = "*"

CLIENT_METRICS_OPTIONS = Options(
    Option(METRICS, "list", "", "Prefixes of the names of metrics that clients push; * for all of them.", None),
    Option(INTERVAL_MS, "int", INTERVAL_MS_DEFAULT, "How often clients push metrics.", Between(100, 3_600_000)),
    Option(
        MATCH,
        "list",
        "",
        "The clients, as name=regular expression: client_instance_id, client_id, client_software_name, "
        "client_software_version, client_source_address, client_source_port. All have to match. Empty: all clients.",
        None,
    ),
)


class ClientFacts(NamedTuple):
    """What subscriptions match."""

    client_instance_id: str
    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """Clients that match `patterns` push `metrics` (prefixes; `*` is all) every `interval_ms`."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: tuple[tuple[str, re.Pattern[str]], ...]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Self:
        """Return the subscription with these options; raise ConfigError if one is invalid."""
        parsed = {
            name: option.parse(values.get(name, option.default)) for name, option in CLIENT_METRICS_OPTIONS.items()
        }
        metrics, interval_ms, match = parsed[METRICS], parsed[INTERVAL_MS], parsed[MATCH]
        assert isinstance(metrics, tuple)
        assert isinstance(interval_ms, int)
        assert isinstance(match, tuple)
        return cls(metrics, interval_ms, tuple(_parse_pattern(text) for text in match))

    def matches(self, client: ClientFacts) -> bool:
        return all(pattern.fullmatch(getattr(client, name)) for name, pattern in self.patterns)


def _parse_pattern(text: str) -> tuple[str, re.Pattern[str]]:
    name, equals, pattern = text.partition("=")
    if not equals or name.strip() not in ClientFacts._fields:
        raise ConfigError(
            f"invalid {MATCH}: expected name=regular expression with one of {', '.join(ClientFacts._fields)}, "
            f"got {text!r}"
        )
    try:
        return name.strip(), re.compile(pattern.strip())
    except re.error as error:
        raise ConfigError(f"invalid {MATCH}: {pattern!r} is not a valid regular expression: {error}") from None
