"""Time as this package needs it: it also passes here, in a thread that waits, so that a test can let it pass."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from headrace.client.clock import Clock, SystemClock

WAIT_MS_MAX = 1000.0
"""No wait is longer at a stretch, though it may be followed by another one."""


class WaitingClock(Clock, Protocol):
    """A clock by which one can wait."""

    def sleep_ms(self, ms: float) -> None: ...

    def wait_ms(self, condition: threading.Condition, ms: float) -> None:
        """Wait to be notified; the condition is held by the caller."""
        ...


class SystemWaitingClock(SystemClock):
    """The machine's."""

    def sleep_ms(self, ms: float) -> None:
        time.sleep(ms / 1000.0)

    def wait_ms(self, condition: threading.Condition, ms: float) -> None:
        condition.wait(ms / 1000.0)


SYSTEM_WAITING_CLOCK = SystemWaitingClock()
