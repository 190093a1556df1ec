"""The options of consumer and share groups (resource type GROUP), and the values that apply to a group.

An option that is not set on a group has the value of its synonym on the broker, or its default if it has none. The
broker's options with `min` and `max` limit what may be set; a value that was set before these limits changed is cut to
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.config import Between, Config, OneOf, Option, Options
from headrace.config.offset_reset import ResetPolicy
from headrace.errors import BrokerError, Code, ConfigError

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
SHARE_SESSION_TIMEOUT = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL = "share.heartbeat.interval.ms"
SHARE_ASSIGNMENT_INTERVAL = "share.assignment.interval.ms"
RECORD_LOCK_DURATION = "share.record.lock.duration.ms"
DELIVERY_COUNT_LIMIT = "share.delivery.count.limit"
MAX_RECORD_LOCKS = "share.partition.max.record.locks"
SHARE_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ISOLATION_LEVEL = "share.isolation.level"
RENEW_ENABLE = "share.renew.acknowledge.enable"

READ_COMMITTED = "read_committed"

GROUP_OPTIONS = Options(
    Option(SESSION_TIMEOUT, "int", 45_000, "The session timeout of the group's members.", Between(1)),
    Option(HEARTBEAT_INTERVAL, "int", 5_000, "The heartbeat interval of the group's members.", Between(1)),
    Option(ASSIGNMENT_INTERVAL, "int", 1_000, "The minimum time between two assignments of the group.", Between(0)),
    Option(SHARE_SESSION_TIMEOUT, "int", 45_000, "The session timeout of a share group's members.", Between(1)),
    Option(SHARE_HEARTBEAT_INTERVAL, "int", 5_000, "The heartbeat interval of a share group's members.", Between(1)),
    Option(
        SHARE_ASSIGNMENT_INTERVAL,
        "int",
        1_000,
        "The minimum time between two assignments of a share group.",
        Between(0),
    ),
    Option(
        RECORD_LOCK_DURATION,
        "int",
        30_000,
        "How long a record is locked for the member of a share group that it was delivered to.",
        Between(1_000),
    ),
    Option(DELIVERY_COUNT_LIMIT, "int", 5, "How often a share group delivers a record at most.", Between(2)),
    Option(MAX_RECORD_LOCKS, "int", 2_000, "Records in flight of a partition in a share group.", Between(100)),
    Option(
        SHARE_OFFSET_RESET,
        "str",
        "latest",
        "Where a share group starts in a partition: earliest, latest, or by_duration:PT1H (an hour ago).",
        ResetPolicy("earliest", "latest"),
    ),
    Option(
        SHARE_ISOLATION_LEVEL,
        "str",
        "read_uncommitted",
        "Whether a share group gets records of open and aborted transactions (read_uncommitted) or not "
        "(read_committed).",
        OneOf(READ_COMMITTED, "read_uncommitted"),
    ),
    Option(RENEW_ENABLE, "bool", True, "Whether members of a share group may renew the locks of records."),
)


class ConsumerGroupTimes(NamedTuple):
    """The times that apply to a consumer or share group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class DeliverySettings(NamedTuple):
    """How a share group delivers records."""

    lock_ms: int
    delivery_count_max: int
    locks_max: int
    offset_reset: str
    committed_only: bool
    may_renew: bool


class _BrokerNames(NamedTuple):
    """The broker's options for an option of groups."""

    default: str
    low: str
    high: str


