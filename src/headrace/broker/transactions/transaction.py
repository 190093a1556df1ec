"""The state machine of a transactional id. No I/O, no clock.

::

    EMPTY ──→ ONGOING ──→ PREPARE_COMMIT ──→ COMPLETE_COMMIT ─┐
      │          ├──────→ PREPARE_ABORT ───→ COMPLETE_ABORT ──┤
      │          └→ PREPARE_EPOCH_FENCE ─┘↑                   │
      └───────────────────────────────────┘ ←─────────────────┘ (to EMPTY, ONGOING, PREPARE_ABORT or DEAD)

A transaction is decided when PREPARE_COMMIT or PREPARE_ABORT is in the log: after a restart the coordinator completes
it. The transitions to PREPARE_ABORT from other states than ONGOING exist for transactions v2: aborting an empty
transaction still has to bump the epoch (KIP-890).

A `Transaction` is a value: a transition returns a new one, which is written to the log and only then replaces the old
one. A failed write therefore changes nothing, and memory equals the replay of the log (except `last_epoch`, which
Kafka's format does not have either).

Two protocol versions coexist. In version 1 a producer keeps its epoch across transactions; in version 2 (KIP-890) every
end bumps it, so that a late request of transaction N cannot be mistaken for one of N+1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any

from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class TransactionState(IntEnum):
    """The state of a transaction, with the numbers of the transaction log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # being removed; the log gets a tombstone instead
    PREPARE_EPOCH_FENCE = 7  # transient, when the coordinator fences the producer; never in the log

    @property
    def label(self) -> str:
        """The name in the protocol, such as PrepareCommit."""
        return self.name.title().replace("_", "")


_FROM_REST = frozenset(
    {TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.DEAD}
)

VALID_TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: _FROM_REST,
    TransactionState.ONGOING: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_EPOCH_FENCE,
        },
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: _FROM_REST,
    TransactionState.COMPLETE_ABORT: _FROM_REST,
    TransactionState.DEAD: frozenset(),
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.PREPARE_ABORT}),
}

DECIDED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
AT_REST = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
BY_LABEL = {state.label: state for state in TransactionState}

EPOCH_MAX = 0x7FFF
"""Never assigned to a producer, so that a higher epoch is always available for fencing."""
NOT_STARTED = -1
VERSION_1 = 1
VERSION_2 = 2


