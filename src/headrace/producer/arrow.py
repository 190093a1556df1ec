"""Whole Arrow columns into batches: the producer's steps without a Python object for a row.

    columns → partitions (explicit, else by key, else sticky) → memory → encode → queues

A table is taken in slices of about a request each, so that memory is bounded by buffer.memory and the I/O thread
starts sending before the last slice is encoded.
"""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.clock import Clock
from headrace.client.metadata import Cluster
from headrace.errors import RecordTooLargeError, TimedOutError
from headrace.producer.accumulator import Accumulator
from headrace.producer.batch import ProducerBatch
from headrace.producer.buffer_pool import BufferPool
from headrace.producer.offload import in_thread
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

    def __init__(self, batches: Sequence[ProducerBatch]) -> None:
        self._batches = batches

    def done(self) -> bool:
        return all(batch.wait_done(0) for batch in self._batches)

    def result(self, timeout: float | None = None) -> dict[int, list[OffsetRange]]:
        """Wait (seconds) for all rows; partition → ranges of offsets, in order. Raises the first error there is."""
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
        self._chance = random.Random()

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
        """Encode and queue rows that were checked. The wait for memory is bounded for each slice."""
        batches: list[ProducerBatch] = []
        for batch in _batches(data):
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
        # The wait for memory comes first: what is encoded has its place.
        reserved = min(_bytes_bound(piece, count), self._pool.total_bytes)
        self._pool.reserve(reserved, max_block_ms)
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
                spare=self._accumulator.spare_buffers,
            )
            largest = max((one.size for one in encoded if one.record_count == 1), default=0)
            if largest > self._max_request_bytes:  # by its headers: key and value were looked at before
                raise self._too_large(f"a row takes {largest} bytes with its headers")
        except BaseException:
            self._pool.release(None, reserved)
            raise
        return self._accumulator.append_encoded(topic, encoded, reserved)

    def _partitions(self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], count: int) -> pa.Array:
        explicit, key = piece.get("partition"), piece.get("key")
        chosen = explicit.cast(pa.int32()) if explicit is not None else None
        if self._hashes_keys and key is not None and (chosen is None or chosen.null_count):
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

    def _check_sizes(self, found: dict[str, pa.Array]) -> None:
        limit = self._max_request_bytes - HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX
        parts = [found[name] for name in ("key", "value") if name in found]
        if sum(part.nbytes for part in parts) <= limit:
            return
        sizes = _row_bytes(parts[0])
        for part in parts[1:]:
            sizes = pc.add(sizes, _row_bytes(part))
        largest = pc.max(sizes).as_py() or 0
        if largest > limit:
            raise self._too_large(f"row {pc.index(sizes, largest).as_py()} has {largest} bytes of key and value")

    def _too_large(self, what: str) -> RecordTooLargeError:
        return RecordTooLargeError(f"{what}, beyond max.request.size ({self._max_request_bytes})")


def _row_bytes(column: pa.Array) -> pa.Array:
    """The size of each cell; columns that have no sizes are refused where they are encoded, with their type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    elif pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_binary())
    try:
        return pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)
    except pa.ArrowNotImplementedError:
        return pa.repeat(pa.scalar(0, pa.int64()), len(column))


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
