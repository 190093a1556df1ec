"""ListOffsets: the earliest and latest offsets of partitions, and offsets by time.

{partition: LATEST | EARLIEST | … | milliseconds} → list_offsets → {partition: PartitionOffset}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.client.blocking import BlockingClient
from headrace.types import TopicPartition
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

_VERSION_OF = {MAX_TIMESTAMP: 7}


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, name: str | Isolation) -> Isolation:
        return name if isinstance(name, Isolation) else cls[name.upper()]


class PartitionOffset(NamedTuple):
    """An offset; -1 for a time later than that of any record."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    client: BlockingClient,
    times: Mapping[TopicPartition, int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout_ms: float | None = None,
    *,
    partial: bool = False,
) -> dict[TopicPartition, PartitionOffset]:
    """Return the offsets for times in milliseconds, or for LATEST, EARLIEST, MAX_TIMESTAMP.

    With READ_COMMITTED, LATEST is the last stable offset: where the first open transaction begins. With `partial`,
    partitions that are offline at the timeout are left out.
    """

    def build(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        return list_offsets_request({tp: times[tp] for tp in partitions}, isolation)

    low = max((_VERSION_OF.get(time, 1) for time in times.values()), default=1)
    low = max(low, 2) if isolation is Isolation.READ_COMMITTED else low
    return client.request_leaders(times, build, read_offsets, versions=(low, 9), timeout_ms=timeout_ms, partial=partial)


def list_offsets_request(times: Mapping[TopicPartition, int], isolation: Isolation) -> ListOffsetsRequest:
    """Return the request for the offsets of partitions that have the same leader."""
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=number, timestamp=times[TopicPartition(topic, number)])
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(times).items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=int(isolation), topics=topics)


def read_offsets(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int, PartitionOffset]]:
    """Yield partition, error code and offset."""
    for topic in response.topics:
        for row in topic.partitions:
            offset = PartitionOffset(row.offset, row.timestamp, row.leader_epoch)
            yield TopicPartition(topic.name, row.partition_index), row.error_code, offset


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partition numbers by topic, as most requests have them."""
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        grouped[topic].append(number)
    return grouped
