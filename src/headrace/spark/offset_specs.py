"""The options that say which partitions to read, and from which offset to which.

assign | subscribe | subscribePattern → Subscription
startingOffsets, startingTimestamp, … → OffsetSpec      likewise for ending…

No broker is needed here: lookup.py resolves them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.client.offsets import EARLIEST, LATEST
from headrace.config import LONG_MAX, Config
from headrace.errors import ConfigError
from headrace.types import TopicPartition

VALUE_CHARS_MAX = 200
"""How much of a value a message repeats."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_EDGES = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: named ones, all of some topics, or all of the topics that match a pattern."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join(map(str, self.partitions)) or ", ".join(self.topics)


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Offsets, or timestamps to look them up by, and the option that gives them."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST; or a timestamp, if `is_time`."""
    by_partition: Mapping[TopicPartition, int] | None = None
    is_time: bool = False

    @property
    def is_latest_anywhere(self) -> bool:
        if self.is_time:
            return False
        return self.everywhere == LATEST or LATEST in (self.by_partition or {}).values()

    def is_explicit(self, partition: TopicPartition) -> bool:
        """Whether the user gave a number for this partition."""
        return not self.is_time and (self.by_partition or {}).get(partition, LATEST) >= 0

    def __str__(self) -> str:
        return f"as {self.option} says"


class End(Enum):
    """The two ends of the range to read; the names of their options begin with it."""

    STARTING = "starting"
    ENDING = "ending"

    @property
    def timestamp(self) -> str:
        return f"{self.value}Timestamp"

    @property
    def by_timestamp(self) -> str:
        return f"{self.value}OffsetsByTimestamp"

    @property
    def offsets(self) -> str:
        return f"{self.value}Offsets"


def parse_subscription(config: Config) -> Subscription:
    """Parse assign, subscribe or subscribePattern; exactly one has to be set."""
    ways: dict[str, Callable[[str], Subscription]] = {
        "assign": _assign,
        "subscribe": _subscribe,
        "subscribePattern": _pattern,
    }
    given = [name for name in ways if config[name] is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "there is no topic to read from"
        raise ConfigError(f"{what}; set exactly one of {', '.join(ways)}")
    (name,) = given
    return ways[name](config.of(str, name))


def _subscribe(text: str) -> Subscription:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise ConfigError(f"subscribe is {text!r}; it may be topics with commas between them")
    for topic in topics:
        _check_topic("subscribe", text, topic)
    return Subscription(topics=topics)


def _pattern(text: str) -> Subscription:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"subscribePattern is {text!r}; it may be a regular expression: {error}") from None
    if not text:
        raise ConfigError("subscribePattern is empty; it may be a regular expression such as orders-.*")
    return Subscription(pattern=text)


def _assign(text: str) -> Subscription:
    allowed = 'JSON with lists of partitions such as {"topic":[0,1]}'
    partitions: dict[TopicPartition, None] = {}
    for topic, numbers in _json_object("assign", text, allowed).items():
        _check_topic("assign", text, topic)
        if not isinstance(numbers, list) or not all(_is_partition(number) for number in numbers):
            raise _refusal("assign", text, allowed)
        partitions |= {TopicPartition(topic, number): None for number in numbers}
    if not partitions:
        raise _refusal("assign", text, allowed)
    return Subscription(partitions=tuple(partitions))


def parse_offsets(config: Config, end: End, default: int) -> OffsetSpec:
    """Parse an end. Of several options the most general wins, as in Spark's own source: a time, times, offsets."""
    if (timestamp := config.optional(int, end.timestamp)) is not None:
        return OffsetSpec(end.timestamp, timestamp, is_time=True)
    if (text := config.optional(str, end.by_timestamp)) is not None:
        allowed = 'JSON with a time in milliseconds for each partition, such as {"topic":{"0":1700000000000}}'
        times = _by_partition(end.by_timestamp, text, allowed, least=0)
        return OffsetSpec(end.by_timestamp, by_partition=times, is_time=True)
    text = config.optional(str, end.offsets)
    return OffsetSpec(end.offsets, default) if text is None else _offsets(end, text)


def _offsets(end: End, text: str) -> OffsetSpec:
    """Parse `earliest`, `latest` or JSON. Ending at the earliest offset is refused: nothing is before it."""
    option, edge = end.offsets, _EDGES.get(text.lower())
    words = "latest" if end is End.ENDING else "earliest, latest"
    special = "-1: latest" if end is End.ENDING else "-1: latest, -2: earliest"
    allowed = f'{words}, or JSON with an offset for each partition, such as {{"topic":{{"0":23}}}} ({special})'
    if edge == EARLIEST and end is End.ENDING:
        raise _refusal(option, text, allowed)
    if edge is not None:
        return OffsetSpec(option, edge)
    least = LATEST if end is End.ENDING else EARLIEST
    return OffsetSpec(option, by_partition=_by_partition(option, text, allowed, least))


def _by_partition(option: str, text: str, allowed: str, least: int) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(option, text, allowed).items():
        if not isinstance(numbers, dict):
            raise _refusal(option, text, allowed)
        for number, value in numbers.items():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if not (number.isdecimal() and number.isascii()) or not is_number or not least <= value <= LONG_MAX:
                raise _refusal(option, text, allowed, f"; {topic} has {number!r}: {value!r}")
            offsets[TopicPartition(topic, int(number))] = value
    if not offsets:
        raise _refusal(option, text, allowed)
    return offsets


def _json_object(option: str, text: str, allowed: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _refusal(option, text, allowed) from None
    if not isinstance(value, dict):
        raise _refusal(option, text, allowed)
    return value


def _is_partition(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _check_topic(option: str, text: str, topic: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise _refusal(
            option, text, "names of letters, digits, dots, dashes and underscores", f"; {topic!r} is not one"
        )


def _refusal(option: str, text: str, allowed: str, detail: str = "") -> ConfigError:
    shown = text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
    return ConfigError(f"{option} is {shown!r}{detail}; it may be {allowed}")
