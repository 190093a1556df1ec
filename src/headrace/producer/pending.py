"""What an application thread waits for while the I/O thread works on it."""

from __future__ import annotations

from headrace.client.locks import OneShotEvent
from headrace.errors import TimedOutError


class PendingResult:
    """The end of an operation, good or bad. Set once, by the I/O thread; any thread may wait."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._event = OneShotEvent()
        self._error: Exception | None = None  # Written before _event is set.
        self.acknowledged = False
        """True once a caller has seen the outcome. Until then the operation is not over for the application.

        A signal handler that raises (Ctrl-C) just before keeps it False: the same call made again tells the outcome.
        """

    @property
    def is_done(self) -> bool:
        return self._event.is_set()

    def succeed(self) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        if not self._event.is_set():
            self._error = error
            self._event.set()

    def wait(self, timeout_ms: float) -> None:
        """Wait for the outcome and acknowledge it."""
        self.wait_unacknowledged(timeout_ms)
        self.acknowledged = True

    def wait_unacknowledged(self, timeout_ms: float) -> None:
        """As `wait`, for a caller that sets `acknowledged` itself, as the last thing before it returns."""
        if not self._event.wait(timeout_ms / 1000):
            raise TimedOutError(
                f"{self.operation} did not end within {timeout_ms / 1000:g} s (max.block.ms); call it again to wait on"
            )
        if self._error is not None:
            self.acknowledged = True
            raise self._error
