"""Record batches from and to Arrow columns, without a Python object per row.

    key, value, headers, timestamp, partition columns → encode → EncodedBatch per partition → records.seal
    RecordBatch … → ArrowDecoder.add … → finish → offset, timestamp, key, value, headers columns

Key and value may have any of Arrow's binary or string types, including views and dictionaries: columns without offsets
and data buffers are cast first.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.wire.compression import DECOMPRESSED_BYTES_MAX
from headrace.wire.kernel import kernel
from headrace.wire.layout import BytesColumn, EncodedBatch, HeadersColumn
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("ms", tz="UTC")

OFFSET_MAX = (1 << 63) - 1


def encode(
    value: pa.Array,
    *,
    key: pa.Array | None = None,
    headers: pa.Array | None = None,
    timestamp: pa.Array | None = None,
    partition: pa.Array,
    partition_rows: int = 1,
    partition_count: int,
    now_ms: int,
    batch_bytes_max: int,
    spare: list[bytearray] | None = None,
) -> list[EncodedBatch]:
    """Encode rows as batches per partition, in row order, up to `batch_bytes_max` unless one record is larger.

    Each element of `partition` applies to one row, or to `partition_rows` consecutive rows. Rows without a timestamp
    get `now_ms`. `spare` may hold buffers of completed batches, to be reused.
    """
    rows = len(value)
    for name, column in (("key", key), ("headers", headers), ("timestamp", timestamp)):
        if column is not None and len(column) != rows:
            raise ValueError(f"column {name} has {len(column)} rows, value has {rows}")
    if len(partition) != -(-rows // partition_rows):
        raise ValueError(
            f"column partition has {len(partition)} elements for {partition_rows} rows each, value has {rows} rows"
        )
    if partition.null_count:
        raise ValueError(f"column partition has {partition.null_count} nulls; assign partitions first")
    return kernel.encode_columns(
        None if key is None else bytes_column(key, "key"),
        bytes_column(value, "value"),
        None if headers is None else headers_column(headers),
        now_ms if timestamp is None else _fixed_buffer(_timestamps(timestamp, now_ms), 8),
        _fixed_buffer(partition.cast(pa.int32()), 4),
        partition_rows=partition_rows,
        row_count=rows,
        partition_count=partition_count,
        batch_bytes_max=batch_bytes_max,
        spare=[] if spare is None else spare,
    )


def largest_row(value: pa.Array, key: pa.Array | None = None) -> tuple[int, int]:
    """Return the row with the most bytes in key and value, and that number; (-1, 0) if there are no rows."""
    keys = None if key is None else bytes_column(key, "key")
    return kernel.largest_row(keys, bytes_column(value, "value"), len(value))


def hash_rows(topic: str, value: pa.Array, *, key: pa.Array | None = None, headers: pa.Array | None = None) -> int:
    """Return the sum, modulo 2^64, of the hashes of all rows over topic, key, value and headers, in any order.

    Equal rows have equal hashes, independent of Arrow's column types; a missing key column equals null keys.
    """
    return kernel.hash_rows(
        topic.encode(),
        None if key is None else bytes_column(key, "key"),
        bytes_column(value, "value"),
        None if headers is None else headers_column(headers),
        len(value),
    )


def partition_for_keys(key: pa.Array, partition_count: int) -> pa.Int32Array:
    """Return the partition of each key, as Java's clients choose it; null for a null key."""
    raw = kernel.partition_keys(bytes_column(key, "key"), len(key), partition_count)
    partitions = pa.Array.from_buffers(pa.int32(), len(key), [None, pa.py_buffer(raw)])
    return pc.if_else(pc.less(partitions, 0), None, partitions) if key.null_count else partitions


