"""The values that calls of a consumer return, and the result of work on the I/O thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")


class OffsetAndTimestamp(NamedTuple):
    """The first record at a time or later."""

    offset: int
    timestamp: int
    leader_epoch: int


class Outcome(Generic[T]):
    """The result of work that the application thread has passed to the I/O thread. Set once, by the I/O thread."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        """`on_done` wakes the application thread."""
        self._on_done = on_done
        self._value: T | None = None  # Written before is_done, as the next.
        self._error: HeadraceError | None = None
        self.is_done = False

    def succeed(self, value: T) -> None:
        if not self.is_done:
            self._value = value
            self.is_done = True
            self._on_done()

    def fail(self, error: HeadraceError) -> None:
        if not self.is_done:
            self._error = error
            self.is_done = True
            self._on_done()

    @property
    def error(self) -> HeadraceError | None:
        return self._error

    def result(self) -> T:
        """Return the value, or raise the error."""
        assert self.is_done
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set, because there is no error
