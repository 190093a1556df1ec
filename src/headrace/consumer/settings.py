"""Resolution of consumer options.

file or mapping, keywords  →  resolve  →  Config      checked, without contradictions
Config  →  ConsumerSettings.build                     typed fields
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client import addresses, tls
from headrace.client.addresses import Endpoint
from headrace.client.connection import ConnectionSettings
from headrace.client.credentials import SaslSettings, sasl_settings, tls_settings
from headrace.client.network import NetworkSettings
from headrace.client.offsets import EARLIEST, LATEST, Isolation
from headrace.client.plugins import PluginLoader, PrefixedLogger
from headrace.client.tls import TlsSettings
from headrace.config import Config, Layer, read_properties
from headrace.config.clock import Clock
from headrace.config.offset_reset import BY_DURATION, duration_ms
from headrace.consumer.assignors import assignor_names
from headrace.consumer.fetching import FetchSettings
from headrace.consumer.options import CONSUMER_OPTIONS
from headrace.errors import ConfigError
from headrace.telemetry import reporters

if TYPE_CHECKING:
    from headrace.config.option_types import ConsumerOptions

    class ConsumerArguments(ConsumerOptions, total=False):
        """The keyword arguments of `Consumer` and `AsyncConsumer`."""

        key_deserializer: object
        value_deserializer: object
        clock: Clock


SHARE_OPTIONS = frozenset({"share.acknowledgement.mode", "share.acquire.mode"})
"""Options without effect on a consumer that is not in a share group."""
IN_FLIGHT_MAX = 100
"""Requests in flight to a broker: a fetch, and few others."""
CLASSIC_PROTOCOL_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
"""Options that brokers decide with group.protocol=consumer; setting one is an error, as in Java."""
CONSUMER_PROTOCOL_ONLY = ("group.remote.assignor",)
_client_numbers = itertools.count(1)  # next() is atomic.
_warned_no_effect: set[str] = set()  # One warning for each option and process.


def resolve(
    config: Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    key_deserializer: object = None,
    value_deserializer: object = None,
    is_share: bool = False,
    **options: object,
) -> Config:
    """Merge and check options. `config` is a mapping or the path of a `.properties` file.

    Keyword arguments take precedence over it; of these, the deserializer arguments over options of the same name.
    """
    layers: list[Layer] = []
    if isinstance(config, str | os.PathLike):
        layers.append(("file", read_properties(config)))
    elif config is not None:
        layers.append(("argument", config))
    deserializers = {"key_deserializer": key_deserializer, "value_deserializer": value_deserializer}
    layers.append(("argument", CONSUMER_OPTIONS.named({**options, **deserializers})))
    resolved = CONSUMER_OPTIONS.resolve(*layers)
    changes: dict[str, object] = {}
    group_id = resolved.optional(str, "group.id")
    if not resolved.given("client.id"):
        label = resolved["group.instance.id"] or next(_client_numbers)
        changes["client.id"] = f"consumer-{group_id}-{label}" if group_id else f"consumer-{label}"
    if resolved.given("reconnect.backoff.ms") and not resolved.given("reconnect.backoff.max.ms"):
        changes["reconnect.backoff.max.ms"] = resolved["reconnect.backoff.ms"]
    addresses.parse(resolved.optional(tuple, "bootstrap.servers") or ())
    changes["partition.assignment.strategy"] = assignor_names(resolved.of(tuple, "partition.assignment.strategy"))
    changes |= _check_group(resolved, group_id)
    result = resolved.derived(changes)
    _warn_of_no_effect(result, consumer_log(result), SHARE_OPTIONS if is_share else frozenset())
    return result


def consumer_log(config: Config) -> PrefixedLogger:
    """Return a logger whose lines start with the client id and the group id."""
    return PrefixedLogger("consumer", client_id=config.of(str, "client.id"), group_id=config.optional(str, "group.id"))


def _check_group(config: Config, group_id: str | None) -> dict[str, object]:
    if group_id is None:
        if config.given("enable.auto.commit") and config["enable.auto.commit"]:
            raise ConfigError("enable.auto.commit is true, but group.id is not set: set it, or leave both unset")
        if config["group.instance.id"] is not None:
            raise ConfigError("group.instance.id is set, but group.id is not: set it, too")
        return {"enable.auto.commit": False}
    is_classic = config["group.protocol"] == "classic"
    for name in CONSUMER_PROTOCOL_ONLY if is_classic else CLASSIC_PROTOCOL_ONLY:
        if config.given(name) and config[name] is not None:
            other = "consumer" if is_classic else "classic"
            raise ConfigError(
                f"{name} is set, but does not apply to group.protocol={config['group.protocol']}: leave it unset, or "
                f"set group.protocol={other}"
            )
    session_ms, heartbeat_ms = config.of(int, "session.timeout.ms"), config.of(int, "heartbeat.interval.ms")
    if heartbeat_ms >= session_ms:
        raise ConfigError(
            f"heartbeat.interval.ms is {heartbeat_ms}, but must be below session.timeout.ms ({session_ms}): set it to "
            "a third of that"
        )
    return {}


def _warn_of_no_effect(config: Config, log: PrefixedLogger, acting: frozenset[str]) -> None:
    for name, option in CONSUMER_OPTIONS.items():
        if name in acting:
            continue
        is_off = config[name] is False  # has no effect, as requested
        if option.no_effect and config.given(name) and not is_off and name not in _warned_no_effect:
            _warned_no_effect.add(name)
            log.warning("option %s has no effect: %s", name, option.no_effect)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options of a group and its members."""

    group_id: str
    instance_id: str | None
    protocol: str
    assignors: tuple[str, ...]
    remote_assignor: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rack: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int

    @property
    def is_consumer_protocol(self) -> bool:
        """Whether the brokers assign the partitions (KIP-848)."""
        return self.protocol == "consumer"


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """A consumer's options as typed values. The repr has no secrets."""

    bootstrap_servers: tuple[Endpoint, ...]
    client_id: str
    tls: TlsSettings | None
    sasl: SaslSettings | None
    group: GroupSettings | None
    fetch: FetchSettings
    api_timeout_ms: int
    max_poll_records: int
    max_poll_interval_ms: int
    auto_commit_interval_ms: int | None
    """None: no automatic commits."""
    reset_time: int | None
    """EARLIEST, LATEST, or None: no reset."""
    reset_age_ms: int | None
    """For by_duration."""
    creates_topics: bool
    matches_internal_topics: bool
    metadata_max_age_ms: int
    rebootstrap_trigger_ms: int | None
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    connection: ConnectionSettings
    network: NetworkSettings
    interceptors: tuple[object, ...]
    metric_reporters: tuple[object, ...]

    @classmethod
    def build(cls, config: Config, plugins: PluginLoader) -> ConsumerSettings:
        """Return the settings for a resolved config. `plugins` loads the token provider, if any."""
        tls_options, sasl = tls_settings(config), sasl_settings(config, plugins)
        policy, _, duration = config.of(str, "auto.offset.reset").partition(":")
        is_rebootstrapping = config["metadata.recovery.strategy"] == "rebootstrap"
        return cls(
            bootstrap_servers=tuple(addresses.parse(config.of(tuple, "bootstrap.servers"))),
            client_id=config.of(str, "client.id"),
            tls=tls_options,
            sasl=sasl,
            group=_group(config),
            fetch=_fetch(config),
            api_timeout_ms=config.of(int, "default.api.timeout.ms"),
            max_poll_records=config.of(int, "max.poll.records"),
            max_poll_interval_ms=config.of(int, "max.poll.interval.ms"),
            auto_commit_interval_ms=(
                config.of(int, "auto.commit.interval.ms") if config["enable.auto.commit"] else None
            ),
            reset_time={"earliest": EARLIEST, "latest": LATEST}.get(policy),
            reset_age_ms=duration_ms(duration) if policy == BY_DURATION else None,
            creates_topics=config.of(bool, "allow.auto.create.topics"),
            matches_internal_topics=not config.of(bool, "exclude.internal.topics"),
            metadata_max_age_ms=config.of(int, "metadata.max.age.ms"),
            rebootstrap_trigger_ms=(
                config.of(int, "metadata.recovery.rebootstrap.trigger.ms") if is_rebootstrapping else None
            ),
            request_timeout_ms=config.of(int, "request.timeout.ms"),
            retry_backoff_ms=config.of(int, "retry.backoff.ms"),
            retry_backoff_max_ms=config.of(int, "retry.backoff.max.ms"),
            connection=_connection(config, tls_options, sasl),
            network=NetworkSettings(
                max_in_flight=IN_FLIGHT_MAX,
                reconnect_backoff_ms=config.of(int, "reconnect.backoff.ms"),
                reconnect_backoff_max_ms=config.of(int, "reconnect.backoff.max.ms"),
                connections_max_idle_ms=config.of(int, "connections.max.idle.ms"),
            ),
            interceptors=config.of(tuple, "interceptor.classes"),
            metric_reporters=reporters.chosen(config),
        )


