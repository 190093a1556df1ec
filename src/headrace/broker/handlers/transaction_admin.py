"""DescribeTransactions, ListTransactions and DescribeProducers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import check_name
from headrace.broker.context import Context, HandlerResult
from headrace.broker.security.authorizer import Operation, Resource
from headrace.broker.transactions.transaction import BY_LABEL, Transaction
from headrace.errors import BrokerError, Code
from headrace.wire.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionResponse,
    ProducerState,
    TopicData,
    TopicRequest,
    TopicResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_PREFIX_PATTERN = re.compile(r"((?:[^\\.+*?()|\[\]{}^$]|\\[!-/:-@\[-^`{-~])*)\.\*")
"""A prefix and `.*`: characters that have no meaning in RE2, or escaped punctuation."""
_ESCAPED = re.compile(r"\\(.)")

# -- DescribeTransactions ------------------------------------------------------------------------


def handle_describe_transactions(
    broker: Broker, context: Context, request: DescribeTransactionsRequest
) -> HandlerResult:
    """Return state, start time and partitions of transactions."""
    states = [
        _describe_transaction(broker, context, transactional_id) for transactional_id in request.transactional_ids
    ]
    return DescribeTransactionsResponse(transaction_states=states)


def _describe_transaction(broker: Broker, context: Context, transactional_id: str) -> TransactionState:
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
        return TransactionState(
            transactional_id=transactional_id, error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
    try:
        transaction = broker.transactions.describe(transactional_id)
    except BrokerError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
            if allows(session, Operation.DESCRIBE, Resource.TOPIC, topic)
        ],
    )


# -- ListTransactions ----------------------------------------------------------------------------


def handle_list_transactions(broker: Broker, context: Context, request: ListTransactionsRequest) -> HandlerResult:
    """Return the transactional ids, filtered by state, producer id, duration (v1+) or pattern (v2+)."""
    unknown = [name for name in request.state_filters if name not in BY_LABEL]
    allows, session = broker.authorizer.allows, context.session
    producer_ids, now_ms = frozenset(request.producer_id_filters), broker.clock.time_ms()
    try:
        transactions = [
            transaction
            for transaction in broker.transactions.transactions()
            if _matches_filters(transaction, request, producer_ids, now_ms)
            and allows(session, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transaction.transactional_id)
        ]
        if request.transactional_id_pattern:
            transactions = _matching_pattern(transactions, request.transactional_id_pattern)
    except BrokerError as error:
        return ListTransactionsResponse(error_code=error.code, unknown_state_filters=unknown)
    states = [
        ListedTransaction(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.label,
        )
        for transaction in transactions
    ]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states)


def _matches_filters(
    transaction: Transaction, request: ListTransactionsRequest, producer_ids: frozenset[int], now_ms: int
) -> bool:
    return (
        (not request.state_filters or transaction.state.label in request.state_filters)
        and (not producer_ids or transaction.producer_id in producer_ids)
        and (request.duration_filter < 0 or now_ms - transaction.started_ms > request.duration_filter)
    )


def _matching_pattern(transactions: Sequence[Transaction], pattern: str) -> list[Transaction]:
    """Return the transactions whose whole id matches the pattern.

    The protocol prescribes RE2 patterns. RE2 also runs in linear time: with Python's `re` a client could block the
    event loop. pyarrow has it, and is imported here to keep it out of the broker's start-up. The pattern of a prefix,
    which Spark sinks send, needs neither.
    """
    prefix = _PREFIX_PATTERN.fullmatch(pattern)
    if prefix is not None:
        start = _ESCAPED.sub(r"\1", prefix[1])
        return [
            transaction
            for transaction in transactions
            if transaction.transactional_id.startswith(start) and "\n" not in transaction.transactional_id[len(start) :]
        ]
    import pyarrow as pa
    from pyarrow import compute

    try:
        # First alone: the group below could balance its parentheses.
        compute.match_substring_regex(pa.array([""]), pattern=pattern)
        names = pa.array([transaction.transactional_id for transaction in transactions], pa.string())
        matches = compute.match_substring_regex(names, pattern=rf"\A(?:{pattern})\z").to_pylist()
    except pa.ArrowInvalid as error:
        raise BrokerError(f"invalid pattern {pattern!r}: {error}", code=Code.INVALID_REGULAR_EXPRESSION) from error
    return [transaction for transaction, is_match in zip(transactions, matches, strict=True) if is_match]


# -- DescribeProducers ---------------------------------------------------------------------------


def handle_describe_producers(broker: Broker, context: Context, request: DescribeProducersRequest) -> HandlerResult:
    """Return the active producers of partitions, with the start offset of their open transactions."""
    return DescribeProducersResponse(topics=[_describe_topic(broker, context, topic) for topic in request.topics])


def _describe_topic(broker: Broker, context: Context, topic: TopicRequest) -> TopicResponse:
    try:
        check_name(topic.name)
        broker.authorizer.require(context.session, Operation.READ, Resource.TOPIC, topic.name)
    except BrokerError as error:
        partitions = [_failed_partition(index, error) for index in topic.partition_indexes]
    else:
        partitions = [_describe_partition(broker, topic.name, index) for index in topic.partition_indexes]
    return TopicResponse(name=topic.name, partitions=partitions)


def _describe_partition(broker: Broker, topic: str, index: int) -> PartitionResponse:
    try:
        producers = broker.replicas.partition(topic, index).log.producers.views()
    except BrokerError as error:
        return _failed_partition(index, error)
    states = [
        ProducerState(
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            last_sequence=row.last_sequence,
            last_timestamp=row.last_timestamp,
            coordinator_epoch=row.coordinator_epoch,
            current_txn_start_offset=row.current_txn_start_offset,
        )
        for row in producers
    ]
    return PartitionResponse(partition_index=index, active_producers=states)


def _failed_partition(index: int, error: BrokerError) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error))
