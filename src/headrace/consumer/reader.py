"""Fetched data to records or columns. Application thread only.

    FetchBuffer.take → visible batches → RecordBatch.consumer_records → deserializers → poll
                                       → ColumnCollector                              → poll_arrow

Everything that was fetched is taken at once, so that the next fetch is under way while this one is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from headrace.client.fetch_data import located
from headrace.consumer.columns import ColumnCollector
from headrace.consumer.partitions import UNKNOWN_OFFSET, AssignedPartition, Assignment, FetchBuffer, Fetched
from headrace.errors import DeserializationError, WireError
from headrace.types import TopicPartition
from headrace.wire.compression import DECOMPRESSED_BYTES_MAX
from headrace.wire.layout import ConsumerRecord
from headrace.wire.records import RecordBatch

Deserialize = Callable[[ConsumerRecord], ConsumerRecord]


class Partitions(Protocol):
    """The assigned partitions, as the reader needs them."""

    @property
    def assignment(self) -> Assignment: ...
    def restart(self, partition: AssignedPartition, offset: int) -> None:
        """Fetch again from an offset."""

    def data_taken(self) -> None:
        """Called when there is room for more data."""


class RecordReader:
    """Decodes fetched data, and moves the positions of their partitions."""

    def __init__(
        self, buffer: FetchBuffer, partitions: Partitions, bytes_max: int, deserialize: Deserialize | None
    ) -> None:
        self._buffer = buffer
        self._partitions = partitions
        self._bytes_max = bytes_max
        self._deserialize = deserialize
        self._taken: deque[Fetched] = deque()
        self._paused: dict[TopicPartition, Fetched] = {}
        self._current: Fetched | None = None
        self._starts: dict[AssignedPartition, int] = {}  # Positions before the records that were returned last.

    # -- data ----------------------------------------------------------------------------------

    def _advance(self) -> Fetched | None:
        """Return the data to decode now; None if there are none."""
        assignment = self._partitions.assignment
        current = self._current
        if current is not None:
            if assignment.is_current(current.partition) and not current.partition.paused:
                self._starts.setdefault(current.partition, current.partition.position)
                return current
            self._current = None
            self._set_aside(current, assignment)
        while True:
            if not self._taken:
                self._resume(assignment)
                self._taken.extend(self._buffer.take())
                if not self._taken:
                    self._drop_paused()
                    return None
                self._partitions.data_taken()
            fetched = self._taken.popleft()
            if assignment.is_current(fetched.partition) and not fetched.partition.paused:
                self._current = fetched
                self._starts.setdefault(fetched.partition, fetched.partition.position)
                return fetched
            self._set_aside(fetched, assignment)

    def _set_aside(self, fetched: Fetched, assignment: Assignment) -> None:
        """Keep data of a paused partition; drop those of one that was moved or revoked."""
        if assignment.is_current(fetched.partition):
            self._paused[fetched.partition.name] = fetched
        else:
            self._release(fetched)

    def _resume(self, assignment: Assignment) -> None:
        """Take the data of partitions that are no longer paused."""
        for name, fetched in list(self._paused.items()):
            if not assignment.is_current(fetched.partition):
                del self._paused[name]
                self._release(fetched)
            elif not fetched.partition.paused:
                del self._paused[name]
                self._taken.append(fetched)

    def _drop_paused(self) -> None:
        """Drop data of paused partitions if nothing else could be fetched otherwise."""
        if self._paused and self._buffer.size * 2 > self._bytes_max:
            for fetched in self._paused.values():
                self._partitions.restart(fetched.partition, fetched.partition.position)
                self._release(fetched)
            self._paused.clear()

    def _release(self, fetched: Fetched) -> None:
        was_full = self._buffer.size >= self._bytes_max
        self._buffer.release(fetched)
        if was_full:
            self._partitions.data_taken()

    def _finish(self, fetched: Fetched) -> None:
        """Release data that were returned completely."""
        partition = fetched.partition
        partition.position = max(partition.position, fetched.batches.position)
        self._current = None
        self._release(fetched)

    def _next_batch(self, fetched: Fetched) -> RecordBatch | None:
        try:
            return fetched.batches.next()
        except WireError as error:
            partition = fetched.partition
            self._restart(fetched, partition.position)
            raise located(error, partition.name, partition.position) from None

    def _restart(self, fetched: Fetched, offset: int) -> None:
        """Fetch again: the data may have been damaged in transit."""
        self._partitions.restart(fetched.partition, offset)
        if self._current is fetched:
            self._current = None
        self._release(fetched)

    def settle(self) -> None:
        """Count the records that were returned before as processed."""
        self._starts.clear()

    def undo(self) -> None:
        """Move the positions back to where they were at the last `settle`: the records since then are read again.

        Everything else that was fetched is fetched again, too: an interrupt (Ctrl-C) may have dropped data on their
        way through this object.
        """
        for partition in list(self._partitions.assignment.partitions.values()):
            position = self._starts.get(partition, partition.position)
            if position != UNKNOWN_OFFSET:
                self._partitions.restart(partition, position)
        for fetched in (*self._taken, *self._paused.values(), *filter(None, [self._current])):
            self._buffer.release(fetched)
        self._taken.clear()
        self._paused.clear()
        self._current = None
        self._starts.clear()

    # -- records -------------------------------------------------------------------------------

    def records(self, count_max: int) -> list[ConsumerRecord]:
        """Return up to `count_max` records; an empty list if there are none."""
        out: list[ConsumerRecord] = []
        try:
            while len(out) < count_max and (fetched := self._advance()) is not None:
                self._add_records(fetched, count_max, out)
        except (WireError, DeserializationError):
            if not out:
                raise
            # The records before are returned first; the next call raises the error again.
        return out

    def _add_records(self, fetched: Fetched, count_max: int, out: list[ConsumerRecord]) -> None:
        if fetched.batch is not None:
            self._add_rest(fetched, count_max, out)
            return
        batch = self._next_batch(fetched)
        if batch is None:
            self._finish(fetched)
            return
        header, partition = batch.header, fetched.partition
        is_whole = self._deserialize is None and header.record_count <= count_max - len(out)
        records = out if is_whole else fetched.rest
        before = len(out)
        try:
            batch.consumer_records(*partition.name, partition.position, records, DECOMPRESSED_BYTES_MAX)
        except WireError as error:
            del out[before:]
            self._restart(fetched, partition.position)
            raise located(error, partition.name, header.base_offset) from None
        if is_whole:
            partition.position = header.last_offset + 1
            partition.position_epoch = header.leader_epoch
        else:
            fetched.batch = batch
            self._add_rest(fetched, count_max, out)

    def _add_rest(self, fetched: Fetched, count_max: int, out: list[ConsumerRecord]) -> None:
        """Add records of a batch that does not fit as a whole, or that is deserialized record by record."""
        partition, batch = fetched.partition, fetched.batch
        assert batch is not None
        start = fetched.next_index
        stop = min(len(fetched.rest), start + count_max - len(out))
        partition.position_epoch = batch.header.leader_epoch
        if self._deserialize is None:
            out += fetched.rest[start:stop]
        else:
            for index in range(start, stop):
                record = fetched.rest[index]
                partition.position = record.offset
                fetched.next_index = index
                out.append(self._deserialize(record))
        fetched.next_index = stop
        if stop < len(fetched.rest):
            partition.position = fetched.rest[stop].offset
            return
        partition.position = batch.header.last_offset + 1
        fetched.batch, fetched.rest, fetched.next_index = None, [], 0

    # -- columns -------------------------------------------------------------------------------

    def columns(self) -> pa.RecordBatch | None:
        """Return the fetched records as columns, up to about fetch.max.bytes of them; None if there are none."""
        if self._advance() is None:
            return None
        size = sum(fetched.size for fetched in (*self._taken, self._current) if fetched is not None)
        collector = ColumnCollector(min(size, self._bytes_max))
        starts: dict[TopicPartition, tuple[Fetched, int]] = {}
        # What arrives meanwhile is for the next call.
        while (self._current is not None or self._taken) and collector.byte_count < self._bytes_max:
            fetched = self._advance()
            if fetched is None:
                break
            partition = fetched.partition
            starts.setdefault(partition.name, (fetched, partition.position))
            batch = fetched.batch or self._next_batch(fetched)
            if batch is None:
                self._finish(fetched)
                continue
            try:
                collector.add(partition.name, batch, partition.position, DECOMPRESSED_BYTES_MAX)
            except WireError as error:
                for begun, start in starts.values():
                    self._restart(begun, start)  # nothing of it was returned
                raise located(error, partition.name, batch.header.base_offset) from None
            partition.position = batch.header.last_offset + 1
            partition.position_epoch = batch.header.leader_epoch
            fetched.batch, fetched.rest, fetched.next_index = None, [], 0
        return collector.finish()
