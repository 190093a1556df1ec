"""A broker in a thread of the test, which can inspect it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from headrace.broker.broker import Broker
from headrace.broker.broker_options import resolve

SECONDS_MAX = 20
T = TypeVar("T")


class OpenBroker:
    """A running broker. Use `inner` on its event loop only, with `do`."""

    def __init__(self, data_dir: Path, **options: object) -> None:
        named = {name.replace("_", "."): value for name, value in options.items()}
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", **named, "log.dirs": str(data_dir)}
        self.inner = Broker(resolve(("argument", given)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.inner.start(), self._loop).result(SECONDS_MAX)

    @property
    def bootstrap(self) -> str:
        return self.inner.listeners[0].address

    def do(self, action: Callable[[Broker], T]) -> T:
        """Call a function with the broker on its event loop."""

        async def run() -> T:
            return action(self.inner)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(SECONDS_MAX)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.inner.stop(), self._loop).result(SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()

    def __enter__(self) -> OpenBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
