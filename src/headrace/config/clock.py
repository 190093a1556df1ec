"""Clocks. A clock is passed to everything that waits, so that tests can control time. Used by clients and broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """A source of time in milliseconds."""

    def monotonic_ms(self) -> float:
        """Return the monotonic time, for waiting and measuring."""
        ...

    def time_ms(self) -> int:
        """Return the time since 1970, for timestamps."""
        ...


class SystemClock:
    """The system's clock."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()


@contextmanager
def timed(record: Callable[[float], None]) -> Iterator[None]:
    """Pass the nanoseconds that a block takes to `record`."""
    started = time.perf_counter_ns()
    try:
        yield
    finally:
        record(time.perf_counter_ns() - started)
