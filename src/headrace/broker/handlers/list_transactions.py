"""Key 66: which transactional ids there are, by state, producer id, age (v1) or pattern (v2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.transactions.states import BY_LABEL
from headrace.broker.transactions.transaction import Transaction
from headrace.errors import BrokerError, Code
from headrace.wire.api.list_transactions import ListTransactionsRequest, ListTransactionsResponse, TransactionState

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: ListTransactionsRequest) -> Answer:
    unknown = [name for name in message.state_filters if name not in BY_LABEL]
    allows, session = broker.authorizer.allows, context.session
    now_ms = broker.clock.time_ms()
    try:
        found = [
            transaction
            for transaction in broker.transactions.transactions()
            if _is_wanted(transaction, message, now_ms)
            and allows(session, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transaction.transactional_id)
        ]
        if message.transactional_id_pattern:
            found = _matching(found, message.transactional_id_pattern)
    except BrokerError as error:
        return ListTransactionsResponse(error_code=error.code, unknown_state_filters=unknown)
    states = [
        TransactionState(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.label,
        )
        for transaction in found
    ]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states)


def _is_wanted(transaction: Transaction, message: ListTransactionsRequest, now_ms: int) -> bool:
    return (
        (not message.state_filters or transaction.state.label in message.state_filters)
        and (not message.producer_id_filters or transaction.producer_id in message.producer_id_filters)
        and (message.duration_filter < 0 or now_ms - transaction.started_ms > message.duration_filter)
    )


def _matching(found: Sequence[Transaction], pattern: str) -> list[Transaction]:
    """Those whose whole id matches.

    By RE2, whose patterns are the protocol's and whose time is linear: with Python's own a client could stop the event
    loop by one nested star. It comes with pyarrow, which is imported here because hardly anybody asks.
    """
    import pyarrow as pa
    from pyarrow import compute

    try:
        compute.match_substring_regex(pa.array([""]), pattern=pattern)  # by itself: the brackets below could mend it
        names = pa.array([transaction.transactional_id for transaction in found], pa.string())
        hits = compute.match_substring_regex(names, pattern=rf"\A(?:{pattern})\z").to_pylist()
    except pa.ArrowInvalid as error:
        raise BrokerError(f"pattern {pattern!r}: {error}", code=Code.INVALID_REGULAR_EXPRESSION) from error
    return [transaction for transaction, hit in zip(found, hits, strict=True) if hit]
