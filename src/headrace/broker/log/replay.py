"""Replay: rebuild the state of producers and the aborted transactions from the batches of a log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.broker.log.index import AbortedEntry
from headrace.broker.log.producer_snapshots import open_transactions_after, restore_newest
from headrace.broker.log.producer_state import ProducerStateManager
from headrace.broker.log.segment import Segment, with_ends
from headrace.broker.log.verification import Damage
from headrace.wire.layout import CONTROL, NO_PRODUCER_ID, BatchHeader
from headrace.wire.records import Marker, RecordBatch, decode_marker


def marker_of(batch: RecordBatch) -> Marker | None:
    """Return the marker of a control batch; None for other batches, and if compaction has removed the marker."""
    if not batch.header.attributes & CONTROL or not batch.header.record_count:
        return None
    return decode_marker(batch.records()[0])


def replay_batch(
    producers: ProducerStateManager, segment: Segment, position: int, header: BatchHeader, now_ms: int
) -> AbortedEntry | None:
    """Add a batch of a segment to the state of its producer. Return the transaction that it aborted, if any."""
    if header.producer_id == NO_PRODUCER_ID:
        return None
    marker = None
    if header.attributes & CONTROL:
        marker = marker_of(RecordBatch(header, memoryview(segment.batch_bytes(position, header))))
    return producers.add(header, header.base_offset, marker, now_ms)


def replay_producers(
    segments: Sequence[Segment],
    producers: ProducerStateManager,
    first_offset: int,
    end_offset: int,
    *,
    now_ms: int,
    damaged: Iterable[Damage] = (),
) -> None:
    """Add the batches from `first_offset` up to `end_offset`, except those in a damaged range.

    A transaction does not continue behind a damaged range unless a snapshot there has it open: it may have been
    committed in the range, and the next marker of its producer may belong to another transaction.
    """
    ahead = deque(each for each in damaged if each.first_offset < end_offset and each.end_offset > first_offset)
    for segment, segment_end in with_ends(segments, end_offset):
        if segment.base_offset >= end_offset or not segment.size_bytes:
            continue
        for batches, _ in segment.scan(verify=False, position=segment.position_of(first_offset)):
            for position, header in batches:
                if not first_offset <= header.base_offset < min(end_offset, segment_end):
                    continue
                while ahead and ahead[0].end_offset <= header.base_offset:
                    producers.drop_undecided(open_transactions_after(segment.folder, ahead.popleft().end_offset))
                if not ahead or header.base_offset < ahead[0].first_offset:
                    replay_batch(producers, segment, position, header, now_ms)
    for damage in ahead:
        producers.drop_undecided(open_transactions_after(segments[0].folder, damage.end_offset))


def find_undecided(segments: Sequence[Segment], damaged: Iterable[Damage], name: str, now_ms: int) -> list[Damage]:
    """Return the damaged ranges of a log, sorted, each with the first transaction whose marker may have been in it."""
    folder = segments[0].folder
    complete: list[Damage] = []
    for damage in sorted(damaged):
        producers = ProducerStateManager(name)
        offset = restore_newest(producers, folder, damage.first_offset) or 0
        replay_producers(segments, producers, offset, damage.first_offset, now_ms=now_ms, damaged=complete)
        undecided_offset = producers.drop_undecided(open_transactions_after(folder, damage.end_offset))
        complete.append(damage._replace(undecided_offset=undecided_offset))
    return complete


def replay_aborted(
    folder: Path, segments: Iterable[Segment], first_offset: int, name: str, now_ms: int
) -> list[AbortedEntry]:
    """Return the aborted transactions whose markers are at `first_offset` or after it."""
    producers = ProducerStateManager(name)
    offset = restore_newest(producers, folder, first_offset) or 0
    entries = []
    for segment in segments:
        for batches, _ in segment.scan(verify=False):
            for position, header in batches:
                if header.base_offset >= offset:
                    entry = replay_batch(producers, segment, position, header, now_ms)
                    if entry is not None and entry.marker_offset >= first_offset:
                        entries.append(entry)
    return entries
