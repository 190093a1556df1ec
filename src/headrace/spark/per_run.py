"""What a process keeps for each run of a sink: a new run takes the place of the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerRun(Generic[T]):
    """One of them for each run, at most `count_max` in all: then the oldest is closed. One thread."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._kept: dict[tuple[str, str, str], T] = {}  # where, sink, run

    def get(self, where: str, sink: str, run: str, make: Callable[[], T]) -> T:
        """That of this run, made when first asked for; those of older runs of the sink are closed then."""
        key = (where, sink, run)
        found = self._kept.get(key)
        if found is None:
            for old in [old for old in self._kept if old[:2] == key[:2]]:
                self._kept.pop(old).close()
            while len(self._kept) >= self._count_max:
                self._kept.pop(next(iter(self._kept))).close()
            found = self._kept[key] = make()
        return found

    def discard(self, value: T) -> bool:
        """Keep it no longer, and leave closing it to the caller; False if it was not kept."""
        keys = [key for key, kept in self._kept.items() if kept is value]
        for key in keys:
            del self._kept[key]
        return bool(keys)
