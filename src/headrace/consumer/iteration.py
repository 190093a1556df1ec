"""Records one by one: `for record in consumer`. Application thread only.

    poll → PendingRecords.add → next … next → poll

The position of a partition follows the records that were yielded, not those that `poll` has returned. So a commit
within the loop, or after `break`, leaves out the records that the application has not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from headrace.consumer.partitions import AssignedPartition, Assignment
from headrace.wire.layout import ConsumerRecord

_name = itemgetter(0, 1)  # topic and partition of a record


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
        self._runs: deque[tuple[AssignedPartition, Iterator[ConsumerRecord]]] = deque()  # Consecutive, by partition.
        self._ends: dict[AssignedPartition, int] = {}  # The positions after all records.
        self._last: tuple[AssignedPartition, ConsumerRecord] | None = None  # What was yielded last.

    @property
    def is_active(self) -> bool:
        """Whether the last record that the application got was yielded by `next`."""
        return self._last is not None

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Take the records of a poll, and move the positions back before them. Only when none is left."""
        current = self._partitions.assignment.partitions
        for name, run in groupby(records, _name):
            rows = list(run)
            partition = current[name]
            if partition not in self._ends:
                self._ends[partition] = partition.position
                partition.position = rows[0].offset
            self._runs.append((partition, iter(rows)))

    def next(self) -> ConsumerRecord | None:
        """Return the next record; None if none is left. Those of partitions that were sought or revoked are dropped."""
        is_current = self._partitions.assignment.is_current
        while self._runs:
            partition, rows = self._runs[0]
            if is_current(partition) and (record := next(rows, None)) is not None:
                partition.position = record.offset + 1
                self._last = partition, record
                return record
            self._runs.popleft()
        for partition, end in self._ends.items():
            partition.position = end
        self._ends.clear()
        self._last = None
        return None

    def give_back(self) -> None:
        """Fetch the records again that were not yielded, for a `poll` amid an iteration."""
        for partition, end in self._ends.items():
            if self._partitions.assignment.is_current(partition) and partition.position < end:
                self._partitions.restart(partition, partition.position)
        self._runs.clear()
        self._ends.clear()
        self._last = None

    def settle(self) -> None:
        """Count the records that were yielded as processed."""
        self._last = None

    def undo(self) -> None:
        """Move the position back before the record that was yielded last."""
        if self._last is not None:
            partition, record = self._last
            partition.position = min(partition.position, record.offset)
        self.give_back()
