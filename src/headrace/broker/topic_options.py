"""The topic options of Kafka 4.3, declared once, and the broker options that change their defaults.

    set on the topic  >  set on the broker, by the name in BROKER_SYNONYMS  >  the default here

Names, types, defaults and ranges are those of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import LONG_MAX, Between, OneOf, Option, Options

_FROM_0 = Between(0)
_FROM_1 = Between(1)
_DAY_MS = 24 * 60 * 60 * 1000
_WEEK_MS = 7 * _DAY_MS
_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS
_NO_TIERS = "tiered storage is not supported"
_NO_THROTTLE = "replication is not throttled"


class SomeOf:
    """A list of distinct words out of several."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, value: object) -> object:
        assert isinstance(value, tuple)
        if len(set(value)) != len(value) or not set(value) <= set(self.choices):
            raise ValueError(str(self))
        return value

    def __str__(self) -> str:
        return f"a list of {', '.join(self.choices)}"


class ThrottledReplicas:
    """A list of partition:broker, or `*`."""

    def __call__(self, value: object) -> object:
        assert isinstance(value, tuple)
        if value != ("*",) and not all(self._is_pair(item) for item in value):
            raise ValueError(str(self))
        return value

    @staticmethod
    def _is_pair(item: str) -> bool:
        partition, colon, broker = item.partition(":")
        return bool(colon) and partition.isdecimal() and broker.isdecimal()

    def __str__(self) -> str:
        return "a list of partition:broker, or *"


_CLEANING = (
    Option(
        "cleanup.policy",
        "list",
        ("delete",),
        "What happens to old records: `delete` removes old segments by age and size, `compact` keeps the last "
        "record of each key. Both can be combined; empty keeps everything.",
        SomeOf("compact", "delete"),
    ),
    Option(
        "delete.retention.ms",
        "long",
        _DAY_MS,
        "How long a tombstone (a record without a value) is kept after compaction, so that consumers see it.",
        _FROM_0,
    ),
    Option(
        "min.cleanable.dirty.ratio",
        "double",
        0.5,
        "The dirty part of a log that triggers compaction.",
        Between(0, 1),
    ),
    Option(
        "min.compaction.lag.ms",
        "long",
        0,
        "The minimum age of records for compaction.",
        _FROM_0,
    ),
    Option(
        "max.compaction.lag.ms",
        "long",
        LONG_MAX,
        "The maximum age of records before their segment is compacted, regardless of the dirty ratio.",
        _FROM_1,
    ),
    Option(
        "retention.ms",
        "long",
        _WEEK_MS,
        "The maximum age of records before `delete` removes their segment; -1: unlimited.",
        Between(-1),
    ),
    Option(
        "retention.bytes",
        "long",
        -1,
        "The maximum size of a partition before `delete` removes its oldest segments; -1: unlimited.",
    ),
    Option(
        "file.delete.delay.ms",
        "long",
        60_000,
        "How long a file stays on disk, renamed, after it was removed from the log.",
        _FROM_0,
    ),
)

_SEGMENTS = (
    Option(
        "segment.bytes",
        "int",
        1024 * 1024 * 1024,
        "The maximum size of a segment; then a new one is started.",
        Between(1024 * 1024),
    ),
    Option(
        "internal.segment.bytes",
        "int",
        None,
        "For tests: replaces segment.bytes and may be smaller than its minimum.",
        _FROM_1,
        "low",
    ),
    Option(
        "segment.ms",
        "long",
        _WEEK_MS,
        "The maximum age of a segment; then the next record starts a new one, so that the old one can be deleted or "
        "compacted.",
        _FROM_1,
    ),
    Option(
        "segment.jitter.ms",
        "long",
        0,
        "A random part of this is subtracted from segment.ms, so that partitions do not all start segments at once.",
        _FROM_0,
    ),
    Option(
        "segment.index.bytes",
        "int",
        10 * 1024 * 1024,
        "The maximum size of the index of a segment; a full index starts a new segment.",
        Between(4),
    ),
    Option(
        "index.interval.bytes",
        "int",
        4096,
        "Bytes of records for each entry of the index: fewer make look-ups faster and take more memory.",
        _FROM_0,
    ),
    Option(
        "preallocate",
        "bool",
        False,
        "Allocate the space of a segment when it is created.",
        no_effect="files grow as they are written",
    ),
    Option(
        "flush.messages",
        "long",
        LONG_MAX,
        "Sync the log after this many records, before they are acknowledged; 1 survives a power cut.",
        _FROM_1,
    ),
    Option("flush.ms", "long", LONG_MAX, "The maximum time before a record is synced to disk.", _FROM_0),
)

