"""Where requests wait: until something happens to a key they watch, or until their time is up.

    watch(operation, keys, timeout_ms)           the operation is not complete yet
    wake(key) ─► operation.try_complete(key)     true: it is over, and forgotten under all its keys
    time is up ─► operation.expire()

Waking a key that nobody watches costs one look into a dictionary. Whoever waits no longer (a connection that is gone)
calls `forget`: nothing of it stays behind.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, Protocol, TypeVar

from headrace.broker.clock import Clock, Timer

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Operation(Protocol[K_contra]):
    """Something that waits."""

    def try_complete(self, key: K_contra) -> bool:
        """Something happened to a key: whether that was it. Called no more once it said so."""
        ...

    def expire(self) -> None:
        """Time is up. Called no more after that."""
        ...


class Purgatory(Generic[K]):
    """Operations that wait, by the keys they watch. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watchers: dict[K, dict[int, Operation[K]]] = {}
        self._waiting: dict[int, tuple[Operation[K], Collection[K], Timer]] = {}  # by identity

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, operation: Operation[K], keys: Collection[K], timeout_ms: float) -> None:
        """Let an operation wait. The caller has found it not to be complete."""
        timer = self._clock.call_later(timeout_ms, self._expire, operation)
        self._waiting[id(operation)] = (operation, keys, timer)
        for key in keys:
            self._watchers.setdefault(key, {})[id(operation)] = operation

    def wake(self, key: K) -> None:
        """Something happened to a key."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        for operation in [*watchers.values()]:
            if id(operation) in self._waiting and operation.try_complete(key):
                self.forget(operation)

    def forget(self, operation: Operation[K]) -> None:
        """It waits no longer. May be called again."""
        entry = self._waiting.pop(id(operation), None)
        if entry is None:
            return
        _, keys, timer = entry
        timer.cancel()
        for key in keys:
            watchers = self._watchers[key]
            del watchers[id(operation)]
            if not watchers:
                del self._watchers[key]

    def _expire(self, operation: Operation[K]) -> None:
        if id(operation) in self._waiting:
            self.forget(operation)
            operation.expire()
