"""Every option of Kafka's broker, declared once.

Names, types and ranges are those of Apache Kafka 4.3, so that a server.properties of Kafka can be used. Defaults are
Kafka's too, but for these, and each says why:

    listeners                                     on the loopback only
    node.id                                       1, instead of being required
    log.dir                                       a folder of the working folder, not of /tmp
    *.num.partitions of the internal topics       8, not 50; one copy of them, not three
    broker.heartbeat.interval.ms, its session     500 and 6000, not 2000 and 9000: quicker fail-over
    headrace.controller                           is ours, where Kafka names a quorum of controllers
    *.max.decompressed.bytes, *.compression.ratio are ours: zip bombs
    ssl.*store.type                               PEM, the one format that OpenSSL reads here
    sasl.enabled.mechanisms                       all that a password is enough for, not Kerberos
    ssl.key.location, sasl.plain.users            are ours, for what Java hides in key stores and JAAS texts
    `no_effect`                                   marks what changes nothing here (options/inert.py)

The tables are in options/, by subject.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.broker.options.coordinators import COORDINATORS
from headrace.broker.options.inert import INERT
from headrace.broker.options.network import NETWORK
from headrace.broker.options.security import SECURITY
from headrace.broker.options.storage import STORAGE
from headrace.config import Config, Layer, Options
from headrace.errors import ConfigError

BROKER_OPTIONS = Options(*NETWORK, *STORAGE, *COORDINATORS, *SECURITY, *INERT)


def resolve(*layers: Layer) -> Config:
    """The configuration of a broker, with older names and units taken over."""
    config = BROKER_OPTIONS.resolve(*((origin, _with_users_as_text(layer)) for origin, layer in layers))
    changes: dict[str, object] = {}
    if config.given("broker.id") and not config.given("node.id"):
        changes["node.id"] = config["broker.id"]
    if config.optional(tuple, "log.dirs") is None:
        changes["log.dirs"] = (config.of(str, "log.dir"),)
    return config.derived(changes) if changes else config


def _with_users_as_text(layer: Mapping[str, object]) -> Mapping[str, object]:
    """A dict of users, which only Python has, in the form that all have."""
    changes = {
        name: json.dumps(dict(value))
        for name, value in layer.items()
        if name in ("sasl.plain.users", "sasl_plain_users") and isinstance(value, Mapping)
    }
    return {**layer, **changes} if changes else layer


def data_folder(config: Config) -> Path:
    """The one folder of log.dirs."""
    folders = config.of(tuple, "log.dirs")
    if len(folders) != 1 or not folders[0]:
        raise ConfigError(f"log.dirs has {len(folders)} folders; it may be one")
    return Path(folders[0])


def for_listener(config: Mapping[str, object], listener: str, option: str, mechanism: str = "") -> object:
    """The value of an `ssl.*` or `sasl.*` option on a listener.

    As in Kafka: listener.name.<listener>.[<mechanism>.]<option> wins over the option by itself; names are lower case.
    """
    middle = f"{mechanism.lower()}." if mechanism else ""
    prefix = f"listener.name.{listener.lower()}."
    for name in dict.fromkeys((f"{prefix}{middle}{option}", f"{prefix}{option}", f"{middle}{option}")):
        value = config.get(name)
        if value is not None:
            return BROKER_OPTIONS[option].parse(value)
    return config[option]
