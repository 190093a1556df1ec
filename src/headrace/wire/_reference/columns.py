"""Record batches from and to Arrow columns, in plain Python, row by row."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headrace.errors import MalformedError
from headrace.wire._reference.checksums import HASH_START, hash_cell, murmur2
from headrace.wire._reference.records import encode_record, read_headers, read_record_body, read_record_bounds
from headrace.wire.layout import HEADER_BYTES, BytesColumn, EncodedBatch, Header, HeadersColumn
from headrace.wire.primitives import Buffer

RECORD_BYTES_MIN = 7
COLUMN_BYTES_MAX = 0x7FFFFFFF  # offsets are int32


def _is_null(validity: Buffer | None, index: int) -> bool:
    return validity is not None and not memoryview(validity)[index >> 3] >> (index & 7) & 1


def _cells(column: BytesColumn, rows: range) -> list[bytes | None]:
    offsets = memoryview(column.offsets).cast("B").cast("q" if column.large else "i")
    data = memoryview(column.data)
    indexes = [column.first + row for row in rows]
    return [None if _is_null(column.validity, i) else bytes(data[offsets[i] : offsets[i + 1]]) for i in indexes]


def _headers(column: HeadersColumn, rows: int) -> list[list[Header]]:
    offsets = memoryview(column.offsets).cast("B").cast("i")
    result: list[list[Header]] = []
    for index in range(column.first, column.first + rows):
        items = range(0) if _is_null(column.validity, index) else range(offsets[index], offsets[index + 1])
        names = [(name or b"").decode() for name in _cells(column.keys, items)]
        result.append(list(zip(names, _cells(column.values, items), strict=True)))
    return result


def partition_keys(keys: BytesColumn, row_count: int, partition_count: int) -> bytearray:
    """Return the partition of each key as int32: `(murmur2 & 0x7fffffff) % partition_count`, -1 for a null key."""
    cells = _cells(keys, range(row_count))
    return bytearray(array("i", [-1 if k is None else (murmur2(k) & 0x7FFFFFFF) % partition_count for k in cells]))


def largest_row(keys: BytesColumn | None, values: BytesColumn, row_count: int) -> tuple[int, int]:
    """Return the first row with the most bytes in key and value, and that number; (-1, 0) if there are no rows."""
    sizes = [len(value or b"") for value in _cells(values, range(row_count))]
    if keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, _cells(keys, range(row_count)), strict=True)]
    return (sizes.index(max(sizes)), max(sizes)) if sizes else (-1, 0)


def hash_rows(
    topic: bytes, keys: BytesColumn | None, values: BytesColumn, headers: HeadersColumn | None, row_count: int
) -> int:
    """Return the sum, modulo 2^64, of the hashes of all rows over topic, key, value and headers, in any order.

    A row without headers equals one with null headers.
    """
    seed = hash_cell(HASH_START, topic)
    key_cells = [None] * row_count if keys is None else _cells(keys, range(row_count))
    header_cells = [[]] * row_count if headers is None else _headers(headers, row_count)
    total = 0
    for key, value, row_headers in zip(key_cells, _cells(values, range(row_count)), header_cells, strict=True):
        row = hash_cell(hash_cell(seed, key), value)
        for name, content in row_headers:
            row = hash_cell(hash_cell(row, name.encode()), content)
        total += row
    return total % (1 << 64)


def encode_columns(
    keys: BytesColumn | None,
    values: BytesColumn,
    headers: HeadersColumn | None,
    timestamps: Buffer | int,
    partitions: Buffer,
    *,
    partition_rows: int,
    row_count: int,
    partition_count: int,
    batch_bytes_max: int,
    spare: list[bytearray],
) -> list[EncodedBatch]:
    """Encode columns as batches without batch headers, in row order within each partition.

    `timestamps` are int64 milliseconds, or a number for all rows. `partitions` are int32, each for `partition_rows`
    rows. Neither has nulls. `spare` is used by the compiled kernel only.
    """
    key_cells = [None] * row_count if keys is None else _cells(keys, range(row_count))
    value_cells = _cells(values, range(row_count))
    header_cells = [[]] * row_count if headers is None else _headers(headers, row_count)
    times: Sequence[int] = (
        [timestamps] * row_count if isinstance(timestamps, int) else memoryview(timestamps).cast("B").cast("q")
    )
    row_partitions = [number for number in memoryview(partitions).cast("B").cast("i") for _ in range(partition_rows)]
    if len(times) < row_count or len(row_partitions) < row_count:
        raise ValueError(f"expected timestamps and partitions for {row_count} rows")
    full: list[EncodedBatch] = []
    open_batches: dict[int, EncodedBatch] = {}
    for row, partition in enumerate(row_partitions[:row_count]):
        if not 0 <= partition < partition_count:
            raise ValueError(f"row {row}: expected a partition from 0 to {partition_count - 1}, got {partition}")
    for row in range(row_count):
        partition, time = row_partitions[row], times[row]
        cells = key_cells[row], value_cells[row], header_cells[row]
        batch = open_batches.get(partition)
        if batch is not None:
            record = encode_record(time - batch.base_timestamp, batch.record_count, *cells)
            if batch.size + len(record) > batch_bytes_max:
                full.append(batch)
                batch = None
        if batch is None:
            record = encode_record(0, 0, *cells)
            batch = EncodedBatch(partition, bytearray(HEADER_BYTES), 0, time, time)
        batch.buffer.extend(record)
        open_batches[partition] = EncodedBatch(
            partition, batch.buffer, batch.record_count + 1, batch.base_timestamp, max(batch.max_timestamp, time)
        )
    return full + [open_batches[partition] for partition in sorted(open_batches)]


class ColumnDecoder:
    """A decoder that collects the records of many batches in Arrow's layout."""

    def __init__(self, with_headers: bool, bytes_hint: int = 0) -> None:  # the hint is used by the compiled kernel
        self._with_headers = with_headers
        self._offsets = array("q")
        self._timestamps = array("q")
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._header_lists = array("i", [0])
        self._header_keys: list[bytes | None] = []
        self._header_values: list[bytes | None] = []
        self._bytes = 0

    @property
    def row_count(self) -> int:
        return len(self._keys)

    def add(
        self,
        payload: Buffer,
        record_count: int,
        *,
        base_offset: int,
        base_timestamp: int,
        append_time: int,
        first_offset: int,
        end_offset: int,
    ) -> None:
        """Add the records of a decompressed payload with first_offset <= offset < end_offset.

        After an error the decoder must not be used.
        """
        view = memoryview(payload)
        if not 0 <= record_count <= len(view) // RECORD_BYTES_MIN:
            raise MalformedError(
                f"expected at most {len(view) // RECORD_BYTES_MIN} records, got {record_count}", offset=0
            )
        self._bytes += len(view)
        if self._bytes > COLUMN_BYTES_MAX:
            raise ValueError(f"a column would exceed {COLUMN_BYTES_MAX} bytes: finish it before adding more")
        pos = 0
        for _ in range(record_count):
            start, end, pos = read_record_bounds(view, pos)
            timestamp, offset, key, value, headers_pos = read_record_body(view, start, end)
            offset += base_offset
            if not first_offset <= offset < end_offset:
                continue
            self._offsets.append(offset)
            self._timestamps.append(append_time if append_time >= 0 else base_timestamp + timestamp)
            self._keys.append(key)
            self._values.append(value)
            if self._with_headers:
                for name, content in read_headers(view, headers_pos, end):
                    self._header_keys.append(name.encode())
                    self._header_values.append(content)
                self._header_lists.append(len(self._header_keys))
        if pos != len(view):
            raise MalformedError(f"expected {record_count} records, {len(view) - pos} bytes are left", offset=pos)

    def finish(self) -> tuple[bytearray, bytearray, _Column, _Column, tuple[bytearray, _Column, _Column] | None]:
        """Return offsets, timestamps, keys, values, and with headers their list offsets, keys and values.

        A column of bytes is (validity or None, int32 offsets, data). The decoder must not be used after this.
        """
        headers = None
        if self._with_headers:
            headers = bytearray(self._header_lists), _column(self._header_keys), _column(self._header_values)
        return (
            bytearray(self._offsets),
            bytearray(self._timestamps),
            _column(self._keys),
            _column(self._values),
            headers,
        )


_Column = tuple[bytearray | None, bytearray, bytearray]


def _column(cells: list[bytes | None]) -> _Column:
    validity = bytearray((len(cells) + 7) // 8)
    offsets = array("i", [0])
    data = bytearray()
    for row, cell in enumerate(cells):
        if cell is not None:
            validity[row >> 3] |= 1 << (row & 7)
            data += cell
        offsets.append(len(data))
    return validity if None in cells else None, bytearray(offsets), data
