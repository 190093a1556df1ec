"""Recent latencies and errors of a producer, for snapshots.

    sender, network → a latency per request, an entry per error → SnapshotCollector

The rings are bounded. Appending and copying a deque are atomic, so any thread may read them without a lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.config.clock import Clock

LATENCIES_MAX = 1024
ERRORS_MAX = 20
ERROR_CHARACTERS_MAX = 500


@dataclass(slots=True)
class RecentError:
    """An error, and how many times in a row it occurred."""

    time_ms: int
    where: str
    text: str
    count: int


class Recent:
    """Latencies of requests, and errors."""

    def __init__(self, clock: Clock) -> None:
        self._time_ms = clock.time_ms
        self.queue_ms: deque[float] = deque(maxlen=LATENCIES_MAX)  # from the first record of a batch to its request
        self.request_ms: deque[float] = deque(maxlen=LATENCIES_MAX)  # from a request to its response
        self.delivery_ms: deque[float] = deque(maxlen=LATENCIES_MAX)  # the sum of both, for one batch of each request
        self._errors: deque[RecentError] = deque(maxlen=ERRORS_MAX)

    def failed(self, where: str, error: BaseException) -> None:
        """Add an error. A repeated one is counted, not listed again."""
        # str() of a SystemExit from a callback says little without its type.
        is_plain = isinstance(error, Exception) and str(error)
        text = (str(error) if is_plain else repr(error))[:ERROR_CHARACTERS_MAX]
        last = self._errors[-1] if self._errors else None
        if last is not None and (last.where, last.text) == (where, text):
            last.count += 1
            last.time_ms = self._time_ms()
        else:
            self._errors.append(RecentError(self._time_ms(), where, text, 1))

    def errors(self) -> list[RecentError]:
        """Return the recent errors, the newest first."""
        return list(self._errors)[::-1]
