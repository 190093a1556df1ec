"""Time and timers, passed in: tests turn them by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is due."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Milliseconds."""

    def monotonic_ms(self) -> float:
        """For waiting and measuring: never goes back."""
        ...

    def time_ms(self) -> int:
        """For timestamps: since 1970."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> Timer:
        """Call back on the event loop, once."""
        ...


class LoopClock:
    """The machine's clock, and the timers of the running event loop."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000.0, callback, *arguments)
