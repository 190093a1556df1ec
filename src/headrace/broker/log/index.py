"""Indexes: offset → position and timestamp → offset of a segment, and the aborted transactions of a log.

The two sparse indexes get an entry for the first batch that ends more than index.interval.bytes after the last entry.
In memory they are arrays, searched by bisection; on disk they have Kafka's format: big-endian, offsets relative to the
segment's base offset. They are written when the segment is closed, and rebuilt from the records after a crash.

The index of aborted transactions has an entry for each abort marker: producer, first offset, offset of the marker, and
the last stable offset after the marker was written. A transaction whose marker comes later cannot have begun before
that last stable offset, so a search may end there. On disk each segment has the entries of its markers, in Kafka's
`.txnindex`. The format has no checksum; `segment-checkpoint` has it, and an index that differs from it, or is lost, is
rebuilt from the log (loader.py).
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headrace.broker.log.checkpoints import data_crc
from headrace.broker.log.files import TRANSACTION_INDEX, offset_name, replace_or_remove

_offset_entry = struct.Struct(">ii")
_time_entry = struct.Struct(">qi")
_aborted_entry = struct.Struct(">hqqqq")
OFFSET_ENTRY_BYTES = _offset_entry.size
TIME_ENTRY_BYTES = _time_entry.size
_ABORTED_VERSION = 0


class OffsetIndex:
    """The last offset and the position of some batches of a segment."""

    __slots__ = ("base_offset", "lasts", "positions")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.lasts = array("I")  # last offsets, relative to the base offset
        self.positions = array("I")

    def __len__(self) -> int:
        return len(self.lasts)

    def append(self, last_offset: int, position: int) -> None:
        self.lasts.append(last_offset - self.base_offset)
        self.positions.append(position)

    def around(self, offset: int) -> tuple[int, int]:
        """Return a position not after the batch with this offset, and one where it may begin (-1 if there is none)."""
        index = bisect_left(self.lasts, offset - self.base_offset)
        low = self.positions[index - 1] if index else 0
        return low, self.positions[index] if index < len(self.positions) else -1

    def truncate(self, position: int) -> None:
        """Remove the entries of batches that begin at `position` or after it."""
        keep = bisect_left(self.positions, position)
        del self.lasts[keep:], self.positions[keep:]

    def to_bytes(self) -> bytes:
        pairs = array("i")
        pairs.extend(value for pair in zip(self.lasts, self.positions, strict=True) for value in pair)
        if sys.byteorder == "little":
            pairs.byteswap()
        return pairs.tobytes()

    @classmethod
    def read(cls, path: Path, base_offset: int, size_bytes: int) -> OffsetIndex | None:
        """Read an index; return None if it is missing or cannot belong to a segment of `size_bytes`."""
        data = _read_entries(path, OFFSET_ENTRY_BYTES)
        if data is None:
            return None
        index = cls(base_offset)
        pairs = array("i", data)
        if sys.byteorder == "little":
            pairs.byteswap()
        lasts, positions = pairs[0::2], pairs[1::2]
        if pairs and (min(pairs) < 0 or positions[-1] >= size_bytes):
            return None
        if any(a >= b for column in (lasts, positions) for a, b in pairwise(column)):
            return None
        index.lasts, index.positions = array("I", lasts), array("I", positions)
        return index


class TimeIndex:
    """The highest timestamp so far and the last offset of its batch, at some points of a segment."""

    __slots__ = ("base_offset", "offsets", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.offsets = array("I")  # relative to the base offset

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if the timestamp is higher than that of the last entry."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(offset - self.base_offset)

    def floor(self, timestamp: int) -> int:
        """Return an offset before which no record has this timestamp or a higher one."""
        index = bisect_left(self.timestamps, timestamp)
        return self.base_offset + (self.offsets[index - 1] if index else 0)

    def truncate(self, end_offset: int) -> None:
        """Remove the entries of `end_offset` and later offsets."""
        keep = bisect_left(self.offsets, max(0, end_offset - self.base_offset))
        del self.timestamps[keep:], self.offsets[keep:]

    def to_bytes(self) -> bytes:
        rows = zip(self.timestamps, self.offsets, strict=True)
        return b"".join(_time_entry.pack(timestamp, offset) for timestamp, offset in rows)

    @classmethod
    def read(cls, path: Path, base_offset: int) -> TimeIndex | None:
        """Read an index; return None if it is missing or damaged."""
        data = _read_entries(path, TIME_ENTRY_BYTES)
        if data is None:
            return None
        index = cls(base_offset)
        for timestamp, offset in _time_entry.iter_unpack(data):
            if offset < 0 or (index.timestamps and timestamp <= index.timestamps[-1]):
                return None
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        return index


def _read_entries(path: Path, entry_bytes: int) -> bytes | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return None if len(data) % entry_bytes else data


class AbortedRange(NamedTuple):
    """A transaction whose records read_committed readers skip, from its first offset to its marker."""

    producer_id: int
    first_offset: int


class AbortedEntry(NamedTuple):
    """An entry of the index of aborted transactions."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int  # after the marker


