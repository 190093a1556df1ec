"""The last changes of the catalog, in order and numbered, for the brokers that follow it.

A number is the offset of the catalog before the change. Numbers are of one *generation*: of the process that records.
Whoever comes with the numbers of an older generation, or of changes that are not kept any more, gets a snapshot.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice

from headrace.broker.catalog.journal import Event

CHANGES_KEPT_MAX = 2_000
CHANGES_AT_ONCE_MAX = 500

Change = Sequence[Event]
"""Events that were recorded together."""


class Recent:
    """What was recorded last."""

    def __init__(self, next_number: int = 0) -> None:
        self.generation = int.from_bytes(os.urandom(7))
        self.next_number = next_number
        self._changes: deque[Change] = deque(maxlen=CHANGES_KEPT_MAX)

    def add(self, change: Change) -> None:
        self._changes.append(change)
        self.next_number += 1

    def since(self, generation: int, number: int) -> list[Change] | None:
        """Changes from a number on, not all at once if they are many; None if they are not, or no longer, kept."""
        first = self.next_number - len(self._changes)
        if generation != self.generation or not first <= number <= self.next_number:
            return None
        return list(islice(self._changes, number - first, number - first + CHANGES_AT_ONCE_MAX))
