"""Leader epochs and their first offsets, which show followers and clients where two logs diverge (KIP-101, KIP-320)."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from headrace.broker.log.checkpoints import read_rows, write_rows

logger = logging.getLogger("headrace.broker.log")

UNKNOWN = (-1, -1)


class EpochCache:
    """Leader epochs and their first offsets, both ascending.

    The file is written before the first record of a new epoch, and forced to disk along with the records (`Log.flush`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = read_rows(path, "leader epochs are read again from the log", _parse)
        if any(epoch >= later or start >= after for (epoch, start), (later, after) in pairwise(rows)):
            logger.warning("%s is damaged and not used: epochs or offsets go back; they are read from the log", path)
            rows = []
        self._epochs = [epoch for epoch, _ in rows]
        self._starts = [start for _, start in rows]

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else -1

    @property
    def rows(self) -> list[tuple[int, int]]:
        """All epochs with their first offsets."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, offset: int) -> None:
        """Start an epoch at an offset, and write the file."""
        before = self._epochs[:], self._starts[:]
        if epoch >= 0 and epoch != self.latest and self._insert(epoch, offset):
            try:
                self.save()
            except OSError:  # the next record of the epoch tries again
                self._epochs, self._starts = before
                raise

    def replay(self, epoch: int, offset: int) -> None:
        """Start an epoch at an offset while a log is being loaded; `save` follows."""
        if epoch >= 0 and epoch != self.latest:
            self._insert(epoch, offset)

    def _insert(self, epoch: int, offset: int) -> bool:
        if self._epochs and epoch < self._epochs[-1] and offset < self._starts[-1]:
            return False  # these records are covered already
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= offset):
            if (self._epochs[-1], self._starts[-1]) == (epoch, offset):
                return False
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(offset)
        return True

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` that has records, and the offset where the next one begins.

        `end_offset` is that of the log. Return UNKNOWN if there is no such epoch.
        """
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN
        if epoch == self.latest:
            return epoch, end_offset
        above = bisect_right(self._epochs, epoch)
        # Below all known epochs: its records are deleted, and the log begins where the first known epoch does.
        return self._epochs[above - 1] if above else epoch, self._starts[above]

    def of(self, offset: int) -> int:
        """Return the epoch of an offset; -1 if it is not known."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else -1

    def truncate_end(self, end_offset: int) -> None:
        """Remove the epochs that begin at `end_offset` or after it."""
        keep = len(self._starts)
        while keep and self._starts[keep - 1] >= end_offset:
            keep -= 1
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self.save()

    def truncate_start(self, start_offset: int) -> None:
        """Remove the epochs that end before `start_offset`; the epoch of that offset begins there now."""
        removed = bisect_right(self._starts, start_offset) - 1
        if removed > 0 or (removed == 0 and self._starts[0] < start_offset):
            del self._epochs[:removed], self._starts[:removed]
            self._starts[0] = start_offset
            self.save()

    def clear(self) -> None:
        if self._epochs:
            self._epochs, self._starts = [], []
            self.save()

    def save(self) -> None:
        """Write the file. `Log.flush` forces it to disk."""
        write_rows(self._path, (f"{epoch} {start}" for epoch, start in self.rows), sync=False)


def _parse(words: Sequence[str]) -> tuple[int, int]:
    epoch, start = (int(word) for word in words)
    if epoch < 0 or start < 0:
        raise ValueError(f"epoch {epoch} from offset {start}, expected 0 or more")
    return epoch, start
