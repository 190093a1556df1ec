"""The options of Kafka's broker, declared once.

Names, types and ranges are those of Apache Kafka 4.3, so that a server.properties of Kafka can be used. Defaults are
Kafka's too, except for these; their docs give the reason:

    listeners                                     on the loopback interface only
    node.id                                       1, instead of being required
    log.dir                                       in the working directory, not in /tmp
    *.num.partitions of the internal topics       8 instead of 50; one replica instead of three
    broker.heartbeat.interval.ms, its session     500 and 6000 instead of 2000 and 9000, for faster fail-over
    headrace.controller                           headrace only; Kafka has a quorum of controllers
    *.max.decompressed.bytes, *.compression.ratio headrace only, against zip bombs
    ssl.*store.type                               PEM, the only format that OpenSSL reads
    sasl.enabled.mechanisms                       those with passwords, instead of Kerberos
    ssl.key.location, sasl.plain.users            headrace only, instead of key stores and JAAS
    `no_effect`                                   options that are accepted but have no effect (options/no_effect.txt)

The declarations are in options/, by subject.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.broker.options.coordinators import COORDINATORS
from headrace.broker.options.network import NETWORK
from headrace.broker.options.no_effect import NO_EFFECT
from headrace.broker.options.security import SECURITY
from headrace.broker.options.storage import STORAGE
from headrace.config import Config, Layer, Options
from headrace.errors import ConfigError

BROKER_OPTIONS = Options(*NETWORK, *STORAGE, *COORDINATORS, *SECURITY, *NO_EFFECT)


def resolve(*layers: Layer) -> Config:
    """Return the configuration of a broker, with deprecated names resolved."""
    config = BROKER_OPTIONS.resolve(*((origin, _with_users_as_text(layer)) for origin, layer in layers))
    changes: dict[str, object] = {}
    if config.given("broker.id") and not config.given("node.id"):
        changes["node.id"] = config["broker.id"]
    if config.optional(tuple, "log.dirs") is None:
        changes["log.dirs"] = (config.of(str, "log.dir"),)
    return config.derived(changes) if changes else config


def _with_users_as_text(layer: Mapping[str, object]) -> Mapping[str, object]:
    """Return a layer with users given as a dict (in Python only) converted to JSON."""
    changes = {
        name: json.dumps(dict(value))
        for name, value in layer.items()
        if name in ("sasl.plain.users", "sasl_plain_users") and isinstance(value, Mapping)
    }
    return {**layer, **changes} if changes else layer


def data_folder(config: Config) -> Path:
    """Return the data folder, the only one of log.dirs."""
    folders = config.of(tuple, "log.dirs")
    if len(folders) != 1 or not folders[0]:
        raise ConfigError(f"log.dirs is {','.join(folders)!r}; it may be one folder")
    return Path(folders[0])


def for_listener(config: Mapping[str, object], listener: str, option: str, mechanism: str = "") -> object:
    """Return the value of an `ssl.*` or `sasl.*` option for a listener.

    As in Kafka, listener.name.<listener>.[<mechanism>.]<option> in lower case overrides the option itself.
    """
    middle = f"{mechanism.lower()}." if mechanism else ""
    prefix = f"listener.name.{listener.lower()}."
    for name in dict.fromkeys((f"{prefix}{middle}{option}", f"{prefix}{option}", f"{middle}{option}")):
        value = config.get(name)
        if value is not None:
            return BROKER_OPTIONS[option].parse(value)
    return config[option]
