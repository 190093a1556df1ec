"""Counts Python's objects while a piece of code runs."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Self

REFERENCE_KERNEL = "/wire/_reference/"


class PeakBlocks:
    """How many more memory blocks Python had at most, at any call of this thread, than at the start.

    Every Python object is at least one block; Arrow's buffers are none. Calls of the Python kernel, which works row by
    row, do not count.
    """

    count = 0

    def __enter__(self) -> Self:
        gc.collect()  # garbage of earlier tests must not be freed meanwhile
        gc.disable()
        self._start = sys.getallocatedblocks()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if REFERENCE_KERNEL not in frame.f_code.co_filename:
            self.count = max(self.count, sys.getallocatedblocks() - self._start)
