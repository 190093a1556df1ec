"""An iterator that runs ahead of who consumes it, on a thread, by a bounded number of items."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

AHEAD_MAX = 2
"""Items that wait. With batches of 16 MiB: one being built, two waiting, one being written."""
TURN_SECONDS = 0.1
STOP_SECONDS_MAX = 30.0

T = TypeVar("T")


class _End:
    """After the last item; with what went wrong, if something did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class ReadAhead(Generic[T]):
    """Use it in a `with`: leaving it stops the thread, and closes the source if that is a generator."""

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._items: queue.Queue[T | _End] = queue.Queue(AHEAD_MAX)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-read-ahead", daemon=True)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    break
        except BaseException as raised:  # whatever it is, the consumer raises it
            error = raised
        finally:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
        self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._stopped.is_set():
            try:
                self._items.put(item, timeout=TURN_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._items.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS_MAX)
