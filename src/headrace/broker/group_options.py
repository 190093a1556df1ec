"""The options of a consumer group (resource type GROUP), and the values that apply to it.

An option that is not set on a group has the value of its synonym on the broker. The broker's options with `min` and
`max` limit what may be set; a value that was set before these limits changed is cut to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.config import Between, Config, Option, Options
from headrace.errors import BrokerError, Code, ConfigError

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"

GROUP_OPTIONS = Options(
    Option(SESSION_TIMEOUT, "int", 45_000, "The session timeout of the group's members.", Between(1)),
    Option(HEARTBEAT_INTERVAL, "int", 5_000, "The heartbeat interval of the group's members.", Between(1)),
    Option(ASSIGNMENT_INTERVAL, "int", 1_000, "The minimum time between two assignments of the group.", Between(0)),
)


class ConsumerGroupTimes(NamedTuple):
    """The times that apply to a group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


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
}


def broker_synonym(name: str) -> str:
    """Return the broker's option for groups on which the option is not set."""
    return _BROKER_NAMES[name].default


def limits(name: str, broker: Config) -> tuple[int, int]:
    """Return the lowest and highest value that the broker allows."""
    names = _BROKER_NAMES[name]
    return broker.of(int, names.low), broker.of(int, names.high)


def times_of(values: Mapping[str, str], broker: Config) -> ConsumerGroupTimes:
    """Return the times of a group on which these values are set."""

    def time_ms(name: str) -> int:
        if name not in values:
            return broker.of(int, broker_synonym(name))
        low, high = limits(name, broker)
        return min(max(int(values[name]), low), high)

    return ConsumerGroupTimes(time_ms(SESSION_TIMEOUT), time_ms(HEARTBEAT_INTERVAL), time_ms(ASSIGNMENT_INTERVAL))


def check_group_values(values: Mapping[str, str], broker: Config) -> None:
    """Raise INVALID_CONFIG unless the values may be set on a group."""
    try:
        parsed = {name: GROUP_OPTIONS[name].parse(value) for name, value in values.items()}
    except ConfigError as error:
        raise BrokerError(str(error), code=Code.INVALID_CONFIG) from None
    for name, value in parsed.items():
        low, high = limits(name, broker)
        assert isinstance(value, int)
        if not low <= value <= high:
            raise BrokerError(
                f"invalid {name} {value}: expected {low} to {high}, the limits of this broker (group.consumer.min.* "
                "and group.consumer.max.*)",
                code=Code.INVALID_CONFIG,
            )
    times = times_of(values, broker)
    if times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise BrokerError(
            f"invalid {SESSION_TIMEOUT} {times.session_timeout_ms}: expected more than {HEARTBEAT_INTERVAL}, which is "
            f"{times.heartbeat_interval_ms}",
            code=Code.INVALID_CONFIG,
        )
