"""`kafka.*` of the source: Kafka's consumer options, of which a reader without a group needs a part.

    {"bootstrap.servers": …} → resolve → Config → client_settings → BlockingClient      driver: offsets, topics
                                                → fetcher_arguments → Fetcher           executors: rows

What connects, encrypts and authenticates is declared once, with the producer, and taken from there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.client.blocking import ClientSettings
from headrace.config import Between, Config, OneOf, Option, Options
from headrace.errors import ConfigError
from headrace.producer.options import PRODUCER_OPTIONS
from headrace.producer.plugins import PluginLoader
from headrace.producer.settings import sasl_settings, tls_settings

log = logging.getLogger("headrace")

PREFIX = "kafka."

_NO_GROUP = "the source joins no group: Spark hands out the partitions"
_FIXED = "this client chooses it"
_FIGURES = "Spark shows the figures of a query"

_SHARED_NAMES = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.dns.lookup",
        "metadata.max.age.ms",
        "request.timeout.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
    }
)
_SHARED_PREFIXES = ("sasl.", "ssl.", "security.")
_WITHOUT_EFFECT = {
    "connections.max.idle.ms": _FIXED,
    "reconnect.backoff.ms": _FIXED,
    "reconnect.backoff.max.ms": _FIXED,
    "send.buffer.bytes": _FIXED,
    "socket.connection.setup.timeout.ms": _FIXED,
    "socket.connection.setup.timeout.max.ms": _FIXED,
    "metadata.recovery.strategy": _FIXED,
    "metadata.recovery.rebootstrap.trigger.ms": _FIXED,
    "allow.auto.create.topics": "reading never makes a topic",
    "auto.commit.interval.ms": _NO_GROUP,
    "check.crcs": "checksums are always checked",
    "client.rack": "the leader is read, never a follower",
    "exclude.internal.topics": "internal topics are read when they are named, and match no pattern",
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "max.poll.records": "rows come in columns, as many as fit a batch",
    "partition.assignment.strategy": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "enable.metrics.push": "the source pushes no metrics",
    "metric.reporters": _FIGURES,
    "metrics.num.samples": _FIGURES,
    "metrics.recording.level": _FIGURES,
    "metrics.sample.window.ms": _FIGURES,
}

CONSUMER_OPTIONS = Options(
    *(
        option
        for name, option in PRODUCER_OPTIONS.items()
        if name in _SHARED_NAMES or name.startswith(_SHARED_PREFIXES)
    ),
    Option(
        "isolation.level",
        "str",
        "read_committed",
        "Whether rows of open and aborted transactions are left out. Kafka's own default is read_uncommitted, which "
        "shows rows that were never committed: here exactly once is the default.",
        OneOf("read_committed", "read_uncommitted", ignore_case=True),
        "high",
    ),
    Option(
        "default.api.timeout.ms",
        "int",
        60_000,
        "How long to try to learn of topics and offsets, with all attempts.",
        Between(1),
    ),
    Option(
        "fetch.min.bytes", "int", 1, "A broker answers when it has so much, or after fetch.max.wait.ms.", Between(0)
    ),
    Option("fetch.max.wait.ms", "int", 500, "The longest that a broker waits for fetch.min.bytes.", Between(0)),
    Option(
        "fetch.max.bytes",
        "int",
        50 * 1024 * 1024,
        "The most that one answer brings, of all its partitions; the first batch comes even if it is larger.",
        Between(1),
    ),
    Option(
        "max.partition.fetch.bytes",
        "int",
        8 * 1024 * 1024,
        "The most that one answer brings of a partition. Kafka's default is 1 MiB; a task reads one partition only, "
        "and every answer costs it a round trip.",
        Between(1),
    ),
    Option(
        "receive.buffer.bytes",
        "int",
        -1,
        "The size of the TCP receive buffer; -1 leaves it to the system.",
        Between(-1),
    ),
    Option(
        "group.id",
        "str",
        None,
        "Taken as client.id where that is not set: nothing here joins a group. To see the lag of a query in the tools "
        "for groups, set commit.offsets.group.id.",
    ),
    *(Option(name, "str", None, "", None, "low", why) for name, why in _WITHOUT_EFFECT.items()),
)

_REFUSED = {
    "auto.offset.reset": "set startingOffsets to earliest, latest or offsets of your own",
    "key.deserializer": "keys come as binary: turn them into what they are with expressions on the DataFrame",
    "value.deserializer": "values come as binary: turn them into what they are with expressions on the DataFrame",
    "enable.auto.commit": "Spark keeps the offsets in the checkpoint; for lag tools set commit.offsets.group.id",
    "interceptor.classes": "an interceptor sees every row as an object, and here there is none",
}


def resolve(given: Mapping[str, str]) -> Config:
    """Check `kafka.*` options, by their names without the prefix; those refused by Spark's own source are refused."""
    for name, remedy in _REFUSED.items():
        if name in given:
            raise ConfigError(f"{PREFIX}{name} is {given[name]!r}, which the source does not take: {remedy}")
    try:
        config = CONSUMER_OPTIONS.resolve(("argument", given))
    except ConfigError as error:
        raise ConfigError(f"{PREFIX}{error}") from None
    if not config["bootstrap.servers"]:
        raise ConfigError("kafka.bootstrap.servers is not set; it may be host:port, several with commas between them")
    return config


def warn_of_no_effect(config: Config) -> None:
    """Say which options change nothing. To be called in one place of a query, not on every executor."""
    for name, option in CONSUMER_OPTIONS.items():
        if option.no_effect and config.given(name):
            log.warning("option %s%s has no effect: %s", PREFIX, name, option.no_effect)
    for name in sorted(config.unused):
        log.warning("option %s%s is not known and has no effect%s", PREFIX, name, CONSUMER_OPTIONS.suggestion(name))


def client_settings(config: Config, client_id: str) -> ClientSettings:
    """How to reach the cluster."""
    return ClientSettings(
        bootstrap_servers=config.of(tuple, "bootstrap.servers"),
        client_id=client_id,
        timeout_ms=config.of(int, "default.api.timeout.ms"),
        request_timeout_ms=config.of(int, "request.timeout.ms"),
        retry_backoff_ms=config.of(int, "retry.backoff.ms"),
        retry_backoff_max_ms=config.of(int, "retry.backoff.max.ms"),
        metadata_max_age_ms=config.of(int, "metadata.max.age.ms"),
        receive_buffer_bytes=config.of(int, "receive.buffer.bytes"),
        client_dns_lookup=config.of(str, "client.dns.lookup"),
        tls=tls_settings(config),
        sasl=sasl_settings(config, PluginLoader(config)),
    )


def fetcher_arguments(config: Config) -> dict[str, Any]:
    """What a `Fetcher` takes besides a client."""
    return {
        "isolation": config["isolation.level"],
        "max_wait_ms": config["fetch.max.wait.ms"],
        "min_bytes": config["fetch.min.bytes"],
        "max_bytes": config["fetch.max.bytes"],
        "partition_bytes_max": config["max.partition.fetch.bytes"],
    }
