"""Compaction: of each key the last record stays.

    plan     event loop: which segments, up to which offset, who is still writing      (nothing is changed)
    run      a thread: a map key → last offset of what is new, then segments copied without what it outdates
    swap_in  event loop: the copies take the place of the originals

Rules beyond "the last one stays", all of them Kafka's:

- A record without a value (a tombstone) stays for delete.retention.ms after it was first compacted: the batch notes the
  time it may go at, its delete horizon, in the place of the base timestamp.
- Records of aborted transactions go. The marker stays until they are gone, and then as long as a tombstone.
- The last batch of a producer stays, without records if need be: it says epoch and sequence, which make a retry known.
- The last batch of a round stays too, so that the log does not seem to end earlier.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.broker.disk import sync_path
from headrace.broker.log.aborted import write_rows
from headrace.broker.log.config import LogConfig
from headrace.broker.log.copying import Kept, keep_batch, read_segment
from headrace.broker.log.decompression import release
from headrace.broker.log.files import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    FileCache,
    offset_name,
    replace_file,
)
from headrace.broker.log.log import Log
from headrace.broker.log.retention import retire
from headrace.broker.log.segment import OFFSETS_MAX, Segment
from headrace.broker.log.segment_checkpoint import SegmentRow
from headrace.broker.log.transactions_seen import AbortedRow, TransactionsSeen
from headrace.wire.kernel import kernel
from headrace.wire.layout import CONTROL, BatchHeader
from headrace.wire.records import RecordBatch

log = logging.getLogger("headrace.broker.log")

KEYS_MAX = 1_000_000
"""Keys that a round remembers, some 150 MB of them; what comes after is for the next round."""


class Plan(NamedTuple):
    """What a round works on. Nothing in it changes while it runs."""

    folder: Path
    files: FileCache
    config: LogConfig
    segments: list[Segment]  # closed ones, from the first on
    first_dirty_offset: int
    end_offset: int
    aborted: list[AbortedRow]
    last_offsets: dict[int, tuple[int, int]]  # producer → offset of its last record or -1, epoch
    now_ms: int
    truncations: int


class Copied(NamedTuple):
    """Segments, and the one that was made of them."""

    old: list[Segment]
    fresh: Segment
    aborted: list[AbortedRow]


class Result(NamedTuple):
    """What a round made."""

    copies: list[Copied]
    end_offset: int


# --- which logs ---


def by_need(logs: list[Log], now_ms: int) -> list[Log]:
    """Logs that are worth compacting now, the dirtiest first."""
    # What is damaged is left as it is: a copy of it would look whole.
    needs = [(dirty_ratio(each, now_ms), each) for each in logs if each.config.compact and not each.damaged]
    worth = [(ratio, each) for ratio, each in needs if ratio > 0 and _is_worth(each, ratio, now_ms)]
    return [each for _, each in sorted(worth, key=lambda pair: -pair[0])]


def _is_worth(of: Log, ratio: float, now_ms: int) -> bool:
    if ratio >= of.config.min_cleanable_dirty_ratio:
        return True
    first = next((s for s in _cleanable(of, now_ms) if _end(of, s) > of.first_dirty_offset), None)
    return first is not None and now_ms - first.first_timestamp > of.config.max_compaction_lag_ms


def dirty_ratio(of: Log, now_ms: int) -> float:
    """How much of what can be compacted has not been, by bytes."""
    cleanable = _cleanable(of, now_ms)
    dirty = sum(segment.size_bytes for segment in cleanable if _end(of, segment) > of.first_dirty_offset)
    return dirty / (sum(segment.size_bytes for segment in cleanable) or 1)


def _cleanable(of: Log, now_ms: int) -> list[Segment]:
    """Closed segments whose transactions are decided and whose records are old enough."""
    lag_ms = of.config.min_compaction_lag_ms
    found = []
    for segment in of.segments[:-1]:
        if _end(of, segment) > of.last_stable_offset:
            break
        if lag_ms and segment.max_timestamp > now_ms - lag_ms:
            break
        found.append(segment)
    return found


def _end(of: Log, segment: Segment) -> int:
    """The offset that the segment after it begins with."""
    return of.segments[of.segments.index(segment) + 1].base_offset


def plan(of: Log, now_ms: int) -> Plan | None:
    """A round for one log; None if there is nothing to do."""
    segments = _cleanable(of, now_ms)
    if not segments:
        return None
    end_offset = _end(of, segments[-1])
    return Plan(
        of.directory,
        of.host.files,
        of.config,
        segments,
        of.first_dirty_offset,
        end_offset,
        of.aborted.rows(segments[0].base_offset, end_offset),
        {pid: (entry.last_data_offset, entry.epoch) for pid, entry in of.producers.entries.items()},
        now_ms,
        of.truncations,
    )


# --- in a thread ---


def run(work: Plan) -> Result:
    """Copy the segments without what is outdated. What is there is not touched."""
    last_offsets, end_offset = _map_keys(work)
    seen = TransactionsSeen(work.aborted)
    copies = []
    for group in _groups(work, end_offset):
        copies.append(_copy(work, group, last_offsets, end_offset, seen))
    return Result(copies, end_offset)


def _map_keys(work: Plan) -> tuple[dict[bytes, int], int]:
    """The last offset of each key that is new, and the offset up to which that is so."""
    last_offsets: dict[bytes, int] = {}
    seen = TransactionsSeen(work.aborted)
    for batch in _batches(work.segments, work.first_dirty_offset):
        header = batch.header
        if seen.is_discarded(batch) or header.attributes & CONTROL:
            continue
        keys = kernel.scan_records(batch.payload(), header.record_count)
        if len(last_offsets) + len(keys) > KEYS_MAX and last_offsets:
            return last_offsets, header.base_offset
        for _, _, offset_delta, _, key, _ in keys:
            if key is not None:
                last_offsets[key] = header.base_offset + offset_delta
        release(keys)
    return last_offsets, work.end_offset


def _batches(segments: list[Segment], first_offset: int) -> Iterator[RecordBatch]:
    for place, segment in enumerate(segments):
        if place + 1 < len(segments) and segments[place + 1].base_offset <= first_offset:
            continue
        for batch in read_segment(segment):
            if batch.header.last_offset >= first_offset:
                yield batch


def _groups(work: Plan, end_offset: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment."""
    group: list[Segment] = []
    size = 0
    ends = [segment.base_offset for segment in work.segments[1:]] + [work.end_offset]
    for segment, end in zip(work.segments, ends, strict=True):
        if segment.base_offset >= end_offset:
            break
        size += segment.size_bytes
        if group and (size > work.config.segment_bytes or end - group[0].base_offset > OFFSETS_MAX):
            yield group
            group, size = [], segment.size_bytes
        group.append(segment)
    if group:
        yield group


