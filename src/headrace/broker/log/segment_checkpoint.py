"""What a log's closed segments are: noted when they are closed, compared when the log is opened.

The file `segment-checkpoint` of a partition has a row for each closed segment, after a clean stop also for the last::

    base offset, end of the records, bytes; checksums of first and last batch, of .index, .timeindex and .txnindex
    ("-": there is no file)

The first row is the name of the folder, so that a file of another partition is not believed.

Kafka has no such file and ignores it. Without it a segment that is cut at the end of a batch, a lost segment and a lost
or altered transaction index could not be told from what compaction, retention and commits leave. A segment without a
row is read once, header by header, and gets one. Rows of segments that are lost stay until the log begins after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.checkpoints import read_rows, write_rows
from headrace.broker.log.files import SEGMENTS
from headrace.wire.kernel import kernel

NO_FILE = -1
_NO_FILE_WORD = "-"


class SegmentRow(NamedTuple):
    """A segment as it was when it was last written to."""

    base_offset: int
    records_end: int  # the offset after its last batch
    size_bytes: int
    first_crc: int  # of its first batch: by it and the last one it is told from a segment of another partition
    last_crc: int
    index_crc: int
    times_crc: int
    aborted_crc: int


def read_segment_rows(folder: Path) -> dict[int, SegmentRow]:
    """The rows by base offset; none if the file is missing or damaged."""

    def read(words: Sequence[str]) -> SegmentRow | None:
        if len(words) == 1:
            if words[0] != folder.name:
                raise ValueError(f"it is of {words[0]}")
            return None
        return _row(words)

    rows = read_rows(folder / SEGMENTS, "all segments of the partition are read again", read)
    return {row.base_offset: row for row in rows if row is not None}


def write_segment_rows(folder: Path, rows: Iterable[SegmentRow]) -> None:
    """Replace the rows. Log.flush forces them to disk."""
    lines = (" ".join(_NO_FILE_WORD if value == NO_FILE else str(value) for value in row) for row in rows)
    write_rows(folder / SEGMENTS, [folder.name, *lines], sync=False)


def crc_of_data(data: bytes) -> int:
    """The checksum of a file that is about to be written; without data none is."""
    return kernel.crc32c(data) if data else NO_FILE


def crc_of_file(path: Path) -> int:
    """The checksum of a file as it is now."""
    try:
        return kernel.crc32c(path.read_bytes())
    except FileNotFoundError:
        return NO_FILE


def _row(words: Sequence[str]) -> SegmentRow:
    if len(words) != len(SegmentRow._fields):
        raise ValueError(f"{len(words)} words in a row, expected {len(SegmentRow._fields)}")
    return SegmentRow._make(NO_FILE if word == _NO_FILE_WORD else int(word) for word in words)