def is_exhausted(epoch: int) -> bool:
    """Return whether the epoch cannot be bumped any more for the same producer id."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """The current or last transaction of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    started_ms: int = NOT_STARTED
    partitions: frozenset[TopicPartition] = frozenset()
    version: int = VERSION_1
    """The protocol version of the last request: with 2 the end bumps the epoch."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before its replacement, to recognize a retry after a lost response."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after the end of this transaction, if the epochs are exhausted."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump, to recognize a retry; -1 if the previous producer is fenced."""

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """Return a transactional id before its first InitProducerId, which assigns epoch 0."""
        return cls(transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, now_ms)

    @property
    def is_new(self) -> bool:
        return self.epoch == NO_PRODUCER_EPOCH

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.epoch)

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """The producer after the decided end."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.producer

    def is_retry_of_end(self, producer: ProducerIdAndEpoch) -> bool:
        """Return whether an EndTxn of version 2 is the retry of one whose response was lost."""
        if self.version < VERSION_2:
            return False
        if self.producer_id == producer.producer_id:
            return self.epoch == producer.epoch + 1
        return self.previous_producer_id == producer.producer_id and producer.epoch == EPOCH_MAX - 1 and self.epoch == 0

    # -- transitions -----------------------------------------------------------------------------

    def initialized(self, timeout_ms: int, now_ms: int, expected: ProducerIdAndEpoch | None) -> Transaction:
        """InitProducerId without an open transaction: bump the epoch.

        `expected` is sent by a producer that recovers from an error (KIP-360). It is fenced if another producer has
        initialized meanwhile; a retry gets the same epoch again.
        """
        if expected is None or self.is_new or expected.epoch == self.epoch:
            last = NO_PRODUCER_EPOCH if expected is None else self.epoch
            return self._to_empty(timeout_ms, now_ms, epoch=self.epoch + 1, last_epoch=last)
        if expected.epoch == self.last_epoch:
            return self._to_empty(timeout_ms, now_ms)
        raise fenced_error(self, expected.epoch)

    def rotated(self, producer_id: int, timeout_ms: int, now_ms: int, *, keep_last: bool) -> Transaction:
        """InitProducerId when the epochs are exhausted: a new producer id with epoch 0."""
        last = self.epoch if keep_last else NO_PRODUCER_EPOCH
        previous = self.producer_id
        return self._to_empty(
            timeout_ms, now_ms, producer_id=producer_id, epoch=0, last_epoch=last, previous_producer_id=previous
        )

    def extended(self, partitions: Collection[TopicPartition], now_ms: int, version: int) -> Transaction:
        """Add partitions; the first ones start the transaction."""
        return self._transition_to(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions.union(partitions),
            started_ms=now_ms if self.state in AT_REST else self.started_ms,
            version=version,
        )

    def prepared(self, committed: bool, now_ms: int, version: int, next_producer_id: int) -> Transaction:
        """Decide to commit or abort. Version 2 also bumps the epoch."""
        bumped = version >= VERSION_2
        return self._transition_to(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            now_ms,
            epoch=self.epoch + 1 if bumped else self.epoch,
            last_epoch=self.epoch if bumped else self.last_epoch,
            started_ms=now_ms if self.state in AT_REST else self.started_ms,
            version=version,
            next_producer_id=next_producer_id,
        )

    def fenced(self, now_ms: int, version: int, last_epoch: int) -> Transaction:
        """Decide to abort without the producer: its epoch is fenced in any version."""
        fence = self._transition_to(TransactionState.PREPARE_EPOCH_FENCE, now_ms, epoch=min(self.epoch + 1, EPOCH_MAX))
        return fence._transition_to(TransactionState.PREPARE_ABORT, now_ms, version=version, last_epoch=last_epoch)

    def completed(self, now_ms: int) -> Transaction:
        """Complete the transaction: all markers are written."""
        state = (
            TransactionState.COMPLETE_COMMIT
            if self.state == TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        )
        producer_id, epoch = self.next_producer
        return self._transition_to(
            state,
            now_ms,
            producer_id=producer_id,
            epoch=epoch,
            partitions=frozenset(),
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def _to_empty(self, timeout_ms: int, now_ms: int, **changes: Any) -> Transaction:
        return self._transition_to(
            TransactionState.EMPTY, now_ms, timeout_ms=timeout_ms, started_ms=NOT_STARTED, version=VERSION_1, **changes
        )

    def _transition_to(self, state: TransactionState, now_ms: int, **changes: Any) -> Transaction:
        if state not in VALID_TRANSITIONS[self.state]:
            raise AssertionError(
                f"{self.transactional_id}: illegal state transition {self.state.label} → {state.label}"
            )
        # The wall clock may go back; timestamps must not.
        return replace(self, state=state, updated_ms=max(now_ms, self.updated_ms), **changes)


def fenced_error(transaction: Transaction, epoch: int) -> BrokerError:
    """Return the error for a producer whose epoch is not the current one."""
    return BrokerError(
        f"{transaction.transactional_id}: epoch {epoch} of producer id {transaction.producer_id} is fenced, "
        f"the current epoch is {transaction.epoch}",
        code=Code.PRODUCER_FENCED,
    )


# -- EndTxn --------------------------------------------------------------------------------------


class EndTxnAction(Enum):
    """How to handle an EndTxn.

    The epoch tells a first request from a retry after a lost response. Version 1 cannot tell them apart, so only the
    state counts. In version 2 an end has bumped the epoch: the previous epoch is a retry, the current one a new
    request. There aborting an empty transaction is valid: the producer may not know whether any record has arrived.
    """

    DECIDE = "write the decision"
    DONE = "already ended that way"
    WAIT = "decided that way, but not completed yet"
    INVALID_STATE = "no transaction to end, or ended the other way"
    FENCED = "the epoch is fenced"


# By state and whether the request commits; other combinations are INVALID_STATE.
_RETRIES: dict[tuple[TransactionState, bool], EndTxnAction] = {
    (TransactionState.COMPLETE_COMMIT, True): EndTxnAction.DONE,
    (TransactionState.COMPLETE_ABORT, False): EndTxnAction.DONE,
    (TransactionState.PREPARE_COMMIT, True): EndTxnAction.WAIT,
    (TransactionState.PREPARE_ABORT, False): EndTxnAction.WAIT,
}
_ONGOING = {(TransactionState.ONGOING, committed): EndTxnAction.DECIDE for committed in (True, False)}

VERSION_1_ACTIONS = _RETRIES | _ONGOING

VERSION_2_RETRY_ACTIONS = _RETRIES | {
    (state, committed): EndTxnAction.FENCED
    for state in (TransactionState.ONGOING, TransactionState.EMPTY)
    for committed in (True, False)
}
VERSION_2_ACTIONS = (
    _ONGOING
    | {
        (state, False): EndTxnAction.DECIDE
        for state in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    }
    | {
        (state, committed): EndTxnAction.FENCED
        for state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
        for committed in (True, False)
    }
)


def resolve_end_txn(
    transaction: Transaction, producer: ProducerIdAndEpoch, committed: bool, version: int
) -> EndTxnAction:
    """Return how to handle an EndTxn; raise if the producer is fenced or unknown."""
    table = VERSION_1_ACTIONS
    is_retry = version >= VERSION_2 and transaction.is_retry_of_end(producer)
    if not is_retry:
        check_producer(transaction, producer)
    if version >= VERSION_2:
        table = VERSION_2_RETRY_ACTIONS if is_retry else VERSION_2_ACTIONS
    action = table.get((transaction.state, committed), EndTxnAction.INVALID_STATE)
    if action is EndTxnAction.FENCED:
        raise fenced_error(transaction, producer.epoch)
    return action


def check_producer(transaction: Transaction, producer: ProducerIdAndEpoch) -> None:
    """Raise unless this is the current producer of the transactional id."""
    if transaction.producer_id != producer.producer_id:
        raise BrokerError(
            f"{transaction.transactional_id} has producer id {transaction.producer_id}, not {producer.producer_id}",
            code=Code.INVALID_PRODUCER_ID_MAPPING,
        )
    if transaction.epoch != producer.epoch:
        raise fenced_error(transaction, producer.epoch)
