"""A number that is recorded often and asked for seldom: its rate, mean and maximum over the last while.

    record(value, now) → the newest window
    rate(now), mean(now), maximum(now) ← all windows that are not too old; total ← ever

One thread records, any thread asks: what has been recorded is never taken back, windows are replaced as a whole, and
asking changes nothing. A reader may miss the record that is being made at the moment, and no more.
"""

from __future__ import annotations

import math

NANOSECONDS = 1e9


class _Window:
    """What was recorded between two moments."""

    __slots__ = ("count", "last_ms", "maximum", "start_ms", "sum")

    def __init__(self, start_ms: float) -> None:
        self.start_ms = self.last_ms = start_ms
        self.count = 0
        self.sum = 0.0
        self.maximum = -math.inf


class Samples:
    """Kafka's sampled statistics: `windows` of `window_ms` each, and the newest one that is still filling."""

    __slots__ = ("_ends_ms", "_newest", "_window_ms", "_windows", "_windows_max", "events", "total")

    def __init__(self, windows: int = 2, window_ms: float = 30_000) -> None:
        self.total = 0.0
        self.events = 0
        self._windows_max = windows
        self._window_ms = max(window_ms, 1.0)
        self._windows: tuple[_Window, ...] = ()  # replaced, never changed
        self._newest = _Window(0.0)
        self._ends_ms = -math.inf

    def record(self, value: float, now_ms: float) -> None:
        if now_ms >= self._ends_ms:
            self._advance(now_ms)
        newest = self._newest
        newest.count += 1
        newest.sum += value
        if value > newest.maximum:
            newest.maximum = value
        newest.last_ms = now_ms
        self.total += value
        self.events += 1

    def _advance(self, now_ms: float) -> None:
        self._newest = _Window(now_ms)
        self._ends_ms = now_ms + self._window_ms
        self._windows = (*self._windows[-self._windows_max :], self._newest)

    def _live(self, now_ms: float) -> list[_Window]:
        age_max_ms = self._windows_max * self._window_ms
        return [window for window in self._windows if window.count and now_ms - window.last_ms < age_max_ms]

    def rate(self, now_ms: float) -> float:
        """How much a second."""
        live = self._live(now_ms)
        return sum(window.sum for window in live) / self._elapsed_seconds(live, now_ms)

    def event_rate(self, now_ms: float) -> float:
        """How often a second, whatever was recorded."""
        live = self._live(now_ms)
        return sum(window.count for window in live) / self._elapsed_seconds(live, now_ms)

    def _elapsed_seconds(self, live: list[_Window], now_ms: float) -> float:
        """The time that `live` covers; all but one window at least, lest a start look like a storm."""
        elapsed_ms = now_ms - live[0].start_ms if live else 0.0
        missing = self._windows_max - 1 - int(elapsed_ms / self._window_ms)
        return (elapsed_ms + max(missing, 0) * self._window_ms or self._window_ms) / 1000

    def time_share(self, now_ms: float) -> float:
        """Of nanoseconds recorded: the part of all time they make up."""
        return self.rate(now_ms) / NANOSECONDS

    def mean(self, now_ms: float) -> float:
        live = self._live(now_ms)
        return sum(window.sum for window in live) / sum(window.count for window in live) if live else math.nan

    def maximum(self, now_ms: float) -> float:
        return max((window.maximum for window in self._live(now_ms)), default=math.nan)

    def lifetime_total(self, now_ms: float) -> float:
        return self.total

    def event_total(self, now_ms: float) -> float:
        return float(self.events)
