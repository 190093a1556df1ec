"""All consumer options of Kafka 4.3.

Names, types, defaults and ranges are Kafka's, except:

    key.deserializer, value.deserializer   default to bytes, instead of being required
    on.bad.record                          is headrace's, as in the Spark source
    view.url, view.token                   are headrace's, for metric.reporters=view
    options shared with the producer       see `headrace.config.client_options`
    `no_effect`                            marks options without a meaning here; setting one logs a warning, once
"""

from __future__ import annotations

from headrace.config import Between, NotEmpty, OneOf, Option, Options
from headrace.config.client_options import COMMON_OPTIONS, FROM_0, INERT_SASL_OPTIONS, SASL_OPTIONS
from headrace.config.offset_reset import ResetPolicy
from headrace.config.serde_options import BadRecords
from headrace.config.tls_options import TLS_OPTIONS

ISOLATION_LEVEL = Option(
    "isolation.level",
    "str",
    "read_uncommitted",
    "Whether records of open and aborted transactions are returned (read_uncommitted) or not (read_committed).",
    OneOf("read_committed", "read_uncommitted", ignore_case=True),
)
API_TIMEOUT = Option(
    "default.api.timeout.ms",
    "int",
    60_000,
    "The time limit of calls without a timeout of their own, including retries.",
    FROM_0,
)
FETCH_OPTIONS = (
    Option(
        "fetch.min.bytes",
        "int",
        1,
        "A broker responds when it has this much, or after fetch.max.wait.ms.",
        FROM_0,
        "high",
    ),
    Option("fetch.max.wait.ms", "int", 500, "The longest that a broker waits for fetch.min.bytes.", FROM_0, "low"),
    Option(
        "fetch.max.bytes",
        "int",
        50 * 1024 * 1024,
        "The most that one response has, for all partitions; the first batch is sent even if it is larger. A consumer "
        "buffers no more than this.",
        Between(1),
    ),
    Option(
        "max.partition.fetch.bytes",
        "int",
        1024 * 1024,
        "The most that one response has of a partition; the first batch is sent even if it is larger.",
        Between(1),
        "high",
    ),
)

_GROUP = (
    Option(
        "group.id",
        "str",
        None,
        "The consumer group: its members share the partitions of the subscribed topics, and their committed offsets.",
        NotEmpty(),
        "high",
    ),
    Option(
        "group.instance.id",
        "str",
        None,
        "Makes the consumer a static member: it may restart within the session timeout without a rebalance.",
        NotEmpty(),
    ),
    Option(
        "group.protocol",
        "str",
        "classic",
        "The protocol of the group: classic, or consumer (KIP-848), in which the brokers assign the partitions; it "
        "needs Kafka 4.0 or newer.",
        OneOf("classic", "consumer", ignore_case=True),
        "high",
    ),
    Option(
        "group.remote.assignor",
        "str",
        None,
        "With group.protocol=consumer: the assignor of the broker, uniform or range; by default, the broker's choice.",
    ),
    Option(
        "partition.assignment.strategy",
        "list",
        ("range", "cooperative-sticky"),
        "With group.protocol=classic: the assignors that this member supports, the preferred one first: range, "
        "roundrobin, sticky, cooperative-sticky, or the names of Java's classes.",
        NotEmpty(),
    ),
    Option(
        "session.timeout.ms",
        "int",
        45_000,
        "With group.protocol=classic: the time without heartbeats after which the coordinator removes the member from "
        "the group.",
        Between(1),
        "high",
    ),
    Option(
        "heartbeat.interval.ms",
        "int",
        3000,
        "With group.protocol=classic: the time between heartbeats, which the I/O thread sends. At most a third of "
        "session.timeout.ms is usual.",
        Between(1),
        "high",
    ),
    Option(
        "max.poll.interval.ms",
        "int",
        300_000,
        "The time between two polls after which the member leaves the group: the application is considered stuck.",
        Between(1),
    ),
    Option("max.poll.records", "int", 500, "The most records that one `poll` returns.", Between(1)),
    Option("enable.auto.commit", "bool", True, "Commit the positions of returned records in the background."),
    Option("auto.commit.interval.ms", "int", 5000, "The time between two automatic commits.", FROM_0, "low"),
    Option(
        "auto.offset.reset",
        "str",
        "latest",
        "Where to start without a committed offset, or when the offset does not exist any more: earliest, latest, "
        "by_duration:PT1H (an hour ago), or none, which raises an error.",
        ResetPolicy("earliest", "latest", "none"),
    ),
    Option(
        "client.rack",
        "str",
        "",
        "The rack of this consumer: brokers may name a replica in it to fetch from (KIP-392).",
        None,
        "low",
    ),
    Option(
        "allow.auto.create.topics",
        "bool",
        True,
        "Let brokers create subscribed topics that do not exist, if they are configured to.",
    ),
    Option(
        "exclude.internal.topics",
        "bool",
        True,
        "Whether a pattern does not match internal topics. Without effect with group.protocol=consumer: brokers match.",
        None,
        "medium",
    ),
    Option(
        "check.crcs", "bool", True, "Verify checksums.", None, "low", "checksums are always verified, at little cost"
    ),
    Option(
        "internal.throw.on.fetch.stable.offset.unsupported",
        "bool",
        False,
        "Fail if a broker does not return stable offsets.",
        None,
        "low",
        "brokers from 2.5 on support it",
    ),
    Option("share.acknowledgement.mode", "str", None, "Of share groups.", None, "low", "it is for share groups"),
    Option("share.acquire.mode", "str", None, "Of share groups.", None, "low", "it is for share groups"),
)

_PLUGINS = (
    Option("key.deserializer", "class", "bytes", "The deserializer of keys.", None, "high"),
    Option("value.deserializer", "class", "bytes", "The deserializer of values.", None, "high"),
    Option(
        "on.bad.record",
        "str",
        BadRecords.FAIL.value,
        "What to do with a record whose key or value the deserializer does not accept: fail, which raises an error; "
        "null: return it with None or null instead; corrupt-column: as null, and `poll_arrow` returns the bytes and "
        "the reason in the column _corrupt. An option of headrace.",
        OneOf(*(choice.value for choice in BadRecords), ignore_case=True),
    ),
    Option(
        "interceptor.classes",
        "classes",
        (),
        "Plug-ins that see the records that `poll` returns, and committed offsets.",
        None,
        "low",
    ),
)

CONSUMER_OPTIONS = Options(
    *COMMON_OPTIONS,
    ISOLATION_LEVEL,
    API_TIMEOUT,
    *FETCH_OPTIONS,
    *_GROUP,
    *_PLUGINS,
    *SASL_OPTIONS,
    *INERT_SASL_OPTIONS,
    *TLS_OPTIONS,
)