def _copy(
    work: Plan, group: list[Segment], last_offsets: dict[bytes, int], end_offset: int, seen: TransactionsSeen
) -> Copied:
    base_offset = group[0].base_offset
    fresh = Segment(work.folder, base_offset, work.files, created_ms=group[-1].created_ms)
    path = work.folder / f"{offset_name(base_offset, LOG)}{CLEANED}"
    seen.kept_aborted = []
    headers: list[BatchHeader] = []  # of the first batch and the last one
    with open(path, "wb") as out:
        for segment in group:
            for batch in read_segment(segment):
                kept = _filter(work, batch, last_offsets, end_offset, seen)
                if kept is not None:
                    out.write(kept.data)
                    fresh.note(fresh.size_bytes, kept.header, kept.header.base_offset, work.config.index_interval_bytes)
                    fresh.size_bytes += kept.header.size
                    headers = [*headers[:1], kept.header]
        out.flush()
        os.fsync(out.fileno())
    os.utime(path, (fresh.created_ms / 1000, fresh.created_ms / 1000))
    _write_beside(work.folder, fresh, seen.kept_aborted, headers)
    return Copied(group, fresh, seen.kept_aborted)


def _write_beside(folder: Path, fresh: Segment, aborted: list[AbortedRow], headers: list[BatchHeader]) -> None:
    """The indexes of a copy, and all of it to disk; `headers` are those of its first batch and its last one."""
    fresh.end_times()
    name = offset_name(fresh.base_offset, "")
    index, times = fresh.index.to_bytes(), fresh.times.to_bytes()
    replace_file(folder / f"{name}{INDEX}{CLEANED}", index, sync=False)
    replace_file(folder / f"{name}{TIME_INDEX}{CLEANED}", times, sync=False)
    aborted_crc = write_rows(folder / f"{name}{TRANSACTION_INDEX}{CLEANED}", aborted)
    fresh.row = SegmentRow(
        fresh.base_offset,
        headers[-1].last_offset + 1 if headers else fresh.base_offset,
        fresh.size_bytes,
        headers[0].crc if headers else 0,
        headers[-1].crc if headers else 0,
        kernel.crc32c(index),
        kernel.crc32c(times),
        aborted_crc,
    )
    for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX):
        if (path := folder / f"{name}{suffix}{CLEANED}").exists():
            sync_path(path)


