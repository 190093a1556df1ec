"""Whole Arrow columns into batches: the producer's steps without a Python object for a row.

    columns → partitions (explicit, else by key, else sticky) → memory → encode → queues

A table is taken in slices of about a request each, so that memory is bounded by buffer.memory and the I/O thread
starts sending before the last slice is encoded.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.clock import Clock
from headrace.client.concurrency import in_thread
from headrace.client.metadata import Cluster
from headrace.errors import API_ERRORS, RecordTooLargeError, TimedOutError
from headrace.producer.accumulator import Accumulator
from headrace.producer.batch import ProducerBatch
from headrace.producer.buffer_pool import BufferPool, Claim
from headrace.producer.queues import TopicQueues
from headrace.wire import columns
from headrace.wire.layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES_MAX

SLICE_BYTES = 4 * 1024 * 1024
SLICE_ROWS_MAX = 262_144
# batch.size weighs latency against the work for each batch. Rows that are all here already have no latency to lose:
# their batches are at least so large, as far as max.request.size allows.
BATCH_BYTES_MIN = 256 * 1024


class OffsetRange(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class ArrowDelivery:
    """What becomes of the rows of one `send_arrow`."""

    def __init__(self, batches: Sequence[ProducerBatch], refusal: Exception | None = None) -> None:
        self._batches = batches
        self.refusal = refusal
        """Why rows were not queued, if some were not. Those before them are sent all the same."""

    @property
    def queued_rows(self) -> int:
        return sum(batch.record_count for batch in self._batches)

    def done(self) -> bool:
        return all(batch.wait_done(0) for batch in self._batches)

    def result(self, timeout: float | None = None) -> dict[int, list[OffsetRange]]:
        """Wait (seconds) for all rows; partition → ranges of offsets, in order. Raises the first error there is."""
        if self.refusal is not None:
            raise self.refusal
        deadline = None if timeout is None else time.monotonic() + timeout
        found: defaultdict[int, list[OffsetRange]] = defaultdict(list)
        for batch in self._batches:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not batch.wait_done(left):
                raise TimedOutError(f"no answer for rows to {batch.topic}-{batch.partition} after {timeout:g} s")
            for part in batch.final_parts():
                if part.error is not None:
                    raise part.error
                if part.base_offset >= 0:
                    _extend(found[part.partition], part.base_offset, part.base_offset + part.record_count - 1)
        return dict(found)

    def __await__(self) -> Generator[Any, None, dict[int, list[OffsetRange]]]:
        return in_thread(self.result).__await__()


def _extend(ranges: list[OffsetRange], first: int, last: int) -> None:
    if ranges and ranges[-1].last + 1 == first:
        ranges[-1] = OffsetRange(ranges[-1].first, last)
    else:
        ranges.append(OffsetRange(first, last))


class ArrowSender:
    """Cuts tables into batches. Any thread."""

    def __init__(
        self,
        accumulator: Accumulator,
        pool: BufferPool,
        clock: Clock,
        *,
        batch_bytes: int,
        max_request_bytes: int,
        hashes_keys: bool,
    ) -> None:
        self._accumulator = accumulator
        self._pool = pool
        self._clock = clock
        self._batch_bytes = min(max(batch_bytes, BATCH_BYTES_MIN), max_request_bytes)
        self._max_request_bytes = max_request_bytes
        self._hashes_keys = hashes_keys
        self._random = random.Random()

    def check(self, data: pa.Table | pa.RecordBatch, names: Mapping[str, str]) -> int | None:
        """Refuse what can never be sent before anything is; returns the highest partition that rows ask for."""
        highest = None
        for batch in _batches(data):
            found = _columns(batch, names)
            self._check_sizes(found)
            if "partition" in found and batch.num_rows:
                limits = pc.min_max(found["partition"].cast(pa.int32())).as_py()
                if limits["min"] is not None and limits["min"] < 0:
                    raise ValueError(
                        f"column {names['partition']!r} has {limits['min']}; it must be 0 or more, or null"
                    )
                highest = max((p for p in (highest, limits["max"]) if p is not None), default=None)
        return highest

    def send(
        self,
        topic: TopicQueues,
        cluster: Cluster,
        data: pa.Table | pa.RecordBatch,
        names: Mapping[str, str],
        max_block_ms: float,
    ) -> ArrowDelivery:
        """Encode and queue rows that were checked. The wait for memory is bounded for each slice.

        What is refused half-way stands in the delivery, beside the rows that were queued before.
        """
        batches: list[ProducerBatch] = []
        for batch in _batches(data):
            found = _columns(batch, names)
            rows = batch.num_rows
            step = max(1, min(SLICE_ROWS_MAX, SLICE_BYTES * rows // max(1, batch.nbytes))) if rows else 1
            for start in range(0, rows, step):
                piece = {name: column.slice(start, step) for name, column in found.items()}
                try:
                    batches += self._send_slice(topic, cluster, piece, max_block_ms)
                except API_ERRORS as error:
                    return ArrowDelivery(batches, error)
        return ArrowDelivery(batches)

    def _send_slice(
        self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], max_block_ms: float
    ) -> list[ProducerBatch]:
        count = len(topic.queues)
        # The wait for memory comes first: what is encoded has its place.
        reserved = min(_bytes_bound(piece, count), self._pool.total_bytes)
        claim = Claim()
        try:
            self._pool.reserve(reserved, max_block_ms, claim)
            partition, partition_rows = self._partitions(topic, cluster, piece, count)
            encoded = columns.encode(
                piece["value"],
                key=piece.get("key"),
                headers=piece.get("headers"),
                timestamp=piece.get("timestamp"),
                partition=partition,
                partition_rows=partition_rows,
                partition_count=count,
                now_ms=self._clock.time_ms(),
                batch_bytes_max=self._batch_bytes,
                spare=self._accumulator.spare_buffers,
            )
            largest = max((one.size for one in encoded if one.record_count == 1), default=0)
            if largest > self._max_request_bytes:  # by its headers: key and value were looked at before
                raise self._too_large(f"a row takes {largest} bytes with its headers")
            return self._accumulator.append_encoded(topic, encoded, claim)
        finally:
            self._pool.give_back(claim)

    def _partitions(
        self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], count: int
    ) -> tuple[pa.Array, int]:
        """Partitions, and for how many rows each of them is."""
        explicit, key = piece.get("partition"), piece.get("key")
        chosen = explicit.cast(pa.int32()) if explicit is not None else None
        if self._hashes_keys and key is not None and (chosen is None or chosen.null_count):
            by_key = columns.partition_for_keys(key, count)
            chosen = by_key if chosen is None else pc.coalesce(chosen, by_key)
        if chosen is None:
            return self._sticky(cluster, topic, piece, count)
        if chosen.null_count:
            sticky, rows = self._sticky(cluster, topic, piece, count)
            of_rows = pa.concat_arrays([pa.repeat(place, rows) for place in sticky])
            chosen = pc.coalesce(chosen, of_rows.slice(0, len(chosen)))
        return chosen, 1

    def _sticky(
        self, cluster: Cluster, topic: TopicQueues, piece: dict[str, pa.Array], count: int
    ) -> tuple[pa.Array, int]:
        """A batch's worth of rows to one partition, then to the next."""
        rows = len(piece["value"])
        run = max(1, self._batch_bytes * rows // max(1, _bytes_bound(piece, 0)))
        places = list(cluster.available_partitions_for(topic.name)) or list(range(count))
        start = self._random.randrange(len(places))
        turns = range(start, start - (-rows // run))
        return pa.array([places[turn % len(places)] for turn in turns], pa.int32()), run

    def _check_sizes(self, found: dict[str, pa.Array]) -> None:
        limit = self._max_request_bytes - HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX
        if sum(found[name].nbytes for name in ("key", "value") if name in found) <= limit:
            return
        row, largest = columns.largest_row(found["value"], found.get("key"))
        if largest > limit:
            raise self._too_large(f"row {row} has {largest} bytes of key and value")

    def _too_large(self, what: str) -> RecordTooLargeError:
        return RecordTooLargeError(f"{what}, beyond max.request.size ({self._max_request_bytes})")


def _batches(data: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    if isinstance(data, pa.Table):
        return list(data.to_batches())
    if isinstance(data, pa.RecordBatch):
        return [data]
    raise TypeError(f"send_arrow takes a pyarrow Table or RecordBatch, got {type(data).__qualname__}")


def _columns(batch: pa.RecordBatch, names: Mapping[str, str]) -> dict[str, pa.Array]:
    found = {}
    for role, name in names.items():
        place = batch.schema.get_field_index(name)
        if place >= 0:
            found[role] = batch.column(place)
    if "value" not in found:
        raise KeyError(f"no column {names['value']!r} for the value; there are {', '.join(batch.schema.names)}")
    return found


def _bytes_bound(piece: dict[str, pa.Array], partition_count: int) -> int:
    """At least what the encoded batches of a slice will take, headers of batches included."""
    rows = len(piece["value"])
    data: int = sum(piece[name].nbytes for name in ("key", "value", "headers") if name in piece)
    return data + rows * RECORD_OVERHEAD_BYTES_MAX + HEADER_BYTES * (partition_count + 1 + data // 1024)
