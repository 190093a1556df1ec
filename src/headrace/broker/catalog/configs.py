"""Options that were set by hand on topics and on brokers; what is not here has its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.broker.catalog.journal import Event

TOPIC = "topic"
BROKER = "broker"


class Configs:
    """By resource: name → value, as texts."""

    kinds = ("config",)

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[str, str]] = {}

    @staticmethod
    def change(resource: str, name: str, values: Mapping[str, str | None]) -> Event:
        """The event that sets options of a resource; None takes one back to its default."""
        return {"kind": "config", "resource": resource, "name": name, "values": dict(values)}

    def of(self, resource: str, name: str) -> Mapping[str, str]:
        """What is set on a resource. A broker's name is its id, or empty for all brokers."""
        return self._values.get((resource, name), {})

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
        """Events that make this section what `target` is."""
        for key in {**self._values, **target._values}:
            old, new = self._values.get(key, {}), target._values.get(key, {})
            if old != new:
                yield self.change(*key, {**dict.fromkeys(old), **new})
