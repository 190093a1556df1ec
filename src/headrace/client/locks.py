"""Locks and events that a signal handler may interrupt at any point, by raising (Ctrl-C) or by calling us again.

Python runs signal handlers on the main thread, after calls and when functions begin. `threading.Condition` and `Event`
are Python functions: a handler that raises inside their `__enter__` leaves the lock held for ever. `with` on a lock of
the C module cannot be interrupted between taking the lock and entering the block, nor on the way out.

A handler that interrupts a thread inside such a block, and needs the same lock, would wait for itself. Hence locks know
their owner: who is about to take one that a handler may want asks first, and raises.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from headrace.errors import IllegalStateError

if TYPE_CHECKING:

    class _RLock:
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def __enter__(self) -> object: ...
        def __exit__(self, *exc_info: object) -> None: ...
        def _is_owned(self) -> bool: ...
else:
    _RLock = type(threading.RLock())

TURN_S = 0.00005
REENTERED = (
    "called by a signal handler, or a finalizer, that interrupted this thread inside the producer: "
    "let the handler set a flag, and act on it outside"
)


class OwnedLock(_RLock):
    """A lock that can tell whether this thread holds it."""

    __slots__ = ()

    is_owned = _RLock._is_owned

    def check_not_owned(self) -> None:
        """Raise if this thread holds the lock: then we are in a signal handler, or a finalizer."""
        if self.is_owned():
            raise IllegalStateError(REENTERED)


class TurnLock(OwnedLock):
    """A lock that nobody holds while waiting for the GIL, but for a thread that was interrupted in it.

    Threads that block in `Lock.acquire` get the lock first and the GIL up to 5 ms later. The one that runs meanwhile
    needs the lock again for its next batch, blocks, and so on: they form a convoy in which every batch costs
    two switches of threads, and four threads with one producer need twice the time of four with one each. Here a thread
    that finds the lock taken lets the others run and tries again, with the GIL in its hands. For moments only.

    It is not re-entrant: a thread that holds it and enters again can only be a signal handler, and is refused.
    """

    __slots__ = ()

    def __enter__(self) -> bool:
        if self.is_owned():  # as in check_not_owned, without another call
            raise IllegalStateError(REENTERED)
        try:
            while not self.acquire(False):
                time.sleep(TURN_S)
        except BaseException:
            try:
                if self.is_owned():  # the handler has raised just after it was acquired
                    self.release()
            except BaseException:
                if self.is_owned():  # and another one just now
                    self.release()
                raise
            raise
        return True


class OneShotEvent:
    """`threading.Event` without a lock, and without a way back."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[threading.Lock] = []  # One for each thread that waits; the event opens them.

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True  # first: who begins to wait from now on sees it
        with contextlib.suppress(IndexError):
            while True:
                self._waiters.pop().release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait (seconds) until it is set; False if the time is up first."""
        if self._is_set:
            return True
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if not self._is_set:
            waiter.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        if not self._is_set:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
        return self._is_set
