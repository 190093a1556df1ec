"""Resolution of producer options.

    profile, file or mapping, keywords  →  resolve  →  Config      checked, without contradictions
    Config  →  ProducerSettings.build                              typed fields

`resolve` also derives options from each other, as Kafka's producer does: client id, idempotence, back-offs, delivery
timeout.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client import addresses, tls
from headrace.client.addresses import Endpoint
from headrace.client.connection import ConnectionSettings
from headrace.client.credentials import SaslSettings, sasl_settings, tls_settings
from headrace.client.network import NetworkSettings
from headrace.client.plugins import PluginLoader, PrefixedLogger
from headrace.client.tls import TlsSettings
from headrace.config import INT_MAX, Config, Layer, read_properties
from headrace.config.clock import Clock
from headrace.errors import ConfigError
from headrace.producer.accumulator import AccumulatorSettings
from headrace.producer.options import PRODUCER_OPTIONS, PROFILES
from headrace.producer.sender import SenderSettings
from headrace.telemetry import reporters
from headrace.wire.compression import CODEC_IDS, DEFAULT_LEVELS, GZIP, LZ4, ZSTD

if TYPE_CHECKING:
    from headrace.config.option_types import ProducerOptions

    class ProducerArguments(ProducerOptions, total=False):
        """The keyword arguments of `Producer` and `AsyncProducer`."""

        key_serializer: object
        value_serializer: object
        profile: str | None
        clock: Clock


IDEMPOTENT_IN_FLIGHT_MAX = 5
"""A broker remembers this many batches of a producer; beyond it, it cannot recognize a duplicate."""
ACKS_ALL = -1

_LZ4_LEVEL_FAST = 9  # Kafka's default, which selects the fast compressor.
_client_numbers = itertools.count(1)  # next() is atomic.
_warned_no_effect: set[str] = set()  # One warning for each option and process.


def producer_log(client_id: str, transactional_id: str | None) -> PrefixedLogger:
    """Return a logger whose lines start with the client id and transactional id."""
    return PrefixedLogger("producer", client_id=client_id, transactional_id=transactional_id)


def resolve(
    config: Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    profile: str | None = None,
    key_serializer: object = None,
    value_serializer: object = None,
    **options: object,
) -> Config:
    """Merge and check options. `config` is a mapping or the path of a `.properties` file.

    Keyword arguments take precedence over it; of these, the serializer arguments over options of the same name.
    """
    layers: list[Layer] = []
    if profile is not None:
        if profile not in PROFILES:
            raise ConfigError(f"invalid profile: expected {', '.join(PROFILES)} or None, got {profile!r}")
        layers.append(("profile", PROFILES[profile]))
    if isinstance(config, str | os.PathLike):
        layers.append(("file", read_properties(config)))
    elif config is not None:
        layers.append(("argument", config))
    serializers = {"key_serializer": key_serializer, "value_serializer": value_serializer}
    layers.append(("argument", PRODUCER_OPTIONS.named({**options, **serializers})))
    resolved = PRODUCER_OPTIONS.resolve(*layers)
    changes = _derive_client_id(resolved)
    log = producer_log(str(changes.get("client.id", resolved["client.id"])), resolved.optional(str, "transactional.id"))
    _warn_of_no_effect(resolved, log)
    if resolved["transaction.two.phase.commit.enable"]:
        raise ConfigError("transaction.two.phase.commit.enable is true, but no released broker supports it: unset it")
    addresses.parse(resolved.optional(tuple, "bootstrap.servers") or ())
    changes |= _derive_idempotence(resolved, log)
    changes |= _derive_backoffs(resolved, profile, log)
    changes |= _derive_delivery_timeout(resolved, log)
    return resolved.derived(changes)


def _warn_of_no_effect(config: Config, log: PrefixedLogger) -> None:
    for name, option in PRODUCER_OPTIONS.items():
        is_off = config[name] is False  # has no effect, as requested
        if option.no_effect and config.given(name) and not is_off and name not in _warned_no_effect:
            _warned_no_effect.add(name)
            log.warning("option %s has no effect: %s", name, option.no_effect)


def _derive_idempotence(config: Config, log: PrefixedLogger) -> dict[str, object]:
    """Derive idempotence, which needs retries, acks=all and at most five requests in flight; transactions need it.

    If it was set explicitly, contradictions are errors. If it is only on by default, it is turned off (KIP-679).
    """
    required_by = None
    if config["transactional.id"] is not None:
        required_by = "transactional.id"
        if config.given("enable.idempotence") and not config["enable.idempotence"]:
            raise ConfigError("transactional.id is set, but enable.idempotence is false: transactions need it")
    elif config.given("enable.idempotence") and config["enable.idempotence"]:
        required_by = "enable.idempotence"
    if required_by is None and not config["enable.idempotence"]:
        return {}

    enabled = True
    if config["retries"] == 0:
        if required_by:
            raise ConfigError(f"retries is 0, but {required_by} is set and needs retries: leave retries unset")
        enabled = False
        log.info("idempotence is off because retries is 0")
    changes: dict[str, object] = {}
    if _acks(config) != ACKS_ALL:
        if required_by and config.given("acks"):
            raise ConfigError(f"acks is {config['acks']}, but {required_by} is set and needs all: leave acks unset")
        if required_by:  # the other value comes from a profile
            changes["acks"] = "all"
        else:
            enabled = False
            log.info("idempotence is off because acks is %s", config["acks"])
    in_flight = config.of(int, "max.in.flight.requests.per.connection")
    if in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
        raise ConfigError(
            f"max.in.flight.requests.per.connection is {in_flight}, but idempotence allows at most "
            f"{IDEMPOTENT_IN_FLIGHT_MAX}: lower it, or set enable.idempotence=false"
        )
    if config["enable.idempotence"] is not enabled:
        changes["enable.idempotence"] = enabled
    return changes


def _derive_backoffs(config: Config, profile: str | None, log: PrefixedLogger) -> dict[str, object]:
    changes: dict[str, object] = {}
    if config.given("reconnect.backoff.ms") and not config.given("reconnect.backoff.max.ms"):
        changes["reconnect.backoff.max.ms"] = config["reconnect.backoff.ms"]
    # Kafka 2.4 had no exponential back-off, and no option for its maximum.
    if profile == "2.4" and not config.given("retry.backoff.max.ms"):
        changes["retry.backoff.max.ms"] = config["retry.backoff.ms"]
    elif config.of(int, "retry.backoff.ms") > config.of(int, "retry.backoff.max.ms"):
        log.warning(
            "retry.backoff.ms is %s, above retry.backoff.max.ms, %s: the back-off is constant",
            config["retry.backoff.ms"],
            config["retry.backoff.max.ms"],
        )
    return changes


def _derive_delivery_timeout(config: Config, log: PrefixedLogger) -> dict[str, object]:
    linger_ms, request_ms = config.of(int, "linger.ms"), config.of(int, "request.timeout.ms")
    min_ms = min(linger_ms + request_ms, INT_MAX)
    delivery_ms = config.of(int, "delivery.timeout.ms")
    if delivery_ms >= min_ms:
        return {}
    if config.given("delivery.timeout.ms"):
        raise ConfigError(
            f"delivery.timeout.ms is {delivery_ms}, but must be at least {min_ms}: "
            f"linger.ms ({linger_ms}) + request.timeout.ms ({request_ms})"
        )
    log.warning("delivery.timeout.ms is raised to %s: linger.ms + request.timeout.ms", min_ms)
    return {"delivery.timeout.ms": min_ms}


def _derive_client_id(config: Config) -> dict[str, object]:
    if config.given("client.id"):
        return {}
    transactional_id = config["transactional.id"]
    return {"client.id": f"producer-{next(_client_numbers) if transactional_id is None else transactional_id}"}


def _acks(config: Config) -> int:
    acks = config.of(str, "acks")
    return ACKS_ALL if acks == "all" else int(acks)


def _codec_and_level(config: Config) -> tuple[int, int | None]:
    codec = CODEC_IDS[config.of(str, "compression.type")]
    if codec not in DEFAULT_LEVELS:
        return codec, None
    name, default_level = {
        GZIP: ("compression.gzip.level", -1),
        LZ4: ("compression.lz4.level", _LZ4_LEVEL_FAST),
        ZSTD: ("compression.zstd.level", None),
    }[codec]
    level = config.of(int, name)
    return codec, None if level == default_level else level


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer's options as typed values. The repr has no secrets."""

    bootstrap_servers: tuple[Endpoint, ...]
    client_id: str
    client_dns_lookup: str
    tls: TlsSettings | None
    sasl: SaslSettings | None

    acks: int
    batch_size: int
    """At least 1: with 0, as with 1, every record gets its own batch."""
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    max_in_flight: int
    max_request_size: int
    codec: int
    compression_level: int | None
    """None: the codec's default."""

    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: int

    key_serializer: object
    value_serializer: object
    partitioner: object
    """The value of partitioner.class; None: the built-in partitioner."""
    partitioner_ignore_keys: bool
    partitioner_adaptive: bool
    partitioner_availability_timeout_ms: int
    interceptors: tuple[object, ...]

    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    rebootstrap: bool
    rebootstrap_trigger_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    connections_max_idle_ms: int
    connect_timeout_ms: int
    connect_timeout_max_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int

    metric_reporters: tuple[object, ...]
    metrics_num_samples: int
    metrics_sample_window_ms: int

    @classmethod
    def build(cls, config: Config, plugins: PluginLoader) -> ProducerSettings:
        """Return the settings for a resolved config. `plugins` loads the token provider, if any."""
        codec, level = _codec_and_level(config)
        return cls(
            bootstrap_servers=tuple(addresses.parse(config.of(tuple, "bootstrap.servers"))),
            client_id=config.of(str, "client.id"),
            client_dns_lookup=config.of(str, "client.dns.lookup"),
            tls=tls_settings(config),
            sasl=sasl_settings(config, plugins),
            acks=_acks(config),
            batch_size=max(1, config.of(int, "batch.size")),
            linger_ms=config.of(int, "linger.ms"),
            buffer_memory=config.of(int, "buffer.memory"),
            max_block_ms=config.of(int, "max.block.ms"),
            delivery_timeout_ms=config.of(int, "delivery.timeout.ms"),
            request_timeout_ms=config.of(int, "request.timeout.ms"),
            retries=config.of(int, "retries"),
            retry_backoff_ms=config.of(int, "retry.backoff.ms"),
            retry_backoff_max_ms=config.of(int, "retry.backoff.max.ms"),
            max_in_flight=config.of(int, "max.in.flight.requests.per.connection"),
            max_request_size=config.of(int, "max.request.size"),
            codec=codec,
            compression_level=level,
            enable_idempotence=config.of(bool, "enable.idempotence"),
            transactional_id=config.optional(str, "transactional.id"),
            transaction_timeout_ms=config.of(int, "transaction.timeout.ms"),
            key_serializer=config["key.serializer"],
            value_serializer=config["value.serializer"],
            partitioner=config["partitioner.class"],
            partitioner_ignore_keys=config.of(bool, "partitioner.ignore.keys"),
            partitioner_adaptive=config.of(bool, "partitioner.adaptive.partitioning.enable"),
            partitioner_availability_timeout_ms=config.of(int, "partitioner.availability.timeout.ms"),
            interceptors=config.of(tuple, "interceptor.classes"),
            metadata_max_age_ms=config.of(int, "metadata.max.age.ms"),
            metadata_max_idle_ms=config.of(int, "metadata.max.idle.ms"),
            rebootstrap=config["metadata.recovery.strategy"] == "rebootstrap",
            rebootstrap_trigger_ms=config.of(int, "metadata.recovery.rebootstrap.trigger.ms"),
            reconnect_backoff_ms=config.of(int, "reconnect.backoff.ms"),
            reconnect_backoff_max_ms=config.of(int, "reconnect.backoff.max.ms"),
            connections_max_idle_ms=config.of(int, "connections.max.idle.ms"),
            connect_timeout_ms=config.of(int, "socket.connection.setup.timeout.ms"),
            connect_timeout_max_ms=config.of(int, "socket.connection.setup.timeout.max.ms"),
            send_buffer_bytes=config.of(int, "send.buffer.bytes"),
            receive_buffer_bytes=config.of(int, "receive.buffer.bytes"),
            metric_reporters=reporters.chosen(config),
            metrics_num_samples=config.of(int, "metrics.num.samples"),
            metrics_sample_window_ms=config.of(int, "metrics.sample.window.ms"),
        )

    def accumulator(self) -> AccumulatorSettings:
        """Return the settings of the accumulator."""
        return AccumulatorSettings(
            batch_bytes=self.batch_size,
            linger_ms=self.linger_ms,
            max_request_bytes=self.max_request_size,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            delivery_timeout_ms=self.delivery_timeout_ms,
            codec=self.codec,
            level=self.compression_level,
            hashes_keys=not self.partitioner_ignore_keys,
        )

    def connection(self) -> ConnectionSettings:
        """Return the settings of a connection."""
        return ConnectionSettings(
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=self.connect_timeout_ms,
            connect_timeout_max_ms=self.connect_timeout_max_ms,
            send_buffer_bytes=self.send_buffer_bytes,
            receive_buffer_bytes=self.receive_buffer_bytes,
            tls_context=None if self.tls is None else tls.context(self.tls),
            mechanism_factory=None if self.sasl is None else self.sasl.mechanism,
        )

    def network(self) -> NetworkSettings:
        """Return the settings of the network client."""
        return NetworkSettings(
            max_in_flight=self.max_in_flight,
            reconnect_backoff_ms=self.reconnect_backoff_ms,
            reconnect_backoff_max_ms=self.reconnect_backoff_max_ms,
            connections_max_idle_ms=self.connections_max_idle_ms,
        )

    def sender(self) -> SenderSettings:
        """Return the settings of the sender."""
        return SenderSettings(
            acks=self.acks,
            retries=self.retries,
            request_timeout_ms=self.request_timeout_ms,
            delivery_timeout_ms=self.delivery_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            keeps_order_by_muting=self.max_in_flight == 1 and not self.enable_idempotence,
        )
