"""A sync producer for each broker that leads something."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.addresses import Endpoint
from headrace.errors import ConnectionFailedError
from headrace.legacy.options import Settings
from headrace.legacy.sync_producer import Connect, SyncProducer


class ProducerPool:
    """One thread at a time."""

    def __init__(self, settings: Settings, connect: Connect) -> None:
        self._settings = settings
        self._connect = connect
        self._producers: dict[int, SyncProducer] = {}
        self._takes_message_sets: set[Endpoint] = set()  # those that were asked

    def update(self, leaders: Mapping[int, Endpoint]) -> None:
        """Put new connections in the place of old ones: a broker may have moved, or come back, under its number."""
        for broker_id, endpoint in leaders.items():
            if (old := self._producers.get(broker_id)) is not None:
                old.close()
            self._producers[broker_id] = SyncProducer(endpoint, self._settings, self._connect)

    def producer(self, broker_id: int) -> SyncProducer:
        """The one for a broker, which has been found to take what we send."""
        found = self._producers.get(broker_id)
        if found is None:
            raise ConnectionFailedError(f"no metadata has named an address of broker {broker_id} yet")
        if found.endpoint not in self._takes_message_sets:
            found.require_message_sets()
            self._takes_message_sets.add(found.endpoint)
        return found

    def doubt(self, broker_id: int) -> None:
        """A connection broke: the broker that comes back may be a newer one."""
        if (known := self._producers.get(broker_id)) is not None:
            self._takes_message_sets.discard(known.endpoint)

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()
