"""A clock with timers, passed in so that tests can control time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.config.clock import Clock, SystemClock


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None: ...


class TimerClock(Clock, Protocol):
    """A clock and its timers."""

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> Timer:
        """Call a function once on the event loop."""
        ...


class LoopClock(SystemClock):
    """The system's clock and the timers of the running event loop."""

    def call_later(self, delay_ms: float, callback: Callable[..., object], *arguments: object) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000.0, callback, *arguments)
