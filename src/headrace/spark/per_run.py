"""What a process keeps for each run of a sink: a new run takes the place of the old one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger("headrace.spark")


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerRun(Generic[T]):
    """One of them for each run, at most `count_max` in all: then the longest unused is closed. One thread.

    Those that nobody has asked for within `idle_seconds_max` are closed when the next one is asked for. A process that
    is asked for none at all is ended by Spark, after a minute.
    """

    def __init__(
        self,
        count_max: int,
        idle_seconds_max: float = math.inf,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count_max = count_max
        self._idle_seconds_max = idle_seconds_max
        self._now_seconds = now_seconds
        self._kept: dict[tuple[str, str, str], T] = {}  # by where, sink, run; the longest unused first
        self._used_at: dict[tuple[str, str, str], float] = {}

    def get(self, where: str, sink: str, run: str, make: Callable[[], T]) -> T:
        """That of this run, made when first asked for; those of older runs of the sink are closed then."""
        key = (where, sink, run)
        now = self._now_seconds()
        value = self._kept.pop(key, None)
        for old in [
            old for old in self._kept if old[:2] == key[:2] or now - self._used_at[old] > self._idle_seconds_max
        ]:
            self._close(old)
        while len(self._kept) >= self._count_max:
            self._close(next(iter(self._kept)))
        self._kept[key] = value = make() if value is None else value
        self._used_at[key] = now
        return value

    def _close(self, key: tuple[str, str, str]) -> None:
        """Close what is not used any more. A failure is logged: it is not one of the run that is asked for."""
        del self._used_at[key]
        try:
            self._kept.pop(key).close()
        except Exception:
            _, sink, run = key
            log.warning("closing what run %s of %s has left in this process failed", run, sink, exc_info=True)

    def discard(self, value: T) -> bool:
        """Keep it no longer, and leave closing it to the caller; False if it was not kept."""
        keys = [key for key, kept in self._kept.items() if kept is value]
        for key in keys:
            del self._kept[key], self._used_at[key]
        return bool(keys)
