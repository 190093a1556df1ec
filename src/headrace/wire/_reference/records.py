"""Record by record encoding and decoding of batches, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.errors import MalformedError
from headrace.wire._reference.checksums import crc32c
from headrace.wire.layout import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    ConsumerRecord,
    Header,
    Record,
    header_layout,
)
from headrace.wire.primitives import Buffer, read_varint, read_varlong, write_varint


class OpenBatch:
    """A batch under construction in a buffer of the caller: the records, with space for the header before them.

    The buffer must not be resized or used elsewhere until the batch is sent.
    """

    def __init__(self, buffer: bytearray) -> None:
        if len(buffer) < HEADER_BYTES:
            raise ValueError(f"expected a buffer of {HEADER_BYTES} bytes or more, got {len(buffer)}")
        self.buffer = buffer
        self.size = HEADER_BYTES
        self.record_count = 0
        self.base_timestamp = self.max_timestamp = -1
        self.closed = False
        self.callbacks: list[Any] = []  # future, callback, future, callback: flat, as in the compiled kernel

    def close(self) -> None:
        """Reject further records."""
        self.closed = True

    def adopt(self, record_count: int, base_timestamp: int, max_timestamp: int) -> None:
        """Use the whole buffer as records that were encoded elsewhere, and close."""
        self.size = len(self.buffer)
        self.record_count = record_count
        self.base_timestamp, self.max_timestamp = base_timestamp, max_timestamp
        self.closed = True

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Iterable[Header] = ()) -> int:
        """Add a record and return its index; -1 if it does not fit or the batch is closed."""
        index = self.record_count
        record = encode_record(timestamp - self.base_timestamp if index else 0, index, key, value, headers)
        if self.closed or self.size + len(record) > len(self.buffer):
            return -1
        end = self.size + len(record)
        # No calls below: an exception from a signal handler is raised before all of this, or after it.
        self.buffer[self.size : end] = record
        self.size = end
        if not index:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.record_count = index + 1
        return index


def encode_record(
    timestamp_delta: int, offset_delta: int, key: Buffer | None, value: Buffer | None, headers: Iterable[Header]
) -> bytearray:
    """Encode a record with its length prefix."""
    body = bytearray(b"\0")  # attributes, unused
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    pairs = list(headers)
    write_varint(body, len(pairs))
    for name, content in pairs:
        _write_bytes(body, name.encode())
        _write_bytes(body, content)
    record = bytearray()
    write_varint(record, len(body))
    return record + body


def _write_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        write_varint(out, -1)
        return
    data = memoryview(value).cast("B")
    write_varint(out, len(data))
    out += data


def write_header(
    buffer: bytearray,
    size: int,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Write the header of the batch in the first `size` bytes of `buffer`, the checksum last."""
    if not HEADER_BYTES <= size <= len(buffer):
        raise ValueError(f"expected a batch of {HEADER_BYTES} to {len(buffer)} bytes, got {size}")
    header_layout.pack_into(
        buffer,
        0,
        base_offset,
        size - PREFIX_BYTES,
        leader_epoch,
        2,
        0,
        attributes,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    with memoryview(buffer) as view:
        checksum = crc32c(view[ATTRIBUTES_OFFSET:size])
    buffer[CRC_OFFSET:ATTRIBUTES_OFFSET] = checksum.to_bytes(4, "big")


def decode_records(
    payload: Buffer, record_count: int, base_offset: int, base_timestamp: int, append_time: int
) -> list[Record]:
    """Decode the records of a decompressed payload. An `append_time` other than -1 replaces all timestamps."""
    view = memoryview(payload)
    records = []
    pos = 0
    for _ in range(record_count):
        start, end, pos = read_record_bounds(view, pos)
        timestamp, offset, key, value, headers_pos = read_record_body(view, start, end)
        headers = read_headers(view, headers_pos, end)
        records.append(
            Record(
                base_offset + offset,
                append_time if append_time >= 0 else base_timestamp + timestamp,
                key,
                value,
                headers,
            )
        )
    if pos != len(view):
        raise MalformedError(f"expected {record_count} records, {len(view) - pos} bytes are left", offset=pos)
    return records


def decode_consumer_records(
    payload: Buffer,
    record_count: int,
    records: list[ConsumerRecord],
    *,
    topic: str,
    partition: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    leader_epoch: int,
    first_offset: int,
) -> None:
    """Append the records from `first_offset` on to `records`. An `append_time` other than -1 replaces all timestamps.

    After an error, some records may have been appended.
    """
    set_by = 1 if append_time >= 0 else 0
    for offset, timestamp, key, value, headers in decode_records(
        payload, record_count, base_offset, base_timestamp, append_time
    ):
        if offset >= first_offset:
            kind = set_by if timestamp >= 0 else NO_TIMESTAMP
            row = ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, leader_epoch)
            records.append(row)


