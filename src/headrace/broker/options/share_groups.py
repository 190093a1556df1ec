"""Options of share groups (KIP-932)."""

from __future__ import annotations

from headrace.broker.options.coordinators import ListOf
from headrace.config import Between, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)
_LOCK_MS = Between(1_000, 3_600_000)

SHARE_MEMBERS = (
    Option("group.share.session.timeout.ms", "int", 45_000, "The session timeout of members of share groups.", _FROM_1),
    Option(
        "group.share.min.session.timeout.ms",
        "int",
        45_000,
        "The minimum of share.session.timeout.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.share.max.session.timeout.ms",
        "int",
        60_000,
        "The maximum of share.session.timeout.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.share.heartbeat.interval.ms", "int", 5_000, "The heartbeat interval of members of share groups.", _FROM_1
    ),
    Option(
        "group.share.min.heartbeat.interval.ms",
        "int",
        5_000,
        "The minimum of share.heartbeat.interval.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.share.max.heartbeat.interval.ms",
        "int",
        15_000,
        "The maximum of share.heartbeat.interval.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.share.assignment.interval.ms",
        "int",
        1_000,
        "The minimum time between two assignments of a share group.",
        _FROM_0,
    ),
    Option(
        "group.share.min.assignment.interval.ms",
        "int",
        0,
        "The minimum of share.assignment.interval.ms of a group.",
        _FROM_0,
    ),
    Option(
        "group.share.max.assignment.interval.ms",
        "int",
        15_000,
        "The maximum of share.assignment.interval.ms of a group.",
        _FROM_0,
    ),
    Option("group.share.assignors", "list", ("simple",), "The assignor of share groups.", ListOf("simple")),
    Option("group.share.max.size", "int", 200, "The maximum number of members of a share group.", Between(1, 1_000)),
)

RECORD_LOCKS = (
    Option(
        "group.share.record.lock.duration.ms",
        "int",
        30_000,
        "How long a record is locked for the member that it was delivered to. Then it is delivered again.",
        _LOCK_MS,
    ),
    Option(
        "group.share.min.record.lock.duration.ms",
        "int",
        15_000,
        "The minimum of share.record.lock.duration.ms of a group.",
        Between(1_000, 30_000),
    ),
    Option(
        "group.share.max.record.lock.duration.ms",
        "int",
        60_000,
        "The maximum of share.record.lock.duration.ms of a group.",
        Between(30_000, 3_600_000),
    ),
    Option(
        "group.share.delivery.count.limit",
        "int",
        5,
        "How often a record is delivered at most. Then it is archived.",
        Between(2, 10),
    ),
    Option(
        "group.share.min.delivery.count.limit",
        "int",
        2,
        "The minimum of share.delivery.count.limit of a group.",
        Between(2, 5),
    ),
    Option(
        "group.share.max.delivery.count.limit",
        "int",
        10,
        "The maximum of share.delivery.count.limit of a group.",
        Between(5, 25),
    ),
    Option(
        "group.share.partition.max.record.locks",
        "int",
        2_000,
        "The maximum number of records in flight of a partition in a share group.",
        Between(100, 10_000),
    ),
    Option(
        "group.share.min.partition.max.record.locks",
        "int",
        100,
        "The minimum of share.partition.max.record.locks of a group.",
        Between(100, 2_000),
    ),
    Option(
        "group.share.max.partition.max.record.locks",
        "int",
        4_000,
        "The maximum of share.partition.max.record.locks of a group.",
        Between(2_000, 10_000),
    ),
    Option(
        "group.share.max.share.sessions",
        "int",
        2_000,
        "The maximum number of share sessions of this broker: one for each member that fetches.",
        _FROM_1,
    ),
)

SHARE_STATE = (
    Option(
        "share.coordinator.state.topic.num.partitions",
        "int",
        8,
        "The number of partitions of the topic with the state of share groups. Each partition is a folder with several "
        "files; 8 instead of Kafka's 50 start faster and are enough for a few brokers. It cannot be changed once the "
        "topic exists.",
        _FROM_1,
        "high",
    ),
    Option(
        "share.coordinator.state.topic.replication.factor",
        "short",
        1,
        "The replication factor of that topic. A standalone broker has one replica (Kafka: 3).",
        _FROM_1,
        "high",
    ),
    Option(
        "share.coordinator.state.topic.min.isr",
        "short",
        1,
        "min.insync.replicas of that topic (Kafka: 2).",
        _FROM_1,
        "high",
    ),
    Option(
        "share.coordinator.state.topic.segment.bytes",
        "int",
        104_857_600,
        "segment.bytes of that topic.",
        _FROM_1,
        "high",
    ),
    Option(
        "share.coordinator.snapshot.update.records.per.snapshot",
        "int",
        500,
        "How many updates of a partition's state are written between two snapshots of it.",
        Between(0, 500),
    ),
)

SHARE_GROUPS = SHARE_MEMBERS + RECORD_LOCKS + SHARE_STATE
