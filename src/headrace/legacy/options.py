"""The options of the 0.8 producer, declared once, under the names and with the defaults of Kafka 0.8.2."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.addresses import Endpoint, parse
from headrace.config import INT_MAX, Between, Config, OneOf, Option, Options
from headrace.errors import ConfigError
from headrace.wire.compression import CODEC_IDS, GZIP, LZ4, NONE, SNAPPY
from headrace.wire.frames import CLIENT_ID_BYTES_MAX

MAGIC_BY_PRODUCE_VERSION = {0: 0, 1: 0, 2: 1}
_CODEC_NUMBERS = {str(codec): codec for codec in (NONE, GZIP, SNAPPY, LZ4)}  # 0.8 takes the number for the name, too
_CODECS = {**{name: codec for name, codec in CODEC_IDS.items() if codec in _CODEC_NUMBERS.values()}, **_CODEC_NUMBERS}

OPTIONS = Options(
    Option("metadata.broker.list", "list", None, "Brokers to ask for metadata, as host:port.", None, "high"),
    Option(
        "request.required.acks",
        "short",
        0,
        "What a request waits for: 0 nothing, not even an answer; 1 the leader; -1 all replicas in sync.",
        Between(-1, 1),
        "high",
    ),
    Option(
        "request.timeout.ms",
        "int",
        10_000,
        "How long the broker may wait for acknowledgements, and we for a connection or an answer.",
        Between(1, INT_MAX),
    ),
    Option(
        "producer.type",
        "str",
        "sync",
        "sync: `send` returns when the messages are sent. async: it queues them for a thread.",
        OneOf("sync", "async"),
        "high",
    ),
    Option(
        "serializer.class", "class", "kafka.serializer.DefaultEncoder", "What makes bytes of messages.", None, "high"
    ),
    Option("key.serializer.class", "class", None, "What makes bytes of keys; by default what makes them of messages."),
    Option("partitioner.class", "class", "kafka.producer.DefaultPartitioner", "What finds the partition of a key."),
    Option(
        "compression.codec",
        "str",
        "none",
        "Codec of message sets, by name or by number.",
        OneOf(*_CODECS, ignore_case=True),
        "high",
    ),
    Option("compressed.topics", "list", (), "Topics to compress; if none is named, all of them."),
    Option("message.send.max.retries", "int", 3, "How often a failed send is tried again.", Between(0, INT_MAX)),
    Option(
        "retry.backoff.ms",
        "int",
        100,
        "How long to wait before metadata is renewed and a send tried again: an election takes a while.",
        Between(0, INT_MAX),
    ),
    Option(
        "topic.metadata.refresh.interval.ms",
        "int",
        600_000,
        "Metadata is renewed when it is this old, and after failures. 0: with every batch; negative: on failure only.",
    ),
    Option(
        "queue.buffering.max.ms",
        "int",
        5000,
        "async: how long messages may wait for a batch to fill.",
        Between(0, INT_MAX),
    ),
    Option("queue.buffering.max.messages", "int", 10_000, "async: what the queue holds.", Between(1, INT_MAX), "high"),
    Option(
        "queue.enqueue.timeout.ms",
        "int",
        -1,
        "async, of a `send` that finds the queue full: 0 drops the message, a negative value waits for room, a "
        "positive one waits that long and then drops it. A drop raises QueueFullError.",
        None,
        "high",
    ),
    Option("batch.num.messages", "int", 200, "async: messages that are sent together.", Between(1, INT_MAX)),
    Option("send.buffer.bytes", "int", 100 * 1024, "Send buffer of the sockets.", Between(1, INT_MAX)),
    Option("client.id", "str", "", "Who we say we are, in the broker's logs and metrics."),
    Option(
        "produce.request.version",
        "int",
        0,
        "Ours: ProducerRequest v0 is of 0.8, v1 of 0.9, v2 of 0.10. v2 carries messages of magic 1, with timestamps.",
        Between(min(MAGIC_BY_PRODUCE_VERSION), max(MAGIC_BY_PRODUCE_VERSION)),
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that are values; those that are classes are loaded by the producer."""

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
        """`compressed.topics` narrows `compression.codec` down, unless it is empty."""
        return self.codec if not self.compressed_topics or topic in self.compressed_topics else NONE


def settings(config: Config) -> Settings:
    """What the options say, taken together."""
    queue_messages_max = config.of(int, "queue.buffering.max.messages")
    batch_messages = config.of(int, "batch.num.messages")
    is_async = config.of(str, "producer.type") == "async"
    if is_async and batch_messages > queue_messages_max:
        raise ConfigError(
            f"batch.num.messages is {batch_messages}, more than the queue can hold "
            f"(queue.buffering.max.messages is {queue_messages_max}); it may be as much at most"
        )
    client_id = config.of(str, "client.id")
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise ConfigError(f"client.id has {len(client_id)} characters; it may have {CLIENT_ID_BYTES_MAX} bytes")
    produce_version = config.of(int, "produce.request.version")
    return Settings(
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
    except ConfigError as error:  # which calls the option by its name of today
        raise ConfigError(str(error).replace("bootstrap.servers", "metadata.broker.list")) from None
