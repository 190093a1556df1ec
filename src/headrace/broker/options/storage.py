"""Options of topics, logs and replicas. Topics inherit the `log.*` options of their broker."""

from __future__ import annotations

from headrace.config import LONG_MAX, Between, NotEmpty, OneOf, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)

TOPICS = (
    Option("num.partitions", "int", 1, "The default number of partitions of a topic.", _FROM_1),
    Option("default.replication.factor", "int", 1, "The default replication factor of a topic.", _FROM_1),
    Option(
        "auto.create.topics.enable",
        "bool",
        True,
        "Create a topic when a client requests its metadata or writes to it.",
        None,
        "high",
    ),
    Option("delete.topic.enable", "bool", True, "Allow the deletion of topics.", None, "high"),
)

FOLDERS = (
    Option(
        "log.dirs",
        "list",
        None,
        "The data folder (one; Kafka allows several). Not set: log.dir.",
        None,
        "high",
    ),
    Option(
        "log.dir",
        "str",
        "headrace-logs",
        "The data folder, if log.dirs is not set. The default is in the working directory (Kafka: /tmp/kafka-logs), "
        "because other users could prepare a fixed name in /tmp.",
        NotEmpty(),
        "high",
    ),
)

DEFAULTS = (
    Option(
        "log.segment.bytes",
        "int",
        1_073_741_824,
        "The maximum size of a segment; then a new one is started.",
        Between(1_048_576),
        "high",
    ),
    Option(
        "log.roll.ms",
        "long",
        None,
        "The maximum age of a segment. Not set: log.roll.hours.",
        None,
        "high",
    ),
    Option("log.roll.hours", "int", 168, "The same in hours.", _FROM_1, "high"),
    Option(
        "log.roll.jitter.ms",
        "long",
        None,
        "A random part of this is subtracted from log.roll.ms, so that segments do not all end at once. "
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
    Option("log.retention.bytes", "long", -1, "The maximum size of a partition; -1: unlimited.", None, "high"),
    Option(
        "log.cleanup.policy",
        "list",
        ("delete",),
        "What happens to old records: segments are deleted, or compaction keeps the last record of each key.",
    ),
    Option("log.segment.delete.delay.ms", "long", 60_000, "How long a deleted file stays on disk.", _FROM_0, "high"),
    Option("log.cleaner.delete.retention.ms", "long", 86_400_000, "How long compaction keeps tombstones.", _FROM_0),
    Option("log.cleaner.min.compaction.lag.ms", "long", 0, "The minimum age of records for compaction.", _FROM_0),
    Option("log.cleaner.max.compaction.lag.ms", "long", LONG_MAX, "The maximum age before compaction.", _FROM_1),
    Option(
        "log.cleaner.min.cleanable.ratio",
        "double",
        0.5,
        "The dirty part of a log that triggers compaction.",
        Between(0.0, 1.0),
    ),
    Option("log.index.interval.bytes", "int", 4_096, "Bytes of records for each entry of the offset index.", _FROM_0),
    Option("log.index.size.max.bytes", "int", 10_485_760, "The maximum offset index of a segment.", Between(4)),
    Option(
        "log.flush.interval.messages",
        "long",
        LONG_MAX,
        "The maximum number of records before a sync. 1 survives a power cut; without it acknowledged records survive "
        "the death of the process, but not of the machine.",
        _FROM_1,
        "high",
    ),
    Option(
        "log.flush.interval.ms",
        "long",
        None,
        "The maximum time before records are synced. Not set: log.flush.scheduler.interval.ms.",
        None,
        "high",
    ),
    Option("log.flush.scheduler.interval.ms", "long", LONG_MAX, "How often that is checked.", None, "high"),
    Option("log.preallocate", "bool", False, "Allocate the space of a segment when it is created."),
    Option(
        "log.message.timestamp.type",
        "str",
        "CreateTime",
        "Whether timestamps are set by the producer or by the broker.",
        OneOf("CreateTime", "LogAppendTime"),
    ),
    Option(
        "log.message.timestamp.before.max.ms",
        "long",
        LONG_MAX,
        "How far timestamps may be in the past; older records are rejected.",
        _FROM_0,
    ),
    Option(
        "log.message.timestamp.after.max.ms",
        "long",
        3_600_000,
        "How far timestamps may be in the future; later records are rejected.",
        _FROM_0,
    ),
    Option("message.max.bytes", "int", 1_048_588, "The maximum size of a record batch.", _FROM_0, "high"),
    Option(
        "message.max.decompressed.bytes",
        "int",
        134_217_728,
        "The maximum decompressed size of a batch (Kafka: unlimited). A larger batch is rejected with "
        "MESSAGE_TOO_LARGE, which makes producers send smaller ones.",
        _FROM_1,
    ),
    Option(
        "request.max.decompressed.bytes",
        "int",
        268_435_456,
        "The maximum decompressed size of all batches of a produce request (Kafka: unlimited).",
        _FROM_1,
    ),
    Option(
        "message.max.compression.ratio",
        "int",
        1_000,
        "The maximum compression ratio of batches with more than 16 MiB of decompressed records (Kafka: unlimited).",
        _FROM_1,
    ),
    Option(
        "compression.type",
        "str",
        "producer",
        "The compression of stored batches: as the producer sent them, or recompressed.",
        OneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "high",
    ),
    Option("compression.gzip.level", "int", -1, "The level of gzip; -1 is its default.", Between(1, 9, also=-1)),
    Option("compression.lz4.level", "int", 9, "The level of lz4.", Between(1, 17)),
    Option("compression.zstd.level", "int", 3, "The level of zstd.", Between(-131_072, 22)),
    Option(
        "min.insync.replicas",
        "int",
        1,
        "The minimum number of in-sync replicas for writes with acks=all.",
        _FROM_1,
        "high",
    ),
    Option(
        "unclean.leader.election.enable",
        "bool",
        False,
        "Elect a replica that is not in sync if there is no other: records may be lost.",
        None,
        "high",
    ),
)

UPKEEP = (
    Option("log.retention.check.interval.ms", "long", 300_000, "How often retention is checked.", _FROM_1),
    Option("log.cleaner.enable", "bool", True, "Compact topics whose cleanup.policy contains compact."),
    Option("log.cleaner.backoff.ms", "long", 15_000, "The wait when there is nothing to compact.", _FROM_0),
    Option(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "How often the synced end of each log is checkpointed: recovery after a crash starts there.",
        _FROM_0,
        "high",
    ),
    Option(
        "log.flush.start.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "How often the start of each log is checkpointed.",
        _FROM_0,
        "high",
        no_effect="it is checkpointed at every change",
    ),
    Option(
        "log.initial.task.delay.ms",
        "long",
        30_000,
        "The wait after start-up before background tasks begin.",
        _FROM_0,
        "low",
        no_effect="background tasks wait for their intervals only",
    ),
    Option(
        "producer.id.expiration.ms",
        "int",
        86_400_000,
        "How long a partition keeps the state of an idle producer, to detect duplicates.",
        _FROM_1,
        "low",
    ),
    Option(
        "producer.id.expiration.check.interval.ms",
        "int",
        600_000,
        "How often expired producers are removed.",
        _FROM_1,
        "low",
    ),
)

REPLICAS = (
    Option(
        "replica.lag.time.max.ms",
        "long",
        30_000,
        "A follower that has not caught up for this long is removed from the in-sync set.",
        None,
        "high",
    ),
    Option("replica.fetch.min.bytes", "int", 1, "The minimum size of a replica fetch response.", None, "high"),
    Option("replica.fetch.wait.max.ms", "int", 500, "How long a replica fetch waits for it.", None, "high"),
    Option(
        "replica.fetch.max.bytes",
        "int",
        1_048_576,
        "The maximum size of a partition in a replica fetch response.",
        _FROM_0,
    ),
    Option(
        "replica.fetch.response.max.bytes",
        "int",
        10_485_760,
        "The maximum size of a replica fetch response.",
        _FROM_0,
    ),
    Option("replica.fetch.backoff.ms", "int", 1_000, "The back-off after a failed replica fetch.", _FROM_0),
    Option("replica.socket.timeout.ms", "int", 30_000, "The timeout of a replica fetch.", None, "high"),
    Option(
        "replica.high.watermark.checkpoint.interval.ms",
        "long",
        5_000,
        "How often the high watermark of each partition is checkpointed.",
        None,
        "high",
    ),
    Option(
        "replica.selector.class",
        "str",
        None,
        "The replica that consumers read from. org.apache.kafka.common.replica.RackAwareReplicaSelector: one on the "
        "rack of the consumer. Not set: the leader.",
    ),
)

STORAGE = TOPICS + FOLDERS + DEFAULTS + UPKEEP + REPLICAS
