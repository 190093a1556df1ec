"""Background tasks: every task of the broker is started here, so that none fails silently.

    start_task    runs once; its exception goes to the caller that awaits it
    start_loop    runs until cancelled; after an unexpected exception it is restarted with back-off
    TaskSet       the tasks of a component, which end with it

An unexpected exception is logged with its traceback and counted by the name of the task; the broker's status contains
`failures`. Exceptions in timers and callbacks are counted by `on_loop_error`.

No task brings the broker down: it is retried (replica fetchers, heartbeats, periodic work), or its error goes to the
waiting request. State that must not be used after a failure protects itself: a log that could not be synced rejects
further writes.

Counters belong to the event loop, of which each broker has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from headrace.config.backoff import exponential_backoff

log = logging.getLogger("headrace.broker")

BACKOFF_SECONDS_MIN = 0.1
"""The wait before the first restart of a loop; it doubles with every restart."""
BACKOFF_SECONDS_MAX = 30.0
"""The longest wait; a loop that ran for this long starts again with the shortest one."""

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()  # the event loop has only weak references to tasks
_failures: WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]] = WeakKeyDictionary()


def start_task(
    work: Coroutine[Any, Any, T], name: str, *, outcomes: tuple[type[BaseException], ...] = ()
) -> asyncio.Task[T]:
    """Run `work` in the background. `outcomes` are expected exceptions, which only the awaiting caller handles."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(lambda done: _ended(done, outcomes))
    return task


def start_loop(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """Run `run` in the background, with restarts, until it returns or is cancelled."""
    return start_task(_keep_running(run, name), name)


class TaskSet(set[asyncio.Task[Any]]):
    """The tasks of a component that have not ended."""

    def __init__(self, name: str, *, outcomes: tuple[type[BaseException], ...] = ()) -> None:
        super().__init__()
        self._name = name
        self._outcomes = outcomes

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background."""
        task = start_task(work, self._name, outcomes=self._outcomes)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def start_loop(self, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `run` in the background, with restarts, until it returns or is cancelled."""
        return self.start(_keep_running(run, self._name))

    async def cancel(self, timeout: float | None = None) -> None:
        """Cancel the tasks, and wait until they have ended."""
        for task in self:
            task.cancel()
        if self:
            await asyncio.wait([*self], timeout=timeout)


def failures() -> dict[str, int]:
    """Return the number of failures of tasks on the running event loop, by name."""
    return dict(_failures.get(asyncio.get_running_loop(), {}))


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Count an exception in a timer or callback, and log it as asyncio does."""
    if context.get("exception") is not None:
        _count(loop, "callback")
    loop.default_exception_handler(context)


async def _keep_running(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        started = loop.time()
        try:
            await run()
            return
        except Exception:
            failures = 1 if loop.time() - started >= BACKOFF_SECONDS_MAX else failures + 1
            backoff_seconds = exponential_backoff(BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX, failures)
            _count(loop, name)
            log.exception("background task %s failed; restarting it in %g s", name, backoff_seconds)
            await asyncio.sleep(backoff_seconds)


def _ended(task: asyncio.Task[Any], outcomes: tuple[type[BaseException], ...]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, outcomes):
        _count(task.get_loop(), task.get_name())
        log.error("background task %s failed", task.get_name(), exc_info=error)


def _count(loop: asyncio.AbstractEventLoop, name: str) -> None:
    _failures.setdefault(loop, Counter())[name] += 1
