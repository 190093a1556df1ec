"""The sparse indexes of a segment: offset → position and timestamp → offset.

An entry is made for the first batch that ends more than index.interval.bytes after the last entry. In memory both are
arrays, searched by bisection; on disk they are Kafka's: big-endian, offsets counted from the segment's base. They are
written when the segment is closed. After a crash they are made anew, from the records.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

_offset_entry = struct.Struct(">ii")
_time_entry = struct.Struct(">qi")
OFFSET_ENTRY_BYTES = _offset_entry.size
TIME_ENTRY_BYTES = _time_entry.size


class OffsetIndex:
    """For some batches: their last offset and where they begin in the file."""

    __slots__ = ("base_offset", "lasts", "positions")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.lasts = array("I")  # last offsets, counted from the base
        self.positions = array("I")

    def __len__(self) -> int:
        return len(self.lasts)

    def append(self, last_offset: int, position: int) -> None:
        self.lasts.append(last_offset - self.base_offset)
        self.positions.append(position)

    def around(self, offset: int) -> tuple[int, int]:
        """A position that is not after the batch with this offset, and one that may be where it begins (or -1)."""
        place = bisect_left(self.lasts, offset - self.base_offset)
        return (
            self.positions[place - 1] if place else 0,
            self.positions[place] if place < len(self.positions) else -1,
        )

    def truncate(self, position: int) -> None:
        """Forget batches that begin at `position` or after it."""
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
        """From its file; None if that cannot be the index of a segment of so many bytes."""
        data = _read_file(path, OFFSET_ENTRY_BYTES)
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
    """The highest timestamp so far, and the last offset of the batch that has it, at some points of the segment."""

    __slots__ = ("base_offset", "offsets", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.offsets = array("I")  # counted from the base

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry, unless the time has not gone on since the last one."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(offset - self.base_offset)

    def floor(self, timestamp: int) -> int:
        """An offset before which no record has a timestamp of `timestamp` or more."""
        place = bisect_left(self.timestamps, timestamp)
        return self.base_offset + (self.offsets[place - 1] if place else 0)

    def truncate(self, end_offset: int) -> None:
        """Forget what is said of offsets from `end_offset` on."""
        keep = bisect_left(self.offsets, max(0, end_offset - self.base_offset))
        del self.timestamps[keep:], self.offsets[keep:]

    def to_bytes(self) -> bytes:
        rows = zip(self.timestamps, self.offsets, strict=True)
        return b"".join(_time_entry.pack(timestamp, offset) for timestamp, offset in rows)

    @classmethod
    def read(cls, path: Path, base_offset: int) -> TimeIndex | None:
        """From its file; None if it is missing or damaged."""
        data = _read_file(path, TIME_ENTRY_BYTES)
        if data is None:
            return None
        index = cls(base_offset)
        for timestamp, offset in _time_entry.iter_unpack(data):
            if offset < 0 or (index.timestamps and timestamp <= index.timestamps[-1]):
                return None
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        return index


def _read_file(path: Path, entry_bytes: int) -> bytes | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return None if len(data) % entry_bytes else data
