"""Records one by one: `for record in consumer`. Application thread only.

    poll → PendingRecords.add → next … next → poll

The position of a partition follows the records that were yielded, not those that `poll` has returned. So a commit
within the loop, or after `break`, leaves out the records that the application has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from headrace.consumer.partitions import AssignedPartition, Assignment
from headrace.types import TopicPartition
from headrace.wire.layout import ConsumerRecord


class Partitions(Protocol):
    """The assigned partitions, as iteration needs them."""

    @property
    def assignment(self) -> Assignment: ...
    def restart(self, partition: AssignedPartition, offset: int) -> None:
        """Fetch again from an offset."""


class PendingRecords:
    """The records of one poll that were not yielded yet."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._records: Iterator[ConsumerRecord] = iter(())
        self._ends: dict[TopicPartition, tuple[AssignedPartition, int]] = {}  # And the position after all records.
        self._last: tuple[AssignedPartition, int] | None = None  # The record that was yielded last.

    @property
    def is_active(self) -> bool:
        """Whether the last record that the application got was yielded by `next`."""
        return self._last is not None

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Take the records of a poll, and move the positions back before them. Only when none is left."""
        records = list(records)
        current = self._partitions.assignment.partitions
        for record in records:
            name = TopicPartition(record.topic, record.partition)
            if name not in self._ends:
                partition = current[name]
                self._ends[name] = partition, partition.position
                partition.position = record.offset
        self._records = iter(records)

    def next(self) -> ConsumerRecord | None:
        """Return the next record; None if none is left. Those of partitions that were sought or revoked are dropped."""
        assignment = self._partitions.assignment
        for record in self._records:
            partition, _ = self._ends[TopicPartition(record.topic, record.partition)]
            if assignment.is_current(partition):
                partition.position = record.offset + 1
                self._last = partition, record.offset
                return record
        for partition, end in self._ends.values():
            partition.position = end
        self._ends.clear()
        self._last = None
        return None

    def give_back(self) -> None:
        """Fetch the records again that were not yielded, for a `poll` amid an iteration."""
        for partition, end in self._ends.values():
            if self._partitions.assignment.is_current(partition) and partition.position < end:
                self._partitions.restart(partition, partition.position)
        self._records, self._last = iter(()), None
        self._ends.clear()

    def settle(self) -> None:
        """Count the records that were yielded as processed."""
        self._last = None

    def undo(self) -> None:
        """Move the position back before the record that was yielded last."""
        if self._last is not None and self._partitions.assignment.is_current(self._last[0]):
            partition, offset = self._last
            partition.position = min(partition.position, offset)
        self.give_back()
