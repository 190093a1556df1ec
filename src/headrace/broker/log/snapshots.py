"""Producers on disk, as they were at an offset: what saves reading a log from its beginning after a start.

The file is Kafka's ProducerSnapshot (version 1), so Kafka's tools read it. That keeps only the last batch of a
producer; the four before it, and transactions that ended above the high watermark, follow in a part of our own, which
Kafka skips, and which begins with the offset. A snapshot whose checksum is wrong, or that is of another offset than its
name says, is as good as none: the one before it, and the batches since, give the same.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

from headrace.broker.log.files import SNAPSHOT, offset_name, replace_file
from headrace.broker.log.producer_state import SEQUENCE_MAX, ProducerEntry, ProducerState, WrittenBatch
from headrace.wire.kernel import kernel
from headrace.wire.layout import NO_SEQUENCE

log = logging.getLogger("headrace.broker.log")

_VERSION = 1
_head = struct.Struct(">hIi")  # version, checksum, producers
_CHECKED_FROM = 6  # after version and checksum
_producer = struct.Struct(">qhiqiqiq")
_OURS = b"headrace2"
_OURS_WITHOUT_OFFSET = b"headrace1"
_offset = struct.Struct(">q")
_extra = struct.Struct(">qb")  # last use by our clock, batches beside the last one
_batch = struct.Struct(">iqiq")
_count = struct.Struct(">i")
_ended = struct.Struct(">qq")


def write_snapshot(folder: Path, offset: int, state: ProducerState) -> None:
    """Write what `state` is at `offset`. It is forced to disk when the log is."""
    entries = list(state.entries.values())
    body = bytearray(_count.pack(len(entries)))
    ours = bytearray(_OURS) + _offset.pack(offset)
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        body += _producer.pack(
            entry.producer_id,
            entry.epoch,
            last.last_sequence if last else NO_SEQUENCE,
            last.last_offset if last else -1,
            last.last_offset - last.first_offset if last else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_start,
        )
        ours += _extra.pack(entry.touched_ms, len(entry.batches))
        for batch in entry.batches:
            delta = batch.last_offset - batch.first_offset
            ours += _batch.pack(batch.last_sequence, batch.last_offset, delta, batch.timestamp)
    ours += _count.pack(len(state.unreplicated))
    for first_offset, marker_offset in state.unreplicated.items():
        ours += _ended.pack(first_offset, marker_offset)
    body += ours
    head = struct.pack(">hI", _VERSION, kernel.crc32c(body))
    replace_file(folder / offset_name(offset, SNAPSHOT), head + body, sync=False)


def read_snapshot(path: Path) -> tuple[list[ProducerEntry], dict[int, int]] | None:
    """Producers, and transactions that ended above the high watermark; None if the file is damaged."""
    try:
        data = path.read_bytes()
        version, checksum, count = _head.unpack_from(data)
        if version != _VERSION or kernel.crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
            raise ValueError("its checksum is wrong")
        position = _head.size
        entries = []
        for _ in range(count):
            entries.append(_read_producer(data, position))
            position += _producer.size
        if data.startswith(_OURS, position):
            position += len(_OURS)
            (offset,) = _offset.unpack_from(data, position)
            if offset != int(path.stem):
                raise ValueError(f"it is of offset {offset}")
            return entries, _read_ours(data, position + _offset.size, entries)
        if data.startswith(_OURS_WITHOUT_OFFSET, position):
            return entries, _read_ours(data, position + len(_OURS_WITHOUT_OFFSET), entries)
        return entries, {}  # written by Kafka
    except (OSError, ValueError, struct.error) as error:
        log.warning("%s is damaged and not used: %s", path, error)
        return None


def _read_producer(data: bytes, position: int) -> ProducerEntry:
    row = _producer.unpack_from(data, position)
    producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction_start = row
    entry = ProducerEntry(producer_id)
    entry.epoch = epoch
    entry.coordinator_epoch = coordinator_epoch
    entry.last_timestamp = entry.touched_ms = timestamp
    entry.transaction_start = transaction_start
    if last_offset >= 0:
        entry.batches.append(_written(last_sequence, last_offset, delta, timestamp))
    return entry


def _read_ours(data: bytes, position: int, entries: list[ProducerEntry]) -> dict[int, int]:
    for entry in entries:
        entry.touched_ms, count = _extra.unpack_from(data, position)
        position += _extra.size
        entry.batches = []
        for _ in range(count):
            entry.batches.append(_written(*_batch.unpack_from(data, position)))
            position += _batch.size
    (count,) = _count.unpack_from(data, position)
    position += _count.size
    return dict(_ended.iter_unpack(data[position : position + count * _ended.size]))


def _written(last_sequence: int, last_offset: int, delta: int, timestamp: int) -> WrittenBatch:
    first_sequence = NO_SEQUENCE if last_sequence == NO_SEQUENCE else last_sequence - delta & SEQUENCE_MAX
    return WrittenBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)


def snapshot_offsets(folder: Path) -> list[int]:
    """The offsets that there are snapshots for, ascending."""
    found = (name[: -len(SNAPSHOT)] for name in os.listdir(folder) if name.endswith(SNAPSHOT))
    return sorted(int(name) for name in found if name.isdecimal())


def open_after(folder: Path, offset: int) -> dict[int, int]:
    """The transactions that the first intact snapshot at `offset` or after it has open: producer id → first offset."""
    for each in snapshot_offsets(folder):
        if each >= offset and (found := read_snapshot(folder / offset_name(each, SNAPSHOT))) is not None:
            return {entry.producer_id: entry.transaction_start for entry in found[0] if entry.transaction_start >= 0}
    return {}


def load_newest(folder: Path, offset_max: int) -> tuple[int, list[ProducerEntry], dict[int, int]] | None:
    """The newest snapshot of `offset_max` or before; what is damaged is deleted on the way."""
    for offset in reversed(snapshot_offsets(folder)):
        if offset <= offset_max:
            path = folder / offset_name(offset, SNAPSHOT)
            found = read_snapshot(path)
            if found is not None:
                return offset, *found
            path.unlink(missing_ok=True)
    return None
