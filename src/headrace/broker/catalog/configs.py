"""Dynamic options of topics, brokers, groups and client metrics, and client quotas.

Options that are not set have their default.

The entity of a quota is a user, a client id, both, or an IP address. Each part has a name; None is the default entity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.broker.catalog.journal import Event

TOPIC = "topic"
BROKER = "broker"
GROUP = "group"
CLIENT_METRICS = "client-metrics"

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

Entity = tuple[tuple[str, str | None], ...]
"""The type and name of each part, sorted by type."""


def quota_entity(parts: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


class Configs:
    """The options that are set on each resource, as strings."""

    kinds = ("config",)

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[str, str]] = {}

    @staticmethod
    def change(resource: str, name: str, values: Mapping[str, str | None]) -> Event:
        """Return the event that sets options of a resource; None resets an option to its default."""
        return {"kind": "config", "resource": resource, "name": name, "values": dict(values)}

    def of(self, resource: str, name: str) -> Mapping[str, str]:
        """Return the options set on a resource. The name of a broker is its id, or empty for all brokers."""
        return self._values.get((resource, name), {})

    def names(self, resource: str) -> list[str]:
        """Return the names of all resources of a type that have options."""
        return [name for kind, name in self._values if kind == resource]

    def apply(self, event: Event) -> None:
        key = (event["resource"], event["name"])
        merged = {**self._values.get(key, {}), **event["values"]}
        values = {name: value for name, value in merged.items() if value is not None}
        if values:
            self._values[key] = values
        else:
            self._values.pop(key, None)

    def snapshot(self) -> Iterator[Event]:
        for (resource, name), values in self._values.items():
            yield {"kind": "config", "resource": resource, "name": name, "values": dict(values)}

    def changes_to(self, target: Configs) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        for key in {**self._values, **target._values}:
            old, new = self._values.get(key, {}), target._values.get(key, {})
            if old != new:
                yield self.change(*key, {**dict.fromkeys(old), **new})


class Quotas:
    """The quotas of each entity."""

    kinds = ("quota",)

    def __init__(self) -> None:
        self.by_entity: dict[Entity, dict[str, float]] = {}
        self.version = 0  # counts changes; limits are cached by it

    @staticmethod
    def change(entity: Entity, values: Mapping[str, float | None]) -> Event:
        """Return the event that sets quotas of an entity; None removes one."""
        return {"kind": "quota", "entity": [list(part) for part in entity], "values": dict(values)}

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
        """Yield events that turn this section into `target`."""
        for key in {**self.by_entity, **target.by_entity}:
            old, new = self.by_entity.get(key, {}), target.by_entity.get(key, {})
            if old != new:
                yield self.change(key, {**dict.fromkeys(old), **new})
