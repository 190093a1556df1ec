"""What the 0.8 producer counts, under the names it had there."""

from __future__ import annotations

import threading
from enum import StrEnum


class Counter(StrEnum):
    """What is counted, and in which unit."""

    DROPPED_MESSAGES = "DroppedMessages"  # messages that the queue did not take, or that `close` left behind
    SERIALIZATION_ERRORS = "SerializationErrors"  # messages that their encoder refused
    RESENDS = "Resends"  # batches, each time one is tried again
    FAILED_SENDS = "FailedSends"  # batches that were given up


class ProducerStats:
    """Counters that only grow. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Counter, int] = dict.fromkeys(Counter, 0)  # Guarded by _lock.

    def count(self, counter: Counter, more: int = 1) -> None:
        with self._lock:
            self._counts[counter] += more

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return {counter.value: count for counter, count in self._counts.items()}