_BROKER_NAMES = {
    SESSION_TIMEOUT: _BrokerNames(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    HEARTBEAT_INTERVAL: _BrokerNames(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    ASSIGNMENT_INTERVAL: _BrokerNames(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    SHARE_SESSION_TIMEOUT: _BrokerNames(
        "group.share.session.timeout.ms", "group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"
    ),
    SHARE_HEARTBEAT_INTERVAL: _BrokerNames(
        "group.share.heartbeat.interval.ms",
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ),
    SHARE_ASSIGNMENT_INTERVAL: _BrokerNames(
        "group.share.assignment.interval.ms",
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    RECORD_LOCK_DURATION: _BrokerNames(
        "group.share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    DELIVERY_COUNT_LIMIT: _BrokerNames(
        "group.share.delivery.count.limit",
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ),
    MAX_RECORD_LOCKS: _BrokerNames(
        "group.share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
}


def broker_synonym(name: str) -> str | None:
    """Return the broker's option for groups on which the option is not set; None if there is none."""
    names = _BROKER_NAMES.get(name)
    return None if names is None else names.default


def limits(name: str, broker: Config) -> tuple[int, int]:
    """Return the lowest and highest value that the broker allows."""
    names = _BROKER_NAMES[name]
    return broker.of(int, names.low), broker.of(int, names.high)


def _number(name: str, values: Mapping[str, str], broker: Config) -> int:
    """Return the value of a limited option."""
    if name not in values:
        return broker.of(int, _BROKER_NAMES[name].default)
    low, high = limits(name, broker)
    return min(max(int(values[name]), low), high)


def times_of(values: Mapping[str, str], broker: Config) -> ConsumerGroupTimes:
    """Return the times of a consumer group on which these values are set."""
    return ConsumerGroupTimes(
        _number(SESSION_TIMEOUT, values, broker),
        _number(HEARTBEAT_INTERVAL, values, broker),
        _number(ASSIGNMENT_INTERVAL, values, broker),
    )


def share_times_of(values: Mapping[str, str], broker: Config) -> ConsumerGroupTimes:
    """Return the times of a share group on which these values are set."""
    return ConsumerGroupTimes(
        _number(SHARE_SESSION_TIMEOUT, values, broker),
        _number(SHARE_HEARTBEAT_INTERVAL, values, broker),
        _number(SHARE_ASSIGNMENT_INTERVAL, values, broker),
    )


def delivery_of(values: Mapping[str, str], broker: Config) -> DeliverySettings:
    """Return how a share group on which these values are set delivers records."""

    def value(name: str) -> object:
        option = GROUP_OPTIONS[name]
        return option.parse(values.get(name, option.default))

    return DeliverySettings(
        lock_ms=_number(RECORD_LOCK_DURATION, values, broker),
        delivery_count_max=_number(DELIVERY_COUNT_LIMIT, values, broker),
        locks_max=_number(MAX_RECORD_LOCKS, values, broker),
        offset_reset=str(value(SHARE_OFFSET_RESET)),
        committed_only=value(SHARE_ISOLATION_LEVEL) == READ_COMMITTED,
        may_renew=bool(value(RENEW_ENABLE)),
    )


def check_group_values(values: Mapping[str, str], broker: Config) -> None:
    """Raise INVALID_CONFIG unless the values may be set on a group."""
    try:
        parsed = {name: GROUP_OPTIONS[name].parse(value) for name, value in values.items()}
    except ConfigError as error:
        raise BrokerError(str(error), code=Code.INVALID_CONFIG) from None
    for name, value in parsed.items():
        if name not in _BROKER_NAMES:
            continue
        low, high = limits(name, broker)
        assert isinstance(value, int)
        if not low <= value <= high:
            names = _BROKER_NAMES[name]
            raise BrokerError(
                f"invalid {name} {value}: expected {low} to {high}, the limits of this broker ({names.low} and "
                f"{names.high})",
                code=Code.INVALID_CONFIG,
            )
    _check_times(SESSION_TIMEOUT, HEARTBEAT_INTERVAL, times_of(values, broker))
    _check_times(SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL, share_times_of(values, broker))


def _check_times(session_timeout: str, heartbeat_interval: str, times: ConsumerGroupTimes) -> None:
    if times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise BrokerError(
            f"invalid {session_timeout} {times.session_timeout_ms}: expected more than {heartbeat_interval}, which is "
            f"{times.heartbeat_interval_ms}",
            code=Code.INVALID_CONFIG,
        )
