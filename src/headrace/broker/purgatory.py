"""The purgatory: delayed operations that wait for an event of a key, or for their timeout.

    watch(operation, keys, timeout_ms)           the operation is not complete yet
    wake(key) ─► operation.try_complete(key)     true: it is complete and removed from all its keys
    timeout   ─► operation.expire()

Waking a key without watchers costs one dictionary look-up. `forget` removes an operation that is no longer needed, for
example because its connection is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, Protocol, TypeVar

from headrace.broker.clock import Clock, Timer

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class DelayedOperation(Protocol[K_contra]):
    """An operation that waits."""

    def try_complete(self, key: K_contra) -> bool:
        """Return whether the operation is complete after an event of a key. Not called again after that."""
        ...

    def expire(self) -> None:
        """Complete with a timeout. Not called again."""
        ...


class Purgatory(Generic[K]):
    """Delayed operations by the keys they watch. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watchers: dict[K, dict[int, DelayedOperation[K]]] = {}
        self._waiting: dict[int, tuple[DelayedOperation[K], Collection[K], Timer]] = {}  # by identity

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, operation: DelayedOperation[K], keys: Collection[K], timeout_ms: float) -> None:
        """Add an operation that is not complete yet."""
        timer = self._clock.call_later(timeout_ms, self._expire, operation)
        self._waiting[id(operation)] = (operation, keys, timer)
        for key in keys:
            self._watchers.setdefault(key, {})[id(operation)] = operation

    def wake(self, key: K) -> None:
        """Try to complete the operations that watch a key."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        for operation in [*watchers.values()]:
            if id(operation) in self._waiting and operation.try_complete(key):
                self.forget(operation)

    def forget(self, operation: DelayedOperation[K]) -> None:
        """Remove an operation. Idempotent."""
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

    def _expire(self, operation: DelayedOperation[K]) -> None:
        if id(operation) in self._waiting:
            self.forget(operation)
            operation.expire()
