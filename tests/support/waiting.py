"""Bounded waiting for a condition that another process or thread fulfils."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS_MAX = 30
_POLL_SECONDS = 0.02

T = TypeVar("T")


def eventually(what: str, poll: Callable[[], T | None], seconds_max: float = SECONDS_MAX) -> T:
    """Call `poll` until its result is true, and return it; raise TimeoutError with `what` if it never is."""
    deadline = time.monotonic() + seconds_max
    while not (result := poll()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {seconds_max} s waiting for: {what}; the last result was {result!r}")
        time.sleep(_POLL_SECONDS)
    return result
