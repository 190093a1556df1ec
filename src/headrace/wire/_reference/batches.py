"""Batches one after the other, as they lie in a log, in plain Python."""

from __future__ import annotations

import struct

from headrace.errors import CorruptBatchError, MalformedError
from headrace.wire._reference.checksums import crc32c
from headrace.wire._reference.records import read_record_bounds, read_record_piece
from headrace.wire.layout import ATTRIBUTES_OFFSET, HEADER_BYTES, PREFIX_BYTES, BatchHeader, header_layout
from headrace.wire.primitives import Buffer, read_varint, read_varlong

_extent = struct.Struct(">qi11xi")  # base offset, length, last offset delta


def cut_batches(data: Buffer, offset: int, end_offset: int, bytes_max: int) -> tuple[int, int, int, int, int]:
    """Which whole batches of `data` a read from `offset` up to `end_offset` gets.

    The answer is (start, stop, first offset, next offset, needed). Batches that end before `offset` are skipped. The
    first one that does not is taken whatever its size, more are taken up to `bytes_max` in all. Where that first one
    is not whole, `needed` says how many bytes from `start` on are; then there is nothing between start and stop.
    """
    total = len(data)
    pos, start, first, following = 0, -1, -1, -1
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
            start, first = pos, base
        elif last >= end_offset or pos + size - start > bytes_max or pos + size > total:
            break
        following = last + 1
        pos += size
    if start < 0:
        return pos, pos, -1, -1, HEADER_BYTES
    return start, pos, first, following, 0


def scan_batches(
    data: Buffer, position: int, offset_min: int, count_max: int, verify: bool
) -> tuple[list[BatchHeader], int, str]:
    """The headers of up to `count_max` batches from `position` on, and where and why that ended.

    The answer is (headers, position, problem). The first batch must start at `offset_min` or above, each other one
    above the one before it; `verify` checks the checksums. There is a problem if `position` is not the end and the
    batch there is none: it is cut short, or damaged.
    """
    headers: list[BatchHeader] = []
    with memoryview(data) as view:
        total = len(view)
        while position < total and len(headers) < count_max:
            if total - position < HEADER_BYTES:
                return headers, position, "a header is cut short"
            header = BatchHeader._make(header_layout.unpack_from(view, position))
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
        return "a magic is not 2"
    if end > len(view):
        return "a batch is cut short"
    if header.last_offset_delta < 0 or header.record_count < 0:
        return "a count is negative"
    if header.base_offset < offset_min:
        return "an offset goes back"
    if verify and crc32c(view[position + ATTRIBUTES_OFFSET : end]) != header.crc:
        return "a checksum is wrong"
    return ""


def scan_records(payload: Buffer, record_count: int) -> list[tuple[int, int, int, int, bytes | None, bool]]:
    """What a log asks of records, without taking them apart further.

    For each one (start, end, offset delta, timestamp delta, key, whether it has a value): its bytes with the length
    before them are those from start to end.
    """
    view = memoryview(payload)
    found = []
    pos = 0
    for _ in range(record_count):
        at = pos
        start, end, pos = read_record_bounds(view, at)
        if start >= end:
            raise MalformedError("expected the attributes of a record, 0 bytes of it are left", offset=start)
        timestamp, next_at = read_varlong(view, start + 1, end)
        offset, next_at = read_varint(view, next_at, end)
        key, next_at = read_record_piece(view, next_at, end, "a key")
        value, _ = read_record_piece(view, next_at, end, "a value")
        found.append((at, end, offset, timestamp, key, value is not None))
    if pos != len(view):
        raise MalformedError(f"expected {record_count} records, {len(view) - pos} bytes are left", offset=pos)
    return found


def find_timestamp(
    payload: Buffer, record_count: int, timestamp_delta: int, offset_delta: int
) -> tuple[int, int] | None:
    """The first record from an offset delta on that has a timestamp delta or a later one: its two deltas, or None."""
    view = memoryview(payload)
    pos = 0
    for _ in range(record_count):
        start, end, pos = read_record_bounds(view, pos)
        if start >= end:
            raise MalformedError("expected the attributes of a record, 0 bytes of it are left", offset=start)
        timestamp, next_at = read_varlong(view, start + 1, end)
        offset, _ = read_varint(view, next_at, end)
        if offset >= offset_delta and timestamp >= timestamp_delta:
            return offset, timestamp
    return None
