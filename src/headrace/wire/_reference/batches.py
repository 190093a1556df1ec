"""Consecutive record batches, as in a log segment, in plain Python."""

from __future__ import annotations

import struct

from headrace.errors import CorruptBatchError, MalformedError
from headrace.wire._reference.checksums import crc32c
from headrace.wire._reference.records import read_record_body, read_record_bounds
from headrace.wire.layout import (
    ATTRIBUTES_OFFSET,
    CHECKSUM_PROBLEM,
    HEADER_BYTES,
    OFFSET_PROBLEM,
    PREFIX_BYTES,
    BatchHeader,
    header_layout,
)
from headrace.wire.primitives import Buffer, read_varint, read_varlong

_extent = struct.Struct(">qi11xi")  # base offset, length, last offset delta


def cut_batches(data: Buffer, offset: int, end_offset: int, bytes_max: int) -> tuple[int, int, int, int, int]:
    """Return the complete batches in `data` for a read from `offset` up to `end_offset`.

    Returns (start, stop, first offset, next offset, needed). Batches that end before `offset` are skipped. The first
    other batch is always included, further ones up to `bytes_max` in total. If that first batch is incomplete, start
    and stop are equal, and `needed` is the number of bytes from `start` that it needs.
    """
    total = len(data)
    pos, start, first_offset, next_offset = 0, -1, -1, -1
    while pos + HEADER_BYTES <= total:
        base, length, delta = _extent.unpack_from(data, pos)
        size, last = length + PREFIX_BYTES, base + delta
        if size < HEADER_BYTES:
            raise CorruptBatchError(f"expected a batch of {HEADER_BYTES} bytes or more, got {size} (at {pos})")
        if start < 0:
            if last < offset:
                pos += size
                continue
            if last >= end_offset:
                return pos, pos, -1, -1, 0
            if pos + size > total:
                return pos, pos, -1, -1, size
            start, first_offset = pos, base
        elif last >= end_offset or pos + size - start > bytes_max or pos + size > total:
            break
        next_offset = last + 1
        pos += size
    if start < 0:
        return pos, pos, -1, -1, HEADER_BYTES
    return start, pos, first_offset, next_offset, 0


def scan_batches(
    data: Buffer, position: int, offset_min: int, count_max: int, verify: bool
) -> tuple[list[BatchHeader], int, str]:
    """Return (headers, position, problem): the headers of up to `count_max` batches, and the position after them.

    The base offset of each batch must be above the last offset before it, of the first one at least `offset_min`;
    `verify` checks the checksums. `problem` says why the batch at `position` is invalid or truncated; otherwise it
    is empty.
    """
    headers: list[BatchHeader] = []
    with memoryview(data) as view:
        total = len(view)
        while position < total and len(headers) < count_max:
            if total - position < HEADER_BYTES:
                return headers, position, "a header is truncated"
            header = BatchHeader(*header_layout.unpack_from(view, position))
            problem = _problem(header, view, position, offset_min, verify)
            if problem:
                return headers, position, problem
            headers.append(header)
            offset_min = header.last_offset + 1
            position += header.size
    return headers, position, ""


def _problem(header: BatchHeader, view: memoryview, position: int, offset_min: int, verify: bool) -> str:
    end = position + header.size
    if header.size < HEADER_BYTES:
        return "a length is too small"
    if header.magic != 2:
        return "the magic is not 2"
    if end > len(view):
        return "a batch is truncated"
    if header.last_offset_delta < 0 or header.record_count < 0:
        return "a count is negative"
    if header.base_offset < offset_min:
        return OFFSET_PROBLEM
    if verify and crc32c(view[position + ATTRIBUTES_OFFSET : end]) != header.crc:
        return CHECKSUM_PROBLEM
    return ""


def scan_records(payload: Buffer, record_count: int) -> list[tuple[int, int, int, int, bytes | None, bool]]:
    """Return (start, end, offset delta, timestamp delta, key, has a value) of each record, for log compaction.

    `start` and `end` are the bounds of the record with its length prefix.
    """
    view = memoryview(payload)
    records = []
    pos = 0
    for _ in range(record_count):
        record_pos = pos
        start, end, pos = read_record_bounds(view, record_pos)
        timestamp, offset, key, value, _ = read_record_body(view, start, end)
        records.append((record_pos, end, offset, timestamp, key, value is not None))
    if pos != len(view):
        raise MalformedError(f"expected {record_count} records, {len(view) - pos} bytes are left", offset=pos)
    return records


def find_timestamp(
    payload: Buffer, record_count: int, timestamp_delta: int, offset_delta: int
) -> tuple[int, int] | None:
    """Return the deltas of the first record with at least these deltas, as (offset, timestamp); None without one."""
    view = memoryview(payload)
    pos = 0
    for _ in range(record_count):
        start, end, pos = read_record_bounds(view, pos)
        if start >= end:
            raise MalformedError("expected the attributes of a record, 0 bytes of it are left", offset=start)
        timestamp, offset_pos = read_varlong(view, start + 1, end)
        offset, _ = read_varint(view, offset_pos, end)
        if offset >= offset_delta and timestamp >= timestamp_delta:
            return offset, timestamp
    return None
