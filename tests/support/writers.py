"""The encoders of headrace with one signature, and conversion of decoded columns to records."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.wire import columns, records
from headrace.wire.layout import HEADER_BYTES, LOG_APPEND_TIME, NO_TIMESTAMP, EncodedBatch, Record
from headrace.wire.records import BatchProducer, OpenBatch
from tests.support.peers.batches import Batch

BUFFER_BYTES = 1 << 20


def by_encode(batch: Batch) -> memoryview:
    """Encode a list of records."""
    return records.encode(
        batch.records,
        codec=batch.codec,
        producer=_producer(batch),
        leader_epoch=batch.leader_epoch,
        append_time=None if batch.append_time == NO_TIMESTAMP else batch.append_time,
    )


def by_open_batch(batch: Batch) -> memoryview:
    """Append record by record, as a producer does."""
    building = OpenBatch(bytearray(HEADER_BYTES + BUFFER_BYTES))
    for record in batch.records:
        index = building.append(record.timestamp, record.key, record.value, record.headers)
        assert index == record.offset - batch.base_offset
    return _seal(building, batch)


def by_columns(batch: Batch) -> memoryview:
    """Encode Arrow columns, as the Spark sink does."""
    rows = len(batch.records)
    headers = [[{"key": key, "value": value} for key, value in record.headers] for record in batch.records]
    (encoded,) = columns.encode(
        pa.array([record.value for record in batch.records], pa.binary()),
        key=pa.array([record.key for record in batch.records], pa.binary()),
        headers=pa.array(headers, columns.HEADERS_TYPE),
        timestamp=pa.array([record.timestamp for record in batch.records], pa.int64()),
        partition=pa.repeat(pa.scalar(0, pa.int32()), rows),
        partition_count=1,
        now_ms=0,
        batch_bytes_max=BUFFER_BYTES,
    )
    return _seal(encoded, batch)


WRITERS: dict[str, Callable[[Batch], memoryview]] = {
    "encode": by_encode,
    "open-batch": by_open_batch,
    "columns": by_columns,
}


def records_of(table: pa.RecordBatch) -> list[Record]:
    """Return the rows of decoded columns as records."""
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in table.set_column(1, "timestamp", table["timestamp"].cast(pa.int64())).to_pylist()
    ]


def _seal(building: OpenBatch | EncodedBatch, batch: Batch) -> memoryview:
    stamped = batch.append_time != NO_TIMESTAMP
    return records.seal(
        building,
        codec=batch.codec,
        producer=_producer(batch),
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        attributes=LOG_APPEND_TIME if stamped else 0,
        max_timestamp=batch.append_time if stamped else None,
    )


def _producer(batch: Batch) -> BatchProducer:
    return BatchProducer(batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.transactional)
