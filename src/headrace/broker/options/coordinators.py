"""Options of transactions, consumer groups and quotas."""

from __future__ import annotations

from headrace.config import INT_MAX, Between, OneOf, Option

_FROM_0 = Between(0)
_FROM_1 = Between(1)

_PARTITIONS = (
    "Each partition is a folder with several files; 8 instead of Kafka's 50 start faster and are enough for a few "
    "brokers. It cannot be changed once the topic exists."
)
_STANDALONE = "A standalone broker has one replica (Kafka: 3)."

TRANSACTIONS = (
    Option(
        "transaction.max.timeout.ms",
        "int",
        900_000,
        "The maximum transaction.timeout.ms of producers.",
        _FROM_1,
        "high",
    ),
    Option(
        "transactional.id.expiration.ms",
        "int",
        604_800_000,
        "How long an unused transactional id is kept.",
        _FROM_1,
        "high",
    ),
    Option(
        "transaction.state.log.num.partitions",
        "int",
        8,
        f"The number of partitions of the transaction state topic. {_PARTITIONS}",
        _FROM_1,
        "high",
    ),
    Option(
        "transaction.state.log.replication.factor",
        "short",
        1,
        f"The replication factor of that topic. {_STANDALONE}",
        _FROM_1,
        "high",
    ),
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
        "segment.bytes of that topic: small, for frequent compaction and a fast start.",
        _FROM_1,
        "high",
    ),
    Option(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        10_000,
        "How often transactions are checked for their timeout.",
        _FROM_1,
        "low",
    ),
    Option(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        3_600_000,
        "How often expired transactional ids are removed.",
        _FROM_1,
        "low",
    ),
    Option(
        "transaction.partition.verification.enable",
        "bool",
        True,
        "Verify before a transactional write that its transaction is open (KIP-890): otherwise a late write could "
        "leave a hanging transaction.",
        None,
        "low",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        "bool",
        False,
        "Allow producers to use transactions without a timeout (KIP-939).",
        None,
        "low",
        no_effect="the version of InitProducerId for it is not supported",
    ),
)

OFFSETS = (
    Option(
        "offsets.topic.num.partitions",
        "int",
        8,
        f"The number of partitions of the consumer offsets topic. {_PARTITIONS}",
        _FROM_1,
        "high",
    ),
    Option(
        "offsets.topic.replication.factor",
        "short",
        1,
        f"The replication factor of that topic. {_STANDALONE}",
        _FROM_1,
        "high",
    ),
    Option(
        "offsets.topic.segment.bytes",
        "int",
        104_857_600,
        "segment.bytes of that topic: small, for frequent compaction and a fast start.",
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
        "How often expired offsets are removed.",
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
        no_effect="the timeout is always 5 s",
    ),
    Option("offset.metadata.max.bytes", "int", 4_096, "The maximum size of the metadata of an offset.", None, "high"),
)

GROUPS = (
    Option("group.min.session.timeout.ms", "int", 6_000, "The minimum session timeout of members."),
    Option("group.max.session.timeout.ms", "int", 1_800_000, "The maximum session timeout of members."),
    Option(
        "group.initial.rebalance.delay.ms",
        "int",
        3_000,
        "How long an empty group waits for more members before its first rebalance. Use 0 for tests.",
    ),
    Option("group.max.size", "int", INT_MAX, "The maximum number of members of a classic group.", _FROM_1),
)


class ListOf:
    """A list of some of these words, without repetition."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, value: object) -> object:
        assert isinstance(value, tuple)
        if not value or len(set(value)) < len(value) or not set(value) <= set(self.choices):
            raise ValueError(str(self))
        return value

    def __str__(self) -> str:
        return f"a list of {', '.join(self.choices)}, each at most once"


_PROTOCOLS = ListOf("classic", "consumer", "share", "streams")
_ASSIGNORS = ListOf("uniform", "range")
_POLICIES = OneOf("disabled", "downgrade", "upgrade", "bidirectional", ignore_case=True)

CONSUMER_GROUPS = (
    Option(
        "group.coordinator.rebalance.protocols",
        "list",
        ("classic", "consumer"),
        "The enabled group protocols. Share and Streams groups are not supported, so their names have no effect here "
        "(Kafka's default contains streams).",
        _PROTOCOLS,
    ),
    Option(
        "group.consumer.session.timeout.ms",
        "int",
        45_000,
        "The session timeout of members that use the consumer protocol.",
        _FROM_1,
    ),
    Option(
        "group.consumer.min.session.timeout.ms",
        "int",
        45_000,
        "The minimum of consumer.session.timeout.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.consumer.max.session.timeout.ms",
        "int",
        60_000,
        "The maximum of consumer.session.timeout.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.consumer.heartbeat.interval.ms",
        "int",
        5_000,
        "The heartbeat interval of members that use the consumer protocol.",
        _FROM_1,
    ),
    Option(
        "group.consumer.min.heartbeat.interval.ms",
        "int",
        5_000,
        "The minimum of consumer.heartbeat.interval.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.consumer.max.heartbeat.interval.ms",
        "int",
        15_000,
        "The maximum of consumer.heartbeat.interval.ms of a group.",
        _FROM_1,
    ),
    Option(
        "group.consumer.assignment.interval.ms",
        "int",
        1_000,
        "The minimum time between two assignments of a group. Members that join together get one assignment. Use 0 "
        "for tests.",
        _FROM_0,
    ),
    Option(
        "group.consumer.min.assignment.interval.ms",
        "int",
        0,
        "The minimum of consumer.assignment.interval.ms of a group.",
        _FROM_0,
    ),
    Option(
        "group.consumer.max.assignment.interval.ms",
        "int",
        15_000,
        "The maximum of consumer.assignment.interval.ms of a group.",
        _FROM_0,
    ),
    Option(
        "group.consumer.assignors",
        "list",
        ("uniform", "range"),
        "The assignors that members may choose; the first one is the default.",
        _ASSIGNORS,
    ),
    Option(
        "group.consumer.max.size",
        "int",
        INT_MAX,
        "The maximum number of members of a group that uses the consumer protocol.",
        _FROM_1,
    ),
    Option(
        "group.consumer.migration.policy",
        "str",
        "bidirectional",
        "Whether a group with members may change its protocol: to the consumer protocol (upgrade), to the classic "
        "one (downgrade), both (bidirectional) or never (disabled). A group without members always may.",
        _POLICIES,
    ),
)

QUOTAS = (
    Option("quota.window.num", "int", 11, "The number of samples of a client's rate.", _FROM_1, "low"),
    Option("quota.window.size.seconds", "int", 1, "The length of a sample.", _FROM_1, "low"),
)

COORDINATORS = TRANSACTIONS + OFFSETS + GROUPS + CONSUMER_GROUPS + QUOTAS
