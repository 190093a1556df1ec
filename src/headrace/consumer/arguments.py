"""Checks of arguments, on the application thread: a value of a wrong type would fail later, in the I/O thread."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

from headrace.consumer.rebalances import RebalanceListener
from headrace.types import OffsetAndMetadata, TopicPartition

FOREVER_MS = 1e12
"""The longest timeout, 31 years. Python's locks cannot wait for `inf`."""
_PARTITION = "TopicPartition(topic, number)"
_LISTENER_METHODS = ("on_assigned", "on_revoked", "on_lost")


def partition_of(value: object) -> TopicPartition:
    """Return a partition, which may be given as a tuple."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        number = _integer(value[1])
        if number is not None and number < 0:
            raise ValueError(f"invalid partition: expected a number of 0 or more, got {value!r}")
        if number is not None:
            return TopicPartition(value[0], number)
    raise TypeError(f"invalid partition: expected {_PARTITION}, got {value!r}")


def partitions_of(values: Iterable[object]) -> list[TopicPartition]:
    """Return partitions."""
    if isinstance(values, str | TopicPartition) or not isinstance(values, Iterable):
        raise TypeError(f"invalid partitions: expected a list of {_PARTITION}, got {values!r}")
    return [partition_of(value) for value in values]


def topics_of(topics: Iterable[str] | str) -> frozenset[str]:
    """Return names of topics; one of them may be given as a string."""
    names: object = [topics] if isinstance(topics, str) else topics
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise TypeError(f"invalid topics: expected a list of names, got {topics!r}")
    return frozenset(map(topic_of, names))


def topic_of(name: object) -> str:
    """Return the name of a topic."""
    if not isinstance(name, str):
        raise TypeError(f"invalid topic: expected its name as a string, got {name!r}")
    return name


def offset_of(value: object, hint: str = "") -> int:
    """Return an offset."""
    offset = integer_of(value, "offset")
    if offset < 0:
        raise ValueError(f"invalid offset: expected 0 or more, got {offset}{hint}")
    return offset


def integer_of(value: object, name: str) -> int:
    """Return an integer."""
    number = _integer(value)
    if number is None:
        raise TypeError(f"invalid {name}: expected an integer, got {value!r}")
    return number


def starts_of(
    partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int],
) -> dict[TopicPartition, int | None]:
    """Return partitions with the offset to start at, if there is one."""
    if not isinstance(partitions, Mapping):
        return dict.fromkeys(partitions_of(partitions))
    return {
        partition_of(name): None if offset is None else integer_of(offset, "offset")
        for name, offset in partitions.items()
    }


def commits_of(offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit, in full."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"invalid offsets: expected a mapping of {_PARTITION} to offsets, got {offsets!r}")
    return {partition_of(name): _commit_of(offset) for name, offset in offsets.items()}


def _commit_of(value: int | OffsetAndMetadata) -> OffsetAndMetadata:
    given = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    if not isinstance(given.metadata, str):
        raise TypeError(f"invalid metadata: expected a string, got {given.metadata!r}")
    return given._replace(offset=offset_of(given.offset))


def times_of(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return partitions with times in milliseconds."""
    if not isinstance(times, Mapping):
        raise TypeError(f"invalid times: expected a mapping of {_PARTITION} to milliseconds, got {times!r}")
    return {partition_of(name): integer_of(time, "time") for name, time in times.items()}


def milliseconds(timeout: float) -> float:
    """Return a timeout, given in seconds; a negative one counts as 0."""
    if not isinstance(timeout, int | float) or timeout != timeout:
        raise TypeError(f"invalid timeout: expected seconds, got {timeout!r}")
    return min(max(0.0, timeout * 1000), FOREVER_MS)


def check_listener(listener: RebalanceListener | None) -> None:
    """Raise if a listener lacks a method: it would be missed in a rebalance."""
    missing = [name for name in _LISTENER_METHODS if not callable(getattr(listener, name, None))]
    if listener is not None and missing:
        raise TypeError(f"invalid listener: {listener!r} has no {missing[0]}(): make it a RebalanceListener")


def _integer(value: object) -> int | None:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
