"""The state of share partitions, for the leaders of partitions and the group coordinator (KIP-932).

InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary. Only brokers use them: they need CLUSTER_ACTION.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation
from headrace.broker.share.state import SharePartitionKey, StateUpdate
from headrace.errors import BrokerError
from headrace.wire.api.share_state import (
    DeletePartition,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    InitializePartition,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    ReadPartition,
    ReadPartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateResult,
    ReadStateSummaryResult,
    StatePartitionResult,
    SummaryPartition,
    SummaryPartitionResult,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

P = TypeVar("P", InitializePartition, ReadPartition, WritePartition, DeletePartition, SummaryPartition)


async def handle_initialize_share_group_state(
    broker: Broker, context: Context, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Start new states of share partitions."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)

    async def initialize(key: SharePartitionKey, row: InitializePartition) -> None:
        await broker.share.coordinator.initialize(key, row.state_epoch, row.start_offset)

    results = [
        InitializeStateResult(
            topic_id=topic.topic_id,
            partitions=await _change(request.group_id, topic.topic_id, topic.partitions, initialize),
        )
        for topic in request.topics
    ]
    return InitializeShareGroupStateResponse(results=results)


async def handle_read_share_group_state(
    broker: Broker, context: Context, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Return the states of share partitions for their leader."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)

    async def read(topic_id: bytes, row: ReadPartition) -> ReadPartitionResult:
        try:
            key = SharePartitionKey(request.group_id, topic_id, row.partition)
            state = await broker.share.coordinator.read(key, row.leader_epoch)
        except BrokerError as error:
            return ReadPartitionResult(partition=row.partition, error_code=error.code, error_message=str(error.args[0]))
        return ReadPartitionResult(
            partition=row.partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=state.batches,
        )

    results = [
        ReadStateResult(
            topic_id=topic.topic_id, partitions=[await read(topic.topic_id, row) for row in topic.partitions]
        )
        for topic in request.topics
    ]
    return ReadShareGroupStateResponse(results=results)


async def handle_write_share_group_state(
    broker: Broker, context: Context, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Change the states of share partitions. v1+ the number of completed deliveries."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)

    async def write(key: SharePartitionKey, row: WritePartition) -> None:
        update = StateUpdate(
            row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count, row.state_batches
        )
        await broker.share.coordinator.write(key, update)

    results = [
        WriteStateResult(
            topic_id=topic.topic_id, partitions=await _change(request.group_id, topic.topic_id, topic.partitions, write)
        )
        for topic in request.topics
    ]
    return WriteShareGroupStateResponse(results=results)


async def handle_delete_share_group_state(
    broker: Broker, context: Context, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Delete the states of share partitions."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)

    async def delete(key: SharePartitionKey, row: DeletePartition) -> None:
        await broker.share.coordinator.delete(key)

    results = [
        DeleteStateResult(
            topic_id=topic.topic_id,
            partitions=await _change(request.group_id, topic.topic_id, topic.partitions, delete),
        )
        for topic in request.topics
    ]
    return DeleteShareGroupStateResponse(results=results)


async def handle_read_share_group_state_summary(
    broker: Broker, context: Context, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Return the start offsets of share partitions. v1+ the number of completed deliveries."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)

    def summary(topic_id: bytes, row: SummaryPartition) -> SummaryPartitionResult:
        try:
            state = broker.share.coordinator.summary(SharePartitionKey(request.group_id, topic_id, row.partition))
        except BrokerError as error:
            return SummaryPartitionResult(
                partition=row.partition, error_code=error.code, error_message=str(error.args[0])
            )
        return SummaryPartitionResult(
            partition=row.partition,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.complete_count,
        )

    results = [
        ReadStateSummaryResult(
            topic_id=topic.topic_id, partitions=[summary(topic.topic_id, row) for row in topic.partitions]
        )
        for topic in request.topics
    ]
    return ReadShareGroupStateSummaryResponse(results=results)


async def _change(
    group_id: str, topic_id: bytes, rows: Iterable[P], change: Callable[[SharePartitionKey, P], Awaitable[None]]
) -> list[StatePartitionResult]:
    """Change the states of a topic's partitions; return an error or success for each."""
    results = []
    for row in rows:
        try:
            await change(SharePartitionKey(group_id, topic_id, row.partition), row)
            results.append(StatePartitionResult(partition=row.partition))
        except BrokerError as error:
            results.append(
                StatePartitionResult(partition=row.partition, error_code=error.code, error_message=str(error.args[0]))
            )
    return results
