"""What has happened in a producer lately: how long things took, and what went wrong, in words.

    sender, network → a number for each request, a line for each error → whoever looks: percentiles(), errors()

The rings have room for a moment's worth. An entry is added in one step, and they are copied in one step, so that any
thread may look without a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.client.clock import Clock

LATENCIES_MAX = 1024
ERRORS_MAX = 20
ERROR_CHARACTERS_MAX = 500


@dataclass(slots=True)
class RecentError:
    """An error, and how often it came in a row."""

    time_ms: int
    where: str
    text: str
    count: int


class Recent:
    """Latencies of requests, and errors."""

    def __init__(self, clock: Clock) -> None:
        self._time_ms = clock.time_ms
        self.queue_ms: deque[float] = deque(maxlen=LATENCIES_MAX)  # a batch's time from its first record to a request
        self.request_ms: deque[float] = deque(maxlen=LATENCIES_MAX)  # a request's to its answer
        self.delivery_ms: deque[float] = deque(maxlen=LATENCIES_MAX)  # of one batch of each request, both
        self._errors: deque[RecentError] = deque(maxlen=ERRORS_MAX)

    def failed(self, where: str, error: BaseException) -> None:
        """Something went wrong. The same again is counted, not listed."""
        # An exception that is not an Exception (sys.exit in a callback) says little without its type.
        is_plain = isinstance(error, Exception) and str(error)
        text = (str(error) if is_plain else repr(error))[:ERROR_CHARACTERS_MAX]
        last = self._errors[-1] if self._errors else None
        if last is not None and (last.where, last.text) == (where, text):
            last.count += 1
            last.time_ms = self._time_ms()
        else:
            self._errors.append(RecentError(self._time_ms(), where, text, 1))

    def errors(self) -> list[RecentError]:
        """The newest first."""
        return list(self._errors)[::-1]


def percentiles(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p95, p99 and the maximum, to a hundredth; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    last = len(ordered) - 1
    found = {name: ordered[round(last * share)] for name, share in _SHARES.items()}
    return {name: round(value, 2) for name, value in found.items()}


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
