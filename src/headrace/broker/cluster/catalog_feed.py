"""The controller's side of the catalog: what other brokers have to hear of, and who has heard of what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable

from headrace.broker.catalog import Catalog, Event
from headrace.wire.api.inter_broker import CatalogFetchRequest, CatalogFetchResponse

WAIT_MS_MAX = 10_000


class CatalogFeed:
    """Answers CatalogFetch. Event loop only."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._reached: dict[int, int] = {}  # by node id: the number it asks for next, so it has all before
        self._changed = asyncio.Event()
        self._heard = asyncio.Event()
        catalog.listeners.append(self._on_event)

    async def fetch(self, message: CatalogFetchRequest) -> CatalogFetchResponse:
        """Changes from a number on, as soon as there are any; a snapshot if that number makes no sense."""
        recent = self._catalog.recent
        if message.generation == recent.generation:
            self._reached[message.broker_id] = message.next_number
            self._heard.set()
            self._heard = asyncio.Event()
            if message.next_number == recent.next_number:
                await _within(self._changed, min(message.max_wait_ms, WAIT_MS_MAX))
        return answer(self._catalog, message)

    async def reached(self, nodes: Callable[[], Iterable[int]], number: int, timeout_ms: float) -> bool:
        """Wait until all brokers that count by then have what was recorded before `number`; whether they have."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while not all(self._reached.get(node, -1) >= number for node in nodes()):
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                return False
            await _within(self._heard, left_ms)
        return True

    def forget(self, node_id: int) -> None:
        self._reached.pop(node_id, None)

    def _on_event(self, event: Event) -> None:
        if not self._changed.is_set():
            self._changed.set()
            self._changed = asyncio.Event()


def answer(catalog: Catalog, message: CatalogFetchRequest) -> CatalogFetchResponse:
    """What there is, without waiting."""
    recent = catalog.recent
    changes = recent.since(message.generation, message.next_number)
    is_snapshot = changes is None
    if changes is None:
        next_number, changes = recent.next_number, [list(catalog.snapshot())]
    else:
        next_number = message.next_number + len(changes)
    return CatalogFetchResponse(
        controller_id=catalog.brokers.controller_id,
        generation=recent.generation,
        next_number=next_number,
        is_snapshot=is_snapshot,
        changes=[json.dumps(list(change), separators=(",", ":")).encode() for change in changes],
    )


async def _within(event: asyncio.Event, timeout_ms: float) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass
