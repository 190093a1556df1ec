"""The options of the sink: checked, in a form that is pickled for the executors.

Spark's mapping (names in lower case) → SinkOptions.parse → kafka.* for the producer, the others for the sink
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from headrace.client.admin.topics import BROKERS_DEFAULT
from headrace.client.blocking import ClientSettings
from headrace.client.credentials import sasl_settings, tls_settings
from headrace.client.plugins import PluginLoader
from headrace.config import Config, Option, Options, Secret
from headrace.config.option import Between, OneOf
from headrace.config.serde_options import SERDE_OPTIONS
from headrace.errors import ConfigError
from headrace.producer import partitioners, serializers
from headrace.producer.options import PRODUCER_OPTIONS
from headrace.producer.pipeline import SendPipeline
from headrace.producer.settings import ProducerSettings, resolve
from headrace.spark.format_options import FormatOptions, is_format_option
from headrace.spark.kafka_options import (
    OPTION_SETS_MAX,
    no_effect_text,
    not_read,
    refuse_unknown,
    unknown_names,
    without_effect,
)
from headrace.spark.kafka_options import PREFIX as KAFKA_PREFIX
from headrace.spark.origins import OriginColumns
from headrace.spark.topic_creation import SETTINGS_PREFIX, TopicCreation
from headrace.telemetry.sender import check_url

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
FAIL, DEAD_LETTER = "fail", "dead-letter"
CHECK_FINGERPRINT, CHECK_ROWS, CHECK_NONE = "fingerprint", "rows", "none"
DECISION_TOPIC = "headrace-decisions"
SEPARATOR = "~"
"""Separates the parts of a transactional id. Not allowed in sink.id, so that prefixes of two sinks differ."""
TRANSACTION_MS_MAX = 15 * 60 * 1000
"""The brokers' default limit (transaction.max.timeout.ms)."""
PLAN_MS_MAX = 30_000
INLINE_BYTES_MAX = 256 * 1024
"""For one task. The driver has the inline rows of all tasks of a batch in memory at once."""
DECISION_BYTES_MAX = 10 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,200}", re.ASCII)
# Set by the sink.
_SET_BY_SINK = {
    "transactional.id": "set sink.id instead",
    "transaction.two.phase.commit.enable": "leave it unset",
}
_FOR_DECISIONS = ("sink.id", "write.id", "replay.check")
_PLUGINS = ("key.serializer", "value.serializer", "interceptor.classes", "partitioner.class")
_PRODUCER_PLUGINS = ("metric.reporters", "sasl.login.callback.handler.class")
_BUILT_IN: dict[str, Collection[str]] = dict.fromkeys((*_PLUGINS, *_PRODUCER_PLUGINS), ()) | {
    "key.serializer": serializers.KIND.known,
    "value.serializer": serializers.KIND.known,
    "partitioner.class": partitioners.KIND.known,
}
"""The names of plug-ins that headrace has, by option. Of these it is known which options they read."""

