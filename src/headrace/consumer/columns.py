"""Fetched batches to one Arrow record batch, for all partitions of a poll."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from headrace.types import TopicPartition
from headrace.wire.columns import HEADERS_TYPE, TIMESTAMP_TYPE, ArrowDecoder
from headrace.wire.layout import LOG_APPEND_TIME
from headrace.wire.records import RecordBatch

COLUMN_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
}
SCHEMA = pa.schema(list(COLUMN_TYPES.items()))
"""The columns of `poll_arrow` and of Arrow streams: those of Spark's Kafka source, with topic and partition first."""


class _Run(NamedTuple):
    """Rows of one partition with the same type of timestamps."""

    name: TopicPartition
    timestamp_type: int
    start: int


class ColumnCollector:
    """Collects batches of several partitions in columns."""

    def __init__(self, bytes_hint: int) -> None:
        self._decoder = ArrowDecoder(with_headers=True, bytes_hint=bytes_hint)
        self._runs: list[_Run] = []

    @property
    def byte_count(self) -> int:
        """The decompressed bytes so far."""
        return self._decoder.byte_count

    @property
    def row_count(self) -> int:
        return self._decoder.row_count

    def add(self, name: TopicPartition, batch: RecordBatch, first_offset: int, bytes_max: int) -> None:
        """Add the records of a batch from `first_offset` on. After an error the collector must not be used."""
        kind = 1 if batch.header.attributes & LOG_APPEND_TIME else 0
        runs = self._runs
        if not runs or runs[-1].name is not name or runs[-1].timestamp_type != kind:
            runs.append(_Run(name, kind, self._decoder.row_count))
        self._decoder.add(batch, first_offset=first_offset, bytes_max=bytes_max)

    def finish(self) -> pa.RecordBatch | None:
        """Return the columns; None without a row."""
        rows = self._decoder.row_count
        if not rows:
            return None
        columns = self._decoder.finish()
        ends = [run.start for run in self._runs[1:]] + [rows]
        counted = [(run, end - run.start) for run, end in zip(self._runs, ends, strict=True) if end > run.start]
        topics = _repeated([(run.name.topic, count) for run, count in counted], pa.string())
        partitions = _repeated([(run.name.partition, count) for run, count in counted], pa.int32())
        kinds = _repeated([(run.timestamp_type, count) for run, count in counted], pa.int32())
        offset, timestamp, key, value, headers = columns.columns
        return pa.RecordBatch.from_arrays(
            [topics, partitions, offset, timestamp, kinds, key, value, headers], schema=SCHEMA
        )


def _repeated(runs: list[tuple[object, int]], kind: pa.DataType) -> pa.Array:
    """Return a column of values that are repeated."""
    merged: list[tuple[object, int]] = []
    for value, count in runs:
        if merged and merged[-1][0] == value:
            merged[-1] = (value, merged[-1][1] + count)
        else:
            merged.append((value, count))
    parts = [pa.repeat(pa.scalar(value, kind), count) for value, count in merged]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
