"""Time, passed in: everything that waits asks a clock it was given, so that tests can turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds."""

    def monotonic_ms(self) -> float:
        """For waiting and measuring: never goes back."""
        ...

    def time_ms(self) -> int:
        """For timestamps: since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()
