"""Key 24: partitions join a transaction.

v0-3 come from producers, one transaction each · v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH · v4+ come from
other brokers, with many transactions, each to be added to or only to be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Context
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.broker.transactions.answers import code_of
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

FENCED_SINCE = 2
BROKERS_SINCE = 4
VERSION_2_SINCE = 5


async def handle(broker: Broker, context: Context, message: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    if context.api_version < BROKERS_SINCE:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=message.v3_and_below_transactional_id,
            producer_id=message.v3_and_below_producer_id,
            producer_epoch=message.v3_and_below_producer_epoch,
            topics=message.v3_and_below_topics,
        )
        codes = await _from_client(broker, context, transaction)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(transaction.topics, codes))
    if not broker.authorizer.allows(context.session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
        return AddPartitionsToTxnResponse(error_code=Code.CLUSTER_AUTHORIZATION_FAILED)
    answers = []
    for transaction in message.transactions:
        codes = await _from_broker(broker, context, transaction)
        results = _results(transaction.topics, codes)
        answers.append(AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results))
    return AddPartitionsToTxnResponse(results_by_transaction=answers)


async def _from_client(
    broker: Broker, context: Context, transaction: AddPartitionsToTxnTransaction
) -> Mapping[TopicPartition, int]:
    partitions = _partitions(transaction.topics)
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transaction.transactional_id):
        return dict.fromkeys(partitions, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    closed = {
        topic
        for topic in {topic for topic, _ in partitions}
        if topic in INTERNAL or not allows(session, Operation.WRITE, Resource.TOPIC, topic)
    }
    return await _add(broker, context, transaction, _refusals(broker, partitions, closed))


async def _from_broker(
    broker: Broker, context: Context, transaction: AddPartitionsToTxnTransaction
) -> Mapping[TopicPartition, int]:
    partitions = _partitions(transaction.topics)
    refusals = _refusals(broker, partitions, set())
    if not transaction.verify_only or any(refusals.values()):
        return await _add(broker, context, transaction, refusals)
    try:
        return broker.transactions.verify_partitions(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions
        )
    except BrokerError as error:
        return dict.fromkeys(partitions, error.code)


async def _add(
    broker: Broker,
    context: Context,
    transaction: AddPartitionsToTxnTransaction,
    refusals: Mapping[TopicPartition, Code],
) -> Mapping[TopicPartition, int]:
    """All partitions or none: one that cannot join keeps the others out."""
    if any(refusals.values()):
        return {partition: code or Code.OPERATION_NOT_ATTEMPTED for partition, code in refusals.items()}
    who = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    try:
        if context.api_version >= VERSION_2_SINCE:
            await broker.transactions.add_patiently(*who, refusals.keys())
        else:
            await broker.transactions.add_partitions(*who, refusals.keys())
    except BrokerError as error:
        return dict.fromkeys(refusals, code_of(error, context.api_version, fenced_since=FENCED_SINCE))
    return refusals


def _refusals(broker: Broker, partitions: Sequence[TopicPartition], closed: set[str]) -> dict[TopicPartition, Code]:
    """Why each partition cannot join; NONE if it can."""
    codes: dict[TopicPartition, Code] = {}
    for partition in partitions:
        topic, index = partition
        known = broker.catalog.topics.by_name.get(topic)
        code = Code.NONE
        if topic in closed:
            code = Code.TOPIC_AUTHORIZATION_FAILED
        elif known is None or not 0 <= index < len(known.partitions):
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        codes[partition] = code
    return codes


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, int]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[TopicPartition(topic.name, index)]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
