"""Producer snapshots: the state of a log's producers at an offset, so that a start need not replay the whole log.

The file is Kafka's ProducerSnapshot (version 1), which Kafka's tools read. It has only the last batch of a producer.
The four before it, and transactions that ended above the high watermark, follow in a section of headrace, which Kafka
skips and which begins with the offset. A snapshot with a wrong checksum, or of another offset than its name says, is
ignored: the snapshot before it and the batches since then give the same state.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.files import SNAPSHOT, offset_name, replace_file
from headrace.broker.log.producer_state import SEQUENCE_MAX, ProducerEntry, ProducerStateManager, WrittenBatch
from headrace.wire.kernel import kernel
from headrace.wire.layout import NO_SEQUENCE

logger = logging.getLogger("headrace.broker.log")

_VERSION = 1
_head = struct.Struct(">hIi")  # version, checksum, number of producers
_CHECKED_FROM = 6  # after version and checksum
_producer = struct.Struct(">qhiqiqiq")
_EXTENSION = b"headrace2"
_EXTENSION_WITHOUT_OFFSET = b"headrace1"
_offset = struct.Struct(">q")
_extra = struct.Struct(">qb")  # last use by the broker's clock, number of batches
_batch = struct.Struct(">iqiq")
_count = struct.Struct(">i")
_ended = struct.Struct(">qq")


class Snapshot(NamedTuple):
    """The content of a snapshot file."""

    entries: list[ProducerEntry]
    unreplicated: dict[int, int]  # transactions that ended above the high watermark: first offset → marker's offset


def write_snapshot(folder: Path, offset: int, state: ProducerStateManager) -> None:
    """Write the state at `offset`. `Log.flush` forces it to disk."""
    entries = list(state.entries.values())
    body = bytearray(_count.pack(len(entries)))
    extension = bytearray(_EXTENSION) + _offset.pack(offset)
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
        extension += _extra.pack(entry.touched_ms, len(entry.batches))
        for batch in entry.batches:
            delta = batch.last_offset - batch.first_offset
            extension += _batch.pack(batch.last_sequence, batch.last_offset, delta, batch.timestamp)
    extension += _count.pack(len(state.unreplicated))
    for first_offset, marker_offset in state.unreplicated.items():
        extension += _ended.pack(first_offset, marker_offset)
    body += extension
    head = struct.pack(">hI", _VERSION, kernel.crc32c(body))
    replace_file(folder / offset_name(offset, SNAPSHOT), head + body, sync=False)


def read_snapshot(path: Path) -> Snapshot | None:
    """Read a snapshot; return None if it is damaged."""
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
        if data.startswith(_EXTENSION, position):
            position += len(_EXTENSION)
            (offset,) = _offset.unpack_from(data, position)
            if offset != int(path.stem):
                raise ValueError(f"it is of offset {offset}")
            return Snapshot(entries, _read_extension(data, position + _offset.size, entries))
        if data.startswith(_EXTENSION_WITHOUT_OFFSET, position):
            return Snapshot(entries, _read_extension(data, position + len(_EXTENSION_WITHOUT_OFFSET), entries))
        return Snapshot(entries, {})  # written by Kafka
    except (OSError, ValueError, struct.error) as error:
        logger.warning("%s is damaged and not used: %s", path, error)
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
        entry.batches.append(_written_batch(last_sequence, last_offset, delta, timestamp))
    return entry


def _read_extension(data: bytes, position: int, entries: list[ProducerEntry]) -> dict[int, int]:
    """Complete the entries, and return the transactions that ended above the high watermark."""
    for entry in entries:
        entry.touched_ms, count = _extra.unpack_from(data, position)
        position += _extra.size
        entry.batches = []
        for _ in range(count):
            entry.batches.append(_written_batch(*_batch.unpack_from(data, position)))
            position += _batch.size
    (count,) = _count.unpack_from(data, position)
    position += _count.size
    return dict(_ended.iter_unpack(data[position : position + count * _ended.size]))


def _written_batch(last_sequence: int, last_offset: int, delta: int, timestamp: int) -> WrittenBatch:
    first_sequence = NO_SEQUENCE if last_sequence == NO_SEQUENCE else last_sequence - delta & SEQUENCE_MAX
    return WrittenBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)


def snapshot_offsets(folder: Path) -> list[int]:
    """Return the offsets of all snapshots, ascending."""
    stems = (name[: -len(SNAPSHOT)] for name in os.listdir(folder) if name.endswith(SNAPSHOT))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def open_transactions_after(folder: Path, offset: int) -> dict[int, int]:
    """Return the open transactions of the first intact snapshot at `offset` or after it: producer id → first offset."""
    for snapshot_offset in snapshot_offsets(folder):
        if snapshot_offset >= offset:
            snapshot = read_snapshot(folder / offset_name(snapshot_offset, SNAPSHOT))
            if snapshot is not None:
                return {e.producer_id: e.transaction_start for e in snapshot.entries if e.transaction_start >= 0}
    return {}


def restore_newest(state: ProducerStateManager, folder: Path, offset_max: int) -> int | None:
    """Restore the newest intact snapshot up to `offset_max` and return its offset; None if there is none.

    Damaged snapshots on the way are deleted.
    """
    for offset in reversed(snapshot_offsets(folder)):
        if offset <= offset_max:
            path = folder / offset_name(offset, SNAPSHOT)
            snapshot = read_snapshot(path)
            if snapshot is not None:
                state.restore(*snapshot)
                return offset
            path.unlink(missing_ok=True)
    return None


def delete_snapshots(folder: Path, first_offset: int, end_offset: int) -> None:
    """Delete the snapshots from `first_offset` up to `end_offset`."""
    for offset in snapshot_offsets(folder):
        if first_offset <= offset < end_offset:
            (folder / offset_name(offset, SNAPSHOT)).unlink(missing_ok=True)
