"""The `schema.registry.*` options of clients.

Names are Confluent's, with the prefix that its serializers use for `url` and `ssl.*`; the other options also have
Confluent's names without it (`ALIASES`). Defaults are Confluent's, except that the latest version of a subject is
cached for a minute, not for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.option import Between, NotEmpty, OneOf, Option
from headrace.config.resolved import Options
from headrace.config.tls_options import prefixed
from headrace.errors import ConfigError

PREFIX = "schema.registry."

REGISTRY_OPTIONS = Options(
    Option(
        "schema.registry.url",
        "list",
        None,
        "The URLs of the schema registry, tried in order. Apicurio's has the path `/apis/ccompat/v7`.",
        NotEmpty(),
        "high",
    ),
    Option(
        "schema.registry.basic.auth.credentials.source",
        "str",
        "URL",
        "Where user name and password are: in the URL, or in `schema.registry.basic.auth.user.info`.",
        OneOf("URL", "USER_INFO", ignore_case=True),
    ),
    Option(
        "schema.registry.basic.auth.user.info",
        "password",
        None,
        "User name and password for basic authentication, as `user:password`.",
        None,
        "high",
    ),
    Option(
        "schema.registry.bearer.auth.credentials.source",
        "str",
        "STATIC_TOKEN",
        "Where the bearer token is: in `schema.registry.bearer.auth.token`.",
        OneOf("STATIC_TOKEN", ignore_case=True),
        "low",
    ),
    Option("schema.registry.bearer.auth.token", "password", None, "A token for bearer authentication.", None, "high"),
    Option(
        "schema.registry.request.timeout.ms",
        "int",
        30_000,
        "The time for one request to one URL, from connecting to the last byte of the response.",
        Between(1),
    ),
    Option(
        "schema.registry.max.retries",
        "int",
        3,
        "How often a request is repeated, at all URLs, if none responds or all are overloaded.",
        Between(0),
    ),
    Option(
        "schema.registry.retries.wait.ms", "int", 1_000, "The wait before the first retry, then doubled.", Between(0)
    ),
    Option("schema.registry.retries.max.wait.ms", "int", 20_000, "The longest wait before a retry.", Between(0), "low"),
    Option("schema.registry.cache.capacity", "int", 1_000, "The number of schemas to cache.", Between(1), "low"),
    Option(
        "schema.registry.latest.cache.ttl.sec",
        "int",
        60,
        "How long the latest version of a subject is cached; -1: for ever.",
        Between(0, also=-1),
    ),
    Option(
        "schema.registry.response.max.bytes",
        "int",
        16 * 1024 * 1024,
        "The largest accepted response.",
        Between(1024),
        "low",
    ),
    *prefixed(PREFIX),
)

ALIASES: Mapping[str, str] = {
    name.removeprefix(PREFIX): name
    for name in REGISTRY_OPTIONS
    if not name.startswith(f"{PREFIX}ssl.") and name != f"{PREFIX}url"
}
"""Confluent's names without the prefix."""


def with_prefix(options: Mapping[str, object]) -> dict[str, object]:
    """Return options with their declared names instead of aliases."""
    renamed: dict[str, object] = {}
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if name in renamed:
            raise ConfigError(f"{name} is given twice, also as {name.removeprefix(PREFIX)}")
        renamed[name] = value
    return renamed
