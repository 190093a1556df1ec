"""A Kafka broker: one process, one event loop, logs on disk.

socket → server → handlers (one module for each API family) → replicas → log
                      │
                      └→ transactions, groups (state in internal topics), catalog (state in a journal)

The public classes are `EmbeddedBroker` and `EmbeddedCluster`; they are imported on first use.
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
