"""The epochs of the controller: whether one copy of the catalog continues another one.

Every start of the controller begins an epoch, at the offset that its catalog has then. Two copies that agree on an
epoch, by its random generation, agree on every change up to where the shorter one ends, or to where the next epoch
begins. So a follower can tell whether the controller's catalog has all that its own has: if not, the controller was
started with an older or a damaged catalog, and what it says must not be believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.broker.catalog.journal import Event
from headrace.errors import IllegalStateError

EPOCHS_KEPT_MAX = 50


class StaleCatalogError(IllegalStateError):
    """The controller's catalog does not continue this broker's copy."""


class ControllerEpoch(NamedTuple):
    """A run of the controller."""

    number: int  # counts up
    generation: int  # random: two runs never have the same
    start_offset: int  # of the catalog when it began


class ControllerEpochs:
    """The last epochs, in order."""

    kinds = ("controller-epochs",)

    def __init__(self) -> None:
        self.rows: list[ControllerEpoch] = []

    @property
    def last(self) -> int:
        """The number of the last epoch; 0: none is known."""
        return self.rows[-1].number if self.rows else 0

    def beginning(self, generation: int, offset: int) -> Event:
        """The event that begins another epoch."""
        rows = [*self.rows, ControllerEpoch(self.last + 1, generation, offset)]
        return {"kind": "controller-epochs", "rows": [list(row) for row in rows[-EPOCHS_KEPT_MAX:]]}

    def check_continued_by(self, offset: int, other: ControllerEpochs, other_offset: int) -> None:
        """Raise StaleCatalogError unless another catalog has all changes of the one with these epochs."""
        # A copy without epochs is one of an earlier version, or empty.
        common = self.common_offset(offset, other, other_offset)
        if self.rows and offset > common:
            mine = self.rows[-1]
            raise StaleCatalogError(
                f"the controller's catalog is older than this broker's copy, or another one: it is at epoch "
                f"{other.last}, offset {other_offset}, and has this broker's changes up to offset {common}; this "
                f"broker's copy is at epoch {mine.number}, offset {offset}. This broker keeps its copy and deletes "
                "nothing. Stop the controller, and give it the newest copy: headrace broker repair --data-dir "
                "CONTROLLER_FOLDER --from FOLDER_OF_ANOTHER_BROKER"
            )

    def common_offset(self, offset: int, other: ControllerEpochs, other_offset: int) -> int:
        """Return up to which offset a catalog with these epochs and another one have the same changes."""
        theirs = {row.generation: index for index, row in enumerate(other.rows)}
        for index, row in reversed(list(enumerate(self.rows))):
            if row.generation in theirs:
                return min(self._end(index, offset), other._end(theirs[row.generation], other_offset))
        if other.rows and self.last < other.rows[0].number:
            return other.rows[0].start_offset  # the epochs are too old to be kept there
        return 0

    def _end(self, index: int, offset: int) -> int:
        """Where an epoch ends, in a catalog of that offset."""
        return offset if index + 1 == len(self.rows) else self.rows[index + 1].start_offset

    def apply(self, event: Event) -> None:
        self.rows = [ControllerEpoch(*row) for row in event["rows"]]

    def snapshot(self) -> Iterator[Event]:
        if self.rows:
            yield {"kind": "controller-epochs", "rows": [list(row) for row in self.rows]}

    def changes_to(self, target: ControllerEpochs) -> Iterator[Event]:
        """Events that make this section what `target` is."""
        if self.rows != target.rows:
            yield {"kind": "controller-epochs", "rows": [list(row) for row in target.rows]}
