"""Access rules."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.catalog.journal import Event


class Acls:
    """Access rules."""

    kinds: tuple[str, ...] = ()

    def apply(self, event: Event) -> None:
        raise KeyError(event["kind"])

    def snapshot(self) -> Iterator[Event]:
        yield from ()
