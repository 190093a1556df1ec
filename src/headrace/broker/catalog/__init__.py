"""What the cluster is: topics, configurations, users, rights. Everything that is not records.

    change → Journal (a line on disk, synced) → section.apply → memory → listeners
    start  → Journal, line by line            → section.apply → memory

A change is an *event*, a JSON object whose `kind` belongs to one section. Memory changes through `apply` only, so what
is on disk and what is in memory cannot differ; a snapshot is the shortest list of events that gives the same memory.

In a cluster the controller records, and other brokers follow: `recent` is what they have to hear of, `follow` and
`load_snapshot` is how they take it over. A snapshot that lacks changes which this copy has is refused (epochs.py), and
what is not in a snapshot is not deleted because of that: only an event that says so deletes a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from headrace.broker.catalog.acls import Acls
from headrace.broker.catalog.brokers import Brokers
from headrace.broker.catalog.configs import Configs
from headrace.broker.catalog.epochs import ControllerEpochs
from headrace.broker.catalog.identity import Identity
from headrace.broker.catalog.journal import DamagedJournalError, Event, Journal, Section
from headrace.broker.catalog.quotas import Quotas
from headrace.broker.catalog.recent import Recent
from headrace.broker.catalog.topics import Topics
from headrace.broker.catalog.users import Users
from headrace.errors import BrokerError, Code

__all__ = ["Catalog", "Event", "Sections"]

log = logging.getLogger("headrace.broker")


class Sections:
    """The sections, in memory."""

    def __init__(self) -> None:
        self.epochs = ControllerEpochs()
        self.identity = Identity()
        self.brokers = Brokers()
        self.configs = Configs()
        self.topics = Topics()
        self.acls = Acls()
        self.users = Users()
        self.quotas = Quotas()
        # Options come before topics: a log is made, with them, when its topic is there.
        self._sections: tuple[Section, ...] = (
            self.epochs,
            self.identity,
            self.brokers,
            self.configs,
            self.topics,
            self.acls,
            self.users,
            self.quotas,
        )
        self._by_kind = {kind: section for section in self._sections for kind in section.kinds}

    def apply(self, event: Event) -> None:
        """Change memory, and nothing else."""
        self._by_kind[event["kind"]].apply(event)

    def snapshot(self) -> Iterator[Event]:
        """Events that make the catalog what it is, from nothing."""
        for section in self._sections:
            yield from section.snapshot()

    def _changes_to(self, target: Sections) -> Iterator[Event]:
        for section, other in zip(self._sections, target._sections, strict=True):
            yield from section.changes_to(other)


class Catalog(Sections):
    """The sections, and the journal they are kept in."""

    def __init__(self, journal: Path, *, follows: bool = False) -> None:
        """`follows`: it is a copy of another broker's, and cannot be changed here.

        DamagedJournalError if the journal has lost changes that were acknowledged.
        """
        super().__init__()
        self.listeners: list[Callable[[Event], None]] = []  # told of every event, after it is applied
        self._follows = follows
        self._journal = Journal(journal)
        try:
            self._load(journal)
            self.recent = Recent(self._journal.offset)
            if not follows:
                self._begin_epoch()
        except BaseException:
            self._journal.close()
            raise

    def _load(self, path: Path) -> None:
        for line in self._journal.open():
            try:
                for event in line.events:
                    self.apply(event)
            except (LookupError, TypeError, ValueError) as error:
                raise DamagedJournalError(
                    f"{path}: line {line.number} (byte {line.position}) cannot be applied: {error!r}. A newer version "
                    "may have written it, or lines before it are lost. Nothing was changed. "
                    f"`headrace broker repair --data-dir {path.parent}` shows what can be saved"
                ) from error
        if self._journal.worth_compacting(sum(1 for _ in self.snapshot())):
            self._journal.replace(self.snapshot())

    def _begin_epoch(self) -> None:
        events = [] if self.identity.cluster_id else Identity.founding()
        events.append(self.epochs.beginning(self.recent.generation, self.offset))
        if self._journal.has_lost_end:
            events.append(self.identity.skip_producer_ids())  # what is lost may have reserved some
        self.record(*events)

    @property
    def offset(self) -> int:
        """How many changes there have been."""
        return self._journal.offset

    def record(self, *events: Event) -> None:
        """Make changes: on disk first, then in memory. All of them survive, or none."""
        if self._follows:
            raise BrokerError("only the controller changes the catalog", code=Code.NOT_CONTROLLER)
        self._append(events)
        self.recent.add(events)
        self._take_over(events)

    def follow(self, events: Sequence[Event], offset: int) -> None:
        """Take over what the controller has recorded; its catalog's offset is `offset` then."""
        self._append(events, offset)
        self._take_over(events)

    def check_snapshot(self, snapshot: Sequence[Event], offset: int) -> None:
        """Raise StaleCatalogError if a snapshot lacks changes that this copy has."""
        self._sections_of(snapshot, offset)

    def load_snapshot(self, snapshot: Sequence[Event], offset: int) -> None:
        """Be what the controller's catalog is, at an offset; listeners hear of the difference.

        StaleCatalogError, and nothing is changed, if the snapshot lacks changes that this copy has.
        """
        changes = list(self._changes_to(self._sections_of(snapshot, offset)))
        self._journal.replace(snapshot, offset)
        self._take_over(changes)

    def _sections_of(self, snapshot: Sequence[Event], offset: int) -> Sections:
        target = Sections()
        for event in snapshot:
            target.apply(event)
        self.epochs.check_continued_by(self.offset, target.epochs, offset)
        return target

    def _append(self, events: Sequence[Event], offset: int | None = None) -> None:
        try:
            self._journal.append(events, offset)
        except OSError as error:
            raise BrokerError(f"the catalog cannot be changed: {error}", code=Code.KAFKA_STORAGE_ERROR) from error

    def assume(self, events: Iterable[Event]) -> None:
        """Take something for given, in memory only, until the controller is heard of."""
        self._take_over(events)

    def close(self) -> None:
        """Close the journal, and note how far it goes."""
        self._journal.close()
        try:
            self._journal.note_end()
        except OSError as error:
            log.warning("the end of the catalog's journal could not be noted: %s", error)

    def _take_over(self, events: Iterable[Event]) -> None:
        for event in events:
            self.apply(event)
            for listener in self.listeners:
                listener(event)
        if self._journal.is_overlong:
            try:
                self._journal.replace(self.snapshot())
            except OSError as error:  # the long one is as good
                log.warning("the catalog's journal could not be written anew: %s", error)
