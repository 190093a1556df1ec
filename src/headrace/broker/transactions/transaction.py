"""What is known of a transactional id, and what each step makes of it. No I/O, no clock.

A `Transaction` is a value: a step gives a new one, which is written to the log and only then takes the place of the old
one. So a step whose write fails has changed nothing, and what is in memory is what a replay of the log gives (but for
`last_epoch`, which Kafka's format has no field for either).

Two versions of the protocol run side by side. In version 1 a producer keeps its epoch from transaction to transaction;
in version 2 (KIP-890) every end gives it the next one, so that a request of transaction N which arrives late cannot be
taken for one of N+1.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from headrace.broker.transactions.states import AT_REST, LEGAL, State
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

EPOCH_MAX = 0x7FFF
"""Never handed to a producer, so that there is always a higher epoch to fence one with."""
NOT_STARTED = -1
VERSION_1 = 1
VERSION_2 = 2


def is_exhausted(epoch: int) -> bool:
    """Whether a producer with this epoch cannot have a higher one under the same id."""
    return epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """The latest, or current, transaction of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    updated_ms: int
    started_ms: int = NOT_STARTED
    partitions: frozenset[TopicPartition] = frozenset()
    version: int = VERSION_1
    """Of the protocol, as far as the last step told: 2 if it is bound to end with a new epoch, or has."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The id before a change of ids, to know again who asks once more because our answer was lost."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id after the end of this transaction, where the epochs of the present one are used up."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump, for the same purpose; -1 if its owner is to be fenced."""

    @classmethod
    def unborn(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """Before the first step of an id, which gives it epoch 0."""
        return cls(transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, State.EMPTY, now_ms)

    @property
    def is_unborn(self) -> bool:
        return self.epoch == NO_PRODUCER_EPOCH

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.epoch)

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """Who the producer is after the end that is decided."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.producer

    def is_retry_of_end(self, producer_id: int, epoch: int) -> bool:
        """Whether an EndTxn of version 2 asks for the end that was reached already, because our answer was lost."""
        if self.version < VERSION_2:
            return False
        if self.producer_id == producer_id:
            return self.epoch == epoch + 1
        return self.previous_producer_id == producer_id and epoch == EPOCH_MAX - 1 and self.epoch == 0

    # The steps.

    def initialized(self, timeout_ms: int, now_ms: int, expected: ProducerIdAndEpoch | None) -> Transaction:
        """InitProducerId, at rest: the next epoch of the same id.

        `expected` comes from a producer that goes on after an error (KIP-360): it is served if nobody else has been
        in between, and served again the same if it has to ask twice.
        """
        if expected is None or self.is_unborn or expected.epoch == self.epoch:
            last = NO_PRODUCER_EPOCH if expected is None else self.epoch
            return self._emptied(timeout_ms, now_ms, epoch=self.epoch + 1, last_epoch=last)
        if expected.epoch == self.last_epoch:
            return self._emptied(timeout_ms, now_ms)
        raise fenced_error(self, expected.epoch)

    def rotated(self, producer_id: int, timeout_ms: int, now_ms: int, *, keep_last: bool) -> Transaction:
        """InitProducerId, at rest, when the epochs are used up: another id, epoch 0."""
        last = self.epoch if keep_last else NO_PRODUCER_EPOCH
        before = self.producer_id
        return self._emptied(
            timeout_ms, now_ms, producer_id=producer_id, epoch=0, last_epoch=last, previous_producer_id=before
        )

    def extended(self, partitions: Collection[TopicPartition], now_ms: int, version: int) -> Transaction:
        """More partitions; the first ones begin the transaction."""
        return self._moved(
            State.ONGOING,
            now_ms,
            partitions=self.partitions.union(partitions),
            started_ms=now_ms if self.state in AT_REST else self.started_ms,
            version=version,
        )

    def prepared(self, committed: bool, now_ms: int, version: int, next_producer_id: int) -> Transaction:
        """The decision. In version 2 it also ends the epoch that the transaction was written with."""
        bumped = version >= VERSION_2
        return self._moved(
            State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
            now_ms,
            epoch=self.epoch + 1 if bumped else self.epoch,
            last_epoch=self.epoch if bumped else self.last_epoch,
            started_ms=now_ms if self.state in AT_REST else self.started_ms,
            version=version,
            next_producer_id=next_producer_id,
        )

    def fenced(self, now_ms: int, version: int, last_epoch: int) -> Transaction:
        """The decision to abort, taken over the producer's head: its epoch ends in any version."""
        fence = self._moved(State.PREPARE_EPOCH_FENCE, now_ms, epoch=min(self.epoch + 1, EPOCH_MAX))
        return fence._moved(State.PREPARE_ABORT, now_ms, version=version, last_epoch=last_epoch)

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written."""
        state = State.COMPLETE_COMMIT if self.state == State.PREPARE_COMMIT else State.COMPLETE_ABORT
        producer_id, epoch = self.next_producer
        return self._moved(
            state,
            now_ms,
            producer_id=producer_id,
            epoch=epoch,
            partitions=frozenset(),
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def _emptied(self, timeout_ms: int, now_ms: int, **changes: Any) -> Transaction:
        return self._moved(
            State.EMPTY, now_ms, timeout_ms=timeout_ms, started_ms=NOT_STARTED, version=VERSION_1, **changes
        )

    def _moved(self, state: State, now_ms: int, **changes: Any) -> Transaction:
        if state not in LEGAL[self.state]:
            raise AssertionError(f"{self.transactional_id}: no step leads from {self.state.label} to {state.label}")
        # A wall clock may go back; what was written last must not look older than what was written before.
        return replace(self, state=state, updated_ms=max(now_ms, self.updated_ms), **changes)


def fenced_error(transaction: Transaction, epoch: int) -> BrokerError:
    """For a producer whose epoch is not the current one."""
    return BrokerError(
        f"{transaction.transactional_id}: epoch {epoch} of producer id {transaction.producer_id} is over, "
        f"the current one is {transaction.epoch}",
        code=Code.PRODUCER_FENCED,
    )
