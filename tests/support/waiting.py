"""Waiting for what another process does in its own time: bounded, and over as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS_MAX = 30
_POLL_SECONDS = 0.02

T = TypeVar("T")


def eventually(what: str, ask: Callable[[], T | None], seconds_max: float = SECONDS_MAX) -> T:
    """Ask until the answer is true, and return it; `what` is told when it never is."""
    deadline = time.monotonic() + seconds_max
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {seconds_max} s; the last answer was {answer!r}")
        time.sleep(_POLL_SECONDS)
    return answer
