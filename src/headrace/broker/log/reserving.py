"""Room on disk ahead of what is written to a segment.

The file system looks for blocks once for many megabytes, not for every page: that is a third of what a write costs. The
size of the file stays what was written, so nobody who reads it notices. What is left over when the segment is complete
is given back by the segment; after a crash, when the log is opened (recovery).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

from headrace.broker.log.segment import RESERVE_FROM_BYTES

RESERVE_BYTES_MAX = 32 * 1024 * 1024
"""At once; less as long as the segment is smaller."""
_KEEP_SIZE = 1


def reserve(fd: int, end: int) -> int:
    """Reserve room behind `end`, and say up to where there is some now: everywhere, if the system has no such thing."""
    size_bytes = min(max(end, RESERVE_FROM_BYTES), RESERVE_BYTES_MAX)
    return end + size_bytes if _fallocate()(fd, end, size_bytes) else sys.maxsize


@cache
def _fallocate() -> Callable[[int, int, int], bool]:
    """Linux's; Python's own would make the file longer."""
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return lambda fd, offset, size_bytes: False
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return lambda fd, offset, size_bytes: call(fd, _KEEP_SIZE, offset, size_bytes) == 0
