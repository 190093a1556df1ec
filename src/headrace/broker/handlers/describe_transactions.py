"""Key 65: state, age and partitions of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeTransactionsRequest) -> Answer:
    states = [_describe(broker, context, name) for name in message.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


def _describe(broker: Broker, context: Context, name: str) -> TransactionState:
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name):
        return TransactionState(transactional_id=name, error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        found = broker.transactions.describe(name)
    except BrokerError as error:
        return TransactionState(transactional_id=name, error_code=error.code)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=name,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
            if allows(session, Operation.DESCRIBE, Resource.TOPIC, topic)
        ],
    )
