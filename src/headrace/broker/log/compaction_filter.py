"""What compaction keeps of a batch.

A record keeps its bytes: its offset and timestamp are relative to the batch's base, which does not change. Only if a
batch gets a delete horizon, which replaces the base timestamp, its timestamps are encoded again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import release
from headrace.broker.log.index import AbortedEntry
from headrace.broker.log.replay import marker_of
from headrace.broker.log.segment import SCAN_BATCHES_MAX, Segment
from headrace.broker.log.validation import rebuild
from headrace.wire.compression import compress
from headrace.wire.kernel import kernel
from headrace.wire.layout import CODEC_MASK, CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader
from headrace.wire.primitives import Buffer, read_varint, read_varlong, write_varint
from headrace.wire.records import RecordBatch

DELETE_HORIZON = 0x40
"""Attribute of a batch: its base timestamp is the time from which its tombstones, or its marker, may be removed."""


class DamagedSegmentError(OSError):
    """A segment to be compacted is damaged: the copy would look intact."""


class RetainedBatch(NamedTuple):
    """A batch as compaction writes it."""

    header: BatchHeader
    data: Buffer


def read_segment(segment: Segment) -> Iterator[RecordBatch]:
    """Yield all batches of a closed segment. From any thread: the file is opened for it."""
    if not segment.size_bytes:
        return
    fd = os.open(segment.file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = mmap.mmap(fd, segment.size_bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    view = memoryview(data)  # not closed here: the caller may still use batches
    position = 0
    while position < len(view):
        headers, _, problem = kernel.scan_batches(view, position, 0, SCAN_BATCHES_MAX, True)
        for header in headers:
            yield RecordBatch(header, view[position : position + header.size])
            position += header.size
        if problem:
            raise DamagedSegmentError(f"{segment.file.path}: at byte {position} {problem}")


class CleanedTransactions:
    """Tracks transactions while batches are read in order: which are aborted, and which markers are obsolete."""

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self.retained: list[AbortedEntry] = []  # aborted transactions whose marker has been read and has to stay
        self._ahead = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)  # the next one is last
        self._aborted: dict[int, AbortedEntry] = {}  # begun, marker not read yet; by producer id
        self._with_records: set[int] = set()  # producers in `_aborted` that had a batch
        self._committed: set[int] = set()  # producers with a batch in a transaction that is not aborted

    def is_discarded(self, batch: RecordBatch) -> bool:
        """Return whether a batch is aborted, or the marker of a transaction without records."""
        header = batch.header
        while self._ahead and self._ahead[-1].first_offset <= header.last_offset:
            entry = self._ahead.pop()
            self._aborted.setdefault(entry.producer_id, entry)
        if header.attributes & CONTROL:
            return self._is_obsolete_marker(batch)
        if not header.attributes & TRANSACTIONAL:
            return False
        if header.producer_id in self._aborted:
            self._with_records.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def _is_obsolete_marker(self, batch: RecordBatch) -> bool:
        producer_id = batch.header.producer_id
        marker = marker_of(batch)
        if marker is None:
            return not batch.header.record_count  # emptied by an earlier compaction; other control records stay
        if marker.committed:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        entry = self._aborted.pop(producer_id, None)
        if entry is None or producer_id not in self._with_records:
            return True
        self._with_records.discard(producer_id)
        self.retained.append(entry)
        return False


def filter_batch(
    batch: RecordBatch,
    last_offsets: Mapping[bytes, int],
    *,
    discarded: bool,
    needed: bool,
    now_ms: int,
    config: LogConfig,
) -> RetainedBatch | None:
    """Return what is left of a batch; None if nothing is.

    `discarded`: its records are removed, or its marker after its horizon. `needed`: at least its header has to stay.
    """
    header = batch.header
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
    control = bool(header.attributes & CONTROL)
    if discarded and (not control or (horizon is not None and horizon <= now_ms) or not header.record_count):
        return _emptied(header) if needed else None
    payload = batch.payload()
    rows = kernel.scan_records(payload, header.record_count)
    retained = rows if control else [row for row in rows if _is_retained(row, header, last_offsets, horizon, now_ms)]
    try:
        if not retained:
            return _emptied(header) if needed else None
        new_horizon = None
        if horizon is None and (any(not has_value for *_, has_value in retained) or (control and discarded)):
            new_horizon = now_ms + config.delete_retention_ms
        if len(retained) == len(rows) and new_horizon is None:
            return RetainedBatch(header, batch.view)
        return _rebuilt(header, memoryview(payload), retained, new_horizon)
    finally:
        release(rows)
        release(retained)


_Row = tuple[int, int, int, int, bytes | None, bool]


def _is_retained(
    row: _Row, header: BatchHeader, last_offsets: Mapping[bytes, int], horizon: int | None, now_ms: int
) -> bool:
    _, _, offset_delta, _, key, has_value = row
    if key is None or header.base_offset + offset_delta < last_offsets.get(key, -1):
        return False
    return has_value or horizon is None or now_ms < horizon


def _rebuilt(header: BatchHeader, payload: memoryview, rows: list[_Row], horizon: int | None) -> RetainedBatch:
    """Return a batch of some of its records; with `horizon` as its delete horizon."""
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if horizon is None:
        records = b"".join(payload[start:end] for start, end, *_ in rows)
    else:
        records = b"".join(_shifted(payload[start:end], base_timestamp - horizon) for start, end, *_ in rows)
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
    return RetainedBatch(header, data)


def _shifted(record: memoryview, by_ms: int) -> bytes:
    """Return a record whose timestamp is relative to a base timestamp that is `by_ms` lower."""
    _, start = read_varint(record, 0, len(record))
    timestamp_delta, rest = read_varlong(record, start + 1, len(record))
    body = bytearray(record[start : start + 1])
    write_varint(body, timestamp_delta + by_ms)
    body += record[rest:]
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out + body)


def _emptied(header: BatchHeader) -> RetainedBatch:
    """Return a batch without records, which still has the producer, the offsets and the sequence numbers."""
    header = header._replace(
        base_timestamp=NO_TIMESTAMP, record_count=0, attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    )
    data, header = rebuild(b"", header, codec=0)
    return RetainedBatch(header, data)