def bytes_column(column: pa.Array, name: str) -> BytesColumn:
    """Return the buffers of a binary or string column."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return bytes_column(column.dictionary_decode(), name)
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind) or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.large_binary())
    elif pa.types.is_null(kind):
        column = column.cast(pa.binary())
    elif not (
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
    ):
        raise TypeError(f"column {name} has type {kind}; expected binary or string: serialize it first")
    validity, offsets, data = column.buffers()
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if offsets is None or not len(offsets):  # an empty column may have none
        offsets = bytes(8)
    return BytesColumn(validity if column.null_count else None, offsets, data or b"", column.offset, large)


def headers_column(column: pa.Array) -> HeadersColumn:
    """Return the buffers of a column of headers."""
    if pa.types.is_null(column.type):
        column = column.cast(HEADERS_TYPE)
    if not (
        (pa.types.is_list(column.type) or pa.types.is_large_list(column.type))
        and pa.types.is_struct(column.type.value_type)
        and {"key", "value"} <= {field.name for field in column.type.value_type}
    ):
        raise TypeError(f"column headers has type {column.type}; expected list<struct<key: string, value: binary>>")
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    items = column.values
    if items.null_count:
        raise ValueError("column headers has a row with a null header")
    keys, values = items.field("key"), items.field("value")
    if keys.null_count:
        raise ValueError("column headers has a header without a key")
    validity, offsets = column.buffers()[:2]
    return HeadersColumn(
        validity if column.null_count else None,
        offsets if offsets is not None and len(offsets) else bytes(4),
        column.offset,
        bytes_column(keys, "headers.key"),
        bytes_column(values, "headers.value"),
    )


def _timestamps(column: pa.Array, now_ms: int) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        # Kafka's timestamps are milliseconds: finer units are truncated, as in Java.
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise TypeError(f"column timestamp has type {column.type}; expected a timestamp or integer milliseconds")
    return pc.fill_null(column.cast(pa.int64()), now_ms)


def _fixed_buffer(column: pa.Array, width: int) -> Buffer:
    data = memoryview(column.buffers()[1] or b"")
    return data[column.offset * width : (column.offset + len(column)) * width]


class ArrowDecoder:
    """A decoder that collects the records of batches in columns. `bytes_hint`: the expected bytes of all records."""

    def __init__(self, *, with_headers: bool = False, bytes_hint: int = 0) -> None:
        self._decoder = kernel.ColumnDecoder(with_headers, bytes_hint)
        self.byte_count = 0
        """The decompressed bytes added so far: about the size of the columns."""

    @property
    def row_count(self) -> int:
        return self._decoder.row_count

    def add(
        self,
        batch: RecordBatch,
        *,
        first_offset: int = 0,
        end_offset: int = OFFSET_MAX,
        bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        """Verify a batch and add its records from `first_offset` up to, not including, `end_offset`.

        After an error the decoder must not be used.
        """
        batch.verify()
        header = batch.header
        payload = batch.payload(bytes_max)
        self.byte_count += len(payload)
        self._decoder.add(
            payload,
            header.record_count,
            base_offset=header.base_offset,
            base_timestamp=header.base_timestamp,
            append_time=header.append_time,
            first_offset=first_offset,
            end_offset=end_offset,
        )

    def finish(self) -> pa.RecordBatch:
        """Return the columns offset, timestamp, key, value and, if requested, headers."""
        rows = self._decoder.row_count
        offsets, timestamps, keys, values, headers = self._decoder.finish()
        columns = {
            "offset": pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
            "timestamp": pa.Array.from_buffers(TIMESTAMP_TYPE, rows, [None, pa.py_buffer(timestamps)]),
            "key": _bytes_array(pa.binary(), rows, keys),
            "value": _bytes_array(pa.binary(), rows, values),
        }
        if headers is not None:
            lists, header_keys, header_values = headers
            count = len(lists) // 4 and memoryview(lists).cast("i")[rows]
            items = pa.StructArray.from_arrays(
                [_bytes_array(pa.string(), count, header_keys), _bytes_array(pa.binary(), count, header_values)],
                fields=list(HEADERS_TYPE.value_type),
            )
            columns["headers"] = pa.ListArray.from_arrays(
                pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(lists)]), items, type=HEADERS_TYPE
            )
        return pa.RecordBatch.from_pydict(columns)


def _bytes_array(kind: pa.DataType, rows: int, buffers: tuple[bytearray | None, bytearray, bytearray]) -> pa.Array:
    validity, offsets, data = buffers
    return pa.Array.from_buffers(
        kind, rows, [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    )