def _filter(
    work: Plan, batch: RecordBatch, last_offsets: dict[bytes, int], end_offset: int, seen: TransactionsSeen
) -> Kept | None:
    """What is left of a batch."""
    header = batch.header
    discarded = seen.is_discarded(batch)
    if header.base_offset >= end_offset:
        return Kept(header, batch.view)
    needed = _is_last_of_producer(work, header) or header.last_offset + 1 == end_offset
    return keep_batch(batch, last_offsets, discarded=discarded, needed=needed, now_ms=work.now_ms, config=work.config)


def _is_last_of_producer(work: Plan, header: BatchHeader) -> bool:
    last = work.last_offsets.get(header.producer_id)
    if last is None:
        return False
    offset, epoch = last
    if offset >= 0:
        return header.last_offset == offset
    return bool(header.attributes & CONTROL) and header.producer_epoch == epoch


# --- on the event loop again ---


def swap_in(of: Log, work: Plan, result: Result) -> list[Path]:
    """Put the copies in place and return the files of the originals, to be removed later.

    If the log was truncated or its segments were deleted meanwhile, the round was for nothing.
    """
    current = set(of.segments)
    if of.truncations != work.truncations or not current.issuperset(work.segments):
        for path in of.directory.glob(f"*{CLEANED}"):
            path.unlink(missing_ok=True)
        return []
    before = of.size_bytes
    for segment in (segment for copied in result.copies for segment in copied.old):
        segment.row = None  # a crash from here on leaves segments that have to be read again, but none that is missed
    of.save_segment_rows()
    retired = []
    for old, fresh, aborted in result.copies:
        _rename(of.directory, fresh.base_offset, CLEANED, SWAP)
        end_offset = _end(of, old[-1])
        retired += retire(old)
        _rename(of.directory, fresh.base_offset, SWAP, "")
        of.put_in(old, fresh)
        of.aborted.replace(fresh.base_offset, end_offset, aborted)
        for gone in old[1:]:
            of.drop_snapshots(gone.base_offset, gone.base_offset + 1)
    of.save_segment_rows()
    of.first_dirty_offset = max(of.first_dirty_offset, result.end_offset)
    log.info("%s: compacted up to offset %d, %d of %d bytes left", of.name, result.end_offset, of.size_bytes, before)
    return retired


def _rename(folder: Path, base_offset: int, old_suffix: str, new_suffix: str) -> None:
    """All files of a copy, the log itself last."""
    for suffix in reversed(SEGMENT_SUFFIXES):
        name = offset_name(base_offset, suffix)
        if (path := folder / f"{name}{old_suffix}").exists():
            os.replace(path, folder / f"{name}{new_suffix}")