class AbortedIndex:
    """The aborted transactions of a log, in the order of their markers."""

    def __init__(self) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._markers = array("q")
        self._stable = array("q")

    def append(self, entry: AbortedEntry) -> None:
        for column, value in zip(self._columns, entry, strict=True):
            column.append(value)

    def entries(self, first_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Return the entries of transactions that overlap the offsets from `first_offset` up to `end_offset`."""
        entries = []
        producers, firsts, markers, stable = self._columns
        for index in range(bisect_left(markers, first_offset), len(markers)):
            if firsts[index] < end_offset:
                entries.append(AbortedEntry(producers[index], firsts[index], markers[index], stable[index]))
            if stable[index] >= end_offset:
                break
        return entries

    def between(self, first_offset: int, end_offset: int) -> list[AbortedRange]:
        """Return what a read_committed reader of these offsets has to skip."""
        if not self._markers or self._markers[-1] < first_offset:
            return []
        entries = self.entries(first_offset, end_offset)
        return [AbortedRange(entry.producer_id, entry.first_offset) for entry in entries]

    def truncate_end(self, end_offset: int) -> None:
        """Remove markers from `end_offset` on."""
        self._keep(slice(0, bisect_left(self._markers, end_offset)))

    def truncate_start(self, start_offset: int) -> None:
        """Remove markers before `start_offset`."""
        self._keep(slice(bisect_left(self._markers, start_offset), None))

    def replace(self, first_offset: int, end_offset: int, entries: Iterable[AbortedEntry]) -> None:
        """Replace the markers from `first_offset` up to `end_offset`, after a compaction for example."""
        start, stop = bisect_left(self._markers, first_offset), bisect_left(self._markers, end_offset)
        columns = list(zip(*entries, strict=True)) or [(), (), (), ()]
        for column, values in zip(self._columns, columns, strict=True):
            column[start:stop] = array("q", values)

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        return self._producers, self._firsts, self._markers, self._stable

    def _keep(self, part: slice) -> None:
        self._producers, self._firsts, self._markers, self._stable = (column[part] for column in self._columns)

    def write(self, folder: Path, base_offset: int, end_offset: int) -> int:
        """Write the index of the segment with these offsets, if there are entries, and return its checksum."""
        start, stop = bisect_left(self._markers, base_offset), bisect_left(self._markers, end_offset)
        entries = zip(*(column[start:stop] for column in self._columns), strict=True)
        return write_aborted(folder / offset_name(base_offset, TRANSACTION_INDEX), entries)

    def read(self, folder: Path, base_offset: int, crc: int) -> bool:
        """Add the index of a segment; return False if its checksum differs. Segments are read in order."""
        path = folder / offset_name(base_offset, TRANSACTION_INDEX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        if data_crc(data) != crc:
            return False
        for _, *row in _aborted_entry.iter_unpack(data):
            self.append(AbortedEntry(*row))
        return True


def write_aborted(path: Path, entries: Iterable[tuple[int, ...]]) -> int:
    """Write a `.txnindex`, or remove it if there are no entries, and return its checksum."""
    data = b"".join(_aborted_entry.pack(_ABORTED_VERSION, *entry) for entry in entries)
    replace_or_remove(path, data)
    return data_crc(data)
