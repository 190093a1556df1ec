"""The current options of topics, brokers, groups and client metrics, and the source of each value.

    topic    set on the topic > on this broker > on all brokers > in its configuration > default
    broker                      on this broker > on all brokers > in its configuration > default
    group    set on the group > the broker's option of the same meaning (group_options.py)
    client metrics              set on the subscription > default (client_metrics/options.py)

"Set on" means by AlterConfigs, kept in the catalog. A topic option may have several names on a broker, in different
units (log.retention.ms, .minutes, .hours): the first that is set counts. `handlers/configs.py` changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC
from headrace.broker.client_metrics.options import CLIENT_METRICS_OPTIONS, Subscription
from headrace.broker.group_options import GROUP_OPTIONS, broker_synonym, check_group_values
from headrace.broker.log.config import LogConfig
from headrace.broker.server import limits
from headrace.broker.topic_options import BROKER_SYNONYMS, TOPIC_OPTIONS, broker_defaults
from headrace.config import Config, Kind, Option, Options
from headrace.errors import BrokerError, Code, ConfigError


class ResourceType(IntEnum):
    """Kafka's config resource types."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Kafka's config sources."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


MIN_ISR = "min.insync.replicas"

TYPES: dict[Kind, int] = {
    "bool": 1,
    "str": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
    "classes": 7,
}
"""Kafka's config types."""

_DYNAMIC_WITHOUT_EFFECT = frozenset(
    {
        "background.threads",
        "config.providers",
        "follower.fetch.last.tiered.offset.enable",
        "group.coordinator.cached.buffer.max.bytes",
        "group.share.assignment.interval.ms",
        "group.streams.assignment.interval.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "principal.builder.class",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "share.coordinator.cached.buffer.max.bytes",
    }
)
_READ_EACH_TIME = frozenset(
    {
        "group.consumer.assignment.interval.ms",
        "log.cleaner.backoff.ms",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
    }
)
DYNAMIC = (
    frozenset(names[0][0] for names in BROKER_SYNONYMS.values() if names)
    | limits.OPTIONS
    | _DYNAMIC_WITHOUT_EFFECT
    | _READ_EACH_TIME
)
"""Broker options that can be changed at run time: those that topics inherit (of several units the first, as in Kafka),
the limits on connections, those that are read each time, and those without effect that are dynamic in Kafka."""


class Synonym(NamedTuple):
    """A value of an option, or one that would apply if those before it were not set."""

    name: str
    value: str | None  # None: secret
    source: ConfigSource


class Entry(NamedTuple):
    """An option of a resource."""

    option: Option
    value: str | None  # None: secret, or not set
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT

    @property
    def is_sensitive(self) -> bool:
        return self.option.kind == "password"


