"""Offsets of partitions: the first, the last, the one of a time.

{partition: LATEST | EARLIEST | … | milliseconds} → list_offsets → {partition: PartitionOffset}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from headrace.client.blocking import BlockingClient
from headrace.types import TopicPartition
from headrace.wire.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

_VERSION_OF = {MAX_TIMESTAMP: 7}


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, name: str | Isolation) -> Isolation:
        return name if isinstance(name, Isolation) else cls[name.upper()]


class PartitionOffset(NamedTuple):
    """An offset; -1 with a time later than that of any record."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    client: BlockingClient,
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout_ms: float | None = None,
    *,
    partial: bool = False,
) -> dict[TopicPartition, PartitionOffset]:
    """The offsets at times in milliseconds, or at LATEST, EARLIEST, MAX_TIMESTAMP.

    Under READ_COMMITTED the latest is the last stable offset: where the first open transaction begins. With `partial`,
    partitions that are offline when the time is up are left out.
    """

    def build(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=wanted[TopicPartition(topic, number)])
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        return ListOffsetsRequest(replica_id=-1, isolation_level=int(isolation), topics=topics)

    low = max((_VERSION_OF.get(time, 1) for time in wanted.values()), default=1)
    low = max(low, 2) if isolation is Isolation.READ_COMMITTED else low
    return client.ask_leaders(wanted, build, _read, versions=(low, 9), timeout_ms=timeout_ms, partial=partial)


def _read(response: Any) -> Iterator[tuple[TopicPartition, int, PartitionOffset]]:
    for topic in response.topics:
        for answer in topic.partitions:
            found = PartitionOffset(answer.offset, answer.timestamp, answer.leader_epoch)
            yield TopicPartition(topic.name, answer.partition_index), answer.error_code, found


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, as most requests want them."""
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        grouped[topic].append(number)
    return grouped
