"""The catalog: the metadata of the cluster (topics, options, users, ACLs, quotas), everything that is not records.

    change   → Journal (a line on disk, synced) → section.apply → memory → listeners
    start-up → Journal, line by line            → section.apply → memory

A change is a list of *events*, JSON objects whose `kind` belongs to one section. Memory changes through `apply` only,
so disk and memory cannot differ. A snapshot is the shortest list of events that creates the same state.

In a cluster the controller records changes and the other brokers replicate them: `recent` has the last changes, and
`apply_changes` and `load_snapshot` apply them to a copy. A snapshot that lacks changes of the copy is rejected
(history.py). A topic that is missing in a snapshot is not deleted: only an event deletes a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from headrace.broker.catalog.cluster import Brokers, Identity
from headrace.broker.catalog.configs import Configs, Quotas
from headrace.broker.catalog.history import ControllerEpochs, RecentChanges
from headrace.broker.catalog.journal import DamagedJournalError, Event, Journal, Section
from headrace.broker.catalog.security import Acls, Users
from headrace.broker.catalog.topics import Topics
from headrace.errors import BrokerError, Code

__all__ = ["Catalog", "Event", "Sections"]

log = logging.getLogger("headrace.broker")


class Sections:
    """The sections of a catalog, in memory."""

    def __init__(self) -> None:
        self.epochs = ControllerEpochs()
        self.identity = Identity()
        self.brokers = Brokers()
        self.configs = Configs()
        self.topics = Topics()
        self.acls = Acls()
        self.users = Users()
        self.quotas = Quotas()
        # Configs come before topics: the logs of a topic are created with its options.
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
        """Apply an event to memory only."""
        self._by_kind[event["kind"]].apply(event)

    def snapshot(self) -> Iterator[Event]:
        """Yield events that create the catalog from an empty one."""
        for section in self._sections:
            yield from section.snapshot()

    def _changes_to(self, target: Sections) -> Iterator[Event]:
        for section, other in zip(self._sections, target._sections, strict=True):
            yield from section.changes_to(other)


class Catalog(Sections):
    """The sections and their journal."""

    def __init__(self, journal: Path, *, follows: bool = False) -> None:
        """`follows`: this is a copy of the controller's catalog and cannot be changed here.

        Raises DamagedJournalError if the journal has lost acknowledged changes.
        """
        super().__init__()
        self.listeners: list[Callable[[Event], None]] = []  # called with every event after it is applied
        self._follows = follows
        self._journal = Journal(journal)
        try:
            self._load(journal)
            self.recent = RecentChanges(self._journal.offset)
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
                    "may have written it, or earlier lines are lost. Nothing was changed. "
                    f"Run `headrace broker repair --data-dir {path.parent}` to see what can be recovered"
                ) from error
        if self._journal.worth_compacting(sum(1 for _ in self.snapshot())):
            self._journal.replace(self.snapshot())

    def _begin_epoch(self) -> None:
        events = [] if self.identity.cluster_id else Identity.creation()
        events.append(self.epochs.beginning(self.recent.generation, self.offset))
        if self._journal.has_lost_end:
            events.append(self.identity.skip_producer_ids())  # the lost changes may have reserved some
        self.record(*events)

    @property
    def offset(self) -> int:
        """The number of changes so far."""
        return self._journal.offset

    def record(self, *events: Event) -> None:
        """Record a change on disk, then apply it: all of its events survive a crash, or none."""
        if self._follows:
            raise BrokerError("only the controller can change the catalog", code=Code.NOT_CONTROLLER)
        self._append(events)
        self.recent.add(events)
        self._apply_all(events)

    def apply_changes(self, events: Sequence[Event], offset: int) -> None:
        """Record and apply changes of the controller, whose catalog is at `offset` after them."""
        self._append(events, offset)
        self._apply_all(events)

    def check_snapshot(self, snapshot: Sequence[Event], offset: int) -> None:
        """Raise StaleCatalogError if a snapshot lacks changes of this copy."""
        self._sections_of(snapshot, offset)

    def load_snapshot(self, snapshot: Sequence[Event], offset: int) -> None:
        """Replace this copy with a snapshot of the controller; listeners get the differences as events.

        Raises StaleCatalogError, and changes nothing, if the snapshot lacks changes of this copy.
        """
        changes = list(self._changes_to(self._sections_of(snapshot, offset)))
        self._journal.replace(snapshot, offset)
        self._apply_all(changes)

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
            raise BrokerError(f"cannot change the catalog: {error}", code=Code.KAFKA_STORAGE_ERROR) from error

    def overlay(self, events: Iterable[Event]) -> None:
        """Apply events in memory only, until the next changes of the controller."""
        self._apply_all(events)

    def close(self) -> None:
        """Close the journal and write its end file."""
        self._journal.close()
        try:
            self._journal.note_end()
        except OSError as error:
            log.warning("cannot write the end file of the catalog journal: %s", error)

    def _apply_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.apply(event)
            for listener in self.listeners:
                listener(event)
        if self._journal.is_overlong:
            try:
                self._journal.replace(self.snapshot())
            except OSError as error:  # the old journal remains valid
                log.warning("cannot rewrite the catalog journal: %s", error)
