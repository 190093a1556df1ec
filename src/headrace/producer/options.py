"""All producer options of Kafka 2.4 and 4.3, and profiles with the defaults of older versions.

Names, types, defaults and ranges are those of Kafka 4.3, except:

    key.serializer, value.serializer                 default to bytes, instead of being required
    ssl.*store.type                                  is PEM, the only format that Python's TLS reads
    sasl.username, sasl.password, ssl.key.location   are headrace's, instead of JAAS texts and key stores
    view.url, view.token                             are headrace's: the address of the live view
    `no_effect`                                      marks options for Java only; setting one logs a warning, once
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import INT_MAX, Between, NotEmpty, OneOf, Option, Options
from headrace.config.client_options import COMMON_OPTIONS, FROM_0, FROM_1, INERT_SASL_OPTIONS, SASL_OPTIONS
from headrace.config.tls_options import TLS_OPTIONS

_SENDING = (
    Option(
        "acks",
        "str",
        "all",
        "The replicas that must have a record to acknowledge it: all in-sync ones (all, -1), the leader (1), none (0).",
        OneOf("all", "-1", "0", "1"),
        "low",
    ),
    Option(
        "batch.size",
        "int",
        16_384,
        "The size in bytes of a batch of records for one partition; with 0, each record is sent separately.",
        FROM_0,
    ),
    Option(
        "linger.ms",
        "long",
        5,
        "How long a batch that is not full waits for more records; 0: not at all.",
        FROM_0,
    ),
    Option(
        "buffer.memory",
        "long",
        33_554_432,
        "The bytes of memory for records to send; when it is exhausted, `send` blocks for up to max.block.ms.",
        FROM_0,
        "high",
    ),
    Option(
        "max.block.ms",
        "long",
        60_000,
        "How long `send` and the transaction methods may block, for metadata and buffer memory together.",
        FROM_0,
    ),
    Option(
        "delivery.timeout.ms",
        "int",
        120_000,
        "The maximum time from `send` to success or failure, with all retries. "
        "At least linger.ms + request.timeout.ms.",
        FROM_0,
    ),
    Option(
        "retries",
        "int",
        INT_MAX,
        "How often a record is retried after a retriable error. Usually left at the default: delivery.timeout.ms is "
        "the limit.",
        Between(0, INT_MAX),
        "high",
    ),
    Option(
        "max.in.flight.requests.per.connection",
        "int",
        5,
        "The maximum number of requests in flight to a broker. Without idempotence, more than one can reorder records "
        "after a failure; with it, at most five are allowed.",
        FROM_1,
        "low",
    ),
    Option(
        "max.request.size",
        "int",
        1_048_576,
        "The maximum size in bytes of a request, and of a record, before compression. The broker has a limit, too.",
        FROM_0,
    ),
    Option(
        "compression.type",
        "str",
        "none",
        "The compression of batches; larger batches compress better.",
        OneOf("none", "gzip", "snappy", "lz4", "zstd"),
        "high",
    ),
    Option(
        "compression.gzip.level", "int", -1, "The compression level of gzip; -1: its default.", Between(1, 9, also=-1)
    ),
    Option(
        "compression.lz4.level",
        "int",
        9,
        "The compression level of lz4. 9 selects the fast mode, as in Kafka; all others the high compression mode.",
        Between(1, 17),
    ),
    Option("compression.zstd.level", "int", 3, "The compression level of zstd.", Between(-131_072, 22)),
    Option(
        "enable.idempotence",
        "bool",
        True,
        "Write each record exactly once and in order, despite retries. Needs acks=all, retries, and at most five "
        "requests in flight.",
        None,
        "low",
    ),
    Option(
        "transactional.id",
        "str",
        None,
        "Enables transactions. A new producer with the same id fences the previous one and aborts its transaction.",
        NotEmpty(),
        "low",
    ),
    Option(
        "transaction.timeout.ms",
        "int",
        60_000,
        "The time after which the coordinator aborts an open transaction.",
        None,
        "low",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        "bool",
        False,
        "Transactions that only the application can end (KIP-939). No released broker supports it: true is an error.",
        None,
        "low",
    ),
    Option(
        "metadata.max.idle.ms",
        "long",
        300_000,
        "The time after which the metadata of an unused topic is dropped.",
        Between(5_000),
        "low",
    ),
)

_PLUGINS = (
    Option("key.serializer", "class", "bytes", "The serializer of keys.", None, "high"),
    Option("value.serializer", "class", "bytes", "The serializer of values.", None, "high"),
    Option(
        "partitioner.class",
        "class",
        None,
        "The partitioner. Not set: by key; records without a key by the built-in adaptive sticky partitioner.",
    ),
    Option(
        "partitioner.ignore.keys",
        "bool",
        False,
        "Ignore keys when choosing a partition. Only without partitioner.class.",
    ),
    Option(
        "partitioner.adaptive.partitioning.enable",
        "bool",
        True,
        "Send more records without a key to partitions with short queues. Only without partitioner.class.",
        None,
        "low",
    ),
    Option(
        "partitioner.availability.timeout.ms",
        "long",
        0,
        "Skip partitions whose broker has accepted nothing for this long, for records without a key; 0: never. "
        "Only with adaptive partitioning.",
        FROM_0,
        "low",
    ),
    Option(
        "interceptor.classes",
        "classes",
        (),
        "Plug-ins that see every record before it is sent, and its result.",
        None,
        "low",
    ),
)

PRODUCER_OPTIONS = Options(*COMMON_OPTIONS, *_SENDING, *_PLUGINS, *SASL_OPTIONS, *INERT_SASL_OPTIONS, *TLS_OPTIONS)

PROFILES: Mapping[str, Mapping[str, object]] = {
    # Without TLS 1.0 and 1.1, which Kafka 2.4 still offered.
    "2.4": {
        "acks": "1",
        "client.dns.lookup": "default",
        "enable.idempotence": False,
        "enable.metrics.push": False,
        "linger.ms": 0,
        "metadata.recovery.strategy": "none",
        "partitioner.class": "headrace.producer.partitioners.DefaultPartitioner24",
        "socket.connection.setup.timeout.ms": 10_000,
        "socket.connection.setup.timeout.max.ms": 10_000,
    },
}
"""The defaults of older versions of Kafka. The constant retry back-off of 2.4 is in `settings.resolve`."""
