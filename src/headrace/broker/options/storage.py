"""Topics, logs and replicas. What a topic does not set itself, it takes from the `log.*` options of its broker."""

from __future__ import annotations

from headrace.config import LONG_MAX, Between, NotEmpty, OneOf, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)

TOPICS = (
    Option("num.partitions", "int", 1, "Partitions of a topic that is made without saying how many.", _FROM_1),
    Option("default.replication.factor", "int", 1, "Copies of a topic that is made without saying how many.", _FROM_1),
    Option(
        "auto.create.topics.enable",
        "bool",
        True,
        "Make a topic when somebody asks for its metadata or writes to it.",
        None,
        "high",
    ),
    Option("delete.topic.enable", "bool", True, "Let topics be deleted.", None, "high"),
)

FOLDERS = (
    Option(
        "log.dirs",
        "list",
        None,
        "The folder that everything is kept in (one: Kafka takes several). Not set: log.dir.",
        None,
        "high",
    ),
    Option(
        "log.dir",
        "str",
        "headrace-logs",
        "The folder that everything is kept in, if log.dirs is not set. The default is in the working folder "
        "(Kafka: /tmp/kafka-logs): a fixed name in a folder that everybody can write to invites others.",
        NotEmpty(),
        "high",
    ),
)

DEFAULTS = (
    Option(
        "log.segment.bytes",
        "int",
        1_073_741_824,
        "A segment file is closed, and a new one begun, before it grows beyond this.",
        Between(1_048_576),
        "high",
    ),
    Option(
        "log.roll.ms",
        "long",
        None,
        "A segment is closed when it is this old. Not set: log.roll.hours.",
        None,
        "high",
    ),
    Option("log.roll.hours", "int", 168, "The same in hours.", _FROM_1, "high"),
    Option(
        "log.roll.jitter.ms",
        "long",
        None,
        "At most this much is taken off log.roll.ms by chance, so that segments do not all end at once. "
        "Not set: log.roll.jitter.hours.",
        None,
        "high",
    ),
    Option("log.roll.jitter.hours", "int", 0, "The same in hours.", _FROM_0, "high"),
    Option(
        "log.retention.ms",
        "long",
        None,
        "Segments whose newest record is older are deleted; -1: never. Not set: log.retention.minutes.",
        None,
        "high",
    ),
    Option("log.retention.minutes", "int", None, "The same in minutes. Not set: log.retention.hours.", None, "high"),
    Option("log.retention.hours", "int", 168, "The same in hours.", None, "high"),
    Option("log.retention.bytes", "long", -1, "The oldest segments of a larger partition are deleted.", None, "high"),
    Option(
        "log.cleanup.policy",
        "list",
        ("delete",),
        "What becomes of old records: whole segments are deleted, or only the last record of each key is kept.",
    ),
    Option("log.segment.delete.delay.ms", "long", 60_000, "How long a deleted file stays on disk.", _FROM_0, "high"),
    Option("log.cleaner.delete.retention.ms", "long", 86_400_000, "How long compaction keeps tombstones.", _FROM_0),
    Option("log.cleaner.min.compaction.lag.ms", "long", 0, "Younger records are not compacted.", _FROM_0),
    Option("log.cleaner.max.compaction.lag.ms", "long", LONG_MAX, "Older records are compacted soon.", _FROM_1),
    Option(
        "log.cleaner.min.cleanable.ratio",
        "double",
        0.5,
        "A log is compacted when this part of it is new since the last time.",
        Between(0.0, 1.0),
    ),
    Option("log.index.interval.bytes", "int", 4_096, "Bytes of records for each entry of the offset index.", _FROM_0),
    Option("log.index.size.max.bytes", "int", 10_485_760, "The largest offset index of a segment.", Between(4)),
    Option(
        "log.flush.interval.messages",
        "long",
        LONG_MAX,
        "Records that may be written before they are forced to disk. 1 survives a loss of power; without it what is "
        "acknowledged survives the death of the process, not of the machine.",
        _FROM_1,
        "high",
    ),
    Option(
        "log.flush.interval.ms",
        "long",
        None,
        "How long records may wait before they are forced to disk. Not set: log.flush.scheduler.interval.ms.",
        None,
        "high",
    ),
    Option("log.flush.scheduler.interval.ms", "long", LONG_MAX, "How often to look for such records.", None, "high"),
    Option("log.preallocate", "bool", False, "Give a new segment its size on disk at once."),
    Option(
        "log.message.timestamp.type",
        "str",
        "CreateTime",
        "Whose timestamps records carry: their producer's, or the broker's.",
        OneOf("CreateTime", "LogAppendTime"),
    ),
    Option(
        "log.message.timestamp.before.max.ms",
        "long",
        LONG_MAX,
        "Records that are older than this when they come are refused.",
        _FROM_0,
    ),
    Option(
        "log.message.timestamp.after.max.ms",
        "long",
        3_600_000,
        "Records from further in the future are refused.",
        _FROM_0,
    ),
    Option("message.max.bytes", "int", 1_048_588, "The largest record batch.", _FROM_0, "high"),
    Option(
        "message.max.decompressed.bytes",
        "int",
        134_217_728,
        "What the records of a compressed batch may come to (Kafka: no limit). A batch that holds more is refused with "
        "MESSAGE_TOO_LARGE, which makes producers send smaller ones.",
        _FROM_1,
    ),
    Option(
        "request.max.decompressed.bytes",
        "int",
        268_435_456,
        "What the records of all compressed batches of a produce request may come to (Kafka: no limit).",
        _FROM_1,
    ),
    Option(
        "message.max.compression.ratio",
        "int",
        1_000,
        "How many times larger than a compressed batch its records may be, where they come to more than 16 MiB (Kafka: "
        "no limit).",
        _FROM_1,
    ),
    Option(
        "compression.type",
        "str",
        "producer",
        "How batches lie on disk: as the producer sent them, or compressed anew.",
        OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "high",
    ),
    Option("compression.gzip.level", "int", -1, "How hard gzip tries; -1 is its default.", Between(1, 9, also=-1)),
    Option("compression.lz4.level", "int", 9, "How hard lz4 tries.", Between(1, 17)),
    Option("compression.zstd.level", "int", 3, "How hard zstd tries.", Between(-131_072, 22)),
    Option(
        "min.insync.replicas",
        "int",
        1,
        "Replicas that must be in sync for a write with acks=all to be taken.",
        _FROM_1,
        "high",
    ),
    Option(
        "unclean.leader.election.enable",
        "bool",
        False,
        "Let a replica lead that was not in sync when no other is left: data may be lost.",
        None,
        "high",
    ),
)

