"""A call that blocks, awaited.

Each gets a thread of its own. They are daemons, unlike those of an executor, so that a process can end while one of
them waits for a broker that is away; and the event loop's executor is left to those who own the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """What `call` returns. Who is cancelled while waiting leaves it to run to its end, unheard."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
