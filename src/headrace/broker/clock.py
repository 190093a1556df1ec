"""Clocks and timers, passed in so that tests can control time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A clock in milliseconds, and its timers."""

    def monotonic_ms(self) -> float:
        """Return the monotonic time, for waiting and measuring."""
        ...

    def time_ms(self) -> int:
        """Return the time since 1970, for timestamps."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> Timer:
        """Call a function once on the event loop."""
        ...


class LoopClock:
    """The system clock and the timers of the running event loop."""

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000.0, callback, *arguments)
