"""The options of Kafka's broker, declared once.

Names, types and ranges are those of Apache Kafka 4.3, so that a server.properties of Kafka can be used. Defaults are
Kafka's too, except for these; their docs give the reason:

    listeners                                     on the loopback interface only
    node.id                                       1, instead of being required
    log.dir                                       in the working directory, not in /tmp
    *.num.partitions of the internal topics       8 instead of 50; one replica instead of three
    broker.heartbeat.interval.ms, its session     500 and 6000 instead of 2000 and 9000, for faster fail-over
    headrace.controller                           headrace only; Kafka has a quorum of controllers
    headrace.metrics.listener                     headrace only; Kafka has plugins for metrics
    headrace.schema.registry.*                    headrace only; Confluent's is a server of its own
    *.max.decompressed.bytes, *.compression.ratio headrace only, against zip bombs
    ssl.*store.type                               PEM, the only format that OpenSSL reads
    sasl.enabled.mechanisms                       those with passwords; Kerberos needs an extra
    ssl.key.location, sasl.plain.users            headrace only, instead of key stores and JAAS
    `no_effect`                                   options that are accepted but have no effect (options/no_effect.txt)

The declarations are in options/, by subject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from headrace.broker.options.coordinators import COORDINATORS
from headrace.broker.options.network import NETWORK
from headrace.broker.options.security import SECURITY
from headrace.broker.options.share_groups import SHARE_GROUPS
from headrace.broker.options.storage import STORAGE
from headrace.config import Config, Kind, Layer, Option, Options
from headrace.errors import ConfigError

_NOT_SET = "-"  # in no_effect.txt


def _read_no_effect() -> Iterator[Option]:
    """Yield the options of options/no_effect.txt, whose section headings are the reasons."""
    reason = ""
    for line in Path(__file__).with_name("options").joinpath("no_effect.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif line and not line.startswith("#"):
            name, kind, default, doc = line.split(" | ")
            option = Option(name, cast(Kind, kind), None, doc, None, "low", reason)
            yield option if default == _NOT_SET else replace(option, default=option.parse(default))


BROKER_OPTIONS = Options(*NETWORK, *STORAGE, *COORDINATORS, *SHARE_GROUPS, *SECURITY, *_read_no_effect())


def resolve(*layers: Layer) -> Config:
    """Return the configuration of a broker, with deprecated names resolved."""
    config = BROKER_OPTIONS.resolve(*layers)
    changes: dict[str, object] = {}
    if config.given("broker.id") and not config.given("node.id"):
        changes["node.id"] = config["broker.id"]
    if config.optional(tuple, "log.dirs") is None:
        changes["log.dirs"] = (config.of(str, "log.dir"),)
    return config.derived(changes) if changes else config


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
