"""Producer ids. Each is assigned once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.broker.catalog import Catalog
from headrace.broker.tasks import start_task
from headrace.errors import BrokerError, Code, HeadraceError

log = logging.getLogger("headrace.broker")

REFILL_THRESHOLD = 100
"""A broker that gets its ids from the controller requests the next block when this many are left."""


class ProducerIds:
    """Reserves ids in blocks. The rest of a block is lost in a crash, never assigned twice."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = self._end = 0
        self._first_allowed = 0  # lower ids are in the logs, but the catalog does not know them
        self._next_reserved: tuple[int, int] | None = None  # the block after the current one
        self._request: asyncio.Task[None] | None = None
        self._source: Callable[[], Awaitable[tuple[int, int]]] | None = None

    def follow(self, source: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """Get blocks from the controller: `source` returns the first id and the end of a block."""
        self._source = source

    def seen(self, producer_id: int) -> None:
        """Note an id that is in use, so that it is not assigned again even if the catalog has lost the reservation."""
        if producer_id >= self._catalog.identity.next_producer_id:
            self._first_allowed = max(self._first_allowed, producer_id + 1)

    def take(self) -> int:
        """Return an unused id."""
        if self._end - self._next <= REFILL_THRESHOLD:
            self.prefetch()
        if self._next == self._end:
            self._next, self._end = self.reserve() if self._source is None else self._next_block()
        taken = self._next
        self._next += 1
        return taken

    def prefetch(self) -> None:
        """Request the next block from the controller, unless it is there or requested."""
        if self._source is not None and self._next_reserved is None and self._request is None:
            self._request = start_task(self._fetch_block(self._source), "producer ids")

    async def close(self) -> None:
        if self._request is not None:
            self._request.cancel()
            await asyncio.wait([self._request])

    def reserve(self) -> tuple[int, int]:
        """Reserve a block of unused ids; return its first id and its end."""
        identity = self._catalog.identity
        if identity.next_producer_id < self._first_allowed:
            self._warn(identity.next_producer_id)
        first = max(identity.next_producer_id, self._first_allowed)
        try:
            self._catalog.record(identity.reserve_producer_ids(first))
        except BrokerError as error:
            raise BrokerError(
                f"failed to reserve producer ids: {error.args[0]}", code=Code.COORDINATOR_NOT_AVAILABLE
            ) from error
        return first, identity.next_producer_id

    def _warn(self, first: int) -> None:
        log.warning(
            "the catalog has lost changes: its next producer id is %d, but the logs contain id %d; "
            "continuing with id %d",
            first,
            self._first_allowed - 1,
            self._first_allowed,
        )

    def _next_block(self) -> tuple[int, int]:
        if self._next_reserved is None:
            raise BrokerError(
                "no producer ids received from the controller yet", code=Code.COORDINATOR_LOAD_IN_PROGRESS
            )
        block, self._next_reserved = self._next_reserved, None
        return block

    async def _fetch_block(self, source: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        try:
            block = await source()
            if block[0] < self._first_allowed:
                self._warn(block[0])
            while block[0] < self._first_allowed:
                block = await source()
            self._next_reserved = block
        except HeadraceError as error:  # the next `take` retries
            log.warning("failed to get producer ids from the controller: %s", error)
        finally:
            self._request = None
