"""Encoding of Arrow columns into batches, without a Python object for each row.

    columns → memory → partitions (explicit, by key, or sticky) → encode → queues

A table is sent in slices, so that memory is bounded by buffer.memory and the I/O thread starts sending before the last
slice is encoded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.metadata import Cluster
from headrace.config.clock import Clock
from headrace.errors import API_ERRORS, RecordTooLargeError
from headrace.producer.accumulator import Accumulator
from headrace.producer.batch import ArrowDelivery, ProducerBatch
from headrace.producer.buffer_pool import BufferPool, Claim
from headrace.producer.queues import TopicQueues
from headrace.wire import columns
from headrace.wire.layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES_MAX

SLICE_BYTES = 4 * 1024 * 1024
SLICE_ROWS_MAX = 262_144
# batch.size trades latency for work per batch. Rows of a table are all available, so their batches are at least this
# large, if max.request.size allows.
BATCH_BYTES_MIN = 256 * 1024


class ArrowSender:
    """Encodes tables into batches. Any thread."""

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
        """Raise for rows that cannot be sent; returns the highest explicit partition."""
        highest = None
        for batch in _batches(data):
            columns_by_role = _columns(batch, names)
            self._check_sizes(columns_by_role)
            if "partition" in columns_by_role and batch.num_rows:
                limits = pc.min_max(columns_by_role["partition"].cast(pa.int32())).as_py()
                if limits["min"] is not None and limits["min"] < 0:
                    raise ValueError(
                        f"invalid partition in column {names['partition']!r}: expected 0 or more, or null, "
                        f"got {limits['min']}"
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
        """Encode and queue rows that were checked; blocks for memory up to `max_block_ms` for each slice.

        An error after the first slice is in the delivery, which has the rows queued before it.
        """
        batches: list[ProducerBatch] = []
        for batch in _batches(data):
            columns_by_role = _columns(batch, names)
            rows = batch.num_rows
            step = _slice_rows(rows, batch.nbytes)
            for start in range(0, rows, step):
                piece = {name: column.slice(start, step) for name, column in columns_by_role.items()}
                try:
                    batches += self._send_slice(topic, cluster, piece, max_block_ms)
                except API_ERRORS as error:
                    return ArrowDelivery(batches, error)
        return ArrowDelivery(batches)

    def _send_slice(
        self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], max_block_ms: float
    ) -> list[ProducerBatch]:
        count = len(topic.queues)
        # Memory is reserved before encoding.
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
            largest = max((batch.size for batch in encoded if batch.record_count == 1), default=0)
            if largest > self._max_request_bytes:  # with its headers: `check` looked at key and value only
                raise self._too_large(f"a row takes {largest} bytes with its headers")
            return self._accumulator.append_encoded(topic, encoded, claim)
        finally:
            self._pool.give_back(claim)

    def _partitions(
        self, topic: TopicQueues, cluster: Cluster, piece: dict[str, pa.Array], count: int
    ) -> tuple[pa.Array, int]:
        """Return partitions, and for how many consecutive rows each of them is."""
        explicit, key = piece.get("partition"), piece.get("key")
        chosen = explicit.cast(pa.int32()) if explicit is not None else None
        if self._hashes_keys and key is not None and (chosen is None or chosen.null_count):
            by_key = columns.partition_for_keys(key, count)
            chosen = by_key if chosen is None else pc.coalesce(chosen, by_key)
        if chosen is None:
            return self._sticky(cluster, topic, piece, count)
        if chosen.null_count:
            sticky, rows = self._sticky(cluster, topic, piece, count)
            of_rows = pa.concat_arrays([pa.repeat(partition, rows) for partition in sticky])
            chosen = pc.coalesce(chosen, of_rows.slice(0, len(chosen)))
        return chosen, 1

    def _sticky(
        self, cluster: Cluster, topic: TopicQueues, piece: dict[str, pa.Array], count: int
    ) -> tuple[pa.Array, int]:
        """Return partitions in turn, each for about a batch of rows."""
        rows = len(piece["value"])
        run = max(1, self._batch_bytes * rows // max(1, _bytes_bound(piece, 0)))
        partitions = list(cluster.available_partitions_for(topic.name)) or list(range(count))
        start = self._random.randrange(len(partitions))
        turns = range(start, start - (-rows // run))
        return pa.array([partitions[turn % len(partitions)] for turn in turns], pa.int32()), run

    def _check_sizes(self, columns_by_role: dict[str, pa.Array]) -> None:
        limit = self._max_request_bytes - HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX
        if sum(columns_by_role[name].nbytes for name in ("key", "value") if name in columns_by_role) <= limit:
            return
        row, largest = columns.largest_row(columns_by_role["value"], columns_by_role.get("key"))
        if largest > limit:
            raise self._too_large(f"row {row} has {largest} bytes of key and value")

    def _too_large(self, what: str) -> RecordTooLargeError:
        return RecordTooLargeError(f"{what}, more than max.request.size ({self._max_request_bytes})")


def _batches(data: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    if isinstance(data, pa.Table):
        return list(data.to_batches())
    if isinstance(data, pa.RecordBatch):
        return [data]
    raise TypeError(f"send_arrow expected a pyarrow Table or RecordBatch, got {type(data).__qualname__}")


def _slice_rows(rows: int, size: int) -> int:
    """Return the rows of a slice: slices are of one size, because a small remainder would make small batches."""
    slices = max(1, (size + SLICE_BYTES // 2) // SLICE_BYTES)
    return max(1, min(SLICE_ROWS_MAX, -(-rows // slices)))


def _columns(batch: pa.RecordBatch, names: Mapping[str, str]) -> dict[str, pa.Array]:
    by_role = {}
    for role, name in names.items():
        index = batch.schema.get_field_index(name)
        if index >= 0:
            by_role[role] = batch.column(index)
    if "value" not in by_role:
        raise KeyError(f"no column {names['value']!r} for the value; the columns are {', '.join(batch.schema.names)}")
    return by_role


def _bytes_bound(piece: dict[str, pa.Array], partition_count: int) -> int:
    """Return an upper bound of the size of a slice's encoded batches."""
    rows = len(piece["value"])
    data: int = sum(piece[name].nbytes for name in ("key", "value", "headers") if name in piece)
    return data + rows * RECORD_OVERHEAD_BYTES_MAX + HEADER_BYTES * (partition_count + 1 + data // 1024)
