"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn and WriteTxnMarkers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.broker.catalog.topics import INTERNAL
from headrace.broker.context import Context
from headrace.broker.groups.commits import Commit
from headrace.broker.groups.group import MemberClaim
from headrace.broker.handlers.group_offsets import check_rows
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.broker.transactions.markers import IN_FLIGHT_MAX
from headrace.broker.transactions.transaction import VERSION_1, VERSION_2
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.api.group_offsets import (
    OffsetResultPartition,
    OffsetResultTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from headrace.wire.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.wire.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from headrace.wire.records import Marker

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- InitProducerId ------------------------------------------------------------------------------


INIT_FENCED_MIN_VERSION = 4  # of InitProducerId
FENCED_MIN_VERSION = 2  # of the other requests


async def handle_init_producer_id(
    broker: Broker, context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Assign a producer id and epoch. With a transactional id: bump its epoch, which fences the previous producer.

    v3+ a producer that recovers from an error sends its id and epoch (KIP-360) · v4+ PRODUCER_FENCED instead of
    INVALID_PRODUCER_EPOCH · v5+ TRANSACTION_ABORTABLE.
    """
    try:
        _authorize_init(broker, context, request.transactional_id)
        producer = await broker.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, _expected_producer(request)
        )
    except BrokerError as error:
        code = _client_code(error, context.api_version, fenced_since=INIT_FENCED_MIN_VERSION)
        return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _authorize_init(broker: Broker, context: Context, transactional_id: str | None) -> None:
    if transactional_id is not None:
        broker.authorizer.require(context.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    elif not broker.authorizer.allows_idempotent_write(context.session):
        raise BrokerError(code=Code.CLUSTER_AUTHORIZATION_FAILED)


def _expected_producer(request: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    given = _producer_of(request)
    if given == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
        return None
    if NO_PRODUCER_ID in given:
        raise BrokerError(
            "invalid request: producer id and epoch must both be set or both be -1", code=Code.INVALID_REQUEST
        )
    return given


# -- AddPartitionsToTxn --------------------------------------------------------------------------


BROKER_REQUESTS_MIN_VERSION = 4
ADD_TRANSACTIONS_V2_MIN_VERSION = 5


async def handle_add_partitions_to_txn(
    broker: Broker, context: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions.

    v0-3 are sent by producers, with one transaction · v2+ PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH · v4+ are
    sent by brokers, with several transactions to add to or only to verify · v5+ transactions v2.
    """
    if context.api_version < BROKER_REQUESTS_MIN_VERSION:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        codes = await _add_for_client(broker, context, transaction)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_added_topics(transaction.topics, codes))
    if not broker.authorizer.allows(context.session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
        return AddPartitionsToTxnResponse(error_code=Code.CLUSTER_AUTHORIZATION_FAILED)
    transaction_results = []
    for transaction in request.transactions:
        codes = await _add_for_broker(broker, context, transaction)
        results = _added_topics(transaction.topics, codes)
        transaction_results.append(
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)
        )
    return AddPartitionsToTxnResponse(results_by_transaction=transaction_results)


async def _add_for_client(
    broker: Broker, context: Context, transaction: AddPartitionsToTxnTransaction
) -> Mapping[TopicPartition, int]:
    partitions = _topic_partitions(transaction.topics)
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transaction.transactional_id):
        return dict.fromkeys(partitions, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    forbidden_topics = {
        topic
        for topic in {topic for topic, _ in partitions}
        if topic in INTERNAL or not allows(session, Operation.WRITE, Resource.TOPIC, topic)
    }
    return await _add_partitions(broker, context, transaction, _check_partitions(broker, partitions, forbidden_topics))


async def _add_for_broker(
    broker: Broker, context: Context, transaction: AddPartitionsToTxnTransaction
) -> Mapping[TopicPartition, int]:
    partitions = _topic_partitions(transaction.topics)
    codes = _check_partitions(broker, partitions, set())
    if not transaction.verify_only or any(codes.values()):
        return await _add_partitions(broker, context, transaction, codes)
    try:
        return broker.transactions.verify_partitions(
            transaction.transactional_id, _producer_of(transaction), partitions
        )
    except BrokerError as error:
        return dict.fromkeys(partitions, error.code)


async def _add_partitions(
    broker: Broker,
    context: Context,
    transaction: AddPartitionsToTxnTransaction,
    codes: Mapping[TopicPartition, Code],
) -> Mapping[TopicPartition, int]:
    """Add all partitions or none: one error prevents the others from being added."""
    if any(codes.values()):
        return {partition: code or Code.OPERATION_NOT_ATTEMPTED for partition, code in codes.items()}
    transactional_id, producer = transaction.transactional_id, _producer_of(transaction)
    try:
        if context.api_version >= ADD_TRANSACTIONS_V2_MIN_VERSION:
            await broker.transactions.add_partitions_v2(transactional_id, producer, codes.keys())
        else:
            await broker.transactions.add_partitions(transactional_id, producer, codes.keys())
    except BrokerError as error:
        return dict.fromkeys(codes, _client_code(error, context.api_version, fenced_since=FENCED_MIN_VERSION))
    return codes


def _check_partitions(
    broker: Broker, partitions: Sequence[TopicPartition], forbidden_topics: set[str]
) -> dict[TopicPartition, Code]:
    """Return why each partition cannot be added; NONE if it can."""
    codes: dict[TopicPartition, Code] = {}
    for partition in partitions:
        topic, index = partition
        known = broker.catalog.topics.by_name.get(topic)
        code = Code.NONE
        if topic in forbidden_topics:
            code = Code.TOPIC_AUTHORIZATION_FAILED
        elif known is None or not 0 <= index < len(known.partitions):
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        codes[partition] = code
    return codes


def _topic_partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _added_topics(
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


# -- AddOffsetsToTxn -----------------------------------------------------------------------------


async def handle_add_offsets_to_txn(
    broker: Broker, context: Context, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the offsets of a group to a transaction. v2+ PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH."""
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows(session, Operation.READ, Resource.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    try:
        await broker.transactions.add_offsets(request.transactional_id, _producer_of(request), request.group_id)
    except BrokerError as error:
        return AddOffsetsToTxnResponse(
            error_code=_client_code(error, context.api_version, fenced_since=FENCED_MIN_VERSION)
        )
    return AddOffsetsToTxnResponse()


# -- TxnOffsetCommit -----------------------------------------------------------------------------


LOADING_MIN_VERSION = 2
"""Older clients treat COORDINATOR_LOAD_IN_PROGRESS as fatal (KAFKA-7296)."""


async def handle_txn_offset_commit(
    broker: Broker, context: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Commit offsets that become visible when the producer's transaction is committed.

    v2+ leader epoch · v3+ member id and generation, to fence zombie consumers (KIP-447) · v5+ adds the group to the
    transaction; before, AddOffsetsToTxn must have done so.
    """
    allows, session = broker.authorizer.allows, context.session
    if not allows(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return fail_txn_offset_commit(context, request, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows(session, Operation.READ, Resource.GROUP, request.group_id):
        return fail_txn_offset_commit(context, request, Code.GROUP_AUTHORIZATION_FAILED)
    failed, rows = check_rows(broker, context, ((topic.name, topic.partitions) for topic in request.topics))
    commits = {
        partition: Commit(row.committed_offset, row.committed_leader_epoch, row.committed_metadata, topic_id=topic.id)
        for partition, (row, topic) in rows.items()
    }
    results: Mapping[TopicPartition, int] = {}
    if commits:
        claim = MemberClaim(request.member_id, request.generation_id, request.group_instance_id)
        try:
            results = await broker.groups.commit_in_transaction(
                request.transactional_id,
                _producer_of(request),
                request.group_id,
                claim,
                commits,
                version=context.api_version,
            )
        except BrokerError as error:
            results = dict.fromkeys(commits, _offset_commit_code(context, error.code))
    return _offset_commit_response(request, {**results, **failed})


def fail_txn_offset_commit(context: Context, request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    """Return a response in which every partition failed with the same code."""
    return _offset_commit_response(request, {}, _offset_commit_code(context, code))


def _offset_commit_code(context: Context, code: int) -> int:
    if code == Code.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < LOADING_MIN_VERSION:
        return Code.COORDINATOR_NOT_AVAILABLE
    return code


def _offset_commit_response(
    request: TxnOffsetCommitRequest, codes: Mapping[TopicPartition, int], code: int = Code.NONE
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            OffsetResultTopic(
                name=topic.name,
                partitions=[
                    OffsetResultPartition(
                        partition_index=row.partition_index,
                        error_code=codes.get(TopicPartition(topic.name, row.partition_index), code),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# -- EndTxn --------------------------------------------------------------------------------------


END_TRANSACTIONS_V2_MIN_VERSION = 5


async def handle_end_txn(broker: Broker, context: Context, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort a transaction. The response is sent when the decision is in the log; the markers follow.

    v2+ PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH · v5+ transactions v2: each end bumps the epoch, or assigns a
    new producer id when the epochs are exhausted; the response has both (KIP-890).
    """
    transactional_id = request.transactional_id
    if not broker.authorizer.allows(context.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
        return EndTxnResponse(error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    version = VERSION_2 if context.api_version >= END_TRANSACTIONS_V2_MIN_VERSION else VERSION_1
    try:
        producer = await broker.transactions.end_transaction(
            transactional_id, _producer_of(request), request.committed, version
        )
    except BrokerError as error:
        return EndTxnResponse(error_code=_client_code(error, context.api_version, fenced_since=FENCED_MIN_VERSION))
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


# -- WriteTxnMarkers -----------------------------------------------------------------------------


async def handle_write_txn_markers(
    broker: Broker, context: Context, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write transaction markers to partitions without consulting their coordinator.

    Sent by coordinators on other brokers, and by administrators to end a hanging transaction: one that is open in a
    partition but unknown to its coordinator.
    """
    authorized = any(
        broker.authorizer.allows(context.session, operation, Resource.CLUSTER, CLUSTER_NAME)
        for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)
    )
    return WriteTxnMarkersResponse(
        markers=[await _write_markers(broker, marker, authorized) for marker in request.markers]
    )


async def _write_markers(broker: Broker, marker: WritableTxnMarker, authorized: bool) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name, partitions=await _write_topic_markers(broker, marker, topic, authorized)
        )
        for topic in marker.topics
    ]
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


async def _write_topic_markers(
    broker: Broker, marker: WritableTxnMarker, topic: WritableTxnMarkerTopic, authorized: bool
) -> Sequence[WritableTxnMarkerPartitionResult]:
    codes: list[int] = []
    indexes = topic.partition_indexes
    for start in range(0, len(indexes), IN_FLIGHT_MAX):
        chunk = indexes[start : start + IN_FLIGHT_MAX]
        if authorized:
            codes += await asyncio.gather(*(_write_marker(broker, marker, topic.name, index) for index in chunk))
        else:
            codes += [Code.CLUSTER_AUTHORIZATION_FAILED] * len(chunk)
    return [
        WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        for index, code in zip(indexes, codes, strict=True)
    ]


async def _write_marker(broker: Broker, marker: WritableTxnMarker, topic: str, index: int) -> int:
    try:
        await broker.replicas.write_marker(
            topic,
            index,
            marker.producer_id,
            marker.producer_epoch,
            Marker(marker.transaction_result, marker.coordinator_epoch),
            transaction_version=max(marker.transaction_version, VERSION_1),
        )
    except BrokerError as error:
        return error.code
    return Code.NONE


class _WithProducer(Protocol):
    """A request, or a part of one, that names its producer."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...


def _producer_of(request: _WithProducer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)


def _client_code(error: BrokerError, api_version: int, *, fenced_since: int) -> int:
    """Return the code for a response: older clients know a fenced producer as INVALID_PRODUCER_EPOCH."""
    if error.code == Code.PRODUCER_FENCED and api_version < fenced_since:
        return Code.INVALID_PRODUCER_EPOCH
    return error.code
