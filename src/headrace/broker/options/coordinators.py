"""Transactions, consumer groups and quotas."""

from __future__ import annotations

from headrace.config import INT_MAX, Between, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)

_FOLDERS = (
    "Each is a folder with a few files of its own, and this broker is alone or one of few: 8 start faster than the 50 "
    "of Kafka and spread as well. It cannot change once the topic exists."
)
_ALONE = "One copy is all that a single broker can keep (Kafka: 3)."

TRANSACTIONS = (
    Option(
        "transaction.max.timeout.ms",
        "int",
        900_000,
        "The longest transaction.timeout.ms that a producer may ask for.",
        _FROM_1,
        "high",
    ),
    Option(
        "transactional.id.expiration.ms",
        "int",
        604_800_000,
        "How long a transactional id is remembered that nobody uses.",
        _FROM_1,
        "high",
    ),
    Option(
        "transaction.state.log.num.partitions",
        "int",
        8,
        f"Partitions of the topic that transactions are kept in. {_FOLDERS}",
        _FROM_1,
        "high",
    ),
    Option("transaction.state.log.replication.factor", "short", 1, f"Copies of that topic. {_ALONE}", _FROM_1, "high"),
    Option(
        "transaction.state.log.min.isr",
        "int",
        1,
        "min.insync.replicas of that topic (Kafka: 2).",
        _FROM_1,
        "high",
    ),
    Option(
        "transaction.state.log.segment.bytes",
        "int",
        104_857_600,
        "segment.bytes of that topic: small, so that compaction comes round often and a start is quick.",
        _FROM_1,
        "high",
    ),
    Option(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        10_000,
        "How often to look for transactions whose time is up.",
        _FROM_1,
        "low",
    ),
    Option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        3_600_000,
        "How often to look for transactional ids that can be forgotten.",
        _FROM_1,
        "low",
    ),
    Option(
        "transaction.partition.verification.enable",
        "bool",
        True,
        "Before a transactional write is taken, ask whether its transaction is really open (KIP-890): otherwise a late "
        "one could leave a transaction hanging.",
        None,
        "low",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        "bool",
        False,
        "Let producers ask for transactions that never time out (KIP-939).",
        None,
        "low",
        no_effect="no version of InitProducerId that could ask for it is offered",
    ),
)

OFFSETS = (
    Option(
        "offsets.topic.num.partitions",
        "int",
        8,
        f"Partitions of the topic that consumer offsets are kept in. {_FOLDERS}",
        _FROM_1,
        "high",
    ),
    Option("offsets.topic.replication.factor", "short", 1, f"Copies of that topic. {_ALONE}", _FROM_1, "high"),
    Option(
        "offsets.topic.segment.bytes",
        "int",
        104_857_600,
        "segment.bytes of that topic: small, so that compaction comes round often and a start is quick.",
        _FROM_1,
        "high",
    ),
    Option(
        "offsets.retention.minutes",
        "int",
        10_080,
        "How long the offsets of a group without members are kept.",
        _FROM_1,
        "high",
    ),
    Option(
        "offsets.retention.check.interval.ms",
        "long",
        600_000,
        "How often to look for offsets that can be forgotten.",
        _FROM_1,
        "high",
    ),
    Option(
        "offsets.commit.timeout.ms",
        "int",
        5_000,
        "How long a commit may wait for the replicas of its topic.",
        _FROM_1,
        "high",
        no_effect="one copy of the topic is written at once",
    ),
    Option("offset.metadata.max.bytes", "int", 4_096, "The longest note that may go with an offset.", None, "high"),
)

GROUPS = (
    Option("group.min.session.timeout.ms", "int", 6_000, "The shortest session time-out that members may ask for."),
    Option("group.max.session.timeout.ms", "int", 1_800_000, "The longest one."),
    Option(
        "group.initial.rebalance.delay.ms",
        "int",
        3_000,
        "How long an empty group waits for more members before its first rebalance. 0 suits tests.",
    ),
    Option("group.max.size", "int", INT_MAX, "Members of a group.", _FROM_1),
)

QUOTAS = (
    Option("quota.window.num", "int", 11, "Samples that a client's rate is taken over.", _FROM_1, "low"),
    Option("quota.window.size.seconds", "int", 1, "How long each of them is.", _FROM_1, "low"),
)

COORDINATORS = TRANSACTIONS + OFFSETS + GROUPS + QUOTAS
