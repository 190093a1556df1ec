"""A bounded cache that threads share, for schemas and what is made of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class LruCache(Generic[K, T]):
    """A cache that drops what was not used for longest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._items: OrderedDict[K, T] = OrderedDict()  # Guarded by _lock.

    def get(self, key: K) -> T | None:
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key]

    def put(self, key: K, value: T) -> T:
        """Add a value, and return it."""
        with self._lock:
            self._items[key] = value
            self._items.move_to_end(key)
            if len(self._items) > self._capacity:
                self._items.popitem(last=False)
        return value

    def remove(self, where: Callable[[K], bool]) -> None:
        """Remove the keys for which `where` is true."""
        with self._lock:
            for key in [key for key in self._items if where(key)]:
                del self._items[key]

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
