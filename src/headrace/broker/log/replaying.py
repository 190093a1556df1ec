"""Batches of the log, entered into what is known of producers: as they are appended, and as they are read again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.broker.log.aborted import AbortedIndex
from headrace.broker.log.producer_state import SEQUENCE_MAX, ProducerState, WrittenBatch
from headrace.broker.log.segment import Segment
from headrace.broker.log.snapshots import load_newest, open_after
from headrace.broker.log.verification import Damage
from headrace.wire.layout import CONTROL, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL, BatchHeader
from headrace.wire.records import Marker, RecordBatch, decode_marker


def last_sequence(header: BatchHeader) -> int:
    """The sequence number of the last record of a batch; they go on from 0 after the highest."""
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return header.base_sequence + header.last_offset_delta & SEQUENCE_MAX


def marker_of(batch: RecordBatch) -> Marker | None:
    """What a control batch says; None for other batches, and for one whose marker was compacted away."""
    if not batch.header.attributes & CONTROL or not batch.header.record_count:
        return None
    return decode_marker(batch.records()[0])


def note_producer(
    producers: ProducerState,
    aborted: AbortedIndex,
    header: BatchHeader,
    base_offset: int,
    now_ms: int,
    marker: Marker | None,
) -> None:
    """Enter a batch of a producer into what is known of it: as it is appended, and as it is read again."""
    if marker is not None:
        ended = producers.note_marker(
            header.producer_id, header.producer_epoch, marker, base_offset, header.max_timestamp, now_ms
        )
        if ended is not None and not ended.committed:
            aborted.append(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
    elif not header.attributes & CONTROL:
        last_offset = base_offset + header.last_offset_delta
        written = WrittenBatch(
            header.base_sequence, last_sequence(header), base_offset, last_offset, header.max_timestamp
        )
        transactional = bool(header.attributes & TRANSACTIONAL)
        producers.note_batch(header.producer_id, header.producer_epoch, written, transactional, now_ms)


def replay_batch(
    segment: Segment,
    position: int,
    header: BatchHeader,
    producers: ProducerState,
    aborted: AbortedIndex,
    now_ms: int,
) -> None:
    """Enter a batch that was found in a segment."""
    if header.producer_id == NO_PRODUCER_ID:
        return
    marker = None
    if header.attributes & CONTROL:
        marker = marker_of(RecordBatch(header, memoryview(segment.batch_bytes(position, header))))
    note_producer(producers, aborted, header, header.base_offset, now_ms, marker)


def replay_producers(
    segments: Sequence[Segment],
    producers: ProducerState,
    first_offset: int,
    end_offset: int,
    now_ms: int,
    damaged: Iterable[Damage] = (),
) -> None:
    """Enter the batches of these offsets, except those in a damaged range. Aborted transactions are known already.

    A transaction does not go on behind a damaged range unless that is known: what ended there may have been a commit,
    and the marker that is found next another transaction's.
    """
    ignored = AbortedIndex()
    ahead = deque(each for each in damaged if each.first_offset < end_offset and each.end_offset > first_offset)
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    for segment, segment_end in zip(segments, ends, strict=False):
        if segment.base_offset >= end_offset or not segment.size_bytes:
            continue
        for placed, _ in segment.scan(verify=False, position=segment.position_of(first_offset)):
            for position, header in placed:
                if not first_offset <= header.base_offset < min(end_offset, segment_end):
                    continue
                while ahead and ahead[0].end_offset <= header.base_offset:
                    producers.drop_undecided(open_after(segment.folder, ahead.popleft().end_offset))
                if not ahead or header.base_offset < ahead[0].first_offset:
                    replay_batch(segment, position, header, producers, ignored, now_ms)
    for each in ahead:
        producers.drop_undecided(open_after(segments[0].folder, each.end_offset))


def find_undecided(segments: Sequence[Segment], damaged: Sequence[Damage], name: str, now_ms: int) -> list[Damage]:
    """Return the damaged ranges of a log, sorted, each with the transactions whose markers it may have had."""
    found: list[Damage] = []
    for damage in sorted(damaged):
        producers, offset = ProducerState(name), 0
        folder = segments[0].folder
        if (snapshot := load_newest(folder, damage.first_offset)) is not None:
            offset, entries, unreplicated = snapshot
            producers.restore(entries, unreplicated)
        replay_producers(segments, producers, offset, damage.first_offset, now_ms, found)
        undecided_offset = producers.drop_undecided(open_after(folder, damage.end_offset))
        found.append(damage._replace(undecided_offset=undecided_offset))
    return found


def replay_aborted(
    folder: Path, segments: Iterable[Segment], first_offset: int, name: str, now_ms: int
) -> AbortedIndex:
    """The aborted transactions whose markers are at `first_offset` or after it, from the batches themselves."""
    producers, aborted, offset = ProducerState(name), AbortedIndex(), 0
    found = load_newest(folder, first_offset)
    if found is not None:
        offset, entries, unreplicated = found
        producers.restore(entries, unreplicated)
    for segment in segments:
        for placed, _ in segment.scan(verify=False):
            for position, header in placed:
                if header.base_offset >= offset:
                    replay_batch(segment, position, header, producers, aborted, now_ms)
    aborted.truncate_start(first_offset)
    return aborted