def _connection(config: Config, tls_options: TlsSettings | None, sasl: SaslSettings | None) -> ConnectionSettings:
    return ConnectionSettings(
        client_id=config.of(str, "client.id"),
        request_timeout_ms=config.of(int, "request.timeout.ms"),
        connect_timeout_ms=config.of(int, "socket.connection.setup.timeout.ms"),
        connect_timeout_max_ms=config.of(int, "socket.connection.setup.timeout.max.ms"),
        send_buffer_bytes=config.of(int, "send.buffer.bytes"),
        receive_buffer_bytes=config.of(int, "receive.buffer.bytes"),
        tls_context=None if tls_options is None else tls.context(tls_options),
        mechanism_factory=None if sasl is None else sasl.mechanism,
        allocate=_allocate,
    )


def _allocate(size: int) -> memoryview:
    """Return memory for a response.

    Arrow's allocator uses freed memory again. That of a bytearray would be new pages, filled with zeros twice.
    """
    return memoryview(pa.allocate_buffer(size)).cast("B")


def _fetch(config: Config) -> FetchSettings:
    return FetchSettings(
        min_bytes=config.of(int, "fetch.min.bytes"),
        max_bytes=config.of(int, "fetch.max.bytes"),
        max_wait_ms=config.of(int, "fetch.max.wait.ms"),
        partition_bytes_max=config.of(int, "max.partition.fetch.bytes"),
        isolation=Isolation.of(config.of(str, "isolation.level")),
        rack=config.of(str, "client.rack"),
        request_timeout_ms=config.of(int, "request.timeout.ms"),
        retry_backoff_ms=config.of(int, "retry.backoff.ms"),
        preferred_replica_ms=config.of(int, "metadata.max.age.ms"),
    )


def _group(config: Config) -> GroupSettings | None:
    group_id = config.optional(str, "group.id")
    if group_id is None:
        return None
    return GroupSettings(
        group_id=group_id,
        instance_id=config.optional(str, "group.instance.id"),
        protocol=config.of(str, "group.protocol"),
        assignors=config.of(tuple, "partition.assignment.strategy"),
        remote_assignor=config.optional(str, "group.remote.assignor"),
        session_timeout_ms=config.of(int, "session.timeout.ms"),
        heartbeat_interval_ms=config.of(int, "heartbeat.interval.ms"),
        max_poll_interval_ms=config.of(int, "max.poll.interval.ms"),
        rack=config.of(str, "client.rack"),
        request_timeout_ms=config.of(int, "request.timeout.ms"),
        retry_backoff_ms=config.of(int, "retry.backoff.ms"),
        retry_backoff_max_ms=config.of(int, "retry.backoff.max.ms"),
    )