SINK_OPTIONS = Options(
    Option("topic", "str", None, "The topic to write to. It overrides the column `topic`.", None, "high"),
    Option(
        "delivery",
        "str",
        EXACTLY_ONCE,
        "exactly-once: read_committed readers see each batch whole and once. at-least-once: rows are visible as soon "
        "as they are written; after a failure some are written again.",
        OneOf(EXACTLY_ONCE, AT_LEAST_ONCE),
        "high",
    ),
    Option(
        "sink.id",
        "str",
        None,
        "The name under which the decisions of this sink are kept and older drivers are fenced. By default made from "
        "the query id, which is kept in the checkpoint.",
    ),
    Option(
        "write.id",
        "str",
        None,
        "Batch writes only: a second write of the same rows with the same id delivers nothing if the first one was "
        "decided. Other rows with a used id are an error.",
    ),
    Option(
        "commit.mode",
        "str",
        "auto",
        "inline: tasks send their rows to the driver, which writes them in one transaction. parallel: every task "
        "writes in its own transaction. auto: inline for tasks with at most commit.inline.bytes.max.",
        OneOf("auto", "inline", "parallel"),
    ),
    Option(
        "commit.inline.bytes.max",
        "long",
        INLINE_BYTES_MAX,
        "The most that one task may send to the driver.",
        Between(0, 256 * 1024 * 1024),
    ),
    Option(
        "replay.check",
        "str",
        CHECK_FINGERPRINT,
        "How a replayed batch is compared with the decided one before it is skipped. fingerprint: number and content "
        "of the rows, as they come from Spark. rows: their number. none: not at all. Weaker checks are for queries "
        "that compute other rows when a batch is run again, or whose source records may be gone by then; the weaker "
        "the check, the more a restored checkpoint may lose. Not with delivery=at-least-once.",
        OneOf(CHECK_FINGERPRINT, CHECK_ROWS, CHECK_NONE),
    ),
    Option(
        "source.offsets",
        "str",
        "false",
        "Streams only: exactly once also with a new checkpoint. Rows whose source record another query of the same "
        "sink.id has delivered are skipped. true: the source record is in the columns __topic, __partition, __offset "
        "and __topic_id, which the source adds with includeOrigin; or name three or four other columns. They are not "
        "written. For stateless queries.",
    ),
    Option("decision.topic", "str", DECISION_TOPIC, "The compacted topic with the decisions.", None, "low"),
    Option(
        "on.bad.row",
        "str",
        FAIL,
        "What to do with a row that can never be sent (too large, no topic, refused by a serializer or a schema): fail "
        "the batch, or send the row to dead.letter.topic in the same commit.",
        OneOf(FAIL, DEAD_LETTER),
    ),
    Option("dead.letter.topic", "str", None, "The topic for bad rows with on.bad.row=dead-letter."),
    Option(
        "topic.create",
        "bool",
        False,
        "Create missing topics: those of the options topic and dead.letter.topic before the first batch, and those "
        "that rows name when they are first written to. Options topic.config.* are settings of the new topics, such as "
        "topic.config.retention.ms.",
    ),
    Option("topic.partitions", "int", None, "Partitions of created topics; num.partitions of the brokers.", Between(1)),
    Option(
        "topic.replication.factor",
        "short",
        None,
        "Replicas of created topics; default.replication.factor of the brokers.",
        Between(1),
    ),
    Option(
        "view.url",
        "str",
        None,
        "URL of a live view (printed by `headrace ui`) that batches and the producers of tasks report to. Commits "
        "never wait for it.",
        None,
        "low",
    ),
    Option("view.token", "password", None, "Token of the live view, if it requires one.", None, "low"),
    Option("view.name", "str", None, "Name of this sink in the live view; sink.id by default.", None, "low"),
    Option("includeheaders", "bool", True, "Spark's name: whether the column `headers` is written.", None, "low"),
    Option(
        "headrace.failpoints",
        "str",
        "",
        "For tests: where to fail. Without HEADRACE_FAILPOINTS=1 in the environment it is refused.",
        None,
        "low",
    ),
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink, as plain values: pickled for every task."""

    kafka: dict[str, str] = field(repr=False)  # has passwords
    topic: str | None = None
    delivery: str = EXACTLY_ONCE
    sink_id: str | None = None
    write_id: str | None = None
    commit_mode: str = "auto"
    inline_bytes_max: int = INLINE_BYTES_MAX
    replay_check: str = CHECK_FINGERPRINT
    origins: OriginColumns | None = None
    decision_topic: str = DECISION_TOPIC
    on_bad_row: str = FAIL
    dead_letter_topic: str | None = None
    creation: TopicCreation | None = None
    """None: missing topics are not created."""
    include_headers: bool = True
    formats: FormatOptions | None = None
    """None: keys and values are sent as they are."""
    view_url: str | None = None
    view_token: str | None = field(default=None, repr=False)
    view_name: str | None = None
    failpoints: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
        """Check everything that can be checked without a broker."""
        kafka: dict[str, str] = {}
        own: dict[str, str] = {}
        topic_configs: dict[str, str] = {}
        formats: dict[str, str] = {}
        for name, value in given.items():
            if name.lower().startswith(KAFKA_PREFIX):
                kafka[name[len(KAFKA_PREFIX) :].lower()] = value
            elif name.lower().startswith(SETTINGS_PREFIX):
                topic_configs[name[len(SETTINGS_PREFIX) :].lower()] = value
            elif is_format_option(name.lower()):
                formats[name.lower()] = value
            elif name.lower() in SINK_OPTIONS:
                own[name.lower()] = value
            else:
                _check_unknown(name)
        config = SINK_OPTIONS.resolve(("argument", own))
        token = config.optional(Secret, "view.token")
        options = cls(
            kafka,
            topic=_text(config, "topic"),
            delivery=config.of(str, "delivery"),
            sink_id=_identifier(config, "sink.id"),
            write_id=_identifier(config, "write.id"),
            commit_mode=config.of(str, "commit.mode"),
            inline_bytes_max=config.of(int, "commit.inline.bytes.max"),
            replay_check=config.of(str, "replay.check"),
            origins=OriginColumns.parse(config.of(str, "source.offsets")),
            decision_topic=config.of(str, "decision.topic"),
            on_bad_row=config.of(str, "on.bad.row"),
            dead_letter_topic=_text(config, "dead.letter.topic"),
            creation=_creation(config, topic_configs),
            include_headers=config.of(bool, "includeheaders"),
            formats=FormatOptions.parse(formats),
            view_url=config.optional(str, "view.url") or None,
            view_token=None if token is None else token.reveal(),
            view_name=config.optional(str, "view.name") or None,
            failpoints=config.of(str, "headrace.failpoints"),
        )
        if options.delivery == AT_LEAST_ONCE:
            for name in _FOR_DECISIONS:
                if name in own:
                    raise ConfigError(f"{name} is set, but delivery=at-least-once has no decisions: drop one of them")
        options._check(is_stream)
        return options

    def _check(self, is_stream: bool) -> None:
        if not self.kafka.get("bootstrap.servers", "").strip():
            raise ConfigError("kafka.bootstrap.servers is not set; it may be host:port, with commas between several")
        for name, remedy in _SET_BY_SINK.items():
            if name in self.kafka:
                raise ConfigError(f"kafka.{name} is set by the sink: {remedy}")
        if is_stream and self.write_id is not None:
            raise ConfigError(
                "write.id is for batch writes; a stream identifies its batches by the checkpoint: leave it out"
            )
        if self.origins is not None:
            self._check_origins(is_stream)
        if self.on_bad_row == DEAD_LETTER and self.dead_letter_topic is None:
            raise ConfigError(
                "on.bad.row is dead-letter, but dead.letter.topic is not set: set it to the topic for bad rows"
            )
        if self.dead_letter_topic is not None and self.on_bad_row != DEAD_LETTER:
            raise ConfigError("dead.letter.topic is set, but on.bad.row is fail: set on.bad.row=dead-letter")
        for role in () if self.formats is None else self.formats.settings:
            if f"{role}.serializer" in self.kafka:
                raise ConfigError(
                    f"{role}.format and kafka.{role}.serializer are set, but a column is encoded once: drop one of them"
                )
        if self.view_url is not None:
            check_url(self.view_url)
        self.resolved()
        refuse_unknown(self._unknown(), PRODUCER_OPTIONS, similar_only=self._has_own_plugins())

    def _unknown(self) -> set[str]:
        """Return the names that neither Kafka's clients have nor the plug-ins read when they are configured."""
        unknown = unknown_names(self.kafka, PRODUCER_OPTIONS)
        if unknown and any(name in self.kafka for name in (*_PLUGINS, *_PRODUCER_PLUGINS)):
            unknown -= _read_by_plugins(frozenset(self._effective().items()))
        return unknown

    def _has_own_plugins(self) -> bool:
        """Whether a plug-in is not one of headrace: it may read any option, also later than `configure`."""
        return any(name in self.kafka and self.kafka[name] not in known for name, known in _BUILT_IN.items())

    def no_effect_text(self) -> str | None:
        """Return a warning for the `kafka.*` options that are set and have no effect, or None."""
        config = PRODUCER_OPTIONS.resolve(("argument", self.kafka))
        others = without_effect(config.unused, PRODUCER_OPTIONS)
        if "metric.reporters" not in self.kafka:  # what they read is not known here
            others |= not_read(self._unknown())
        return no_effect_text(config, PRODUCER_OPTIONS, others)

    def _check_origins(self, is_stream: bool) -> None:
        if not is_stream:
            raise ConfigError(
                "source.offsets is for streams, which may lose their checkpoint; a batch write is recognised by "
                "write.id: leave source.offsets out"
            )
        if self.delivery == AT_LEAST_ONCE:
            raise ConfigError("source.offsets is set, but delivery=at-least-once has no decisions: drop one of them")
        if self.sink_id is None:
            raise ConfigError(
                "source.offsets is set, but sink.id is not. By default it is made from the query id, which is lost "
                "with the checkpoint: the next query would not find the decisions of this one. Set sink.id"
            )

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE

    def resolved(self, transactional_id: str | None = None) -> Config:
        """Return the checked options of the producer."""
        return resolve(self.producer_config(transactional_id), client_id=self.kafka.get("client.id", "headrace-spark"))

    def producer_config(self, transactional_id: str | None = None) -> dict[str, object]:
        """Return the options for a producer of this sink, without plug-ins: these run on columns before."""
        has_plugins = any(name in self.kafka for name in _PRODUCER_PLUGINS)
        config: dict[str, object] = {
            name: value
            for name, value in self._effective().items()
            if name not in _PLUGINS and (has_plugins or name in PRODUCER_OPTIONS)
        }
        config.setdefault("client.id", "headrace-spark")
        if self.view_url is not None and "metric.reporters" not in config:
            config |= {"metric.reporters": "view", "view.url": self.view_url}
            if self.view_token is not None:
                config["view.token"] = self.view_token
        if self.is_exactly_once:
            config["enable.idempotence"] = config.get("enable.idempotence", "true")
            config["transactional.id"] = transactional_id or "headrace-spark"
            config.setdefault("transaction.timeout.ms", str(TRANSACTION_MS_MAX))
        return config

    def plugin_config(self) -> Config:
        """Return all `kafka.*` options that have an effect, for plug-ins."""
        return resolve(self._effective())

    def _effective(self) -> dict[str, object]:
        """Return `kafka.*` without options that have no effect: otherwise every process would warn of them."""
        return {
            name: value
            for name, value in self.kafka.items()
            if name not in PRODUCER_OPTIONS or not PRODUCER_OPTIONS[name].no_effect
        }

    def client_settings(self, timeout_ms: float | None = None) -> ClientSettings:
        """Return how to connect to the cluster with a blocking client."""
        config = self.resolved()
        request_ms = config.of(int, "request.timeout.ms")
        return ClientSettings(
            list(config.of(tuple, "bootstrap.servers")),
            client_id=config.of(str, "client.id"),
            timeout_ms=config.of(int, "max.block.ms") if timeout_ms is None else timeout_ms,
            request_timeout_ms=request_ms,
            client_dns_lookup=config.of(str, "client.dns.lookup"),
            tls=tls_settings(config),
            sasl=sasl_settings(config, PluginLoader(config)),
        )


@lru_cache(OPTION_SETS_MAX)
def _read_by_plugins(given: frozenset[tuple[str, object]]) -> frozenset[str]:
    """Return the names that the plug-ins of a producer with these options read when they are configured.

    Metrics reporters are left out: configuring one may open a port.
    """
    config = resolve(dict(given))
    plugins = PluginLoader(config)
    try:
        SendPipeline(ProducerSettings.build(config, plugins), plugins)
    finally:
        plugins.close()
    return frozenset(config.used)


def _creation(config: Config, topic_configs: dict[str, str]) -> TopicCreation | None:
    if config.of(bool, "topic.create"):
        return TopicCreation(
            config.optional(int, "topic.partitions") or BROKERS_DEFAULT,
            config.optional(int, "topic.replication.factor") or BROKERS_DEFAULT,
            topic_configs,
        )
    settings = [name for name in ("topic.partitions", "topic.replication.factor") if config.given(name)]
    for name in (*settings, *(SETTINGS_PREFIX + name for name in topic_configs)):
        raise ConfigError(f"{name} is set, but topic.create is false: set topic.create=true, or leave it out")
    return None


def _check_unknown(name: str) -> None:
    """Raise if an unknown name is similar to an option. Others are ignored: Spark passes its own options too."""
    near = SINK_OPTIONS.suggestion(name.lower()) or SERDE_OPTIONS.suggestion(name.lower())
    if near:
        raise ConfigError(f"there is no option {name!r}{near}")


def _text(config: Config, name: str) -> str | None:
    value = config.optional(str, name)
    if value == "":
        raise ConfigError(f"{name} is empty; name a topic, or leave it out")
    return value


def _identifier(config: Config, name: str) -> str | None:
    value = config.optional(str, name)
    if value is not None and not _ID.fullmatch(value):
        raise ConfigError(
            f"{name} is {value!r}; it may be 1 to 200 letters, digits and . _ : @ / + = - (it becomes part of Kafka's "
            "transactional ids)"
        )
    return value
