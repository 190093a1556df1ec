"""Client quotas: what users, clients and addresses may use.

An entity is a user, a client id, both, or an address; each part has a name, or is None: the default for all that have
no quota of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.broker.catalog.journal import Event

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

Entity = tuple[tuple[str, str | None], ...]
"""Type and name of each part, sorted by type."""


def entity(parts: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


class Quotas:
    """By entity: what is limited → the limit."""

    kinds = ("quota",)

    def __init__(self) -> None:
        self.by_entity: dict[Entity, dict[str, float]] = {}
        self.version = 0  # counts changes, for those who remember limits

    @staticmethod
    def change(of: Entity, values: Mapping[str, float | None]) -> Event:
        """The event that sets quotas of an entity; None takes one away."""
        return {"kind": "quota", "entity": [list(part) for part in of], "values": dict(values)}

    def apply(self, event: Event) -> None:
        key: Entity = tuple((kind, name) for kind, name in event["entity"])
        merged = {**self.by_entity.get(key, {}), **event["values"]}
        values = {name: value for name, value in merged.items() if value is not None}
        if values:
            self.by_entity[key] = values
        else:
            self.by_entity.pop(key, None)
        self.version += 1

    def snapshot(self) -> Iterator[Event]:
        for key, values in self.by_entity.items():
            yield self.change(key, values)

    def changes_to(self, target: Quotas) -> Iterator[Event]:
        """Events that make this section what `target` is."""
        for key in {**self.by_entity, **target.by_entity}:
            old, new = self.by_entity.get(key, {}), target.by_entity.get(key, {})
            if old != new:
                yield self.change(key, {**dict.fromkeys(old), **new})
