"""A Kafka broker: one process, one event loop, logs on disk.

socket → server → handlers (one file an API key) → replicas → log
                      │
                      └→ transactions, groups (their state lives in internal topics), catalog (its own journal)

`EmbeddedBroker` is what users need of it; it is imported when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]


def __getattr__(name: str) -> object:
    if name != "EmbeddedBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.broker.embedded import EmbeddedBroker

    return EmbeddedBroker
