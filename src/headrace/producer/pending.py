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
        """True once a caller has seen the outcome. Until then the operation is not over for the application."""

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
        if not self._event.wait(timeout_ms / 1000):
            raise TimedOutError(
                f"{self.operation} did not end within {timeout_ms / 1000:g} s (max.block.ms); call it again to wait on"
            )
        self.acknowledged = True
        if self._error is not None:
            raise self._error
