"""Taking back the end of a log, or all of it: what a follower does when its leader's log went on differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.log.files import SEGMENT_SUFFIXES, offset_name
from headrace.broker.log.replaying import replay_producers
from headrace.broker.log.segment import Segment
from headrace.broker.log.snapshots import load_newest

if TYPE_CHECKING:
    from headrace.broker.log.log import Log


def truncate(of: Log, offset: int) -> None:
    """Cut the log so that it ends at `offset`, or before it where that is in the middle of a batch."""
    if offset >= of.end_offset:
        # Who led and wrote nothing has an epoch that nobody else knows: it would be found to diverge for ever.
        of.epochs.truncate_end(of.end_offset)
        return
    if offset <= of.segments[0].base_offset:
        truncate_fully(of, offset)
        return
    of.truncations += 1
    of.unclean = of.names_changed = True
    place = of.segment_of(offset)
    gone = of.segments[place + 1 :]
    of.set_segments(of.segments[: place + 1])
    last = of.segments[-1]
    last.row = None
    _forget_rows(of, offset)
    _remove(of, gone)
    end_offset = offset
    for position, header in last.headers(last.position_of(offset)):
        if header.last_offset >= offset:
            end_offset = min(offset, header.base_offset)
            last.truncate(position, end_offset)
            break
    of.end_offset = end_offset
    of.start_offset = min(of.start_offset, end_offset)
    of.high_watermark = min(of.high_watermark, end_offset)
    of.recovery_point = min(of.recovery_point, end_offset)
    of.first_dirty_offset = min(of.first_dirty_offset, end_offset)
    of.epochs.truncate_end(end_offset)
    of.aborted.truncate_end(end_offset)
    of.drop_snapshots(end_offset + 1, 2**63)
    _reload_producers(of)
    of.host.truncated(of)


def truncate_fully(of: Log, offset: int) -> None:
    """Delete everything; the log begins and ends at `offset`."""
    of.truncations += 1
    of.unclean = of.names_changed = True
    for segment in of.segments:
        segment.row = None
    _forget_rows(of, 0)
    _remove(of, of.segments)
    of.drop_snapshots(0, 2**63)
    of.segments = []
    of.begin_segment(offset)
    of.start_offset = of.end_offset = of.high_watermark = of.recovery_point = of.first_dirty_offset = offset
    of.epochs.clear()
    of.aborted.truncate_end(0)
    of.producers.restore((), {})
    of.host.truncated(of)


def _forget_rows(of: Log, end_offset: int) -> None:
    """Before files go: a segment that is noted and not there counts as lost."""
    of.lost = [row for row in of.lost if row.base_offset < end_offset]
    of.damaged = [damage for damage in of.damaged if damage.first_offset < end_offset]
    of.save_segment_rows()


def _remove(of: Log, segments: list[Segment]) -> None:
    for segment in segments:
        segment.close()
        for suffix in SEGMENT_SUFFIXES:
            (of.directory / offset_name(segment.base_offset, suffix)).unlink(missing_ok=True)


def _reload_producers(of: Log) -> None:
    """Producers as they were at the new end: from the newest snapshot before it, and the batches since."""
    offset = of.start_offset
    of.producers.restore((), {})
    found = load_newest(of.directory, of.end_offset)
    if found is not None:
        offset, entries, unreplicated = found
        of.producers.restore(entries, unreplicated)
    segments, now_ms = of.segments[of.segment_of(offset) :], of.host.clock.time_ms()
    replay_producers(segments, of.producers, offset, of.end_offset, now_ms, of.damaged)
    of.producers.high_watermark_moved(of.high_watermark)
