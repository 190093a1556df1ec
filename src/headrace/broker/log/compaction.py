"""Compaction: keep the last record of each key.

    plan     event loop: segments, offsets, active producers                           (nothing is changed)
    run      a thread: map the new keys to their last offsets, then copy segments without the outdated records
    swap_in  event loop: replace the originals by the copies

Further rules, all of them Kafka's:

- A record without a value (a tombstone) stays for delete.retention.ms after it was first compacted: the batch has the
  time from which it may be removed, its delete horizon, instead of the base timestamp.
- Records of aborted transactions are removed. The marker stays until they are gone, and then as long as a tombstone.
- The last batch of a producer stays, without records if necessary: its epoch and sequence identify retries.
- The last batch of a round stays too, so that the log does not seem to end earlier.

`finish_interrupted` completes or reverts, at the next start, what a crash has interrupted.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.broker.disk import numbered, unused
from headrace.broker.log.compaction_filter import CleanedTransactions, RetainedBatch, filter_batch, read_segment
from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import release
from headrace.broker.log.files import (
    CLEANED,
    DAMAGED,
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    UNFINISHED,
    FileCache,
    offset_name,
    replace_file,
    sync_if_exists,
)
from headrace.broker.log.index import AbortedEntry, write_aborted
from headrace.broker.log.log import Log
from headrace.broker.log.producer_snapshots import delete_snapshots
from headrace.broker.log.segment import OFFSET_MAX, OFFSETS_MAX, SCAN_BATCHES_MAX, Segment, with_ends
from headrace.wire.kernel import kernel
from headrace.wire.layout import CONTROL, BatchHeader
from headrace.wire.records import RecordBatch

logger = logging.getLogger("headrace.broker.log")

KEYS_MAX = 1_000_000
"""Keys of a round, some 150 MB. Further records are left to the next round."""


class Plan(NamedTuple):
    """The input of a round. Nothing in it changes during the round."""

    folder: Path
    files: FileCache
    config: LogConfig
    segments: list[Segment]  # closed, from the first on
    first_dirty_offset: int
    end_offset: int
    aborted: list[AbortedEntry]
    last_offsets: dict[int, tuple[int, int]]  # producer id → offset of its last record or -1, epoch
    now_ms: int
    truncations: int


class CompactedSegment(NamedTuple):
    """A segment, and those it replaces."""

    originals: list[Segment]
    segment: Segment
    aborted: list[AbortedEntry]


class Result(NamedTuple):
    """The output of a round."""

    compacted: list[CompactedSegment]
    end_offset: int


# --- selection, on the event loop ---


def by_need(logs: list[Log], now_ms: int) -> list[Log]:
    """Return the logs to compact now, the dirtiest first."""
    # Damaged logs are left as they are: a copy of a damaged segment would look intact.
    ratios = [(dirty_ratio(each, now_ms), each) for each in logs if each.config.compact and not each.damaged]
    due = [(ratio, each) for ratio, each in ratios if ratio > 0 and _is_due(each, ratio, now_ms)]
    return [each for _, each in sorted(due, key=lambda pair: -pair[0])]


def _is_due(log: Log, ratio: float, now_ms: int) -> bool:
    if ratio >= log.config.min_cleanable_dirty_ratio:
        return True
    first = next((each for each in _cleanable(log, now_ms) if log.segments.end_of(each) > log.first_dirty_offset), None)
    return first is not None and now_ms - first.first_timestamp > log.config.max_compaction_lag_ms


def dirty_ratio(log: Log, now_ms: int) -> float:
    """Return the part of the cleanable bytes that has not been compacted."""
    cleanable = _cleanable(log, now_ms)
    dirty = sum(each.size_bytes for each in cleanable if log.segments.end_of(each) > log.first_dirty_offset)
    return dirty / (sum(segment.size_bytes for segment in cleanable) or 1)


def _cleanable(log: Log, now_ms: int) -> list[Segment]:
    """Return the closed segments whose transactions have ended and whose records are old enough."""
    lag_ms = log.config.min_compaction_lag_ms
    cleanable = []
    for segment in log.segments[:-1]:
        if log.segments.end_of(segment) > log.last_stable_offset:
            break
        if lag_ms and segment.max_timestamp > now_ms - lag_ms:
            break
        cleanable.append(segment)
    return cleanable


def plan(log: Log, now_ms: int) -> Plan | None:
    """Plan a round for a log; return None if there is nothing to do."""
    segments = _cleanable(log, now_ms)
    if not segments:
        return None
    end_offset = log.segments.end_of(segments[-1])
    return Plan(
        log.directory,
        log.env.files,
        log.config,
        segments,
        log.first_dirty_offset,
        end_offset,
        log.aborted.entries(segments[0].base_offset, end_offset),
        {pid: (entry.last_data_offset, entry.epoch) for pid, entry in log.producers.entries.items()},
        now_ms,
        log.truncations,
    )


# --- copying, on a thread ---


def run(work: Plan) -> Result:
    """Copy the segments without outdated records. The originals are not changed."""
    return _Round(work).run()


class _Round:
    """Copies the segments of a plan."""

    def __init__(self, work: Plan) -> None:
        self._plan = work
        self._last_offsets: dict[bytes, int] = {}  # of each new key
        self._end_offset = self._map_keys()
        self._transactions = CleanedTransactions(work.aborted)

    def run(self) -> Result:
        return Result([self._copy(group) for group in self._groups()], self._end_offset)

    def _map_keys(self) -> int:
        """Find the last offset of each new key. Return the offset up to which all keys are mapped."""
        transactions = CleanedTransactions(self._plan.aborted)
        last_offsets = self._last_offsets
        for batch in self._dirty_batches():
            header = batch.header
            if transactions.is_discarded(batch) or header.attributes & CONTROL:
                continue
            rows = kernel.scan_records(batch.payload(), header.record_count)
            if len(last_offsets) + len(rows) > KEYS_MAX and last_offsets:
                return header.base_offset
            for _, _, offset_delta, _, key, _ in rows:
                if key is not None:
                    last_offsets[key] = header.base_offset + offset_delta
            release(rows)
        return self._plan.end_offset

    def _dirty_batches(self) -> Iterator[RecordBatch]:
        first_offset = self._plan.first_dirty_offset
        for segment, end_offset in with_ends(self._plan.segments, OFFSET_MAX):
            if end_offset > first_offset:
                yield from (batch for batch in read_segment(segment) if batch.header.last_offset >= first_offset)

    def _groups(self) -> Iterator[list[Segment]]:
        """Yield neighbouring segments that fit into one."""
        group: list[Segment] = []
        size = 0
        for segment, end in with_ends(self._plan.segments, self._plan.end_offset):
            if segment.base_offset >= self._end_offset:
                break
            size += segment.size_bytes
            if group and (size > self._plan.config.segment_bytes or end - group[0].base_offset > OFFSETS_MAX):
                yield group
                group, size = [], segment.size_bytes
            group.append(segment)
        if group:
            yield group

    def _copy(self, group: list[Segment]) -> CompactedSegment:
        interval_bytes = self._plan.config.index_interval_bytes
        copy = Segment(self._plan.folder, group[0].base_offset, self._plan.files, created_ms=group[-1].created_ms)
        path = copy.path(f"{LOG}{CLEANED}")
        self._transactions.retained = []
        records_end = copy.base_offset
        with open(path, "wb") as out:
            for batch in (batch for segment in group for batch in read_segment(segment)):
                retained = self._filter(batch)
                if retained is not None:
                    out.write(retained.data)
                    header = retained.header
                    copy.add_to_index(copy.size_bytes, header, header.base_offset, interval_bytes)
                    copy.size_bytes += header.size
                    records_end = header.last_offset + 1
            out.flush()
            os.fsync(out.fileno())
        os.utime(path, (copy.created_ms / 1000, copy.created_ms / 1000))
        aborted = self._transactions.retained
        _write_indexes(copy, aborted, records_end)
        return CompactedSegment(group, copy, aborted)

    def _filter(self, batch: RecordBatch) -> RetainedBatch | None:
        """Return what is left of a batch."""
        header = batch.header
        discarded = self._transactions.is_discarded(batch)
        if header.base_offset >= self._end_offset:
            return RetainedBatch(header, batch.view)
        needed = self._is_last_of_producer(header) or header.last_offset + 1 == self._end_offset
        now_ms, config = self._plan.now_ms, self._plan.config
        return filter_batch(batch, self._last_offsets, discarded=discarded, needed=needed, now_ms=now_ms, config=config)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._plan.last_offsets.get(header.producer_id)
        if last is None:
            return False
        offset, epoch = last
        if offset >= 0:
            return header.last_offset == offset
        return bool(header.attributes & CONTROL) and header.producer_epoch == epoch


def _write_indexes(copy: Segment, aborted: list[AbortedEntry], records_end: int) -> None:
    """Write the indexes of a copy, force them to disk and set its checkpoint."""
    copy.complete_time_index()
    index, times = copy.index.to_bytes(), copy.times.to_bytes()
    index_path, times_path, aborted_path = (copy.path(f"{suffix}{CLEANED}") for suffix in SEGMENT_SUFFIXES[1:])
    replace_file(index_path, index, sync=False)
    replace_file(times_path, times, sync=False)
    aborted_crc = write_aborted(aborted_path, aborted)
    copy.set_checkpoint(records_end, (kernel.crc32c(index), kernel.crc32c(times), aborted_crc))
    for path in (index_path, times_path, aborted_path):
        sync_if_exists(path)


# --- replacement, on the event loop ---


def swap_in(log: Log, work: Plan, result: Result) -> list[Path]:
    """Replace the originals by their copies, and return the files of the originals, to be removed later.

    If the log was truncated or its segments were deleted during the round, the copies are discarded.
    """
    if log.truncations != work.truncations or not set(log.segments).issuperset(work.segments):
        for path in log.directory.glob(f"*{CLEANED}"):
            path.unlink(missing_ok=True)
        return []
    size_before = log.size_bytes
    for segment in (segment for compacted in result.compacted for segment in compacted.originals):
        segment.checkpoint = None  # after a crash from here on segments are read again, but none counts as lost
    log.save_segment_checkpoints()
    retired = []
    for originals, copy, aborted in result.compacted:
        _rename(log.directory, copy.base_offset, CLEANED, SWAP)
        end_offset = log.segments.end_of(originals[-1])
        for original in originals:
            retired += original.retire()
        _rename(log.directory, copy.base_offset, SWAP, "")
        log.segments.replace(originals, copy)
        log.aborted.replace(copy.base_offset, end_offset, aborted)
        for original in originals[1:]:
            delete_snapshots(log.directory, original.base_offset, original.base_offset + 1)
    log.save_segment_checkpoints()
    log.first_dirty_offset = max(log.first_dirty_offset, result.end_offset)
    logger.info(
        "%s: compacted up to offset %d, %d of %d bytes left", log.name, result.end_offset, log.size_bytes, size_before
    )
    return retired


def _rename(folder: Path, base_offset: int, old_suffix: str, new_suffix: str) -> None:
    """Rename all files of a copy, the `.log` last."""
    for suffix in reversed(SEGMENT_SUFFIXES):
        name = offset_name(base_offset, suffix)
        if (path := folder / f"{name}{old_suffix}").exists():
            os.replace(path, folder / f"{name}{new_suffix}")


# --- after a crash ---


def finish_interrupted(directory: Path) -> None:
    """Complete or revert interrupted replacements, and delete files that are no longer needed."""
    left_over = [name for name in os.listdir(directory) if name.endswith((CLEANED, SWAP, DELETED, UNFINISHED))]
    if not left_over:
        return
    for path in sorted(directory.glob(f"*{LOG}{SWAP}")):
        base_offset = int(path.name.split(".")[0])
        end_offset, problem = _end_of_file(path, verify=True)
        if (problem or not end_offset) and _restore_originals(directory, base_offset):
            kept = unused(numbered(directory / offset_name(base_offset, f"{LOG}{DAMAGED}")))
            os.replace(path, kept)
            problem = f"behind offset {end_offset - 1} {problem}" if problem else "it is empty"
            logger.warning(
                "%s is kept as %s, and the segments it was to replace are used: %s", path, kept.name, problem
            )
        else:
            logger.info("%s: finishing a compaction that was interrupted", directory)
            _finish_swap(directory, base_offset)
    for name in left_over:  # of swap files only indexes are left, whose log was not renamed yet
        (directory / name).unlink(missing_ok=True)


def _restore_originals(directory: Path, base_offset: int) -> bool:
    """Restore the segments that were compacted into the one with `base_offset`. Return whether they exist.

    They were renamed in the order of their offsets, before the copy. Overlapping ones were retired earlier.
    """
    if (directory / offset_name(base_offset, LOG)).exists():
        return True
    bases = [int(path.stem) for path in directory.glob(f"*{LOG}") if path.stem.isdecimal()]
    following = min((base for base in bases if base > base_offset), default=OFFSET_MAX)
    retired: list[Path] = []
    end_offset = base_offset
    for path in sorted(directory.glob(f"*{LOG}{DELETED}")):
        base = int(path.name.split(".")[0])
        if base == base_offset or (retired and end_offset <= base < following):
            retired.append(path)
            end_offset = max(base + 1, _end_of_file(path)[0])
    for path in reversed(retired):  # the first one last: until then this can be repeated
        original = path.with_suffix("")
        for suffix in SEGMENT_SUFFIXES:
            original.with_suffix(suffix).unlink(missing_ok=True)  # indexes of the copy
        os.replace(path, original)
    return bool(retired)


def _finish_swap(directory: Path, base_offset: int) -> None:
    """Replace the segments within the offsets of a compacted segment by that segment."""
    end_offset = max(base_offset + 1, _end_of_file(directory / f"{offset_name(base_offset, LOG)}{SWAP}")[0])
    for original in directory.glob(f"*{LOG}"):
        if original.stem.isdecimal() and base_offset <= int(original.stem) < end_offset:
            for suffix in SEGMENT_SUFFIXES:
                original.with_suffix(suffix).unlink(missing_ok=True)
    _rename(directory, base_offset, SWAP, "")  # the `.log` last: until then this can be repeated


def _end_of_file(path: Path, *, verify: bool = False) -> tuple[int, str]:
    """Return the offset after the last batch of a file, 0 if it has none, and the problem behind it, if any."""
    size = path.stat().st_size
    if not size:
        return 0, ""
    position = end_offset = 0
    problem = ""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        while position < size and not problem:
            headers, position, problem = kernel.scan_batches(view, position, end_offset, SCAN_BATCHES_MAX, verify)
            end_offset = headers[-1].last_offset + 1 if headers else end_offset
    return end_offset, problem
