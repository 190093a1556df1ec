"""Whole Arrow columns into batches: the producer's steps without a Python object for a row.

    columns → partitions (explicit, else by key, else sticky) → memory → encode → queues

A table is taken in slices of about a request each, so that memory is bounded by buffer.memory and the I/O thread
starts sending before the last slice is encoded.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.clock import Clock
from headrace.client.metadata import Cluster
from headrace.errors import RecordTooLargeError, TimedOutError
from headrace.producer.accumulator import Accumulator, TopicQueues
from headrace.producer.batch import ProducerBatch
from headrace.producer.buffer_pool import BufferPool
from headrace.wire import columns
from headrace.wire.layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES_MAX

SLICE_BYTES = 1024 * 1024
SLICE_ROWS_MAX = 65_536


class OffsetRange(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class ArrowDelivery:
    """What becomes of the rows of one `send_arrow`."""

    def __init__(self, batches: Sequence[ProducerBatch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        return all(batch.wait_done(0) for batch in self._batches)

    def result(self, timeout: float | None = None) -> dict[int, list[OffsetRange]]:
        """Wait (seconds) for all rows; partition → ranges of offsets, in order. Raises the first error there is."""
        found: defaultdict[int, list[OffsetRange]] = defaultdict(list)
        for batch in self._batches:
            if not batch.wait_done(timeout):
                raise TimedOutError(f"no answer for rows to {batch.topic}-{batch.partition} after {timeout:g} s")
            for part in batch.final_parts():
                if part.error is not None:
                    raise part.error
                if part.base_offset >= 0:
                    _extend(found[part.partition], part.base_offset, part.base_offset + part.record_count - 1)
        return dict(found)


def _extend(ranges: list[OffsetRange], first: int, last: int) -> None:
    if ranges and ranges[-1].last + 1 == first:
        ranges[-1] = OffsetRange(ranges[-1].first, last)
    else:
        ranges.append(OffsetRange(first, last))


class ArrowSender:
    """Cuts tables into batches. Any thread."""

    def __init__(
        self, accumulator: Accumulator, pool: BufferPool, clock: Clock, batch_bytes: int, max_request_bytes: int
    ) -> None:
        self._accumulator = accumulator
        self._pool = pool
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._max_request_bytes = max_request_bytes
        self._chance = random.Random()

    def send(
        self,
        topic: TopicQueues,
        cluster: Cluster,
        data: pa.Table | pa.RecordBatch,
        names: Mapping[str, str],
        max_block_ms: float,
    ) -> ArrowDelivery:
        batches: list[ProducerBatch] = []
        for batch in data.to_batches() if isinstance(data, pa.Table) else [data]:
            found = _columns(batch, names)
            rows = batch.num_rows
            step = max(1, min(SLICE_ROWS_MAX, SLICE_BYTES * rows // max(1, batch.nbytes))) if rows else 1
            for start in range(0, rows, step):
                piece = {name: column.slice(start, step) for name, column in found.items()}
                batches += self._send_slice(topic, cluster, piece, max_block_ms)
        return ArrowDelivery(batches)

    def _send_slice(
        self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], max_block_ms: float
    ) -> list[ProducerBatch]:
        count = len(topic.queues)
        bound = _bytes_bound(piece, count)
        self._check_sizes(piece)
        # The wait for memory comes first: what is encoded has its place.
        self._pool.reserve(min(bound, self._pool.total_bytes), max_block_ms)
        reserved = min(bound, self._pool.total_bytes)
        try:
            encoded = columns.encode(
                piece["value"],
                key=piece.get("key"),
                headers=piece.get("headers"),
                timestamp=piece.get("timestamp"),
                partition=self._partitions(topic, cluster, piece, count),
                partition_count=count,
                now_ms=self._clock.time_ms(),
                batch_bytes_max=self._batch_bytes,
            )
        except BaseException:
            self._pool.release(None, reserved)
            raise
        return self._accumulator.append_encoded(topic, encoded, reserved)

    def _partitions(self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], count: int) -> pa.Array:
        explicit, key = piece.get("partition"), piece.get("key")
        chosen = explicit.cast(pa.int32()) if explicit is not None else None
        if key is not None and (chosen is None or chosen.null_count):
            by_key = columns.partition_for_keys(key, count)
            chosen = by_key if chosen is None else pc.coalesce(chosen, by_key)
        if chosen is None or chosen.null_count:
            sticky = self._sticky(cluster, topic, piece, count)
            chosen = sticky if chosen is None else pc.coalesce(chosen, sticky)
        return chosen

    def _sticky(self, cluster: Cluster, topic: TopicQueues, piece: dict[str, pa.Array], count: int) -> pa.Array:
        """A batch's worth of rows to one partition, then to the next."""
        value = piece["value"]
        rows = len(value)
        run = max(1, self._batch_bytes * rows // max(1, _bytes_bound(piece, 0)))
        places = list(cluster.available_partitions_for(topic.name)) or list(range(count))
        start = self._chance.randrange(len(places))
        raw = b"".join(
            struct.pack("=i", places[(start + number) % len(places)]) * min(run, rows - first)
            for number, first in enumerate(range(0, rows, run))
        )
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(raw)])

    def _check_sizes(self, piece: dict[str, pa.Array]) -> None:
        limit = self._max_request_bytes - HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX
        value = piece["value"]
        if value.nbytes <= limit:
            return
        longest = pc.max(pc.binary_length(value)).as_py() or 0
        if longest > limit:
            row = pc.index(pc.binary_length(value), longest).as_py()
            raise RecordTooLargeError(
                f"row {row} has a value of {longest} bytes, beyond max.request.size ({self._max_request_bytes})"
            )


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
