"""What was, for the charts: points of the last fifteen minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

HISTORY_SECONDS = 15 * 60
POINTS_MAX = HISTORY_SECONDS
"""One a second at most."""

K = TypeVar("K", bound=Hashable)

Point = tuple[float, float | None]
"""Seconds since 1970, and a value; None: a gap, where nothing is known."""


class Series:
    """Values over time. Written by one thread; read by all, as a copy."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)

    def add(self, at: float, value: float | None) -> None:
        self._points.append((at, value))
        while self._points and self._points[0][0] < at - HISTORY_SECONDS:
            self._points.popleft()

    def points(self) -> list[Point]:
        return list(self._points)

    @property
    def last(self) -> float | None:
        """The newest value; None if there is none, or it is not known."""
        return self._points[-1][1] if self._points else None


class Rate(Series, Generic[K]):
    """How fast counters grow, from one reading to the next.

    Several counters are compared one by one, so that one that is new, or gone, or back at zero after a restart, does
    not look like traffic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: tuple[float, Mapping[K, float]] | None = None

    def read(self, at: float, counters: Mapping[K, float] | None) -> None:
        """Add what the counters have grown since they were read last; None: they could not be read."""
        before, self._before = self._before, None if counters is None else (at, counters)
        if counters is None:
            self.add(at, None)
        elif before is not None and at > before[0]:
            grown = sum(max(0.0, value - before[1].get(key, value)) for key, value in counters.items())
            self.add(at, grown / (at - before[0]))
