"""Options `kafka.*` of the source: those options of Kafka's consumer that a reader without a group needs.

    {"bootstrap.servers": …} → resolve → Config → client_settings → BlockingClient      driver: offsets, topics
                                                → fetcher_arguments → Fetcher           executors: rows

The options are those of `headrace.consumer.options`, some with other defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from headrace.client.blocking import ClientSettings
from headrace.client.credentials import sasl_settings, tls_settings
from headrace.client.plugins import PluginLoader
from headrace.config import Between, Config, Option, Options
from headrace.consumer.options import API_TIMEOUT, FETCH_OPTIONS, ISOLATION_LEVEL
from headrace.consumer.options import CONSUMER_OPTIONS as CONSUMER_OPTIONS_OF_KAFKA
from headrace.errors import ConfigError
from headrace.spark.kafka_options import (
    CONSUMER_WITHOUT_EFFECT,
    OPTION_SETS_MAX,
    PREFIX,
    no_effect_text,
    not_read,
    refuse_unknown,
    unknown_names,
    without_effect,
)

log = logging.getLogger("headrace")

_SHARED_NAMES = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.dns.lookup",
        "metadata.max.age.ms",
        "receive.buffer.bytes",
        "request.timeout.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
    }
)
_SHARED_PREFIXES = ("sasl.", "ssl.", "security.")
CONSUMER_OPTIONS = Options(
    *(
        option
        for name, option in CONSUMER_OPTIONS_OF_KAFKA.items()
        if name in _SHARED_NAMES or name.startswith(_SHARED_PREFIXES)
    ),
    replace(
        ISOLATION_LEVEL,
        default="read_committed",
        doc="Whether rows of open and aborted transactions are skipped. Kafka's default is read_uncommitted, which "
        "also returns rows of aborted transactions.",
        importance="high",
    ),
    replace(API_TIMEOUT, doc="The time limit for looking up topics and offsets, including retries.", check=Between(1)),
    *(
        replace(
            option,
            default=8 * 1024 * 1024,
            doc="The most that one response has of a partition. Kafka's default is 1 MiB; a task reads one partition "
            "only, and every response costs a round trip.",
        )
        if option.name == "max.partition.fetch.bytes"
        else option
        for option in FETCH_OPTIONS
    ),
    Option(
        "group.id",
        "str",
        None,
        "Used as client.id if that is not set: the source joins no group. To see the lag of a query in tools for "
        "groups, set commit.offsets.group.id.",
    ),
    *(Option(name, "str", None, "", None, "low", why) for name, why in CONSUMER_WITHOUT_EFFECT.items()),
)

_REFUSED = {
    "auto.offset.reset": "set startingOffsets to earliest, latest or JSON with offsets",
    "key.deserializer": "keys are binary columns: convert them with expressions on the DataFrame",
    "value.deserializer": "values are binary columns: convert them with expressions on the DataFrame",
    "enable.auto.commit": "Spark keeps the offsets in the checkpoint; for lag tools set commit.offsets.group.id",
    "interceptor.classes": "interceptors need a Python object for each row, which the source does not create",
}

_TOKEN_PLUGIN = "sasl.login.callback.handler.class"
"""The option of the only plug-in of the source."""


def resolve(given: Mapping[str, str]) -> Config:
    """Check `kafka.*` options, given without the prefix. Refuse those that Spark's own Kafka source refuses."""
    for name, remedy in _REFUSED.items():
        if name in given:
            raise ConfigError(f"{PREFIX}{name} is {given[name]!r}, which the source does not support: {remedy}")
    try:
        config = CONSUMER_OPTIONS.resolve(("argument", given))
    except ConfigError as error:
        raise ConfigError(f"{PREFIX}{error}") from None
    if not config["bootstrap.servers"]:
        raise ConfigError("kafka.bootstrap.servers is not set; it may be host:port, several with commas between them")
    refuse_unknown(_unknown(given), CONSUMER_OPTIONS, similar_only=_TOKEN_PLUGIN in given)
    return config


def _unknown(given: Mapping[str, str]) -> set[str]:
    """Return the names that neither Kafka's clients have nor the plug-in reads when it is configured."""
    unknown = unknown_names(given, CONSUMER_OPTIONS)
    if unknown and _TOKEN_PLUGIN in given:
        unknown -= _read_by_plugin(frozenset(given.items()))
    return unknown


@lru_cache(OPTION_SETS_MAX)
def _read_by_plugin(given: frozenset[tuple[str, str]]) -> frozenset[str]:
    config = CONSUMER_OPTIONS.resolve(("argument", dict(given)))
    plugins = PluginLoader(config)
    try:
        sasl_settings(config, plugins)
    finally:
        plugins.close()
    return frozenset(config.used)


def reading_options(sink_options: Mapping[str, str]) -> dict[str, str]:
    """Return those options of a sink that say how to connect to its cluster."""
    lower = {name.lower(): value for name, value in sink_options.items()}
    return {
        name: value
        for name, value in lower.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in CONSUMER_OPTIONS
    }


def warn_of_no_effect(given: Mapping[str, str]) -> None:
    """Log which options have no effect. Called once for a query, not on every executor."""
    config = resolve(given)
    others = without_effect(config.unused, CONSUMER_OPTIONS) | not_read(_unknown(given))
    text = no_effect_text(config, CONSUMER_OPTIONS, others)
    if text is not None:
        log.warning("%s", text)


def client_settings(config: Config, client_id: str) -> ClientSettings:
    """Return how to connect to the cluster."""
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
    """Return the keyword arguments of a `Fetcher`."""
    return {
        "isolation": config["isolation.level"],
        "max_wait_ms": config["fetch.max.wait.ms"],
        "min_bytes": config["fetch.min.bytes"],
        "max_bytes": config["fetch.max.bytes"],
        "partition_bytes_max": config["max.partition.fetch.bytes"],
    }