UPKEEP = (
    Option("log.retention.check.interval.ms", "long", 300_000, "How often to look for what is to be deleted.", _FROM_1),
    Option("log.cleaner.enable", "bool", True, "Compact topics whose cleanup.policy says so."),
    Option("log.cleaner.backoff.ms", "long", 15_000, "The wait when nothing is left to compact.", _FROM_0),
    Option(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "How often to note up to where each log is known to be on disk: a start after a crash begins there.",
        _FROM_0,
        "high",
    ),
    Option(
        "log.flush.start.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "How often to note where each log begins.",
        _FROM_0,
        "high",
        no_effect="it is noted whenever it moves",
    ),
    Option(
        "log.initial.task.delay.ms",
        "long",
        30_000,
        "The wait after a start before upkeep begins.",
        _FROM_0,
        "low",
        no_effect="upkeep waits for its own intervals only",
    ),
    Option(
        "producer.id.expiration.ms",
        "int",
        86_400_000,
        "How long a partition remembers a producer that no longer writes to it, to tell repeated batches.",
        _FROM_1,
        "low",
    ),
    Option(
        "producer.id.expiration.check.interval.ms",
        "int",
        600_000,
        "How often to look for producers that can be forgotten.",
        _FROM_1,
        "low",
    ),
)

REPLICAS = (
    Option(
        "replica.lag.time.max.ms",
        "long",
        30_000,
        "A follower that has not caught up for this long is no longer in sync.",
        None,
        "high",
    ),
    Option("replica.fetch.min.bytes", "int", 1, "Bytes that a follower waits for.", None, "high"),
    Option("replica.fetch.wait.max.ms", "int", 500, "How long it waits for them.", None, "high"),
    Option(
        "replica.fetch.max.bytes",
        "int",
        1_048_576,
        "Bytes that it takes from a partition at a time.",
        _FROM_0,
    ),
    Option(
        "replica.fetch.response.max.bytes",
        "int",
        10_485_760,
        "Bytes that it takes at a time.",
        _FROM_0,
    ),
    Option("replica.fetch.backoff.ms", "int", 1_000, "The wait after a fetch that failed.", _FROM_0),
    Option("replica.socket.timeout.ms", "int", 30_000, "How long it waits for an answer.", None, "high"),
    Option(
        "replica.high.watermark.checkpoint.interval.ms",
        "long",
        5_000,
        "How often to note the high watermark of each partition.",
        None,
        "high",
    ),
    Option(
        "replica.selector.class",
        "str",
        None,
        "What chooses the replica that a consumer reads. org.apache.kafka.common.replica.RackAwareReplicaSelector: one "
        "in its own rack. Not set: the leader.",
    ),
)

STORAGE = TOPICS + FOLDERS + DEFAULTS + UPKEEP + REPLICAS
