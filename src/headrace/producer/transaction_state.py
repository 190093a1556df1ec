"""The states of a transactional producer and the steps between them.

    UNINITIALIZED ⇄ INITIALIZING → READY ⇄ IN_TRANSACTION → COMMITTING → READY
                         ↑                    ↓         ↘ ABORTING → READY
                         │             ABORTABLE_ERROR ↗      │
                         └── a new epoch after the end ───────┘
    any → FATAL_ERROR, and from there nowhere

Everything asks the table. A step that it does not have is the caller's mistake when an application thread takes it, and
ours on the I/O thread: there it poisons the manager, for going on could deliver half a transaction (KAFKA-14831).
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
    # Back to UNINITIALIZED: the id was refused for want of rights, which somebody may grant.
    State.INITIALIZING: frozenset({State.READY, State.UNINITIALIZED, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    # Back to UNINITIALIZED: an idempotent producer has used up the epochs of its id.
    State.READY: frozenset({State.IN_TRANSACTION, State.UNINITIALIZED, State.FATAL_ERROR}),
    State.IN_TRANSACTION: frozenset({State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.COMMITTING: frozenset({State.READY, State.INITIALIZING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.ABORTING: frozenset({State.READY, State.INITIALIZING, State.FATAL_ERROR}),
    State.ABORTABLE_ERROR: frozenset({State.ABORTING, State.ABORTABLE_ERROR, State.FATAL_ERROR}),
    State.FATAL_ERROR: frozenset({State.FATAL_ERROR}),
}


def is_legal(source: State, target: State) -> bool:
    return target in LEGAL[source]