class Configurations:
    """Looks up options in the catalog and the broker's configuration."""

    def __init__(self, static: Config, catalog: Catalog, node_id: int) -> None:
        self._static = static
        self._catalog = catalog
        self._node = str(node_id)

    def current(self) -> Config:
        """Return the broker's configuration with all dynamic changes."""
        changes: dict[str, object] = {}
        for name in ("", self._node):
            for option, value in self._catalog.configs.of(BROKER, name).items():
                changes[option] = BROKER_OPTIONS[option].parse(value)
        return self._static.derived(changes) if changes else self._static

    def of_topic(self, name: str) -> Iterator[Entry]:
        """Yield all options of a topic."""
        own = self._catalog.configs.of(TOPIC, name)
        inherited = broker_defaults(self.current())
        for option in TOPIC_OPTIONS.values():
            if option.name in own:
                value = option.show(option.parse(own[option.name]))
            elif option.name.startswith("internal."):
                continue  # not shown to clients unless it is set
            else:
                value = option.show(option.parse(inherited.get(option.name, option.default)))
            first = (Synonym(option.name, value, ConfigSource.DYNAMIC_TOPIC),) if option.name in own else ()
            names = tuple(name for name, _ in BROKER_SYNONYMS.get(option.name, ()))
            yield Entry(option, value, (*first, *self._synonyms(names)), read_only=False)

    def of_group(self, name: str) -> Iterator[Entry]:
        """Yield all options of a group, which need not exist."""
        own = self._catalog.configs.of(GROUP, name)
        current = self.current()
        for option in GROUP_OPTIONS.values():
            synonym = broker_synonym(option.name)
            inherited = option.show(option.default if synonym is None else current[synonym])
            value = own.get(option.name, inherited)
            first = (Synonym(option.name, value, ConfigSource.DYNAMIC_GROUP),) if option.name in own else ()
            if synonym is None:
                others: Iterable[Synonym] = (Synonym(option.name, inherited, ConfigSource.DEFAULT),)
            else:
                others = self._synonyms((synonym,))
            yield Entry(option, value, (*first, *others), read_only=False)

    def of_client_metrics(self, name: str) -> Iterator[Entry]:
        """Yield the options of a client metrics subscription, which need not exist."""
        own = self._catalog.configs.of(CLIENT_METRICS, name)
        for option in CLIENT_METRICS_OPTIONS.values():
            default = option.show(option.default)
            value = own.get(option.name, default)
            first = (Synonym(option.name, value, ConfigSource.DYNAMIC_CLIENT_METRICS),) if option.name in own else ()
            synonyms = (*first, Synonym(option.name, default, ConfigSource.DEFAULT))
            yield Entry(option, value, synonyms, read_only=False)

    def of_broker(self, name: str) -> Iterator[Entry]:
        """Yield all options of this broker; if the name is empty, those set for all brokers."""
        self.check_broker(name)
        if not name:
            for option, text in self._for_all_brokers().items():
                synonyms = (Synonym(option, text, ConfigSource.DYNAMIC_DEFAULT_BROKER),)
                yield _without_secret(Entry(BROKER_OPTIONS[option], text, synonyms, option not in DYNAMIC))
            return
        current = self.current()
        for broker_option in BROKER_OPTIONS.values():
            name = broker_option.name
            value = None if current[name] is None else broker_option.show(current[name])
            yield _without_secret(Entry(broker_option, value, tuple(self._synonyms((name,))), name not in DYNAMIC))

    def check_broker(self, name: str) -> None:
        """Raise INVALID_REQUEST unless the name is that of this broker, or empty for all brokers."""
        if name not in ("", self._node):
            raise BrokerError(
                f"invalid broker {name!r}: expected {self._node}, the broker of this request", code=Code.INVALID_REQUEST
            )

    def default(self, resource: ResourceType, option: Option) -> str:
        """Return the value of an option that is not set on the resource."""
        if resource == ResourceType.TOPIC:
            return option.show(option.parse(broker_defaults(self.current()).get(option.name, option.default)))
        if resource == ResourceType.GROUP:
            synonym = broker_synonym(option.name)
            return option.show(option.default if synonym is None else self._static[synonym])
        if resource == ResourceType.CLIENT_METRICS:
            return option.show(option.default)
        return option.show(self._static[option.name])

    def _for_all_brokers(self) -> Mapping[str, str]:
        """Return the options of all brokers.

        With eligible leader replicas (KIP-966), min.insync.replicas is always one of them: a new cluster of Kafka sets
        it to what the first broker has.
        """
        own = BROKER_OPTIONS[MIN_ISR].show(self._static[MIN_ISR])
        return {MIN_ISR: own, **self._catalog.configs.of(BROKER, "")}

    def _synonyms(self, names: Iterable[str]) -> Iterator[Synonym]:
        names = tuple(names)
        layers: tuple[tuple[ConfigSource, Mapping[str, str]], ...] = (
            (ConfigSource.DYNAMIC_BROKER, self._catalog.configs.of(BROKER, self._node)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, self._for_all_brokers()),
        )
        for source, values in layers:
            for name in names:
                if name in values:
                    yield Synonym(name, values[name], source)
        for name in names:
            if self._static.origin(name) != "default":
                yield Synonym(name, BROKER_OPTIONS[name].show(self._static[name]), ConfigSource.STATIC_BROKER)
        for name in names:
            option = BROKER_OPTIONS[name]
            if option.default is not None:
                yield Synonym(name, option.show(option.default), ConfigSource.DEFAULT)


def _without_secret(entry: Entry) -> Entry:
    if not entry.is_sensitive:
        return entry
    synonyms = tuple(Synonym(synonym.name, None, synonym.source) for synonym in entry.synonyms)
    return Entry(entry.option, None, synonyms, entry.read_only)


OPTIONS: dict[ResourceType, Options] = {
    ResourceType.TOPIC: TOPIC_OPTIONS,
    ResourceType.BROKER: BROKER_OPTIONS,
    ResourceType.GROUP: GROUP_OPTIONS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_OPTIONS,
}
"""The options of each type of resource."""


def check_values(resource: ResourceType, values: Mapping[str, str | None], broker: Config) -> None:
    """Raise INVALID_CONFIG unless all are options of the resource with valid values."""
    options = OPTIONS[resource]
    given = {name: value for name, value in values.items() if value is not None}
    for name in values:
        if name not in options:
            raise BrokerError(
                f"unknown {resource.name.lower()} option {name!r}{options.suggestion(name)}", code=Code.INVALID_CONFIG
            )
        if resource == ResourceType.BROKER and name not in DYNAMIC:
            raise BrokerError(
                f"{name} cannot be changed at run time: set it in the broker's configuration and restart the broker",
                code=Code.INVALID_REQUEST,
            )
    try:
        for name, value in given.items():
            options[name].parse(value)
        if resource == ResourceType.TOPIC:
            LogConfig.resolve(given, broker)
        elif resource == ResourceType.GROUP:
            check_group_values(given, broker)
        elif resource == ResourceType.CLIENT_METRICS:
            Subscription.of(given)
        elif limits.OPTIONS & given.keys():
            limits.ConnectionLimits.of(broker.derived({name: options[name].parse(given[name]) for name in given}))
    except ConfigError as error:
        raise BrokerError(str(error), code=Code.INVALID_CONFIG) from None
