"""Producer ids: each is given out once, ever."""

from __future__ import annotations

from headrace.broker.catalog import Catalog
from headrace.errors import BrokerError, Code


class ProducerIds:
    """Reserves ids by the block. What a crash leaves of a block is lost, never given out twice."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = self._end = 0

    def take(self) -> int:
        """An id nobody has had."""
        if self._next == self._end:
            identity = self._catalog.identity
            first = identity.next_producer_id
            try:
                self._catalog.record(identity.reserve_producer_ids())
            except OSError as error:
                raise BrokerError(
                    f"no producer ids could be reserved: {error}", code=Code.COORDINATOR_NOT_AVAILABLE
                ) from error
            self._next, self._end = first, identity.next_producer_id
        taken = self._next
        self._next += 1
        return taken
