"""Sampled statistics over a sliding window: rate, mean and maximum of a value.

    record(value, now) → the newest window
    rate(now), mean(now), maximum(now) ← the windows that are not too old; total ← since the start

One thread records, any thread reads: windows are replaced as a whole, and reading changes nothing. A reader may miss
the value that is being recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

NANOSECONDS = 1e9


class _Window:
    """The values recorded in a period."""

    __slots__ = ("count", "last_ms", "maximum", "start_ms", "sum")

    def __init__(self, start_ms: float) -> None:
        self.start_ms = self.last_ms = start_ms
        self.count = 0
        self.sum = 0.0
        self.maximum = -math.inf


class Samples:
    """Kafka's sampled statistics: `windows` of `window_ms` each, and the current one."""

    __slots__ = ("_ends_ms", "_newest", "_window_ms", "_windows", "_windows_max", "events", "total")

    def __init__(self, windows: int = 2, window_ms: float = 30_000) -> None:
        self.total = 0.0
        self.events = 0
        self._windows_max = windows
        self._window_ms = max(window_ms, 1.0)
        self._windows: tuple[_Window, ...] = ()  # Replaced, never changed.
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

    def record_all(self, values: Sequence[float], now_ms: float) -> None:
        """Record several values of the same time, at least one."""
        if now_ms >= self._ends_ms:
            self._advance(now_ms)
        newest, added, largest = self._newest, sum(values), max(values)
        newest.count += len(values)
        newest.sum += added
        if largest > newest.maximum:
            newest.maximum = largest
        newest.last_ms = now_ms
        self.total += added
        self.events += len(values)

    def _advance(self, now_ms: float) -> None:
        self._newest = _Window(now_ms)
        self._ends_ms = now_ms + self._window_ms
        self._windows = (*self._windows[-self._windows_max :], self._newest)

    def _live(self, now_ms: float) -> list[_Window]:
        age_max_ms = self._windows_max * self._window_ms
        return [window for window in self._windows if window.count and now_ms - window.last_ms < age_max_ms]

    def rate(self, now_ms: float) -> float:
        """Return the sum of values per second."""
        return self.rate_and_span_ms(now_ms)[0]

    def rate_and_span_ms(self, now_ms: float) -> tuple[float, float]:
        """Return the sum of values per second, and the time in ms that it is measured over."""
        live = self._live(now_ms)
        seconds = self._elapsed_seconds(live, now_ms)
        return sum(window.sum for window in live) / seconds, seconds * 1000

    def event_rate(self, now_ms: float) -> float:
        """Return the number of values per second."""
        live = self._live(now_ms)
        return sum(window.count for window in live) / self._elapsed_seconds(live, now_ms)

    def _elapsed_seconds(self, live: list[_Window], now_ms: float) -> float:
        """Return the time that `live` covers; at least all windows but one, so that a start is not a peak."""
        elapsed_ms = now_ms - live[0].start_ms if live else 0.0
        missing = self._windows_max - 1 - int(elapsed_ms / self._window_ms)
        return (elapsed_ms + max(missing, 0) * self._window_ms or self._window_ms) / 1000

    def time_share(self, now_ms: float) -> float:
        """Return the recorded nanoseconds as a share of the elapsed time."""
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
