"""A Kafka broker: one process, one event loop, logs on disk.

socket → server → handlers (one file an API key) → replicas → log
                      │
                      └→ transactions, groups (their state lives in internal topics), catalog (its own journal)

`EmbeddedBroker` and `EmbeddedCluster` are what users need of it; they are imported when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker
    from headrace.broker.embedded_cluster import EmbeddedCluster

__all__ = ["EmbeddedBroker", "EmbeddedCluster"]


def __getattr__(name: str) -> object:
    if name == "EmbeddedBroker":
        from headrace.broker.embedded import EmbeddedBroker

        return EmbeddedBroker
    if name == "EmbeddedCluster":
        from headrace.broker.embedded_cluster import EmbeddedCluster

        return EmbeddedCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
