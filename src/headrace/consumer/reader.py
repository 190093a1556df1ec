"""Fetched data to records or columns. Application thread only.

    FetchBuffer.take → visible batches → RecordBatch.consumer_records → Deserialization.records → poll
                                       → ColumnCollector              → Deserialization.columns → poll_arrow

Everything that was fetched is taken at once, so that the next fetch is under way while this one is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from headrace.client.fetch_data import located
from headrace.consumer.columns import ColumnCollector
from headrace.consumer.deserialization import BadRow, Deserialization
from headrace.consumer.metrics import ReadData
from headrace.consumer.partitions import UNKNOWN_OFFSET, AssignedPartition, Assignment, FetchBuffer, Fetched
from headrace.errors import DeserializationError, SchemaError, WireError
from headrace.types import TopicPartition
from headrace.wire.compression import DECOMPRESSED_BYTES_MAX
from headrace.wire.layout import ConsumerRecord
from headrace.wire.records import RecordBatch


class Partitions(Protocol):
    """The assigned partitions, as the reader needs them."""

    @property
    def assignment(self) -> Assignment: ...
    def restart(self, partition: AssignedPartition, offset: int) -> None:
        """Fetch again from an offset."""

    def data_taken(self) -> None:
        """Called when there is room for more data."""

    def lag(self, partition: AssignedPartition) -> int | None:
        """Return how many offsets a position is behind the end."""

    def lead(self, partition: AssignedPartition) -> int | None:
        """Return how many offsets a position is after the start."""

    def data_read(self, parts: Sequence[ReadData]) -> None:
        """Called with the data that were read completely, for the metrics."""


class RecordReader:
    """Decodes fetched data, and moves the positions of their partitions."""

    def __init__(
        self, buffer: FetchBuffer, partitions: Partitions, bytes_max: int, deserialization: Deserialization
    ) -> None:
        self._buffer = buffer
        self._partitions = partitions
        self._bytes_max = bytes_max
        self._deserialization = deserialization
        self._is_plain = deserialization.is_identity
        self._taken: deque[Fetched] = deque()
        self._paused: dict[TopicPartition, list[Fetched]] = {}  # Data of paused partitions, in their order.
        self._current: Fetched | None = None
        self._starts: dict[AssignedPartition, int] = {}  # Positions before the records that were returned last.
        self._parts_read: list[ReadData] = []  # In this poll.

    # -- data ----------------------------------------------------------------------------------

    def _advance(self) -> Fetched | None:
        """Return the data to decode now; None if there are none."""
        assignment = self._partitions.assignment
        if self._paused:
            self._resume(assignment)
        current = self._current
        if current is not None:
            if assignment.is_current(current.partition) and not current.partition.paused:
                self._starts.setdefault(current.partition, current.partition.position)
                return current
            self._current = None
            self._set_aside(current, assignment)
        while True:
            if not self._taken:
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
            self._paused.setdefault(fetched.partition.name, []).append(fetched)
        else:
            self._release(fetched)

    def _resume(self, assignment: Assignment) -> None:
        """Take the data of partitions that are no longer paused, before those that were fetched later."""
        for name, parts in list(self._paused.items()):
            partition = parts[0].partition
            if not assignment.is_current(partition):
                del self._paused[name]
                for fetched in parts:
                    self._release(fetched)
            elif not partition.paused:
                del self._paused[name]
                self._taken.extendleft(reversed(parts))

    def _drop_paused(self) -> None:
        """Drop data of paused partitions if nothing else could be fetched otherwise."""
        if self._paused and self._buffer.size * 2 > self._bytes_max:
            for parts in self._paused.values():
                partition = parts[0].partition
                self._partitions.restart(partition, partition.position)
                for fetched in parts:
                    self._release(fetched)
            self._paused.clear()

    def _release(self, fetched: Fetched) -> None:
        if fetched.size:
            partition = fetched.partition
            lag, lead = self._partitions.lag(partition), self._partitions.lead(partition)
            self._parts_read.append(
                ReadData(partition.name, fetched.size, fetched.record_count, lag, lead, fetched.totals)
            )
        was_full = self._buffer.size >= self._bytes_max
        self._buffer.release(fetched)
        if was_full:
            self._partitions.data_taken()

    def _report(self) -> None:
        if self._parts_read:
            self._partitions.data_read(self._parts_read)
            self._parts_read = []

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
        paused = (fetched for parts in self._paused.values() for fetched in parts)
        for fetched in (*self._taken, *paused, *filter(None, [self._current])):
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
        except (WireError, DeserializationError, SchemaError):
            if not out:
                raise
            # The records before are returned first; the next call raises the error again.
        finally:
            self._report()
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
        is_whole = self._is_plain and header.record_count <= count_max - len(out)
        records = out if is_whole else fetched.rest
        before = len(out)
        try:
            batch.consumer_records(*partition.name, partition.position, records, DECOMPRESSED_BYTES_MAX)
        except WireError as error:
            del out[before:]
            self._restart(fetched, partition.position)
            raise located(error, partition.name, header.base_offset) from None
        if is_whole:
            fetched.record_count += len(out) - before
            partition.position = header.last_offset + 1
            partition.position_epoch = header.leader_epoch
        else:
            fetched.batch = batch
            self._add_rest(fetched, count_max, out)

    def _add_rest(self, fetched: Fetched, count_max: int, out: list[ConsumerRecord]) -> None:
        """Add records of a batch that does not fit as a whole, or that is deserialized."""
        partition, batch = fetched.partition, fetched.batch
        assert batch is not None
        start = fetched.next_index
        stop = min(len(fetched.rest), start + count_max - len(out))
        partition.position_epoch = batch.header.leader_epoch
        records, error = fetched.rest[start:stop], None
        if records and not self._is_plain:
            records, error = self._deserialization.records(records)
        out += records
        fetched.record_count += len(records)
        fetched.next_index = stop = start + len(records)
        if stop < len(fetched.rest):
            partition.position = fetched.rest[stop].offset
        else:
            partition.position = batch.header.last_offset + 1
            fetched.batch, fetched.rest, fetched.next_index = None, [], 0
        if error is not None:
            raise error

    # -- columns -------------------------------------------------------------------------------

    def columns(self) -> pa.RecordBatch | None:
        """Return the fetched records as columns, up to about fetch.max.bytes of them; None if there are none."""
        try:
            while self._advance() is not None:
                starts: dict[TopicPartition, tuple[Fetched, int]] = {}
                batch = self._collect(starts)
                if batch is not None:
                    return batch if self._is_plain else self._deserialized(batch, starts)
            return None
        finally:
            self._report()

    def _collect(self, starts: dict[TopicPartition, tuple[Fetched, int]]) -> pa.RecordBatch | None:
        """Return the records that were taken, in columns; `starts` gets the positions before them."""
        size = sum(fetched.size for fetched in (*self._taken, self._current) if fetched is not None)
        collector = ColumnCollector(min(size, self._bytes_max))
        is_for_topic = self._deserialization.has_topic_types
        # What arrives meanwhile is for the next call.
        while (self._current is not None or self._taken) and collector.byte_count < self._bytes_max:
            fetched = self._advance()
            if fetched is None:
                break
            partition = fetched.partition
            if is_for_topic and starts and next(iter(starts)).topic != partition.name.topic:
                break
            starts.setdefault(partition.name, (fetched, partition.position))
            batch = fetched.batch or self._next_batch(fetched)
            if batch is None:
                self._finish(fetched)
                continue
            before = collector.row_count
            try:
                collector.add(partition.name, batch, partition.position, DECOMPRESSED_BYTES_MAX)
            except WireError as error:
                self._rewind(starts)
                raise located(error, partition.name, batch.header.base_offset) from None
            fetched.record_count += collector.row_count - before
            partition.position = batch.header.last_offset + 1
            partition.position_epoch = batch.header.leader_epoch
            fetched.batch, fetched.rest, fetched.next_index = None, [], 0
        return collector.finish()

    def _deserialized(self, batch: pa.RecordBatch, starts: dict[TopicPartition, tuple[Fetched, int]]) -> pa.RecordBatch:
        try:
            typed, bad = self._deserialization.columns(batch)
        except BaseException:
            self._rewind(starts)
            raise
        return typed if bad is None else self._before(batch, typed, bad, starts)

    def _before(
        self,
        batch: pa.RecordBatch,
        typed: pa.RecordBatch,
        bad: BadRow,
        starts: dict[TopicPartition, tuple[Fetched, int]],
    ) -> pa.RecordBatch:
        """Return the rows before a bad one; raise its error if none of them is of its partition."""
        names = [*map(TopicPartition, batch.column("topic").to_pylist(), batch.column("partition").to_pylist())]
        if names[bad.row] not in names[: bad.row]:
            self._rewind(starts)
            raise bad.error
        rest: dict[TopicPartition, tuple[Fetched, int]] = {}
        offsets = batch.column("offset")
        for row in range(bad.row, batch.num_rows):
            if names[row] not in rest:
                rest[names[row]] = (starts[names[row]][0], offsets[row].as_py())
        before = {name: self._starts[fetched.partition] for name, (fetched, _) in rest.items()}
        self._rewind(rest)
        for name, position in before.items():
            self._starts[self._partitions.assignment.partitions[name]] = position
        return typed

    def _rewind(self, positions: dict[TopicPartition, tuple[Fetched, int]]) -> None:
        """Fetch again what was not returned."""
        for fetched, offset in positions.values():
            self._restart(fetched, offset)
