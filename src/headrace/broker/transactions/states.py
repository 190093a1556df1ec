"""The states of a transaction and the steps between them.

::

    EMPTY ──→ ONGOING ──→ PREPARE_COMMIT ──→ COMPLETE_COMMIT ─┐
      │          ├──────→ PREPARE_ABORT ───→ COMPLETE_ABORT ──┤
      │          └→ PREPARE_EPOCH_FENCE ─┘↑                   │
      └───────────────────────────────────┘ ←─────────────────┘ (on to EMPTY, ONGOING, PREPARE_ABORT or DEAD)

A transaction is decided when PREPARE_COMMIT or PREPARE_ABORT is in the log: from there only one way leads on, and
whoever finds that state there goes it. The steps to PREPARE_ABORT that do not come from ONGOING are for transactions of
version 2: an abort of nothing still has to give the producer its next epoch (KIP-890).
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """By the numbers of the transaction log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # being forgotten; never in the log, which gets a tombstone instead
    PREPARE_EPOCH_FENCE = 7  # between ONGOING and PREPARE_ABORT when the producer is fenced; never in the log

    @property
    def label(self) -> str:
        """As it is called in the protocol: PrepareCommit."""
        return self.name.title().replace("_", "")


_FROM_REST = frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD})

LEGAL: dict[State, frozenset[State]] = {
    State.EMPTY: _FROM_REST,
    State.ONGOING: frozenset(
        {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE},
    ),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: _FROM_REST,
    State.COMPLETE_ABORT: _FROM_REST,
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
}

DECIDED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
AT_REST = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
BY_LABEL = {state.label: state for state in State}
