"""Client quotas."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.catalog.journal import Event


class Quotas:
    """Client quotas."""

    kinds: tuple[str, ...] = ()

    def apply(self, event: Event) -> None:
        raise KeyError(event["kind"])

    def snapshot(self) -> Iterator[Event]:
        yield from ()
