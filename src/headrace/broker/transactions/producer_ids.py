"""Producer ids: each is given out once, ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.broker.catalog import Catalog
from headrace.broker.tasks import start_task
from headrace.errors import BrokerError, Code, HeadraceError

log = logging.getLogger("headrace.broker")

AHEAD = 100
"""A broker that gets its ids from another one asks for more when it has no more than these."""


class ProducerIds:
    """Reserves ids by the block. What a crash leaves of a block is lost, never given out twice."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = self._end = 0
        self._first_allowed = 0  # lower ids are in the logs, unknown to the catalog
        self._coming: tuple[int, int] | None = None  # the block after this one
        self._asking: asyncio.Task[None] | None = None
        self._source: Callable[[], Awaitable[tuple[int, int]]] | None = None

    def follow(self, source: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """Get blocks from the controller: `source` gives the first id and the first one beyond."""
        self._source = source

    def seen(self, producer_id: int) -> None:
        """An id is in use: should the catalog have forgotten that it was given out, it is not given out again."""
        if producer_id >= self._catalog.identity.next_producer_id:
            self._first_allowed = max(self._first_allowed, producer_id + 1)

    def take(self) -> int:
        """An id nobody has had."""
        if self._end - self._next <= AHEAD:
            self.ask_ahead()
        if self._next == self._end:
            self._next, self._end = self.reserve() if self._source is None else self._next_block()
        taken = self._next
        self._next += 1
        return taken

    def ask_ahead(self) -> None:
        """Have the next block sent, if blocks come from elsewhere and it is not here or on its way."""
        if self._source is not None and self._coming is None and self._asking is None:
            self._asking = start_task(self._ask(self._source), "producer ids")

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def reserve(self) -> tuple[int, int]:
        """Reserve a block of ids that nobody has had: the first one, and the first one beyond."""
        identity = self._catalog.identity
        if identity.next_producer_id < self._first_allowed:
            self._warn(identity.next_producer_id)
        first = max(identity.next_producer_id, self._first_allowed)
        try:
            self._catalog.record(identity.reserve_producer_ids(first))
        except BrokerError as error:
            raise BrokerError(
                f"no producer ids could be reserved: {error.args[0]}", code=Code.COORDINATOR_NOT_AVAILABLE
            ) from error
        return first, identity.next_producer_id

    def _warn(self, first: int) -> None:
        log.warning(
            "the catalog would give out producer ids from %d on, but the logs have id %d: it has lost changes. "
            "Ids begin with %d",
            first,
            self._first_allowed - 1,
            self._first_allowed,
        )

    def _next_block(self) -> tuple[int, int]:
        if self._coming is None:
            raise BrokerError("the controller has not sent producer ids yet", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        block, self._coming = self._coming, None
        return block

    async def _ask(self, source: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        try:
            block = await source()
            if block[0] < self._first_allowed:
                self._warn(block[0])
            while block[0] < self._first_allowed:
                block = await source()
            self._coming = block
        except HeadraceError as error:  # the next one who wants an id tries again
            log.warning("no producer ids came from the controller: %s", error)
        finally:
            self._asking = None
