"""Locks and events that are safe with signal handlers, and blocking calls awaited in a thread.

Python runs signal handlers on the main thread, after calls and when functions begin. A handler may raise (Ctrl-C) or
call the producer again. `threading.Condition` and `Event` are written in Python: a handler that raises inside their
`__enter__` leaves the lock held for ever. `with` on a lock of the C module cannot be interrupted between acquiring the
lock and entering the block, nor on the way out.

A handler that interrupts a thread inside such a block and needs the same lock would deadlock. Locks therefore know
their owner, and taking one that this thread holds raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

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

YIELD_SECONDS = 0.00005
REENTERED = (
    "called by a signal handler or finalizer that interrupted this thread inside the producer: "
    "set a flag in the handler, and act on it outside"
)

T = TypeVar("T")


class OwnedLock(_RLock):
    """A lock that knows whether this thread holds it."""

    __slots__ = ()

    is_owned = _RLock._is_owned

    def check_not_owned(self) -> None:
        """Raise if this thread holds the lock: the caller is then a signal handler or finalizer."""
        if self.is_owned():
            raise IllegalStateError(REENTERED)


class YieldingLock(OwnedLock):
    """A lock that is acquired only by a thread that has the GIL. Hold it briefly.

    A thread that blocks in `Lock.acquire` gets the lock first and the GIL up to 5 ms later. The thread that runs in the
    meantime needs the lock for its next batch, and blocks too: a convoy in which every batch costs two thread switches.
    Four threads with one producer then need twice the time of four threads with a producer each. Here a thread that
    finds the lock taken yields and tries again while it has the GIL.

    Not re-entrant: a thread that holds the lock and enters again must be a signal handler, and gets an error.
    """

    __slots__ = ()

    def __enter__(self) -> bool:
        if self.is_owned():  # as in check_not_owned, without another call
            raise IllegalStateError(REENTERED)
        try:
            while not self.acquire(False):
                time.sleep(YIELD_SECONDS)
        except BaseException:
            try:
                if self.is_owned():  # the handler raised just after acquire()
                    self.release()
            except BaseException:
                if self.is_owned():  # and another one just now
                    self.release()
                raise
            raise
        return True


class OneShotEvent:
    """A `threading.Event` without a lock that cannot be cleared."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[threading.Lock] = []  # One for each waiting thread, released by set().

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True  # first, for threads that start waiting now
        with contextlib.suppress(IndexError):
            while True:
                self._waiters.pop().release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until the event is set; False on timeout."""
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


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in a thread and await its result. If the caller is cancelled, `call` still runs to its end.

    Each call gets a daemon thread, unlike in an executor, so that the process can exit while one waits for an
    unreachable broker, and the event loop's executor stays free for the application.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if outcome.done() else result())

    def run() -> None:
        try:
            value = call()
        except BaseException as raised:
            error = raised
            settle(lambda: outcome.set_exception(error))
        else:
            settle(lambda: outcome.set_result(value))

    threading.Thread(target=run, name="headrace-wait", daemon=True).start()
    return await outcome
