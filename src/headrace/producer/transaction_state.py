"""The states of a transactional producer and the legal transitions.

    UNINITIALIZED ⇄ INITIALIZING → READY ⇄ IN_TRANSACTION → COMMITTING → READY
                         ↑                    ↓         ↘ ABORTING → READY
                         │             ABORTABLE_ERROR ↗      │
                         └── a new epoch after the end ───────┘
    any → FATAL_ERROR, which is final

Every transition is checked against the table. An illegal one is the application's mistake on an application thread, and
a bug on the I/O thread, where it is fatal: continuing could deliver half a transaction (KAFKA-14831).
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


LEGAL: dict[State, frozenset[State]] = {
    State.UNINITIALIZED: frozenset({State.INITIALIZING, State.FATAL_ERROR}),
    # Back to UNINITIALIZED: not authorized for the id, which may be granted later.
    State.INITIALIZING: frozenset({State.READY, State.UNINITIALIZED, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    # Back to UNINITIALIZED: an idempotent producer has exhausted the epochs of its id.
    State.READY: frozenset({State.IN_TRANSACTION, State.UNINITIALIZED, State.FATAL_ERROR}),
    State.IN_TRANSACTION: frozenset({State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.COMMITTING: frozenset({State.READY, State.INITIALIZING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.ABORTING: frozenset({State.READY, State.INITIALIZING, State.FATAL_ERROR}),
    State.ABORTABLE_ERROR: frozenset({State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.FATAL_ERROR: frozenset({State.FATAL_ERROR}),
}


def is_legal(source: State, target: State) -> bool:
    return target in LEGAL[source]
