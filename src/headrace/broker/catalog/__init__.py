"""What the cluster is: topics, configurations, users, rights. Everything that is not records.

    change → Journal (a line on disk, synced) → section.apply → memory
    start  → Journal, line by line            → section.apply → memory

A change is an *event*, a JSON object whose `kind` belongs to one section. Memory changes through `apply` only, so what
is on disk and what is in memory cannot differ; a snapshot is the shortest list of events that gives the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.broker.catalog.acls import Acls
from headrace.broker.catalog.configs import Configs
from headrace.broker.catalog.identity import Identity
from headrace.broker.catalog.journal import Event, Journal, Section
from headrace.broker.catalog.quotas import Quotas
from headrace.broker.catalog.topics import Topics
from headrace.broker.catalog.users import Users

__all__ = ["Catalog", "Event"]


class Catalog:
    """The sections, and the journal they are kept in."""

    def __init__(self, journal: Path) -> None:
        self.identity = Identity()
        self.topics = Topics()
        self.configs = Configs()
        self.acls = Acls()
        self.users = Users()
        self.quotas = Quotas()
        self.listeners: list[Callable[[Event], None]] = []  # told of every event that is recorded, after it is applied
        self._sections: tuple[Section, ...] = (
            self.identity,
            self.topics,
            self.configs,
            self.acls,
            self.users,
            self.quotas,
        )
        self._by_kind = {kind: section for section in self._sections for kind in section.kinds}
        self._journal = Journal(journal)
        for event in self._journal.open():
            self._by_kind[event["kind"]].apply(event)
        if self._journal.worth_compacting(sum(1 for _ in self._snapshot())):
            self._journal.replace(self._snapshot())
        if not self.identity.cluster_id:
            self.record(*Identity.founding())

    def record(self, *events: Event) -> None:
        """Make changes: on disk first, then in memory. All of them survive, or none."""
        self._journal.append(events)
        for event in events:
            self._by_kind[event["kind"]].apply(event)
            for listener in self.listeners:
                listener(event)

    def close(self) -> None:
        self._journal.close()

    def _snapshot(self) -> Iterable[Event]:
        for section in self._sections:
            yield from section.snapshot()
