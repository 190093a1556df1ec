"""What the cluster is: topics, configurations, users, rights. Everything that is not records.

    change → Journal (a line on disk, synced) → section.apply → memory → listeners
    start  → Journal, line by line            → section.apply → memory

A change is an *event*, a JSON object whose `kind` belongs to one section. Memory changes through `apply` only, so what
is on disk and what is in memory cannot differ; a snapshot is the shortest list of events that gives the same memory.

In a cluster the controller records, and other brokers follow: `recent` is what they have to hear of, `follow` and
`become` is how they take it over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from headrace.broker.catalog.acls import Acls
from headrace.broker.catalog.brokers import Brokers
from headrace.broker.catalog.configs import Configs
from headrace.broker.catalog.identity import Identity
from headrace.broker.catalog.journal import Event, Journal, Section
from headrace.broker.catalog.quotas import Quotas
from headrace.broker.catalog.recent import Recent
from headrace.broker.catalog.topics import Topics
from headrace.broker.catalog.users import Users
from headrace.errors import BrokerError, Code

__all__ = ["Catalog", "Event"]


class _Sections:
    """The sections, in memory."""

    def __init__(self) -> None:
        self.identity = Identity()
        self.brokers = Brokers()
        self.configs = Configs()
        self.topics = Topics()
        self.acls = Acls()
        self.users = Users()
        self.quotas = Quotas()
        # Options come before topics: a log is made, with them, when its topic is there.
        self._sections: tuple[Section, ...] = (
            self.identity,
            self.brokers,
            self.configs,
            self.topics,
            self.acls,
            self.users,
            self.quotas,
        )
        self._by_kind = {kind: section for section in self._sections for kind in section.kinds}

    def _apply(self, event: Event) -> None:
        self._by_kind[event["kind"]].apply(event)

    def snapshot(self) -> Iterator[Event]:
        """Events that make the catalog what it is, from nothing."""
        for section in self._sections:
            yield from section.snapshot()

    def _changes_to(self, target: _Sections) -> Iterator[Event]:
        for section, other in zip(self._sections, target._sections, strict=True):
            yield from section.changes_to(other)


class Catalog(_Sections):
    """The sections, and the journal they are kept in."""

    def __init__(self, journal: Path, *, follows: bool = False) -> None:
        """`follows`: it is a copy of another broker's, and cannot be changed here."""
        super().__init__()
        self.recent = Recent()
        self.listeners: list[Callable[[Event], None]] = []  # told of every event, after it is applied
        self._follows = follows
        self._journal = Journal(journal)
        for event in self._journal.open():
            self._apply(event)
        if self._journal.worth_compacting(sum(1 for _ in self.snapshot())):
            self._journal.replace(self.snapshot())
        if not self.identity.cluster_id and not follows:
            self.record(*Identity.founding())

    def record(self, *events: Event) -> None:
        """Make changes: on disk first, then in memory. All of them survive, or none."""
        if self._follows:
            raise BrokerError("only the controller changes the catalog", code=Code.NOT_CONTROLLER)
        self._journal.append(events)
        self.recent.add(events)
        self._take_over(events)

    def follow(self, events: Sequence[Event]) -> None:
        """Take over what the controller has recorded."""
        self._journal.append(events)
        self._take_over(events)

    def become(self, snapshot: Sequence[Event]) -> None:
        """Be what these events say, whatever it was; listeners hear of the difference."""
        target = _Sections()
        for event in snapshot:
            target._apply(event)
        changes = list(self._changes_to(target))
        self._journal.replace(snapshot)
        self._take_over(changes)

    def assume(self, events: Iterable[Event]) -> None:
        """Take something for given, in memory only, until the controller is heard of."""
        self._take_over(events)

    def close(self) -> None:
        self._journal.close()

    def _take_over(self, events: Iterable[Event]) -> None:
        for event in events:
            self._apply(event)
            for listener in self.listeners:
                listener(event)
        if self._journal.is_overlong:
            self._journal.replace(self.snapshot())
