"""Aborted transactions of a partition: what a reader of committed records must leave out.

An entry says: producer, first offset, offset of the marker, and the last stable offset when the marker was written.
No transaction whose marker comes later can have begun before that last stable offset, so a search may end there.
On disk each segment has the entries whose markers it holds, in Kafka's `.txnindex`. That has no checksum: it is in
`segment-checkpoint`, and an index that differs from it, or is lost, is made anew from the log (recovery.py).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.files import TRANSACTION_INDEX, offset_name, replace_file
from headrace.broker.log.segment_checkpoint import crc_of_data

_VERSION = 0
_entry = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """A transaction that a reader of committed records leaves out, from its first offset on to the marker."""

    producer_id: int
    first_offset: int


class AbortedIndex:
    """All aborted transactions of a log, in the order of their markers."""

    def __init__(self) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._markers = array("q")
        self._stable = array("q")

    def __len__(self) -> int:
        return len(self._markers)

    def append(self, producer_id: int, first_offset: int, marker_offset: int, last_stable_offset: int) -> None:
        self._producers.append(producer_id)
        self._firsts.append(first_offset)
        self._markers.append(marker_offset)
        self._stable.append(last_stable_offset)

    def rows(self, first_offset: int, end_offset: int) -> list[tuple[int, int, int, int]]:
        """Producer, first offset, marker and last stable offset of all that touch the offsets up to `end_offset`."""
        found = []
        for place in range(bisect_left(self._markers, first_offset), len(self._markers)):
            if self._firsts[place] < end_offset:
                found.append((self._producers[place], self._firsts[place], self._markers[place], self._stable[place]))
            if self._stable[place] >= end_offset:
                break
        return found

    def between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """What a reader who got the records of these offsets has to know."""
        if not self._markers or self._markers[-1] < first_offset:
            return []
        return [AbortedTransaction(producer, first) for producer, first, _, _ in self.rows(first_offset, end_offset)]

    def truncate_end(self, end_offset: int) -> None:
        """Forget markers from `end_offset` on."""
        self._keep(slice(0, bisect_left(self._markers, end_offset)))

    def truncate_start(self, start_offset: int) -> None:
        """Forget markers before `start_offset`."""
        self._keep(slice(bisect_left(self._markers, start_offset), None))

    def replace(self, first_offset: int, end_offset: int, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """Put `rows` in the place of the markers from `first_offset` up to `end_offset`: they were compacted."""
        place, after = bisect_left(self._markers, first_offset), bisect_left(self._markers, end_offset)
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        for column, fresh in zip(self._columns, columns, strict=True):
            column[place:after] = array("q", fresh)

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        return self._producers, self._firsts, self._markers, self._stable

    def _keep(self, part: slice) -> None:
        self._producers, self._firsts, self._markers, self._stable = (column[part] for column in self._columns)

    def write(self, folder: Path, base_offset: int, end_offset: int) -> int:
        """Write the file of the segment with these offsets, none if there is nothing to say; its checksum."""
        place, after = bisect_left(self._markers, base_offset), bisect_left(self._markers, end_offset)
        rows = zip(*(column[place:after] for column in self._columns), strict=True)
        return write_rows(folder / offset_name(base_offset, TRANSACTION_INDEX), rows)

    def read(self, folder: Path, base_offset: int, crc: int) -> bool:
        """Add what the file of a segment says; False if it is not the one that was written. Segments come in order."""
        path = folder / offset_name(base_offset, TRANSACTION_INDEX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        if crc_of_data(data) != crc:
            return False
        for _, *row in _entry.iter_unpack(data):
            self.append(*row)
        return True


def write_rows(path: Path, rows: Iterable[tuple[int, ...]]) -> int:
    """Write a `.txnindex`, or remove it if there are no rows; its checksum."""
    data = b"".join(_entry.pack(_VERSION, *row) for row in rows)
    if data:
        replace_file(path, data, sync=False)
    else:
        path.unlink(missing_ok=True)
    return crc_of_data(data)
