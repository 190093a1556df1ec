"""The options of the 0.8 producer, with the names and defaults of Kafka 0.8.2."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.addresses import Endpoint, parse
from headrace.config import INT_MAX, Between, Config, OneOf, Option, Options
from headrace.errors import ConfigError
from headrace.wire.compression import CODEC_IDS, GZIP, LZ4, NONE, SNAPPY
from headrace.wire.frames import CLIENT_ID_BYTES_MAX

MAGIC_BY_PRODUCE_VERSION = {0: 0, 1: 0, 2: 1}
_CODEC_NUMBERS = {str(codec): codec for codec in (NONE, GZIP, SNAPPY, LZ4)}  # 0.8 also accepts numbers
_CODECS = {**{name: codec for name, codec in CODEC_IDS.items() if codec in _CODEC_NUMBERS.values()}, **_CODEC_NUMBERS}

OPTIONS = Options(
    Option("metadata.broker.list", "list", None, "Brokers to fetch metadata from, as host:port.", None, "high"),
    Option(
        "request.required.acks",
        "short",
        0,
        "Acknowledgements of a request: 0 none, not even a response; 1 the leader; -1 all in-sync replicas.",
        Between(-1, 1),
        "high",
    ),
    Option(
        "request.timeout.ms",
        "int",
        10_000,
        "Timeout of the broker for acknowledgements, and of the producer for connections and responses.",
        Between(1, INT_MAX),
    ),
    Option(
        "producer.type",
        "str",
        "sync",
        "sync: `send` returns when the messages are sent. async: `send` queues them for a thread.",
        OneOf("sync", "async"),
        "high",
    ),
    Option("serializer.class", "class", "kafka.serializer.DefaultEncoder", "Serializer of messages.", None, "high"),
    Option("key.serializer.class", "class", None, "Serializer of keys. Default: serializer.class."),
    Option("partitioner.class", "class", "kafka.producer.DefaultPartitioner", "Partitioner of keys."),
    Option(
        "compression.codec",
        "str",
        "none",
        "Codec of message sets, by name or by number.",
        OneOf(*_CODECS, ignore_case=True),
        "high",
    ),
    Option("compressed.topics", "list", (), "Topics to compress; empty: all topics."),
    Option("message.send.max.retries", "int", 3, "Number of retries of a failed send.", Between(0, INT_MAX)),
    Option(
        "retry.backoff.ms",
        "int",
        100,
        "Wait before metadata is refreshed and a send is retried, for example for a leader election.",
        Between(0, INT_MAX),
    ),
    Option(
        "topic.metadata.refresh.interval.ms",
        "int",
        600_000,
        "Age at which metadata is refreshed; failures also refresh it. 0: every batch; negative: only failures.",
    ),
    Option(
        "queue.buffering.max.ms",
        "int",
        5000,
        "async: maximum time that messages wait for a batch to fill.",
        Between(0, INT_MAX),
    ),
    Option("queue.buffering.max.messages", "int", 10_000, "async: capacity of the queue.", Between(1, INT_MAX), "high"),
    Option(
        "queue.enqueue.timeout.ms",
        "int",
        -1,
        "async, for a `send` with a full queue: 0 drops the message, a negative value waits for room, a positive one "
        "waits that long and then drops it. A drop raises QueueFullError.",
        None,
        "high",
    ),
    Option("batch.num.messages", "int", 200, "async: messages in a batch.", Between(1, INT_MAX)),
    Option("send.buffer.bytes", "int", 100 * 1024, "Send buffer size of the sockets.", Between(1, INT_MAX)),
    Option("client.id", "str", "", "Name of the client in the broker's logs and metrics."),
    Option(
        "produce.request.version",
        "int",
        0,
        "headrace only. Version of ProduceRequest: 0 (Kafka 0.8), 1 (0.9) or 2 (0.10, magic 1 with timestamps).",
        Between(min(MAGIC_BY_PRODUCE_VERSION), max(MAGIC_BY_PRODUCE_VERSION)),
    ),
)


@dataclass(frozen=True, slots=True)
class LegacySettings:
    """The resolved options, except for classes, which the producer loads."""

    brokers: tuple[Endpoint, ...]
    client_id: str
    is_async: bool
    acks: int
    request_timeout_ms: int
    send_buffer_bytes: int
    produce_version: int
    magic: int
    codec: int
    compressed_topics: frozenset[str]
    retries_max: int
    retry_backoff_ms: int
    refresh_interval_ms: int
    queue_messages_max: int
    queue_age_ms_max: int
    enqueue_timeout_ms: int
    batch_messages: int

    def codec_of(self, topic: str) -> int:
        """Return the codec of a topic: a non-empty `compressed.topics` limits `compression.codec` to some topics."""
        return self.codec if not self.compressed_topics or topic in self.compressed_topics else NONE


def resolve_settings(config: Config) -> LegacySettings:
    """Validate the options together, and return them."""
    queue_messages_max = config.of(int, "queue.buffering.max.messages")
    batch_messages = config.of(int, "batch.num.messages")
    is_async = config.of(str, "producer.type") == "async"
    if is_async and batch_messages > queue_messages_max:
        raise ConfigError(
            f"invalid batch.num.messages: expected at most {queue_messages_max} (queue.buffering.max.messages), got "
            f"{batch_messages}"
        )
    client_id = config.of(str, "client.id")
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise ConfigError(
            f"invalid client.id: expected at most {CLIENT_ID_BYTES_MAX} bytes, got {len(client_id.encode())}"
        )
    produce_version = config.of(int, "produce.request.version")
    return LegacySettings(
        brokers=_brokers(config),
        client_id=client_id,
        is_async=is_async,
        acks=config.of(int, "request.required.acks"),
        request_timeout_ms=config.of(int, "request.timeout.ms"),
        send_buffer_bytes=config.of(int, "send.buffer.bytes"),
        produce_version=produce_version,
        magic=MAGIC_BY_PRODUCE_VERSION[produce_version],
        codec=_CODECS[config.of(str, "compression.codec")],
        compressed_topics=frozenset(config.of(tuple, "compressed.topics")),
        retries_max=config.of(int, "message.send.max.retries"),
        retry_backoff_ms=config.of(int, "retry.backoff.ms"),
        refresh_interval_ms=config.of(int, "topic.metadata.refresh.interval.ms"),
        queue_messages_max=queue_messages_max,
        queue_age_ms_max=config.of(int, "queue.buffering.max.ms"),
        enqueue_timeout_ms=config.of(int, "queue.enqueue.timeout.ms"),
        batch_messages=batch_messages,
    )


def _brokers(config: Config) -> tuple[Endpoint, ...]:
    try:
        return tuple(parse(config.optional(tuple, "metadata.broker.list") or ()))
    except ConfigError as error:  # with the current name of the option
        raise ConfigError(str(error).replace("bootstrap.servers", "metadata.broker.list")) from None
