"""Value types that every layer shares.

Most are named tuples: they compare, hash, sort and unpack like plain tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class TopicPartition(NamedTuple):
    """A topic and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(NamedTuple):
    """The producer id and epoch in the header of a batch; (-1, -1) if the producer has none."""

    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker has assigned the id."""
        return self.producer_id >= 0


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the next record to read, a text of the application, and the epoch of the leader."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(slots=True, frozen=True)
class GroupMetadata:
    """The consumer group and member for which offsets are committed with a transaction (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class GroupMember(Protocol):
    """A consumer: it knows the group and member for which it reads."""

    def group_metadata(self) -> GroupMetadata: ...


class PositionedMember(GroupMember, Protocol):
    """A consumer with positions: the next offsets of its partitions."""

    def positions(self) -> Mapping[TopicPartition, int]: ...