def check_records(payload: Buffer, record_count: int) -> int:
    """Check the decompressed payload of a batch; raises as `decode_records` does.

    Returns the index of the first record without a key; -1 if all have keys.
    """
    keyless = -1
    for index, record in enumerate(decode_records(payload, record_count, 0, 0, -1)):
        if record.offset != index:
            raise MalformedError(f"expected record {index}, got the offset delta {record.offset}", offset=0)
        if record.key is None and keyless < 0:
            keyless = index
    return keyless


def read_record_bounds(view: memoryview, pos: int) -> tuple[int, int, int]:
    """Return start and end of the record at `pos`, and the position of the next one."""
    length, start = read_varint(view, pos, len(view))
    if not 0 <= length <= len(view) - start:
        raise MalformedError(
            f"expected a record within the batch, {len(view) - start} bytes of the records are left", offset=pos
        )
    return start, start + length, start + length


def read_record_body(view: memoryview, pos: int, end: int) -> tuple[int, int, bytes | None, bytes | None, int]:
    """Return timestamp delta, offset delta, key, value, and the position of the headers."""
    if pos >= end:
        raise MalformedError("expected the attributes of a record, 0 bytes of it are left", offset=pos)
    timestamp, pos = read_varlong(view, pos + 1, end)
    offset, pos = read_varint(view, pos, end)
    key, pos = _read_bytes(view, pos, end, "a key")
    value, pos = _read_bytes(view, pos, end, "a value")
    return timestamp, offset, key, value, pos


def read_headers(view: memoryview, pos: int, end: int) -> tuple[Header, ...]:
    """Return the headers, which must fill the rest of the record."""
    start = pos
    count, pos = read_varint(view, pos, end)
    if not 0 <= count <= (end - pos) // 2:
        raise MalformedError(f"expected a count of headers, got {count} with {end - pos} bytes left", offset=start)
    headers = []
    for _ in range(count):
        start = pos
        name, pos = _read_bytes(view, pos, end, "the key of a header")
        if name is None:
            raise MalformedError("expected the key of a header, got null", offset=start)
        content, pos = _read_bytes(view, pos, end, "the value of a header")
        try:
            headers.append((name.decode(), content))
        except UnicodeDecodeError as error:
            raise MalformedError(f"expected the key of a header in UTF-8: {error.reason}", offset=start) from None
    if pos != end:
        raise MalformedError(f"expected the end of the record, {end - pos} bytes are left", offset=pos)
    return tuple(headers)


def _read_bytes(view: memoryview, pos: int, end: int, name: str) -> tuple[bytes | None, int]:
    """Return a key or value with a length prefix, and the position after it."""
    size, start = read_varint(view, pos, end)
    if not -1 <= size <= end - start:
        raise MalformedError(f"expected {name} within the record, got a size of {size}", offset=pos)
    if size < 0:
        return None, start
    return bytes(view[start : start + size]), start + size
