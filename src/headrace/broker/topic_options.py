"""Every topic option of Kafka 4.3, declared once, and where a broker's configuration gives it another default.

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
_NO_TIERS = "there is no tiered storage"
_NO_THROTTLE = "replication is not throttled"


class SomeOf:
    """A list of some words, each once at most."""

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
        "What happens to old records: `delete` drops segments that are too old or too much, `compact` keeps the last "
        "record of each key. Both together do both; empty keeps everything.",
        SomeOf("compact", "delete"),
    ),
    Option(
        "delete.retention.ms",
        "long",
        _DAY_MS,
        "How long a tombstone (a record without a value) stays after it was compacted, so that readers see it.",
        _FROM_0,
    ),
    Option(
        "min.cleanable.dirty.ratio",
        "double",
        0.5,
        "The part of a compacted log that must be new before it is worth compacting again.",
        Between(0, 1),
    ),
    Option(
        "min.compaction.lag.ms",
        "long",
        0,
        "How old a record must be before it may be compacted away.",
        _FROM_0,
    ),
    Option(
        "max.compaction.lag.ms",
        "long",
        LONG_MAX,
        "How old a record may be before its segment is compacted, dirty enough or not.",
        _FROM_1,
    ),
    Option(
        "retention.ms",
        "long",
        _WEEK_MS,
        "How old records may be before `delete` drops their segment; -1: any age.",
        Between(-1),
    ),
    Option(
        "retention.bytes",
        "long",
        -1,
        "How large a partition may be before `delete` drops its oldest segments; -1: any size.",
    ),
    Option(
        "file.delete.delay.ms",
        "long",
        60_000,
        "How long a file stays on disk, under another name, after it was taken out of the log.",
        _FROM_0,
    ),
)

_SEGMENTS = (
    Option(
        "segment.bytes",
        "int",
        1024 * 1024 * 1024,
        "A segment that would grow beyond this is closed and the next one begun.",
        Between(1024 * 1024),
    ),
    Option(
        "internal.segment.bytes",
        "int",
        None,
        "For tests: stands in for segment.bytes, and may be smaller than that may be.",
        _FROM_1,
        "low",
    ),
    Option(
        "segment.ms",
        "long",
        _WEEK_MS,
        "A segment this old is closed by the next record, so that what is in it can be deleted or compacted.",
        _FROM_1,
    ),
    Option(
        "segment.jitter.ms",
        "long",
        0,
        "A random part of this is taken off segment.ms, so that partitions do not all begin a segment at once.",
        _FROM_0,
    ),
    Option(
        "segment.index.bytes",
        "int",
        10 * 1024 * 1024,
        "How large the index of a segment may be; a full index closes the segment.",
        Between(4),
    ),
    Option(
        "index.interval.bytes",
        "int",
        4096,
        "Bytes of records between two entries of the index: fewer find a record faster and take more memory.",
        _FROM_0,
    ),
    Option(
        "preallocate",
        "bool",
        False,
        "Reserve the space of a segment when it is begun.",
        no_effect="files grow as they are written",
    ),
    Option(
        "flush.messages",
        "long",
        LONG_MAX,
        "After this many records the log is forced to disk before they are acknowledged; 1 survives a power cut.",
        _FROM_1,
    ),
    Option("flush.ms", "long", LONG_MAX, "The longest a record stays in memory before it is forced to disk.", _FROM_0),
)

_MESSAGES = (
    Option(
        "max.message.bytes",
        "int",
        1024 * 1024 + 12,
        "The largest batch of records that is accepted, after compression.",
        _FROM_0,
    ),
    Option(
        "message.timestamp.type",
        "str",
        "CreateTime",
        "Whose clock a record's timestamp is of: the producer's, or the broker's when it is appended.",
        OneOf("CreateTime", "LogAppendTime"),
    ),
    Option(
        "message.timestamp.before.max.ms",
        "long",
        LONG_MAX,
        "How far a producer's timestamp may be in the past; records beyond that are refused.",
        _FROM_0,
    ),
    Option(
        "message.timestamp.after.max.ms",
        "long",
        _HOUR_MS,
        "How far a producer's timestamp may be in the future; records beyond that are refused.",
        _FROM_0,
    ),
    Option(
        "compression.type",
        "str",
        "producer",
        "How records are kept: as the producer compressed them, or compressed anew with this codec.",
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
        "How many copies must be in sync for a write with acks=all to be accepted.",
        _FROM_1,
    ),
    Option(
        "unclean.leader.election.enable",
        "bool",
        False,
        "Let a copy that is not in sync lead when no other is left: records may be lost.",
    ),
    Option(
        "leader.replication.throttled.replicas",
        "list",
        (),
        "Copies whose sending is throttled.",
        ThrottledReplicas(),
        no_effect=_NO_THROTTLE,
    ),
    Option(
        "follower.replication.throttled.replicas",
        "list",
        (),
        "Copies whose receiving is throttled.",
        ThrottledReplicas(),
        no_effect=_NO_THROTTLE,
    ),
)

_TIERS = (
    Option("remote.storage.enable", "bool", False, "Keep old segments elsewhere.", no_effect=_NO_TIERS),
    Option("remote.log.copy.disable", "bool", False, "Copy no more segments elsewhere.", no_effect=_NO_TIERS),
    Option("remote.log.delete.on.disable", "bool", False, "Delete what is elsewhere.", no_effect=_NO_TIERS),
    Option("local.retention.ms", "long", -2, "retention.ms of what is here.", Between(-2), no_effect=_NO_TIERS),
    Option("local.retention.bytes", "long", -2, "retention.bytes of what is here.", Between(-2), no_effect=_NO_TIERS),
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
"""For a topic's option the broker's ones that give its default, the strongest first, and what to multiply them by."""


def broker_defaults(broker: Mapping[str, object]) -> dict[str, object]:
    """What a broker's configuration says about the options of its topics. None stands for "not given"."""
    found: dict[str, object] = {}
    for name, synonyms in BROKER_SYNONYMS.items():
        for synonym, factor in synonyms:
            value = broker.get(synonym)
            if value is not None:
                # A time without limit has no unit.
                found[name] = value if factor == 1 or int(str(value)) < 0 else int(str(value)) * factor
                break
    return found
