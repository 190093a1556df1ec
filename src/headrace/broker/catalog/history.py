"""The history of the catalog: controller epochs, and the last changes for brokers that replicate it.

Every start of the controller begins an epoch at the current offset of its catalog. Two copies that share an epoch, by
its random generation, have the same changes up to the end of the shorter copy, or up to the start of the next epoch. A
follower can therefore check whether the controller's catalog contains all changes of its own copy. If it does not, the
controller was started with an older or damaged catalog, and the follower rejects it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from headrace.broker.catalog.journal import Event
from headrace.errors import IllegalStateError

EPOCHS_KEPT_MAX = 50
CHANGES_KEPT_MAX = 2_000
CHANGES_AT_ONCE_MAX = 500

Change = Sequence[Event]
"""Events that were recorded together."""


class StaleCatalogError(IllegalStateError):
    """The controller's catalog does not contain all changes of this broker's copy."""


class ControllerEpoch(NamedTuple):
    """A run of the controller."""

    number: int  # counts up
    generation: int  # random and unique
    start_offset: int  # of the catalog at the start of the epoch


class ControllerEpochs:
    """The last controller epochs, in order."""

    kinds = ("controller-epochs",)

    def __init__(self) -> None:
        self.rows: list[ControllerEpoch] = []

    @property
    def last(self) -> int:
        """The number of the last epoch; 0 if there is none."""
        return self.rows[-1].number if self.rows else 0

    def beginning(self, generation: int, offset: int) -> Event:
        """Return the event that begins the next epoch."""
        rows = [*self.rows, ControllerEpoch(self.last + 1, generation, offset)]
        return {"kind": "controller-epochs", "rows": [list(row) for row in rows[-EPOCHS_KEPT_MAX:]]}

    def check_continued_by(self, offset: int, other: ControllerEpochs, other_offset: int) -> None:
        """Raise StaleCatalogError unless another catalog contains all changes of the one with these epochs."""
        # A copy without epochs was written by an earlier version, or is empty.
        common = self.common_offset(offset, other, other_offset)
        if self.rows and offset > common:
            mine = self.rows[-1]
            raise StaleCatalogError(
                f"the controller's catalog is older than this broker's copy, or of another cluster: it is at epoch "
                f"{other.last}, offset {other_offset}, and has this broker's changes up to offset {common}; this "
                f"broker's copy is at epoch {mine.number}, offset {offset}. This broker keeps its copy and deletes "
                "nothing. Stop the controller and restore the newest copy: headrace broker repair --data-dir "
                "CONTROLLER_FOLDER --from FOLDER_OF_ANOTHER_BROKER"
            )

    def common_offset(self, offset: int, other: ControllerEpochs, other_offset: int) -> int:
        """Return the offset up to which a catalog with these epochs and another catalog have the same changes."""
        theirs = {row.generation: index for index, row in enumerate(other.rows)}
        for index, row in reversed(list(enumerate(self.rows))):
            if row.generation in theirs:
                return min(self._end(index, offset), other._end(theirs[row.generation], other_offset))
        if other.rows and self.last < other.rows[0].number:
            return other.rows[0].start_offset  # our epochs are too old to be in the other catalog
        return 0

    def _end(self, index: int, offset: int) -> int:
        """Return the end offset of an epoch in a catalog with this offset."""
        return offset if index + 1 == len(self.rows) else self.rows[index + 1].start_offset

    def apply(self, event: Event) -> None:
        self.rows = [ControllerEpoch(*row) for row in event["rows"]]

    def snapshot(self) -> Iterator[Event]:
        if self.rows:
            yield {"kind": "controller-epochs", "rows": [list(row) for row in self.rows]}

    def changes_to(self, target: ControllerEpochs) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        if self.rows != target.rows:
            yield {"kind": "controller-epochs", "rows": [list(row) for row in target.rows]}


class RecentChanges:
    """The last changes of the catalog, numbered, for the brokers that replicate it.

    The number of a change is the offset of the catalog before it. Numbers are valid for one *generation*, a run of the
    controller. A broker with numbers of another generation, or of changes that are no longer kept, gets a snapshot.
    """

    def __init__(self, next_number: int = 0) -> None:
        self.generation = int.from_bytes(os.urandom(7))
        self.next_number = next_number
        self._changes: deque[Change] = deque(maxlen=CHANGES_KEPT_MAX)

    def add(self, change: Change) -> None:
        self._changes.append(change)
        self.next_number += 1

    def since(self, generation: int, number: int) -> list[Change] | None:
        """Return the next changes from a number on, within a limit; None if they are not kept."""
        first = self.next_number - len(self._changes)
        if generation != self.generation or not first <= number <= self.next_number:
            return None
        return list(islice(self._changes, number - first, number - first + CHANGES_AT_ONCE_MAX))
