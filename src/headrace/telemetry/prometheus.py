"""Collectors of prometheus_client: one for each registry, for all sources of a kind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

S = TypeVar("S")


class SharedCollector(Generic[S]):
    """A base class: subclasses have `collect`, which reads all sources when it is called by a scrape.

    Sources share a collector because a registry must not get a metric family from two of them.
    """

    _lock = threading.Lock()
    _by_registry: ClassVar[WeakKeyDictionary[CollectorRegistry, Any]]  # Guarded by _lock.

    def __init_subclass__(cls) -> None:
        cls._by_registry = WeakKeyDictionary()

    def __init__(self) -> None:
        self._sources: list[S] = []  # Guarded by _lock.

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Self:
        """Return the collector of a registry, which is registered on first use."""
        with cls._lock:
            collector: Self | None = cls._by_registry.get(registry)
            if collector is None:
                cls._by_registry[registry] = collector = cls()
                registry.register(collector)  # type: ignore[arg-type]
            return collector

    def add(self, source: S) -> None:
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def discard(self, source: S) -> None:
        with self._lock:
            self._sources = [known for known in self._sources if known != source]

    def sources(self) -> list[S]:
        with self._lock:
            return list(self._sources)

    def describe(self) -> list[Any]:
        """Return nothing: the registry would collect to learn the names, which change with the sources."""
        return []