_MESSAGES = (
    Option(
        "max.message.bytes",
        "int",
        1024 * 1024 + 12,
        "The maximum size of a record batch, after compression.",
        _FROM_0,
    ),
    Option(
        "message.timestamp.type",
        "str",
        "CreateTime",
        "Whether timestamps are set by the producer, or by the broker when it appends the record.",
        OneOf("CreateTime", "LogAppendTime"),
    ),
    Option(
        "message.timestamp.before.max.ms",
        "long",
        LONG_MAX,
        "How far timestamps may be in the past; older records are rejected.",
        _FROM_0,
    ),
    Option(
        "message.timestamp.after.max.ms",
        "long",
        _HOUR_MS,
        "How far timestamps may be in the future; later records are rejected.",
        _FROM_0,
    ),
    Option(
        "compression.type",
        "str",
        "producer",
        "The compression of stored records: as the producer sent them, or recompressed with this codec.",
        OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Option("compression.gzip.level", "int", -1, "The level if compression.type is gzip.", Between(1, 9, also=-1)),
    Option("compression.lz4.level", "int", 9, "The level if compression.type is lz4.", Between(1, 17)),
    Option("compression.zstd.level", "int", 3, "The level if compression.type is zstd.", Between(-131072, 22)),
)

_REPLICATION = (
    Option(
        "min.insync.replicas",
        "int",
        1,
        "The minimum number of in-sync replicas for writes with acks=all.",
        _FROM_1,
    ),
    Option(
        "unclean.leader.election.enable",
        "bool",
        False,
        "Elect a replica that is not in sync if there is no other: records may be lost.",
    ),
    Option(
        "leader.replication.throttled.replicas",
        "list",
        (),
        "Replicas whose sending is throttled.",
        ThrottledReplicas(),
        no_effect=_NO_THROTTLE,
    ),
    Option(
        "follower.replication.throttled.replicas",
        "list",
        (),
        "Replicas whose receiving is throttled.",
        ThrottledReplicas(),
        no_effect=_NO_THROTTLE,
    ),
)

_TIERS = (
    Option("remote.storage.enable", "bool", False, "Store old segments remotely.", no_effect=_NO_TIERS),
    Option("remote.log.copy.disable", "bool", False, "Stop copying segments to remote storage.", no_effect=_NO_TIERS),
    Option("remote.log.delete.on.disable", "bool", False, "Delete remote segments.", no_effect=_NO_TIERS),
    Option("local.retention.ms", "long", -2, "retention.ms of local segments.", Between(-2), no_effect=_NO_TIERS),
    Option("local.retention.bytes", "long", -2, "retention.bytes of local segments.", Between(-2), no_effect=_NO_TIERS),
)

TOPIC_OPTIONS = Options(*_CLEANING, *_SEGMENTS, *_MESSAGES, *_REPLICATION, *_TIERS)

BROKER_SYNONYMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}
"""For a topic option the broker options with its default, by precedence, and the factors of their units."""


def broker_defaults(broker: Mapping[str, object]) -> dict[str, object]:
    """Return the defaults of topic options in a broker's configuration; None means not set."""
    defaults: dict[str, object] = {}
    for name, synonyms in BROKER_SYNONYMS.items():
        for synonym, factor in synonyms:
            value = broker.get(synonym)
            if value is not None:
                # Negative values mean unlimited in every unit.
                defaults[name] = value if factor == 1 or int(str(value)) < 0 else int(str(value)) * factor
                break
    return defaults
