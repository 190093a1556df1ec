"""Background tasks of a broker: each is started here, so that none ends silently.

    start_task    runs to its end once; whoever awaits it gets its exception
    start_loop    runs for ever; after an unexpected exception it is started again, with back-off

An unexpected exception is logged with its traceback and counted by the name of the task; `failures` is part of the
broker's status. So are exceptions in timers and callbacks, which asyncio hands to `on_loop_error`.

No task of today brings the broker down: what fails is tried again (fetching from a leader, heartbeats, periodic work)
or is told to those who wait for it (a request, a flush). What must not go on after a failure refuses by itself: a log
whose files could not be forced to disk takes no more writes.

Counters belong to the event loop: a broker has one of its own.
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
"""The wait before the first restart of a loop; each one is twice as long as the last."""
BACKOFF_SECONDS_MAX = 30.0
"""A loop that has run for so long before it fails begins with the shortest wait again."""

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()  # the event loop holds tasks weakly: one that nobody holds may vanish
_failures: WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]] = WeakKeyDictionary()


def start_task(
    work: Coroutine[Any, Any, T], name: str, *, outcomes: tuple[type[BaseException], ...] = ()
) -> asyncio.Task[T]:
    """Run `work` in the background. `outcomes` are exceptions that are for whoever awaits it, not unexpected ones."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(lambda done: _ended(done, outcomes))
    return task


def start_loop(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """Keep `run` running in the background until it returns or is cancelled."""
    return start_task(_keep_running(run, name), name)


def failures() -> dict[str, int]:
    """How often tasks of the running event loop have failed, by their names."""
    return dict(_failures.get(asyncio.get_running_loop(), {}))


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Count what asyncio has nobody to tell: an exception in a timer or a callback."""
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
