"""Value types that every layer shares.

They are named tuples: they compare, hash, sort and unpack like plain tuples.
"""

from __future__ import annotations

from typing import NamedTuple


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
