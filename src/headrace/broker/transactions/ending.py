"""What an EndTxn means in the state that it finds.

The epoch tells whether it is a first request or the repetition of one whose answer was lost. Version 1 cannot tell
them apart, so there the state alone decides. In version 2 an end has changed the epoch: one before the current epoch
repeats, the current one is a new request, and an abort of nothing is legal, because the producer need not know whether
any of its records arrived.
"""

from __future__ import annotations

from enum import Enum

from headrace.broker.transactions.states import State
from headrace.broker.transactions.transaction import VERSION_2, Transaction, fenced_error
from headrace.errors import BrokerError, Code


class Verdict(Enum):
    """What to do with a request to end a transaction."""

    DECIDE = "write the decision"
    DONE = "it is so already"
    WAIT = "it is decided so, but not carried out yet"
    CONTRADICTION = "there is nothing to end, or it has ended the other way"
    FENCED = "the epoch is over"


def _ended(same: Verdict, first: State, second: State, *, committed: bool) -> dict[tuple[State, bool], Verdict]:
    return {(first, committed): same, (second, not committed): same}


_REPEATED: dict[tuple[State, bool], Verdict] = {
    **_ended(Verdict.DONE, State.COMPLETE_COMMIT, State.COMPLETE_ABORT, committed=True),
    **_ended(Verdict.WAIT, State.PREPARE_COMMIT, State.PREPARE_ABORT, committed=True),
}
_ONGOING = {(State.ONGOING, committed): Verdict.DECIDE for committed in (True, False)}

VERSION_1_VERDICTS = _REPEATED | _ONGOING
"""Not listed: a contradiction."""

VERSION_2_REPEATED = _REPEATED | {
    (state, committed): Verdict.FENCED for state in (State.ONGOING, State.EMPTY) for committed in (True, False)
}
VERSION_2_FIRST = (
    _ONGOING
    | {(state, False): Verdict.DECIDE for state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)}
    | {
        (state, committed): Verdict.FENCED
        for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        for committed in (True, False)
    }
)


def judge(transaction: Transaction, producer_id: int, epoch: int, committed: bool, version: int) -> Verdict:
    """What to do; raises for a producer that has nothing to say here."""
    table = VERSION_1_VERDICTS
    repeats = version >= VERSION_2 and transaction.is_retry_of_end(producer_id, epoch)
    if not repeats:
        check_producer(transaction, producer_id, epoch)
    if version >= VERSION_2:
        table = VERSION_2_REPEATED if repeats else VERSION_2_FIRST
    verdict = table.get((transaction.state, committed), Verdict.CONTRADICTION)
    if verdict is Verdict.FENCED:
        raise fenced_error(transaction, epoch)
    return verdict


def check_producer(transaction: Transaction, producer_id: int, epoch: int) -> None:
    """Raise unless this is who the id belongs to now."""
    if transaction.producer_id != producer_id:
        raise BrokerError(
            f"{transaction.transactional_id} belongs to producer id {transaction.producer_id}, not {producer_id}",
            code=Code.INVALID_PRODUCER_ID_MAPPING,
        )
    if transaction.epoch != epoch:
        raise fenced_error(transaction, epoch)
