"""Batches of the log, entered into what is known of producers: as they are appended, and as they are read again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.broker.log.aborted import AbortedIndex
from headrace.broker.log.producer_state import SEQUENCE_MAX, ProducerState, WrittenBatch
from headrace.broker.log.segment import Segment
from headrace.broker.log.snapshots import load_newest
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
    segments: Iterable[Segment], producers: ProducerState, first_offset: int, end_offset: int, now_ms: int
) -> None:
    """Enter the batches of these offsets. The segments are whole, and aborted transactions known already."""
    ignored = AbortedIndex()
    for segment in segments:
        if segment.base_offset >= end_offset or not segment.size_bytes:
            continue
        for placed, _ in segment.scan(verify=False, position=segment.position_of(first_offset)):
            for position, header in placed:
                if first_offset <= header.base_offset < end_offset:
                    replay_batch(segment, position, header, producers, ignored, now_ms)


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
