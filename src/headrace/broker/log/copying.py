"""What compaction leaves of a batch.

A record keeps its bytes: offset and timestamp in it count from the batch's base, which stays. Only where a batch gets a
delete horizon, which takes the place of the base timestamp, are the timestamps in it written anew.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import release
from headrace.broker.log.segment import SCAN_BATCHES_MAX, Segment
from headrace.wire.kernel import kernel
from headrace.wire.layout import CODEC_MASK, CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader
from headrace.wire.primitives import Buffer, read_varint, read_varlong, write_varint
from headrace.wire.records import RecordBatch

DELETE_HORIZON = 0x40
"""Attribute of a batch: the base timestamp is the time from which its tombstones, or its marker, may go."""


class DamagedSegmentError(OSError):
    """A segment that is to be copied is damaged: a copy would look whole."""


class Kept(NamedTuple):
    """A batch as it is to be written."""

    header: BatchHeader
    data: Buffer


def read_segment(segment: Segment) -> Iterator[RecordBatch]:
    """All batches of a segment that does not change any more. From any thread: the file is opened for this."""
    if not segment.size_bytes:
        return
    fd = os.open(segment.file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = mmap.mmap(fd, segment.size_bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    # Not closed here: batches that were handed out may still be looked at.
    view = memoryview(data)
    position = 0
    while position < len(view):
        headers, _, problem = kernel.scan_batches(view, position, 0, SCAN_BATCHES_MAX, True)
        for header in headers:
            yield RecordBatch(header, view[position : position + header.size])
            position += header.size
        if problem:
            raise DamagedSegmentError(f"{segment.file.path}: at byte {position} {problem}")


def keep_batch(
    batch: RecordBatch,
    last_offsets: Mapping[bytes, int],
    *,
    discarded: bool,
    needed: bool,
    now_ms: int,
    config: LogConfig,
) -> Kept | None:
    """What is left of a batch; None: nothing.

    `discarded`: its records are of no use, or its marker of none after its horizon. `needed`: the header has to stay.
    """
    header = batch.header
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
    control = bool(header.attributes & CONTROL)
    if discarded and (not control or (horizon is not None and horizon <= now_ms) or not header.record_count):
        return _emptied(header) if needed else None
    payload = batch.payload()
    rows = kernel.scan_records(payload, header.record_count)
    kept = rows if control else [row for row in rows if _stays(row, header, last_offsets, horizon, now_ms)]
    try:
        if not kept:
            return _emptied(header) if needed else None
        fresh_horizon = None
        if horizon is None and (any(not has_value for *_, has_value in kept) or (control and discarded)):
            fresh_horizon = now_ms + config.delete_retention_ms
        if len(kept) == len(rows) and fresh_horizon is None:
            return Kept(header, batch.view)
        return _rebuilt(header, memoryview(payload), kept, fresh_horizon)
    finally:
        release(rows)
        release(kept)


_Row = tuple[int, int, int, int, bytes | None, bool]


def _stays(row: _Row, header: BatchHeader, last_offsets: Mapping[bytes, int], horizon: int | None, now_ms: int) -> bool:
    _, _, offset_delta, _, key, has_value = row
    if key is None or header.base_offset + offset_delta < last_offsets.get(key, -1):
        return False
    return has_value or horizon is None or now_ms < horizon


def _rebuilt(header: BatchHeader, payload: memoryview, rows: list[_Row], horizon: int | None) -> Kept:
    from headrace.broker.log.conversion import rebuild
    from headrace.wire.compression import compress

    base_timestamp, attributes = header.base_timestamp, header.attributes
    if horizon is None:
        records = b"".join(payload[start:end] for start, end, *_ in rows)
    else:
        records = b"".join(_moved(payload[start:end], base_timestamp - horizon) for start, end, *_ in rows)
        attributes |= DELETE_HORIZON
    highest = max(base_timestamp + timestamp_delta for _, _, _, timestamp_delta, _, _ in rows)
    header = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp if horizon is None else horizon,
        max_timestamp=header.max_timestamp if attributes & LOG_APPEND_TIME else highest,
        record_count=len(rows),
    )
    codec = attributes & CODEC_MASK
    data, header = rebuild(compress(codec, records), header, codec=codec)
    return Kept(header, data)


def _moved(record: memoryview, by_ms: int) -> bytes:
    """A record with its length, its timestamp counted from another base."""
    _, start = read_varint(record, 0, len(record))
    timestamp_delta, rest = read_varlong(record, start + 1, len(record))
    body = bytearray(record[start : start + 1])
    write_varint(body, timestamp_delta + by_ms)
    body += record[rest:]
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out + body)


def _emptied(header: BatchHeader) -> Kept:
    """A batch without records: who wrote it, and which offsets and sequence numbers it had."""
    from headrace.broker.log.conversion import rebuild

    header = header._replace(
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
    )
    data, header = rebuild(b"", header, codec=0)
    return Kept(header, data)
